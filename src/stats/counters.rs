//! What a worker has done so far: one writer, any number of readers, no locks.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Buckets;

/// Most status codes that are told apart; higher ones count as the last.
pub const STATUS_CODES: usize = 64;

/// Most reasons for the end of a connection that are told apart.
pub const CLOSE_REASONS: usize = 8;

/// What a worker has done on one drive.
#[derive(Debug, Default)]
pub struct DriveCounters {
    /// Bytes read from it and handed to clients.
    pub bytes: AtomicU64,
    /// Reads that it ended with an error.
    pub failed: AtomicU64,
    /// Reads whose bytes were not what was stored.
    pub damaged: AtomicU64,
    /// Sum of nanoseconds that reads were on it, well or not.
    pub drive_ns: AtomicU64,
    /// How many took how long.
    pub latency: Buckets,
}

/// Counters of one worker. Aligned to two cache lines, so that no other worker's are beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Requests taken in.
    pub requests: AtomicU64,
    /// Requests answered with their payload.
    pub served: AtomicU64,
    /// Requests answered with an error status.
    pub failed: AtomicU64,
    /// Bytes of payload handed to the fabric.
    pub bytes: AtomicU64,
    /// Commands that the drives were sent.
    pub commands: AtomicU64,
    /// Sum of nanoseconds that answered requests waited before their submission.
    pub queued_ns: AtomicU64,
    /// Sum of nanoseconds that they were on the drive.
    pub drive_ns: AtomicU64,
    /// Sum of nanoseconds that their checks took.
    pub check_ns: AtomicU64,
    /// Connections that are open now.
    pub connections: AtomicU64,
    /// Requests in flight now.
    pub active: AtomicU64,
    /// Slots given up for good.
    pub leaked: AtomicU64,
    /// Slots of the worker in all.
    pub slots: AtomicU64,
    /// Slots that are free now.
    pub slots_free: AtomicU64,
    /// Answers by status code.
    pub by_status: Statuses,
    /// Time from arrival to the answer of requests that went to a drive.
    pub latency: Buckets,
    /// Connections that finished their handshake.
    pub opened: AtomicU64,
    /// Connections that ended, by reason; the caller numbers the reasons.
    pub closed: [AtomicU64; CLOSE_REASONS],
    /// By drive, in the order of the storage.
    pub drives: Box<[DriveCounters]>,
}

/// Counts by status code.
#[derive(Debug)]
pub struct Statuses([AtomicU64; STATUS_CODES]);

impl Default for Statuses {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Statuses {
    /// Counts one answer. The calling thread is the only writer.
    #[inline]
    pub fn count(&self, code: u16) {
        Counters::add(&self.0[usize::from(code).min(STATUS_CODES - 1)], 1);
    }

    /// Answers of one code.
    pub fn read(&self, code: u16) -> u64 {
        self.0[usize::from(code).min(STATUS_CODES - 1)].load(Ordering::Relaxed)
    }
}

/// A reading of [`Counters`], field by field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs)]
pub struct Snapshot {
    pub requests: u64,
    pub served: u64,
    pub failed: u64,
    pub bytes: u64,
    pub commands: u64,
    pub queued_ns: u64,
    pub drive_ns: u64,
    pub check_ns: u64,
    pub connections: u64,
    pub active: u64,
    pub leaked: u64,
}

impl Counters {
    /// Counters of a worker on this many drives.
    pub fn new(drives: usize) -> Self {
        Self { drives: (0..drives).map(|_| DriveCounters::default()).collect(), ..Self::default() }
    }

    /// Adds to a counter of which the calling thread is the only writer: a load and a store, no
    /// locked instruction.
    pub fn add(counter: &AtomicU64, by: u64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    /// Reads all counters. They are of about the same moment, not of exactly the same.
    pub fn snapshot(&self) -> Snapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            requests: read(&self.requests),
            served: read(&self.served),
            failed: read(&self.failed),
            bytes: read(&self.bytes),
            commands: read(&self.commands),
            queued_ns: read(&self.queued_ns),
            drive_ns: read(&self.drive_ns),
            check_ns: read(&self.check_ns),
            connections: read(&self.connections),
            active: read(&self.active),
            leaked: read(&self.leaked),
        }
    }
}

impl Snapshot {
    /// Field-wise sum: all workers of a server.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            served: self.served + other.served,
            failed: self.failed + other.failed,
            bytes: self.bytes + other.bytes,
            commands: self.commands + other.commands,
            queued_ns: self.queued_ns + other.queued_ns,
            drive_ns: self.drive_ns + other.drive_ns,
            check_ns: self.check_ns + other.check_ns,
            connections: self.connections + other.connections,
            active: self.active + other.active,
            leaked: self.leaked + other.leaked,
        }
    }
}
