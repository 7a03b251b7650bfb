//! A queue with its memory, for jobs that are no server's.

use crate::error::{Error, IoStatus, Kind, Result};
use crate::memory::{ArenaSpec, Pages, Slot, SlotPool};
use crate::storage::{Command, Completion, Operation, Queue, Storage, Submit};

use super::Progress;

/// How a job reaches the drives.
#[derive(Debug, Clone, Copy)]
pub struct IoOptions {
    /// Commands in flight.
    pub depth: u32,
    /// Pages of the memory.
    pub pages: Pages,
    /// NUMA node of the memory; `None`: that of the drives, where they agree.
    pub node: Option<u32>,
}

/// The queue and the slots of one thread.
pub(super) struct Io<Q> {
    pub queue: Q,
    pub pool: SlotPool,
    pub out: Vec<Completion>,
}

/// A read of a sweep.
pub(super) struct Sweep {
    pub drive: u16,
    pub offset: u64,
    pub len: u32,
    pub tag: u64,
}

impl<Q: Queue> Io<Q> {
    /// `slot_size`: bytes of the largest command.
    pub fn new<S>(storage: &S, slot_size: usize, options: &IoOptions) -> Result<Self>
    where
        S: Storage<Queue = Q>,
    {
        let count = options.depth as usize;
        let arena = storage.arena(&ArenaSpec {
            bytes: SlotPool::bytes_needed(slot_size, count),
            pages: options.pages,
            node: options.node.or_else(|| storage.node()),
        })?;
        let queue = storage.queue(&arena, options.depth)?;
        let pool = SlotPool::new(arena, slot_size, count)?;
        Ok(Self { queue, pool, out: Vec::with_capacity(count) })
    }

    /// Carries out one command while nothing else is in flight: `bytes` are written, or read into.
    pub fn carry_out(
        &mut self,
        operation: Operation,
        drive: u16,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), IoStatus> {
        // Nothing is in flight, so that only a slot which a failed queue has kept can be missing.
        let mut slot = self.pool.acquire().ok_or(IoStatus::Gone)?;
        let len = bytes.len();
        if operation.is_write() {
            slot.bytes_mut(len).copy_from_slice(bytes);
        }
        let mut command = Command { slot, drive, operation, offset, len: len as u32, tag: 0 };
        loop {
            match self.queue.submit(command) {
                Submit::Queued => break,
                Submit::Busy(same) => command = same,
            }
            self.turn(true).map_err(|_| IoStatus::Gone)?;
        }
        while self.out.is_empty() {
            self.turn(true).map_err(|_| IoStatus::Gone)?;
        }
        let done = self.out.pop().expect("one is there");
        let Some(slot) = done.slot else { return Err(IoStatus::Gone) };
        if operation == Operation::Read && done.status.is_ok() {
            bytes.copy_from_slice(slot.bytes(len));
        }
        self.pool.release(slot);
        if done.status.is_ok() { Ok(()) } else { Err(done.status) }
    }

    /// One turn: what is submitted goes out, what is done comes in.
    pub fn turn(&mut self, sleep: bool) -> Result<()> {
        if sleep {
            self.queue.flush_and_wait()?
        } else {
            self.queue.flush()?
        }
        self.queue.poll(&mut self.out);
        Ok(())
    }

    /// Reads all that `next` names, at full depth, in any order; `handle` gets tag, outcome and,
    /// after a success, the bytes. Ends early where the job is stopped or `handle` fails, with
    /// nothing in flight.
    ///
    /// # Errors
    ///
    /// Of the queue, or the first of `handle`.
    pub fn sweep(
        &mut self,
        progress: &Progress,
        mut next: impl FnMut() -> Option<Sweep>,
        mut handle: impl FnMut(u64, Result<&[u8], IoStatus>) -> Result<()>,
    ) -> Result<()> {
        let mut held: Option<Command> = None;
        let (mut failed, mut over) = (None, false);
        loop {
            while !over {
                let command = match held.take() {
                    Some(command) => command,
                    None => {
                        let Some(slot) = self.pool.acquire() else { break };
                        match next() {
                            Some(Sweep { drive, offset, len, tag }) => {
                                let tag = u64::from(len) << 32 | tag;
                                let operation = Operation::Read;
                                Command { slot, drive, operation, offset, len, tag }
                            }
                            None => {
                                self.pool.release(slot);
                                over = true;
                                break;
                            }
                        }
                    }
                };
                if let Submit::Busy(command) = self.queue.submit(command) {
                    held = Some(command);
                    break;
                }
            }
            if over && self.queue.in_flight() == 0 && held.is_none() {
                break;
            }
            // Spins, as a worker does: a sleep for every few reads costs more than the drive.
            self.turn(false)?;
            let Self { out, pool, .. } = self;
            for done in out.drain(..) {
                let Some(slot) = done.slot else {
                    return Err(queue_failed());
                };
                if failed.is_none() {
                    let (tag, len) = (done.tag & u64::from(u32::MAX), done.tag >> 32);
                    let bytes = match done.status {
                        IoStatus::Ok => Ok(slot.bytes(len as usize)),
                        status => Err(status),
                    };
                    failed = handle(tag, bytes).err();
                }
                pool.release(slot);
            }
            if failed.is_some() || progress.is_stopped() {
                over = true;
                if let Some(command) = held.take() {
                    self.release(command.slot);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    pub fn release(&mut self, slot: Slot) {
        self.pool.release(slot);
    }
}

/// What is said where a queue has lost a command's memory.
pub(super) fn queue_failed() -> Error {
    Error::new(Kind::Device, "the queue of the drives has failed").remedy("see the lines before")
}
