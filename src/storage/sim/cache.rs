//! The volatile cache of drives: which writes a loss of power may take, sector by sector.
//!
//! ```text
//!   submitted   the write's sectors are candidates: a crash may leave any of them
//!   completed   reads see it; a durable write's sectors are on the medium now
//!   sync        so are those of all writes that had completed when it was submitted
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use super::random::Random;
use crate::storage::{Command, Operation};

/// What a drive writes wholly or not at all, in bytes.
const SECTOR: usize = 512;

type Sector = [u8; SECTOR];

/// A command that the cache has taken note of.
#[derive(Debug)]
pub(super) enum Entry {
    Read,
    /// The write of this number, and its drive.
    Write(u64, u16),
    /// The durable write of this number.
    Durable(u64),
    /// A sync of a drive: the writes that had completed there before it.
    Sync(BTreeSet<u64>),
}

/// What is written to a sector and not on the medium, by the number of the write.
type Versions = BTreeMap<u64, Sector>;

#[derive(Debug)]
struct State {
    /// What is on the medium, for each drive.
    medium: Vec<Vec<u8>>,
    waiting: BTreeMap<(u16, u64), Versions>,
    /// Writes that have completed and are not on the medium, with their drive.
    completed: BTreeMap<u64, u16>,
    next: u64,
}

/// What the drives have on their media, and in their caches.
#[derive(Debug)]
pub(super) struct Cache(Mutex<State>);

impl Cache {
    /// With these contents on the media.
    pub fn new(images: impl Iterator<Item = Vec<u8>>) -> Self {
        Self(Mutex::new(State {
            medium: images.collect(),
            waiting: BTreeMap::new(),
            completed: BTreeMap::new(),
            next: 0,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes note of a command when it is submitted.
    pub fn submitted(&self, command: &Command) -> Entry {
        let mut state = self.state();
        match command.operation {
            Operation::Read => Entry::Read,
            Operation::Sync => {
                let of_drive = state.completed.iter().filter(|(_, on)| **on == command.drive);
                Entry::Sync(of_drive.map(|(write, _)| *write).collect())
            }
            Operation::Write | Operation::WriteDurable => {
                let write = state.next;
                state.next += 1;
                let first = command.offset / SECTOR as u64;
                let bytes = command.slot.bytes(command.len as usize);
                for (sector, bytes) in (first..).zip(bytes.chunks_exact(SECTOR)) {
                    let versions = state.waiting.entry((command.drive, sector)).or_default();
                    versions.insert(write, *bytes.first_chunk().expect("a whole sector"));
                }
                match command.operation {
                    Operation::WriteDurable => Entry::Durable(write),
                    _ => Entry::Write(write, command.drive),
                }
            }
        }
    }

    /// Takes note of a success, where reads see the write already.
    pub fn completed(&self, entry: Entry) {
        let mut state = self.state();
        match entry {
            Entry::Read => {}
            Entry::Write(write, drive) => {
                state.completed.insert(write, drive);
            }
            Entry::Durable(write) => state.settle(&BTreeSet::from([write])),
            Entry::Sync(writes) => {
                state.settle(&writes);
                state.completed.retain(|write, _| !writes.contains(write));
            }
        }
    }

    /// What the media have after a loss of power.
    pub fn crash(&self, random: &mut Random) -> Vec<Vec<u8>> {
        let state = self.state();
        let mut left = state.medium.clone();
        let writes: BTreeSet<u64> =
            state.waiting.values().flat_map(|versions| versions.keys().copied()).collect();
        // Either the order of writes is kept up to some write, or it is not.
        let ordered = random.chance(0.5);
        let keep = [0.0, 0.1, 0.5, 0.9, 1.0][random.between(0, 4) as usize];
        let cut = random.between(0, writes.len() as u64) as usize;
        let cut = writes.iter().nth(cut).copied().unwrap_or(u64::MAX);
        for ((drive, sector), versions) in &state.waiting {
            let kept = if ordered {
                let torn = versions.get_key_value(&cut).filter(|_| random.chance(0.5));
                torn.or_else(|| versions.range(..cut).next_back())
            } else if random.chance(keep) {
                let chosen = random.between(0, versions.len() as u64 - 1) as usize;
                versions.iter().nth(chosen)
            } else {
                None
            };
            if let Some((_, bytes)) = kept {
                let at = *sector as usize * SECTOR;
                left[usize::from(*drive)][at..at + SECTOR].copy_from_slice(bytes);
            }
        }
        left
    }
}

impl State {
    /// Moves the sectors of these writes to the medium. What was written to a sector before them
    /// cannot come back.
    fn settle(&mut self, writes: &BTreeSet<u64>) {
        let State { medium, waiting, .. } = self;
        waiting.retain(|(drive, sector), versions| {
            let newest = versions.keys().rev().find(|write| writes.contains(write)).copied();
            if let Some(newest) = newest {
                let at = *sector as usize * SECTOR;
                let to = &mut medium[usize::from(*drive)][at..at + SECTOR];
                to.copy_from_slice(&versions[&newest]);
                versions.retain(|write, _| *write > newest);
            }
            !versions.is_empty()
        });
    }
}
