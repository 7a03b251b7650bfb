//! Reading everything back.

use crate::check::crc;
use crate::error::{IoStatus, Result};
use crate::object::{BLOCK, Damage, Digest, Entry, Found, Header, KeyName, Objects};
use crate::storage::Storage;

use super::io::{Io, IoOptions, Sweep};
use super::scan::What;
use super::{Finding, Progress, Store};

/// What was read back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Objects that are whole.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What is wrong, slot by slot: with headers, and with data.
    pub findings: Vec<Finding>,
    /// True where it was stopped: not everything was read.
    pub stopped: bool,
}

/// Reads every object of an open store, at full depth, and compares header, key, length and CRC.
/// `each` learns of what is wrong as it is found. Writes nothing.
///
/// # Errors
///
/// Of the drives' queue. An object that cannot be read is a finding.
pub fn verify<S: Storage>(
    storage: &S,
    store: &Store,
    options: &IoOptions,
    progress: &Progress,
    each: &mut dyn FnMut(&Finding),
) -> Result<VerifyReport> {
    let (objects, infos) = (&*store.objects, storage.drives());
    let mut report = VerifyReport::default();
    // What the scan has found: objects that are in no index, and copies of headers.
    for found in &store.report.findings {
        each(found);
        report.findings.push(found.clone());
    }
    let len_of = |entry: &Entry| objects.layout().transfer_len(entry.length);
    let size = objects.layout().slot_size() as usize;
    pass(storage, objects, size, options, progress, &len_of, &mut |digest, entry, bytes| {
        let (key, what) = judge(objects, digest, entry, bytes);
        // The scan has named it.
        if entry.damaged {
            return Ok(());
        }
        match what {
            None => {
                report.objects += 1;
                report.bytes += u64::from(entry.length);
            }
            Some(what) => {
                let (drive, offset) = objects.layout().locate(entry.slot);
                let drive = infos[usize::from(drive)].name.clone();
                let found = Finding { key, drive, offset, what };
                each(&found);
                report.findings.push(found);
            }
        }
        Ok(())
    })?;
    report.stopped = progress.is_stopped();
    Ok(report)
}

/// Compares a slot's bytes with what the index says of them; gives the key, where it is known.
fn judge(
    objects: &Objects,
    digest: &Digest,
    entry: &Entry,
    bytes: Result<&[u8], IoStatus>,
) -> (Option<KeyName>, Option<What>) {
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(status) => return (None, Some(What::Unreadable(status))),
    };
    let (store, place) = (objects.store(), objects.place(entry.slot));
    let block: &[u8; BLOCK] = bytes.first_chunk().expect("a block and more");
    let header = match Header::classify(block, store, place) {
        // After a crash, in a store that was not opened to be written since.
        Found::Object { header, .. } | Found::Torn(header) => header,
        Found::Damaged { known, why } => {
            return (known.map(Header::key), Some(What::Damage(why)));
        }
        Found::Free => return (None, Some(What::Damage(Damage::Missing))),
    };
    let key = header.key();
    let data = &bytes[BLOCK..BLOCK + entry.length as usize];
    let wrong = header
        .expect(store, place, digest, entry.sequence, entry.length)
        .err()
        .or((key.digest() != *digest).then_some(Damage::Key))
        .or((crc(data) != header.data_crc()).then_some(Damage::Data));
    (Some(key), wrong.map(What::Damage))
}

/// Reads the start of every slot that has an object, in the order of the slots.
pub(super) fn pass<S: Storage>(
    storage: &S,
    objects: &Objects,
    slot_size: usize,
    options: &IoOptions,
    progress: &Progress,
    len_of: &dyn Fn(&Entry) -> u32,
    handle: &mut impl FnMut(&Digest, &Entry, Result<&[u8], IoStatus>) -> Result<()>,
) -> Result<()> {
    let mut io = Io::new(storage, slot_size, options)?;
    progress.begin(objects.index().len());
    let mut slots = 0..objects.layout().slots();
    let next = || {
        let (slot, entry) =
            slots.find_map(|slot| objects.index().at(slot).map(|(_, entry)| (slot, entry)))?;
        let (drive, offset) = objects.layout().locate(slot);
        Some(Sweep { drive, offset, len: len_of(&entry), tag: slot.into() })
    };
    io.sweep(progress, next, |tag, bytes| {
        let (digest, entry) = objects.index().at(tag as u32).expect("nobody changes the store");
        progress.add(1, bytes.map_or(0, |bytes| bytes.len() as u64));
        handle(&digest, &entry, bytes)
    })
}
