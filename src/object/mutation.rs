//! A put or a delete, from its start to its last write: what to write next, when to acknowledge.
//!
//! ```text
//!   put     data durable -> header durable -> index swung, ACKNOWLEDGED
//!                                             -> old header cleared durably -> old slot retired
//!   delete  header cleared durably -> out of the index, ACKNOWLEDGED, slot retired
//! ```
//!
//! The key is held from start to end, so that a delete which follows a put comes after the clearing
//! of the header that the put has replaced. Every write is of the first bytes of one piece of
//! memory (a slot of the caller's arena) and durable when it completes.

use super::{BLOCK, Digest, KeyName};
use crate::error::IoStatus;

/// A durable write from the start of the mutation's memory
/// ([`Operation::WriteDurable`](crate::storage::Operation)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteAt {
    /// Number of the drive in its storage.
    pub drive: u16,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// Why a put or a delete does not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such object.
    NotFound,
    /// No slot is free.
    NoSpace,
    /// The store was opened to be read.
    ReadOnly,
    /// The object has no bytes, or more than the store's limit, which this is.
    Length(u32),
    /// An old header of the key could not be cleared: see [`Tally::stuck`](super::Tally).
    Stuck,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::NotFound => f.write_str("there is no such object"),
            Refusal::NoSpace => f.write_str("the store is full: no slot is free"),
            Refusal::ReadOnly => f.write_str("the store is open for reading only"),
            Refusal::Length(limit) => write!(f, "objects have 1 to {limit} bytes"),
            Refusal::Stuck => f.write_str(
                "an earlier version of the object could not be cleared from its drive; \
                 the key takes no change until the store is opened anew",
            ),
        }
    }
}

/// The answer to the start of a put or a delete.
#[derive(Debug)]
#[must_use]
#[allow(clippy::large_enum_variant, reason = "a box would be an allocation for each request")]
pub enum Start {
    /// Under way: submit the write, and give its outcome to
    /// [`Member::advance`](super::Member::advance).
    Go(Mutation, WriteAt),
    /// Not now: another change of the key is in flight, or slots are about to come free. Try again
    /// in the next turn; nothing is held meanwhile.
    Later,
    /// It cannot be done.
    Refused(Refusal),
}

/// What follows from a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Step {
    /// The answer to the client, once: from here on a put or a delete is acknowledged, or has
    /// failed with the drive's error.
    pub answer: Option<Result<(), IoStatus>>,
    /// The next write, of the same memory. `None`: the mutation is at its end, and the memory is
    /// the caller's again.
    pub write: Option<WriteAt>,
}

impl Step {
    pub(super) fn end(answer: Option<Result<(), IoStatus>>) -> Self {
        Self { answer, write: None }
    }
}

/// Which write is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The data of a put, and zeros in the place of its header.
    Data,
    /// The header of a put.
    Header,
    /// Zeros over a header whose write has failed.
    Undo,
    /// Zeros over the header of the object that was replaced.
    Clear(u32),
    /// Zeros over the header of the object that is deleted.
    Remove,
}

/// A put or a delete in flight.
#[derive(Debug, Clone, Copy)]
#[must_use = "the key is held until the mutation has come to its end"]
pub struct Mutation {
    pub(super) digest: Digest,
    pub(super) stage: Stage,
    /// The slot that is put into, or deleted from.
    pub(super) slot: u32,
    pub(super) length: u32,
    pub(super) sequence: u64,
    pub(super) data_crc: u64,
    /// Of a put.
    pub(super) key: Option<KeyName>,
}

/// Zeros over a slot's first block.
pub(super) fn clear(memory: &mut [u8]) {
    memory[..BLOCK].fill(0);
}
