//! The command line of millrace.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use millrace::commands::device::{self, DeviceArgs};
use millrace::error::Kind;

/// Serves NVMe reads to remote clients, and explains which data path is faster
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists NVMe drives and moves them between the kernel's driver and vfio-pci
    Device(DeviceArgs),
}

fn main() -> ExitCode {
    let Command::Device(args) = Cli::parse().command;
    match device::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("millrace: {}", error.report());
            ExitCode::from(if error.kind() == Kind::Usage { 2 } else { 1 })
        }
    }
}
