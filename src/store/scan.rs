//! The restart: the header of every slot is read, at full depth, and what a crash has left half
//! done is put right before anybody is served.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, IoStatus, Kind, Result};
use crate::host::affinity;
use crate::object::{BLOCK, Damage, Entry, Found, Header, KeyName, Objects, Offer, Part};
use crate::storage::{DriveInfo, Operation, Storage};

use super::Progress;
use super::io::{Io, IoOptions, Sweep};
use super::open::OpenOptions;

/// Something wrong with a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The object's key, where it is known.
    pub key: Option<KeyName>,
    /// Name of the drive.
    pub drive: String,
    /// Byte offset of the slot.
    pub offset: u64,
    /// What is wrong.
    pub what: What,
}

/// What is wrong with a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The bytes are not those that were written.
    Damage(Damage),
    /// The drive does not give them.
    Unreadable(IoStatus),
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            What::Damage(damage) => damage.fmt(f),
            What::Unreadable(status) => write!(f, "cannot be read: {status}"),
        }
    }
}

/// What a scan has found, and how fast.
#[derive(Debug, Clone, Default)]
pub struct ScanReport {
    /// Slots looked at: all of them.
    pub slots: u64,
    /// Time that reading them took.
    pub elapsed: Duration,
    /// Headers of older versions of objects: cleared, where the store was opened to be written.
    pub superseded: u64,
    /// Objects whose header a crash had cut short: written anew, where the store was opened to be
    /// written.
    pub torn: u64,
    /// What is wrong, in the order of the slots.
    pub findings: Vec<Finding>,
}

/// Most findings that are logged one by one.
const MOST_LOGGED: usize = 20;

/// What one thread has found.
#[derive(Debug, Default)]
struct Share {
    /// Slots whose headers are to be cleared.
    losers: Vec<u32>,
    /// Slots with the object's header in the copy only.
    torn: Vec<u32>,
    wrong: Vec<(u32, Option<KeyName>, What)>,
    highest: u64,
}

/// One bit for each slot that is not free.
struct Taken(Box<[AtomicU64]>);

impl Taken {
    fn new(slots: u32) -> Self {
        Self((0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn set(&self, slot: u32) {
        self.0[slot as usize / 64].fetch_or(1 << (slot % 64), Ordering::Relaxed);
    }

    fn clear(&self, slot: u32) {
        self.0[slot as usize / 64].fetch_and(!(1 << (slot % 64)), Ordering::Relaxed);
    }

    fn get(&self, slot: u32) -> bool {
        self.0[slot as usize / 64].load(Ordering::Relaxed) & 1 << (slot % 64) != 0
    }
}

/// Fills the index and the free slots of `objects`.
pub(super) fn scan<S: Storage>(
    storage: &S,
    objects: &Objects,
    options: &OpenOptions,
    progress: &Progress,
) -> Result<ScanReport> {
    let (infos, layout) = (storage.drives(), objects.layout());
    let slots = u64::from(layout.slots());
    progress.begin(slots);
    let taken = Taken::new(layout.slots());
    let begun = Instant::now();
    let threads = options.cores.len().clamp(1, layout.parts().len());
    let shares: Vec<Result<Share>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let taken = &taken;
                scope.spawn(move || {
                    if let Some(core) = options.cores.get(thread) {
                        affinity::pin(*core)?;
                    }
                    let parts = layout.parts().iter().skip(thread).step_by(threads);
                    let parts: Vec<Part> = parts.copied().collect();
                    read_headers(storage, objects, &parts, taken, &options.io, progress)
                })
            })
            .collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, Result<Share>>| {
            handle.join().unwrap_or_else(|_| {
                Err(Error::new(Kind::Device, "a thread of the scan panicked; see its message"))
            })
        };
        handles.into_iter().map(join).collect()
    });
    let mut all = Share::default();
    for share in shares {
        let share = share?;
        all.losers.extend(share.losers);
        all.torn.extend(share.torn);
        all.wrong.extend(share.wrong);
        all.highest = all.highest.max(share.highest);
    }
    let elapsed = begun.elapsed();
    if progress.is_stopped() {
        return Err(Error::new(Kind::Busy, "stopped while the store was opened")
            .remedy("run the command again; nothing was changed"));
    }
    objects.at_least(all.highest);
    all.wrong.sort_by_key(|(slot, ..)| *slot);
    // A torn header that has lost to a newer one is cleared with the others.
    all.losers.sort_unstable();
    all.torn.retain(|slot| all.losers.binary_search(slot).is_err());
    let report = ScanReport {
        slots,
        elapsed,
        superseded: all.losers.len() as u64,
        torn: all.torn.len() as u64,
        findings: all.wrong.iter().map(|wrong| finding(objects, infos, wrong)).collect(),
    };
    log_findings(&report);
    if options.writable {
        recover(storage, objects, &all, &taken, &options.io)?;
        for part in layout.parts() {
            let of_part = part.first..part.first + part.slots;
            of_part.rev().filter(|slot| !taken.get(*slot)).for_each(|slot| objects.give(slot));
        }
    }
    Ok(report)
}

fn read_headers<S: Storage>(
    storage: &S,
    objects: &Objects,
    parts: &[Part],
    taken: &Taken,
    options: &IoOptions,
    progress: &Progress,
) -> Result<Share> {
    let mut io = Io::new(storage, BLOCK, options)?;
    let (layout, infos) = (objects.layout(), storage.drives());
    let mut share = Share::default();
    // The drives take turns, so that all of them are at work.
    let mut cursors: Vec<(Part, u32)> = parts.iter().map(|part| (*part, 0)).collect();
    let mut turn = 0;
    let next = || {
        while !cursors.is_empty() {
            let at = turn % cursors.len();
            let (part, cursor) = &mut cursors[at];
            if *cursor == part.slots {
                cursors.swap_remove(at);
                continue;
            }
            let (slot, offset) = (part.first + *cursor, layout.offset(u64::from(*cursor)));
            *cursor += 1;
            turn += 1;
            let (drive, tag, len) = (part.drive, u64::from(slot), BLOCK as u32);
            return Some(Sweep { drive, offset, len, tag });
        }
        None
    };
    let handle = |tag: u64, bytes: Result<&[u8], IoStatus>| {
        let slot = tag as u32;
        progress.add(1, BLOCK as u64);
        match bytes {
            Ok(bytes) => {
                let block = bytes.first_chunk().expect("a whole block");
                enter(objects, slot, block, taken, &mut share);
                Ok(())
            }
            Err(status @ (IoStatus::Gone | IoStatus::Short)) => {
                let (drive, offset) = layout.locate(slot);
                Err(gone(&infos[usize::from(drive)], offset, status))
            }
            Err(status) => {
                taken.set(slot);
                objects.set_aside(slot);
                share.wrong.push((slot, None, What::Unreadable(status)));
                Ok(())
            }
        }
    };
    io.sweep(progress, next, handle)?;
    Ok(share)
}

fn gone(info: &DriveInfo, offset: u64, status: IoStatus) -> Error {
    Error::new(Kind::Device, format!("{}: the header at byte {offset} cannot be read", info.name))
        .caused_by(status.to_string())
        .remedy("check the drive (`millrace device list`), then run the command again")
}

/// Takes one slot's first block into account.
fn enter(objects: &Objects, slot: u32, block: &[u8; BLOCK], taken: &Taken, share: &mut Share) {
    let found = Header::classify(block, objects.store(), objects.place(slot));
    if found == Found::Free {
        return;
    }
    taken.set(slot);
    let header = match found {
        Found::Object { header, copy } => {
            if let Some(damage) = copy {
                share.wrong.push((slot, Some(header.key()), What::Damage(damage)));
            }
            header
        }
        Found::Torn(header) => {
            share.torn.push(slot);
            header
        }
        Found::Damaged { known: Some(header), why } => {
            share.wrong.push((slot, Some(header.key()), What::Damage(why)));
            header
        }
        Found::Damaged { known: None, why } => {
            objects.set_aside(slot);
            share.wrong.push((slot, None, What::Damage(why)));
            return;
        }
        Found::Free => unreachable!("looked at before"),
    };
    let damaged = matches!(found, Found::Damaged { .. });
    share.highest = share.highest.max(header.sequence());
    if header.length() > objects.layout().object_limit() {
        // Behind a right CRC: another program's.
        objects.set_aside(slot);
        share.wrong.push((slot, Some(header.key()), What::Damage(Damage::Length)));
        return;
    }
    let entry = Entry { slot, length: header.length(), sequence: header.sequence(), damaged };
    match objects.enter(&header.digest(), entry) {
        Offer::New => {}
        Offer::Newer(old) => share.losers.push(old.slot),
        Offer::Older(_) => share.losers.push(slot),
    }
}

fn finding(
    objects: &Objects,
    infos: &[DriveInfo],
    (slot, key, what): &(u32, Option<KeyName>, What),
) -> Finding {
    let (drive, offset) = objects.layout().locate(*slot);
    let drive = infos[usize::from(drive)].name.clone();
    Finding { key: *key, drive, offset, what: *what }
}

fn log_findings(report: &ScanReport) {
    for found in report.findings.iter().take(MOST_LOGGED) {
        let key = found.key.map_or("an object of unknown key".to_owned(), |key| key.to_string());
        log::warn!("{}, byte {}: {key}: {}", found.drive, found.offset, found.what);
    }
    let more = report.findings.len().saturating_sub(MOST_LOGGED);
    if more > 0 {
        log::warn!("{more} more slots with damage; `millrace store verify` lists them");
    }
}

/// Clears the headers that have lost, and completes those that a crash has cut short. Only then is
/// a slot free, or an object one that can be read.
fn recover<S: Storage>(
    storage: &S,
    objects: &Objects,
    all: &Share,
    taken: &Taken,
    options: &IoOptions,
) -> Result<()> {
    if all.losers.is_empty() && all.torn.is_empty() {
        return Ok(());
    }
    let mut io = Io::new(storage, BLOCK, &IoOptions { depth: 1, ..*options })?;
    let (layout, infos) = (objects.layout(), storage.drives());
    let failed = |slot: u32, status: IoStatus| {
        let (drive, offset) = layout.locate(slot);
        let what = format!("{}, byte {offset}", infos[usize::from(drive)].name);
        Error::new(Kind::Device, format!("{what}: a header that has to be written anew is not"))
            .caused_by(status.to_string())
            .remedy("check the drive; the store can be read meanwhile (millrace store ls, verify)")
    };
    for slot in &all.losers {
        let (drive, offset) = layout.locate(*slot);
        io.carry_out(Operation::WriteDurable, drive, offset, &mut [0; BLOCK])
            .map_err(|status| failed(*slot, status))?;
        taken.clear(*slot);
    }
    for slot in &all.torn {
        let (drive, offset) = layout.locate(*slot);
        let mut block = [0; BLOCK];
        io.carry_out(Operation::Read, drive, offset, &mut block)
            .map_err(|status| failed(*slot, status))?;
        let Found::Torn(header) = Header::classify(&block, objects.store(), objects.place(*slot))
        else {
            return Err(failed(*slot, IoStatus::Short));
        };
        let header = *header;
        header.write_block(&mut block);
        io.carry_out(Operation::WriteDurable, drive, offset, &mut block)
            .map_err(|status| failed(*slot, status))?;
    }
    log::info!(
        "after a crash: {} superseded headers cleared, {} completed",
        all.losers.len(),
        all.torn.len()
    );
    Ok(())
}
