//! What is on a drive before a store is made on it, read through the backend: a drive that is bound
//! to vfio-pci has no device node to look at.

use crate::error::{Error, Kind, Result};
use crate::host::signature;
use crate::limits::SLOT_ALIGN;
use crate::storage::{DriveInfo, Operation, Queue};

use super::io::Io;

/// Bytes of one read.
pub(super) const CHUNK: usize = 64 << 10;

/// Names of everything that the drive holds.
///
/// # Errors
///
/// `Device` where it cannot be read.
pub(super) fn probe<Q: Queue>(
    io: &mut Io<Q>,
    number: u16,
    info: &DriveInfo,
) -> Result<Vec<&'static str>> {
    let mut block = vec![0; CHUNK];
    let mut read = |offset: u64, bytes: &mut [u8]| {
        let (mut at, end) = (offset, offset + bytes.len() as u64);
        while at < end {
            // Whole blocks, whatever was asked for.
            let start = at - at % SLOT_ALIGN as u64;
            let len = (end - start).next_multiple_of(info.block_size.into()).min(CHUNK as u64);
            let block = &mut block[..len as usize];
            io.carry_out(Operation::Read, number, start, block).map_err(|status| {
                let what = format!("{}: cannot read bytes {start}+{len}", info.name);
                Error::new(Kind::Device, what).caused_by(status.to_string())
            })?;
            let (skip, to) = ((at - start) as usize, (at - offset) as usize);
            let count = (block.len() - skip).min(bytes.len() - to);
            bytes[to..to + count].copy_from_slice(&block[skip..skip + count]);
            at += count as u64;
        }
        Ok(())
    };
    signature::probe_with(info.capacity, &mut read)
}
