//! What a load is put on.

use crate::client::Lost;
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

/// Why a read failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failed {
    /// The server, or the drive, answered so: code of the status, and more about it.
    Status(u16, u32),
    /// It has no answer.
    Lost(Lost),
    /// It was due while its server was away, and never sent.
    Away,
    /// Its contents are not what the server read.
    Corrupt,
}

impl Failed {
    /// In words.
    pub fn describe(self) -> String {
        match self {
            Failed::Status(code, detail) => match Status::from_code(code) {
                Some(known) => known.describe(detail),
                None => format!("status {code}"),
            },
            Failed::Lost(Lost::Connection) => "lost with its connection".into(),
            Failed::Lost(Lost::Deadline) => "not answered within the deadline".into(),
            Failed::Away => "due while the server was away".into(),
            Failed::Corrupt => "contents differ from what the server read".into(),
        }
    }
}

/// How a read ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// The read's token.
    pub token: u32,
    /// When its data was there, by the caller's clock.
    pub at: u64,
    /// Why it failed, if it did.
    pub failed: Option<Failed>,
    /// Bytes of payload.
    pub bytes: u32,
    /// Commands that the drive was sent.
    pub commands: u32,
    /// Nanoseconds in line for a slot.
    pub queued_ns: u64,
    /// Nanoseconds on the drive.
    pub drive_ns: u64,
    /// Nanoseconds in the check.
    pub check_ns: u64,
}

/// The answer to [`Target::submit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It is in the batch.
    Queued,
    /// There is no room: poll, then try again.
    Busy,
    /// The lane has no connection now.
    Away,
}

/// What became of a group's connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outages {
    /// Connections that were made again.
    pub reconnects: u64,
    /// Nanoseconds without connection, on the mean of its lanes.
    pub away_ns: u64,
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

    /// The group (server) that a lane belongs to. Groups are loaded and counted apart, so that one
    /// which is slow or gone does not slow the others.
    fn group(&self, lane: usize) -> usize {
        let _ = lane;
        0
    }

    /// Puts a read in the batch of `lane`.
    fn submit(&mut self, lane: usize, op: Op) -> Result<Taken>;

    /// Sends the batch.
    fn flush(&mut self) -> Result<()>;

    /// Appends what finished, within `out`'s spare capacity. `None` if nothing finished (the clock
    /// is not read then).
    fn poll(&mut self, clock: &Clock, out: &mut Vec<Finished>) -> Result<Option<Polled>>;

    /// What became of a group's connections up to `now`.
    fn outages(&self, group: usize, now: u64) -> Outages {
        let _ = (group, now);
        Outages::default()
    }
}
