//! What a load is put on.

use crate::error::Result;
use crate::stats::Clock;
use crate::wire::Status;

/// One read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The caller's number for it, below lanes times depth; free again once it finished.
    pub token: u32,
    /// Number of the drive.
    pub drive: u16,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// The time at which it is submitted, by the caller's clock.
    pub at: u64,
}

/// How a read ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// The read's token.
    pub token: u32,
    /// When its data was there, by the caller's clock.
    pub at: u64,
    /// The outcome.
    pub status: Status,
    /// More about it.
    pub detail: u32,
    /// Bytes of payload.
    pub bytes: u32,
    /// True if its contents were compared and are not what was read.
    pub corrupt: bool,
    /// Commands that the drive was sent.
    pub commands: u32,
    /// Nanoseconds in line for a slot.
    pub queued_ns: u64,
    /// Nanoseconds on the drive.
    pub drive_ns: u64,
    /// Nanoseconds in the check.
    pub check_ns: u64,
}

/// When a poll found something, by the caller's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Polled {
    /// Before any work on it.
    pub found: u64,
    /// After that work.
    pub after: u64,
}

/// Something that reads. One thread owns it.
pub trait Target {
    /// Independent lanes (connections), each of which takes the depth of the load.
    fn lanes(&self) -> usize;

    /// Puts a read in the batch of `lane`; false if there is no room: poll, then try again.
    fn submit(&mut self, lane: usize, op: Op) -> Result<bool>;

    /// Sends the batch.
    fn flush(&mut self) -> Result<()>;

    /// Appends what finished, within `out`'s spare capacity. `None` if nothing finished (the clock
    /// is not read then).
    fn poll(&mut self, clock: &Clock, out: &mut Vec<Finished>) -> Result<Option<Polled>>;
}
