//! The queue of one worker: commands in flight, their slots, and what their results mean.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use io_uring::{opcode, squeue, types};

use super::Drives;
use super::options::UringOptions;
use super::ring::{Ring, SLICE_STRIDE};
use crate::error::{Error, IoStatus, Kind, Result};
use crate::limits::{DRAIN_TIMEOUT, MAX_RETRIES, RETRY_TIME};
use crate::memory::{Arena, Lent};
use crate::storage::{Command, Completion, Operation, Queue, Submit};

static LEAKED_RINGS: AtomicU64 = AtomicU64::new(0);

/// Rings of this process that were given up because commands in them did not end in time. Their
/// slots and arenas are leaked with them.
pub fn leaked_rings() -> u64 {
    LEAKED_RINGS.load(Ordering::Relaxed)
}

/// A command in flight, or a free place for one.
struct Op {
    /// The memory. Present exactly while the command is in flight.
    lent: Option<Lent>,
    tag: u64,
    offset: u64,
    len: u32,
    /// Bytes transferred, whole blocks.
    done: u32,
    /// Of the command in this place: a completion that names another one is not for it.
    generation: u32,
    drive: u16,
    commands: u16,
    /// Short transfers in a row, without progress.
    retries: u8,
    /// When the kernel began to say "not now" (EAGAIN, EINTR) to it, without a break.
    since: Option<Instant>,
    /// It failed and is tried once more, with no other command beside it.
    alone: bool,
    operation: Operation,
}

/// What a result means for its command.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    End(IoStatus),
    Again,
    /// Once more, alone: the kernel merges neighbouring reads of a batch into one command, and one
    /// bad sector fails all of them.
    Alone,
}

impl Op {
    /// A free place.
    fn idle() -> Self {
        Self {
            lent: None,
            tag: 0,
            offset: 0,
            len: 0,
            done: 0,
            generation: 0,
            drive: 0,
            commands: 0,
            retries: 0,
            since: None,
            alone: false,
            operation: Operation::Read,
        }
    }

    /// True for an error that a neighbour in the same command may have made.
    fn is_medium_error(&self, errno: i32) -> bool {
        let of_a_command = [libc::EIO, libc::ENODATA, libc::EILSEQ, libc::EREMOTEIO];
        self.operation == Operation::Read && !self.alone && of_a_command.contains(&errno)
    }

    /// Takes one result of the kernel into account. `unit`: what transfers may start at a
    /// multiple of.
    fn judge(&mut self, result: i32, unit: u32) -> Verdict {
        if result < 0 {
            return match -result {
                // Once per flush, so a spinning worker would use up any number of tries at once.
                libc::EAGAIN | libc::EINTR
                    if self.since.get_or_insert_with(Instant::now).elapsed() < RETRY_TIME =>
                {
                    Verdict::Again
                }
                libc::ENODEV | libc::ENXIO => Verdict::End(IoStatus::Gone),
                libc::ECANCELED => Verdict::End(IoStatus::Aborted),
                errno if self.is_medium_error(errno) => {
                    self.alone = true;
                    Verdict::Alone
                }
                errno => Verdict::End(IoStatus::Errno(errno as u16)),
            };
        }
        self.since = None;
        if self.operation == Operation::Sync {
            return Verdict::End(IoStatus::Ok);
        }
        let reached = self.done + result as u32;
        if reached >= self.len {
            assert!(reached == self.len, "{result} bytes from {} of {}", self.done, self.len);
            return Verdict::End(IoStatus::Ok);
        }
        // O_DIRECT takes whole blocks only: what came of a broken one is transferred once more.
        let done = reached & !(unit - 1);
        if done > self.done {
            self.done = done;
            self.retries = 0;
        } else if result == 0 || self.retries >= MAX_RETRIES {
            return Verdict::End(IoStatus::Short);
        } else {
            self.retries += 1;
        }
        Verdict::Again
    }
}

/// What the queue has to know of a drive for each command.
struct Target {
    fd: RawFd,
    unit: u32,
}

/// The ring of one worker over all drives.
pub struct UringQueue {
    /// `None` only in drop.
    ring: Option<Ring>,
    ops: Vec<Op>,
    free: Vec<u32>,
    /// Commands to be pushed again with the next flush.
    again: Vec<u32>,
    /// Reads to be pushed again one at a time; the first is in flight while `alone_now`.
    alone: VecDeque<u32>,
    alone_now: bool,
    targets: Vec<Target>,
    options: UringOptions,
    failed: bool,
    leaked: u64,
    stale: u64,
    drives: Arc<Drives>,
    /// The registered memory: must outlive the ring.
    arena: Arc<Arena>,
}

impl std::fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringQueue")
            .field("depth", &self.ops.len())
            .field("in_flight", &self.in_flight())
            .field("options", &self.options)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl UringQueue {
    pub(super) fn new(
        drives: Arc<Drives>,
        arena: Arc<Arena>,
        depth: u32,
        options: UringOptions,
    ) -> Result<Self> {
        let ring = Ring::new(depth, options)?;
        if options.regfiles {
            ring.register_files(&drives.files)?;
        }
        if options.regbufs {
            // SAFETY: the queue holds an Arc of the arena for as long as the ring exists, and
            // leaks it where it leaks the ring.
            unsafe { ring.register_arena(&arena)? };
        }
        let targets = drives.files.iter().zip(&drives.infos).map(|(file, info)| Target {
            fd: file.as_raw_fd(),
            unit: info.block_size.max(info.memory_align),
        });
        Ok(Self {
            ring: Some(ring),
            ops: (0..depth).map(|_| Op::idle()).collect(),
            // The lowest place is on top, so a lightly loaded queue stays on few lines.
            free: (0..depth).rev().collect(),
            again: Vec::with_capacity(depth as usize),
            alone: VecDeque::with_capacity(depth as usize),
            alone_now: false,
            targets: targets.collect(),
            options,
            failed: false,
            leaked: 0,
            stale: 0,
            drives,
            arena,
        })
    }

    /// Completions that named a command which had ended: always 0, else a fault of this program
    /// or of the kernel. Such a completion is dropped.
    pub fn stale_completions(&self) -> u64 {
        self.stale
    }

    /// Calls of io_uring_enter so far: system calls per command are its growth by that of the
    /// commands.
    pub fn enters(&self) -> u64 {
        self.ring.as_ref().map_or(0, Ring::enters)
    }

    /// Puts the rest of a command in the batch; false where that is full.
    #[inline]
    fn push(&mut self, index: u32) -> bool {
        let op = &mut self.ops[index as usize];
        let lent = op.lent.as_ref().expect("a command in flight has its slot");
        let entry = entry(op, lent, &self.targets[usize::from(op.drive)], self.options)
            .user_data(u64::from(op.generation) << 32 | u64::from(index));
        let ring = self.ring.as_mut().expect("present until drop");
        // SAFETY: the op holds the Lent, which keeps the memory mapped and out of reach, until
        // the completion of this entry was reaped; else it is leaked. `submit` has checked that
        // the transfer lies in the slot, and the slot in the arena.
        let pushed = unsafe { ring.push(&entry) };
        if pushed {
            op.commands = op.commands.saturating_add(1);
        }
        pushed
    }

    fn enter(&mut self, wait: bool) -> Result<()> {
        if self.failed {
            return Err(Error::new(Kind::Device, "the io_uring of this worker has failed"));
        }
        while let Some(index) = self.again.pop() {
            if !self.push(index) {
                self.again.push(index);
                break;
            }
        }
        if !self.alone_now
            && let Some(index) = self.alone.front().copied()
        {
            self.alone_now = self.push(index);
        }
        let in_flight = self.in_flight() > 0;
        self.ring.as_mut().expect("present until drop").enter(in_flight, wait).map_err(|e| {
            self.failed = true;
            Error::new(Kind::Device, "io_uring_enter failed; this worker's drives are given up")
                .caused_by(e)
        })
    }

    /// Waits until nothing is in flight, at most for `bound`. True if it is so.
    fn drain(&mut self, bound: Duration, cancel: bool) -> bool {
        let Self { ring: Some(ring), ops, free, again, alone, alone_now, failed, .. } = self else {
            return true;
        };
        let waiting = alone.drain(usize::from(*alone_now)..);
        for index in again.drain(..).chain(waiting) {
            // SAFETY: its last completion was reaped and nothing was pushed since.
            drop(ops[index as usize].lent.take().map(|lent| unsafe { lent.reclaim() }));
            free.push(index);
        }
        let deadline = Instant::now() + bound;
        let mut cancel = cancel;
        while free.len() < ops.len() {
            if *failed || ring.enter(true, false).is_err() {
                return false;
            }
            if std::mem::take(&mut cancel) {
                ring.cancel_all();
            }
            ring.reap(|user_data, _| {
                let (index, generation) = (user_data as u32, (user_data >> 32) as u32);
                let op = &mut ops[index as usize];
                if op.generation == generation
                    && let Some(lent) = op.lent.take()
                {
                    // SAFETY: this is the completion of the only entry of this command.
                    drop(unsafe { lent.reclaim() });
                    free.push(index);
                }
                true
            });
            if free.len() < ops.len() {
                if Instant::now() >= deadline {
                    return false;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        true
    }

    /// Ends what is in flight on a ring that failed; nobody can say any more when the kernel is
    /// done with the slots, so they are leaked.
    fn fail_rest(&mut self, out: &mut Vec<Completion>) {
        for index in 0..self.ops.len() {
            if out.len() == out.capacity() || self.in_flight() == 0 {
                break;
            }
            let op = &mut self.ops[index];
            let Some(lent) = op.lent.take() else { continue };
            drop(lent);
            op.generation = op.generation.wrapping_add(1);
            self.leaked += 1;
            out.push(Completion {
                slot: None,
                tag: op.tag,
                drive: op.drive,
                status: IoStatus::Gone,
                commands: op.commands,
            });
            self.free.push(index as u32);
        }
        self.again.clear();
        self.alone.clear();
        self.alone_now = false;
    }
}

/// The entry for the rest of a command.
#[inline]
fn entry(op: &Op, lent: &Lent, target: &Target, options: UringOptions) -> squeue::Entry {
    // SAFETY: `done` is below the length of the transfer, which `submit` checked to be at most
    // that of the slot.
    let at = unsafe { lent.addr().add(op.done as usize) };
    let (len, offset) = (op.len - op.done, op.offset + u64::from(op.done));
    let buffer = (lent.arena_offset() / SLICE_STRIDE) as u16;
    let durable = if op.operation == Operation::WriteDurable { libc::RWF_DSYNC } else { 0 };
    macro_rules! on {
        ($file:expr) => {
            match (op.operation, options.regbufs) {
                (Operation::Read, true) => {
                    opcode::ReadFixed::new($file, at, len, buffer).offset(offset).build()
                }
                (Operation::Read, false) => {
                    opcode::Read::new($file, at, len).offset(offset).build()
                }
                (Operation::Write | Operation::WriteDurable, true) => {
                    opcode::WriteFixed::new($file, at, len, buffer)
                        .offset(offset)
                        .rw_flags(durable)
                        .build()
                }
                (Operation::Write | Operation::WriteDurable, false) => {
                    opcode::Write::new($file, at, len).offset(offset).rw_flags(durable).build()
                }
                (Operation::Sync, _) => {
                    opcode::Fsync::new($file).flags(types::FsyncFlags::DATASYNC).build()
                }
            }
        };
    }
    let entry = if options.regfiles {
        on!(types::Fixed(u32::from(op.drive)))
    } else {
        on!(types::Fd(target.fd))
    };
    // A kernel thread submits it, apart from this batch, so it is merged with nothing of it.
    if op.alone { entry.flags(squeue::Flags::ASYNC) } else { entry }
}

impl Queue for UringQueue {
    fn submit(&mut self, command: Command) -> Submit {
        let writable = self.drives.mode.is_writable();
        self.drives.infos[usize::from(command.drive)].check(&command, writable);
        let ring = self.ring.as_mut().expect("present until drop");
        if self.failed || self.free.is_empty() || ring.is_full() {
            return Submit::Busy(command);
        }
        let Command { slot, drive, operation, offset, len, tag } = command;
        let lent = slot.lend();
        let start = (lent.addr() as usize).wrapping_sub(self.arena.base() as usize);
        assert!(start < self.arena.len(), "a slot of another arena than the queue's");
        let index = self.free.pop().expect("not empty");
        let op = &mut self.ops[index as usize];
        let generation = op.generation.wrapping_add(1);
        let lent = Some(lent);
        *op = Op {
            lent,
            tag,
            offset,
            len,
            done: 0,
            generation,
            drive,
            commands: 0,
            retries: 0,
            since: None,
            alone: false,
            operation,
        };
        let pushed = self.push(index);
        assert!(pushed, "there was room in the batch");
        Submit::Queued
    }

    fn flush(&mut self) -> Result<()> {
        self.enter(false)
    }

    fn flush_and_wait(&mut self) -> Result<()> {
        self.enter(true)
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        let Self { ring, ops, free, again, alone, alone_now, targets, stale, .. } = self;
        if free.len() < ops.len() && out.len() < out.capacity() {
            ring.as_mut().expect("present until drop").reap(|user_data, result| {
                let (index, generation) = (user_data as u32, (user_data >> 32) as u32);
                let op = ops.get_mut(index as usize).filter(|op| op.generation == generation);
                let Some((op, lent)) = op.and_then(|op| op.lent.take().map(|lent| (op, lent)))
                else {
                    *stale += 1;
                    log::error!("a completion ({user_data:#x}, {result}) is of no command");
                    return true;
                };
                let was_alone = op.alone;
                match op.judge(result, targets[usize::from(op.drive)].unit) {
                    Verdict::Again => {
                        op.lent = Some(lent);
                        again.push(index);
                    }
                    Verdict::Alone => {
                        op.lent = Some(lent);
                        alone.push_back(index);
                    }
                    Verdict::End(status) => {
                        // SAFETY: a command has one entry in the ring at a time, and this is its
                        // completion: the kernel is done with the memory.
                        let slot = Some(unsafe { lent.reclaim() });
                        free.push(index);
                        if was_alone {
                            alone.pop_front();
                            *alone_now = false;
                        }
                        let (tag, drive, commands) = (op.tag, op.drive, op.commands);
                        out.push(Completion { slot, tag, drive, status, commands });
                    }
                }
                out.len() < out.capacity()
            });
        }
        if self.failed {
            self.fail_rest(out);
        }
        out.len() - before
    }

    fn in_flight(&self) -> u32 {
        (self.ops.len() - self.free.len()) as u32
    }

    fn leaked(&self) -> u64 {
        self.leaked
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        if self.drain(DRAIN_TIMEOUT, true) && self.leaked == 0 {
            return;
        }
        LEAKED_RINGS.fetch_add(1, Ordering::Relaxed);
        log::error!(
            "{} commands did not end within {DRAIN_TIMEOUT:?}: their ring and memory are leaked",
            u64::from(self.in_flight()) + self.leaked
        );
        // The Lent of each command leaks its slot when the ops are dropped; the registration needs
        // the whole arena.
        std::mem::forget(Arc::clone(&self.arena));
        if let Some(ring) = self.ring.take() {
            ring.leak();
        }
    }
}

#[cfg(test)]
mod tests;
