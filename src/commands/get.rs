//! `millrace get`: one object to standard output.

use std::io::Write;

use clap::Args;

use super::connection::ObjectArgs;
use crate::error::{Context, Result};

/// Flags of `millrace get`.
#[derive(Debug, Clone, Args)]
pub struct GetArgs {
    #[command(flatten)]
    object: ObjectArgs,
}

/// Gets the object, compares its CRC-64/NVME, and writes it out: all of it or nothing.
pub fn run(args: &GetArgs) -> Result<()> {
    let data = args.object.connect()?.get(args.object.key())?;
    let mut out = std::io::stdout().lock();
    out.write_all(&data)
        .and_then(|()| out.flush())
        .context(|| "cannot write the object to standard output".into())
}
