//! The `millrace` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    millrace::cli::main()
}
