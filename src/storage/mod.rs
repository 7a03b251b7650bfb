//! Drives: opened once, read and written through one queue per worker.
//!
//! ```text
//!   Storage (shared, control plane)            Queue (one per worker, data plane, !Sync)
//!     drives(): identity and geometry            submit(Command) -> Queued | Busy(Command)
//!     arena():  memory it can reach              flush()          hand the batch to the drives
//!     queue():  a queue over all drives          poll(&mut out)   Completion gives the Slot back
//! ```
//!
//! Backends: [`uring`] (the kernel's drives), [`mem`] (RAM: the baseline), [`sim`] (seeded faults,
//! for tests). Every one passes the suite in tests/storage_contract.
//!
//! A queue covers all drives of the set, so one `io_uring_enter` a turn serves them all. The slot
//! of a command moves in by value and comes back in its completion, exactly once, whatever
//! happens: while it is inside, no safe code can reach it. Where a queue cannot prove that the
//! hardware is done with a slot, it leaks it and counts it.

pub mod mem;
pub mod name;
pub mod partition;
pub mod sim;
#[cfg(feature = "spdk")]
pub mod spdk;
pub mod uring;

use std::sync::Arc;

pub use name::{DriveName, Within};

use crate::error::{IoStatus, Result};
use crate::memory::{Arena, ArenaSpec, Slot};

/// What a drive is, for people, logs and results.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct DriveInfo {
    /// The name it was asked for by: a path, a PCI address, a transport id, `mem:512MiB`.
    pub name: String,
    /// Serial number where the drive has one.
    pub serial: Option<String>,
    /// Model where the drive has one.
    pub model: Option<String>,
    /// Size in bytes, a multiple of the block size.
    pub capacity: u64,
    /// Logical block size in bytes: offsets and lengths are multiples of it.
    pub block_size: u32,
    /// Alignment in bytes that a buffer's address needs.
    pub memory_align: u32,
    /// Largest transfer in bytes that one command to the drive carries, where that is known;
    /// larger requests are split below the queue.
    pub max_transfer: Option<u64>,
    /// Offset in bytes of byte 0 of this drive on its whole disk: not 0 for a partition.
    pub start: u64,
    /// NUMA node that it is attached to.
    pub node: Option<u32>,
}

impl DriveInfo {
    /// Checks a command against this drive, as every queue does on submission.
    ///
    /// # Panics
    ///
    /// Where offset, length or slot do not suit the drive, or it is a write and the drives are
    /// not `writable`: see [`Queue::submit`].
    #[inline]
    pub fn check(&self, command: &Command, writable: bool) {
        let (offset, len) = (command.offset, u64::from(command.len));
        let block = u64::from(self.block_size);
        if command.operation != Operation::Read {
            assert!(writable, "{:?} on {}, which was opened to read", command.operation, self.name);
        }
        if command.operation == Operation::Sync {
            assert!(offset == 0 && len == 0, "a sync of bytes {offset}+{len}");
            return;
        }
        assert!(len > 0, "a transfer of no bytes");
        // Block sizes are powers of two (each backend checks that when it opens a drive), so no
        // division is needed here.
        assert!((offset | len) & (block - 1) == 0, "{offset}+{len} in blocks of {block}");
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.capacity),
            "bytes {offset}+{len} of {}, which has {}",
            self.name,
            self.capacity
        );
        assert!(len <= command.slot.size() as u64, "{len} bytes in a {}", command.slot.size());
    }
}

/// What drives are opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OpenMode {
    /// Reads only: a write cannot reach the drive, whatever the program does.
    #[default]
    Read,
    /// Reads, writes and syncs; a block device is claimed exclusively where the backend can.
    ReadWrite,
}

impl OpenMode {
    /// True for [`OpenMode::ReadWrite`].
    pub fn is_writable(self) -> bool {
        self == OpenMode::ReadWrite
    }
}

/// Checks the depth of a queue: 1 to [`MAX_DEPTH`](crate::limits::MAX_DEPTH).
///
/// # Errors
///
/// `Usage` where it is out of range.
pub fn check_depth(depth: u32) -> Result<()> {
    let most = crate::limits::MAX_DEPTH;
    if depth == 0 || depth > most {
        return Err(crate::Error::usage(format!("a storage depth of {depth}"))
            .remedy(format!("choose --depth from 1 to {most}")));
    }
    Ok(())
}

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// From the drive into the slot.
    Read,
    /// From the slot to the drive. It may be lost to a power failure, wholly or in part, until a
    /// [`Operation::Sync`] has completed that was submitted after it had.
    Write,
    /// From the slot to the drive; no power failure loses it once it has completed. The kernel is
    /// asked by RWF_DSYNC (pwritev2(2)), a drive of SPDK's by FUA (NVM Command Set Specification
    /// 1.0, section 3.2.6). Writes that completed before are not touched.
    WriteDurable,
    /// Makes completed writes durable; offset and length are 0.
    Sync,
}

impl Operation {
    /// Whether bytes go from the slot to the drive.
    pub fn is_write(self) -> bool {
        matches!(self, Operation::Write | Operation::WriteDurable)
    }
}

/// One command for one drive.
#[derive(Debug)]
pub struct Command {
    /// The memory: from its first byte on. It comes back in the completion.
    pub slot: Slot,
    /// Number of the drive in the set.
    pub drive: u16,
    /// What to do.
    pub operation: Operation,
    /// Byte offset on the drive, a multiple of its block size.
    pub offset: u64,
    /// Bytes, a multiple of the block size, at most the slot.
    pub len: u32,
    /// The caller's own word; it comes back in the completion.
    pub tag: u64,
}

/// The answer to [`Queue::submit`]: backpressure is a value, not an error.
#[derive(Debug)]
#[must_use]
pub enum Submit {
    /// Accepted; one completion will come.
    Queued,
    /// The queue is full: poll, then submit this same command again.
    Busy(Command),
}

/// How one command ended.
#[derive(Debug)]
pub struct Completion {
    /// The slot, at rest again. `None` only where the queue failed and cannot prove that the
    /// hardware is done with it: it is leaked.
    pub slot: Option<Slot>,
    /// The command's tag.
    pub tag: u64,
    /// Drive of the command.
    pub drive: u16,
    /// The outcome.
    pub status: IoStatus,
    /// Commands that were sent for it from here (1, plus resubmissions of short transfers; with
    /// SPDK what MDTS split it into).
    pub commands: u16,
}

/// Opened drives: the control plane. Shared by all workers.
pub trait Storage: Send + Sync {
    /// The queue that each worker gets.
    type Queue: Queue;

    /// The drives in the order in which they were named; a command's `drive` counts in it.
    fn drives(&self) -> &[DriveInfo];

    /// One word for results: `uring`, `spdk`, `mem`, `sim`.
    fn name(&self) -> &'static str;

    /// The NUMA node that all drives are on, if they are on one.
    fn node(&self) -> Option<u32> {
        let mut nodes = self.drives().iter().map(|drive| drive.node);
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }

    /// Memory that these drives and any NIC can reach.
    fn arena(&self, spec: &ArenaSpec) -> Result<Arc<Arena>> {
        Arena::map(spec).map(Arc::new)
    }

    /// A queue for the calling thread, of up to `depth` commands at once, whose slots are all of
    /// `arena`. Called on the thread that will use it.
    fn queue(&self, arena: &Arc<Arena>, depth: u32) -> Result<Self::Queue>;
}

/// The drives' queue of one worker: the data plane. One thread owns it.
///
/// Dropping it with commands in flight waits for them, with a bound, and leaks what is left.
pub trait Queue {
    /// Takes a command; it may stay in a batch until [`Queue::flush`].
    ///
    /// # Panics
    ///
    /// If offset and length do not suit the drive, or on a write to drives that were opened to
    /// read: the caller checks requests against [`DriveInfo`] before they get here. See
    /// [`DriveInfo::check`].
    fn submit(&mut self, command: Command) -> Submit;

    /// Hands the batch to the drives, and has the system collect what completed where that needs
    /// a system call. At most one system call in all; none where nothing is to be done. A worker
    /// calls it in every turn of its loop, before [`Queue::poll`], also with an empty batch.
    ///
    /// # Errors
    ///
    /// When the queue as a whole has failed: no command is accepted from then on, and those in
    /// flight complete with an error status from `poll`, without their slot unless it is safe.
    fn flush(&mut self) -> Result<()>;

    /// As [`Queue::flush`], and sleeps until a command has completed, where the backend can sleep.
    /// For who has nothing else to look after: a worker has.
    fn flush_and_wait(&mut self) -> Result<()> {
        self.flush()
    }

    /// Appends what has completed, at most `out`'s spare capacity: it never allocates.
    /// Returns how many. No system call.
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize;

    /// True where a further command would wait in this queue instead of on a drive. Who can wait
    /// does better to keep it, and its slot: the slots in use are then few, and still in the cache.
    fn is_sated(&self) -> bool {
        false
    }

    /// Commands accepted and not yet completed.
    fn in_flight(&self) -> u32;

    /// Slots given up because the hardware could not be proven done.
    fn leaked(&self) -> u64 {
        0
    }
}
