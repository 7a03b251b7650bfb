//! Every key of a store.

use crate::error::Result;
use crate::object::{BLOCK, Found, Header, KeyName};
use crate::storage::Storage;

use super::io::IoOptions;
use super::verify::pass;
use super::{Progress, Store};

/// An object of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: KeyName,
    /// Bytes of data.
    pub length: u32,
    /// CRC-64/NVME of the data.
    pub data_crc: u64,
    /// Its header is damaged: it cannot be read.
    pub damaged: bool,
}

/// Gives each object of an open store, as they lie on the drives. Returns how many could not be
/// named, because their headers cannot be read.
///
/// # Errors
///
/// Of the drives' queue, or of `each`.
pub fn list<S: Storage>(
    storage: &S,
    store: &Store,
    options: &IoOptions,
    progress: &Progress,
    each: &mut dyn FnMut(&Listed) -> Result<()>,
) -> Result<u64> {
    let objects = &*store.objects;
    let mut nameless =
        store.report.findings.iter().filter(|found| found.key.is_none()).count() as u64;
    pass(storage, objects, BLOCK, options, progress, &|_| BLOCK as u32, &mut |_, entry, bytes| {
        let found = bytes
            .ok()
            .and_then(|bytes| bytes.first_chunk())
            .map(|block| Header::classify(block, objects.store(), objects.place(entry.slot)));
        let (header, damaged) = match found {
            Some(Found::Object { header, .. } | Found::Torn(header)) => (header, false),
            Some(Found::Damaged { known: Some(header), .. }) => (header, true),
            _ => {
                nameless += 1;
                return Ok(());
            }
        };
        each(&Listed {
            key: header.key(),
            length: header.length(),
            data_crc: header.data_crc(),
            damaged,
        })
    })?;
    Ok(nameless)
}
