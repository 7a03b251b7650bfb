//! Drives that misbehave on purpose, the same way for the same seed.
//!
//! They have the contents of drives in RAM ([`mem`](super::mem)). Every poll of a queue is one
//! turn; latencies count in turns (deterministic: the n-th run of a test does what the first did)
//! or in real time. Faults are drawn from a generator seeded per queue, or tied to places.

mod cache;
mod fault;
mod queue;
mod random;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use fault::{Fault, FaultAt};
pub use queue::SimQueue;

use self::cache::Cache;
use self::random::Random;
use super::mem::{self, MemDrives};
use super::{DriveInfo, OpenMode, Storage, check_depth};
use crate::error::{Error, IoStatus, Result};
use crate::memory::{Arena, ArenaSpec, Pages};

/// How long a command takes, drawn evenly between both bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latency {
    /// In turns of the queue: the least and the most. 0 completes with the next poll.
    Turns(u32, u32),
    /// In real time: the least and the most.
    Time(Duration, Duration),
}

/// What the drives do.
#[derive(Debug, Clone)]
pub struct SimSpec {
    /// Seed of everything that is drawn. Each queue draws from a generator of its own, seeded by
    /// this and by its number.
    pub seed: u64,
    /// Size of each drive in bytes.
    pub drives: Vec<u64>,
    /// Whether writes are taken.
    pub mode: OpenMode,
    /// Latency of a command, and of each part that a short transfer leaves.
    pub latency: Latency,
    /// One command in so many takes [`SimSpec::tail_factor`] times as long; 0 for none.
    pub tail_one_in: u32,
    /// See [`SimSpec::tail_one_in`].
    pub tail_factor: u32,
    /// Whether commands end in the order of their latency; else in that of their submission.
    pub reorder: bool,
    /// Probability that a command ends with [`SimSpec::error`].
    pub error_rate: f64,
    /// Outcome of the commands that [`SimSpec::error_rate`] hits.
    pub error: IoStatus,
    /// Probability that a transfer stops at a block boundary before its end. The queue sends the
    /// rest again, as a real one does: it shows in [`Completion::commands`](super::Completion).
    pub short_rate: f64,
    /// Probability that a submission is answered with `Busy` though there is room.
    pub busy_rate: f64,
    /// Probability that a command never ends.
    pub stuck_rate: f64,
    /// Faults tied to a drive and a range of it.
    pub faults: Vec<FaultAt>,
    /// A drive, and the number of its commands (over all queues) after which it is gone.
    pub gone_after: Option<(u16, u64)>,
    /// Whether the drives have a volatile cache: what is not durable may be lost to
    /// [`SimStorage::crash`]. Keeping account of that takes memory with each write.
    pub volatile: bool,
}

impl Default for SimSpec {
    /// One drive of 1 MiB, to be read, which reorders and has no faults.
    fn default() -> Self {
        Self {
            seed: 0,
            drives: vec![1 << 20],
            mode: OpenMode::Read,
            latency: Latency::Turns(0, 8),
            tail_one_in: 0,
            tail_factor: 16,
            reorder: true,
            error_rate: 0.0,
            error: IoStatus::Nvme { sct: 2, sc: 0x81 },
            short_rate: 0.0,
            busy_rate: 0.0,
            stuck_rate: 0.0,
            faults: Vec::new(),
            gone_after: None,
            volatile: false,
        }
    }
}

impl SimSpec {
    fn check(&self) -> Result<()> {
        let rates = [self.error_rate, self.short_rate, self.busy_rate, self.stuck_rate];
        if let Some(rate) = rates.iter().find(|rate| !(0.0..=1.0).contains(*rate)) {
            return Err(Error::usage(format!("a probability of {rate}")).remedy("give 0 to 1"));
        }
        if self.busy_rate == 1.0 {
            return Err(Error::usage("a queue that is always busy").remedy("give less than 1"));
        }
        let ordered = match self.latency {
            Latency::Turns(least, most) => least <= most,
            Latency::Time(least, most) => least <= most,
        };
        if !ordered {
            return Err(Error::usage(format!("a latency of {:?}", self.latency))
                .remedy("give the least first"));
        }
        Ok(())
    }
}

/// What the queues of one set of drives share.
#[derive(Debug)]
struct Shared {
    spec: SimSpec,
    drives: MemDrives,
    /// What a crash would leave, where [`SimSpec::volatile`] says so.
    cache: Option<Cache>,
    /// Queues made so far: the number of the next one.
    queues: AtomicU64,
    /// Commands of the drive in [`SimSpec::gone_after`].
    counted: AtomicU64,
}

/// Simulated drives.
#[derive(Debug, Clone)]
pub struct SimStorage(Arc<Shared>);

impl SimStorage {
    /// Makes the drives.
    ///
    /// # Errors
    ///
    /// `Usage` for sizes that are not whole blocks, probabilities outside 0 to 1, and latencies
    /// whose bounds are out of order; `Resource` where memory is short.
    pub fn open(spec: SimSpec) -> Result<Self> {
        Self::make(spec, &|drive, all| mem::fill(drive, 0, all))
    }

    /// Makes drives with these contents; [`SimSpec::drives`] is taken from them.
    pub fn with_images(spec: SimSpec, images: &[Vec<u8>]) -> Result<Self> {
        let drives = images.iter().map(|image| image.len() as u64).collect();
        let init = |drive: u16, all: &mut [u8]| all.copy_from_slice(&images[usize::from(drive)]);
        Self::make(SimSpec { drives, ..spec }, &init)
    }

    fn make(spec: SimSpec, init: &dyn Fn(u16, &mut [u8])) -> Result<Self> {
        spec.check()?;
        // Base pages: tests leave the machine's hugepages to those who measure.
        let pages = ArenaSpec { bytes: 0, pages: Pages::Base, node: None };
        let mut drives = MemDrives::open(&spec.drives, spec.mode, &pages, init)?;
        for (number, info) in drives.infos.iter_mut().enumerate() {
            info.name = format!("sim{number}");
        }
        let (queues, counted) = (AtomicU64::new(0), AtomicU64::new(0));
        let numbers = 0..spec.drives.len() as u16;
        let cache = spec.volatile.then(|| Cache::new(numbers.map(|drive| drives.image(drive))));
        Ok(Self(Arc::new(Shared { spec, drives, cache, queues, counted })))
    }

    /// What the drives answer reads with, one after the other: the images for
    /// [`SimStorage::with_images`].
    pub fn images(&self) -> Vec<Vec<u8>> {
        (0..self.0.spec.drives.len() as u16).map(|drive| self.0.drives.image(drive)).collect()
    }

    /// What the drives have after a loss of power at this moment. All that is durable is there. Of
    /// other writes, those in flight included, what is left is drawn by `seed`: a subset of their
    /// sectors of 512 bytes, or all up to one of them, which is torn.
    ///
    /// # Panics
    ///
    /// If the drives have no volatile cache.
    pub fn crash(&self, seed: u64) -> Vec<Vec<u8>> {
        let cache = self.0.cache.as_ref().expect("drives with a volatile cache");
        cache.crash(&mut Random::new(seed, 0))
    }
}

impl Storage for SimStorage {
    type Queue = SimQueue;

    fn drives(&self) -> &[DriveInfo] {
        &self.0.drives.infos
    }

    fn name(&self) -> &'static str {
        "sim"
    }

    fn queue(&self, _arena: &Arc<Arena>, depth: u32) -> Result<SimQueue> {
        check_depth(depth)?;
        let number = self.0.queues.fetch_add(1, Ordering::Relaxed);
        Ok(SimQueue::new(Arc::clone(&self.0), number, depth as usize))
    }
}

#[cfg(test)]
mod tests;
