//! `millrace put` and `millrace delete`: one object from standard input, or away.

use std::io::Read;

use clap::Args;

use super::connection::ObjectArgs;
use crate::error::{Context, Error, Result};
use crate::units::format_size;

/// Flags of `millrace put`.
#[derive(Debug, Clone, Args)]
pub struct PutArgs {
    #[command(flatten)]
    object: ObjectArgs,
}

/// Flags of `millrace delete`.
#[derive(Debug, Clone, Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    object: ObjectArgs,
}

/// Reads standard input to its end and puts it. When it returns well, the object is on the drive
/// and survives a crash.
pub fn put(args: &PutArgs) -> Result<()> {
    let mut client = args.object.connect()?;
    let most = client.max_object();
    let mut data = Vec::new();
    std::io::stdin()
        .lock()
        .take(u64::from(most) + 1)
        .read_to_end(&mut data)
        .context(|| "cannot read the object from standard input".into())?;
    if data.len() > most as usize {
        let limit = format_size(most.into());
        return Err(Error::usage(format!(
            "standard input has more than {limit}, the store's limit"
        ))
        .remedy("split it, or make a store with a larger --object-size"));
    }
    client.put(args.object.key(), &data)
}

/// Deletes the object; an error if there is none.
pub fn delete(args: &DeleteArgs) -> Result<()> {
    args.object.connect()?.delete(args.object.key())
}
