//! The command line: what can be said, and its first checks, which need no I/O.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands::{bench, compare, device, doctor, get, local, predict, put, serve, store};
use crate::error::{Error, Kind, Result};

/// Serves NVMe reads to remote clients over RDMA or TCP, through io_uring or SPDK.
///
/// Sizes are written 4KiB, 1MiB, 1028KiB; durations 500ms, 10s, 2m.
#[derive(Debug, Parser)]
#[command(name = "millrace", version = version(), propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve drives to clients
    Serve(serve::ServeArgs),
    /// Load a server and measure it
    Bench(bench::BenchArgs),
    /// Load the storage path of this machine alone, without a network
    Local(local::LocalArgs),
    /// Get one object, to standard output
    Get(get::GetArgs),
    /// Put one object, from standard input
    Put(put::PutArgs),
    /// Delete one object
    Delete(put::DeleteArgs),
    /// Predict the throughput of a set of servers, and what limits it
    Predict(predict::PredictArgs),
    /// Compare data paths and switches on the same drives, and say why they differ
    Compare(compare::CompareArgs),
    /// List NVMe drives, and move them between the kernel's driver and vfio-pci
    Device(device::DeviceArgs),
    /// Is this host fit for the job, what stands in its way, and what is its ceiling?
    ///
    /// Changes nothing, opens no drive and wakes none. Exit code: 0 all well, 3 warnings, 4
    /// failures.
    Doctor(doctor::DoctorArgs),
    /// Make, fill, list and verify stores of objects on drives
    Store(store::StoreArgs),
}

fn version() -> &'static str {
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("MILLRACE_REVISION"), ")")
}

/// Runs the program: exit code 0 for done, 1 for failed, 2 for wrong usage; doctor also 3 and 4.
pub fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info"))
        .target(env_logger::Target::Stderr)
        .init();
    let outcome = match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Local(args) => local::run(args),
        Command::Get(args) => get::run(&args),
        Command::Put(args) => put::put(&args),
        Command::Delete(args) => put::delete(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Device(args) => device::run(&args),
        Command::Doctor(args) => return finish(doctor::run(&args)),
        Command::Store(args) => store::run(&args),
    };
    finish(outcome.map(|()| 0))
}

fn finish(outcome: Result<u8>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("millrace: {}", error.report());
            exit_code(&error)
        }
    }
}

fn exit_code(error: &Error) -> ExitCode {
    match error.kind() {
        Kind::Usage => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
