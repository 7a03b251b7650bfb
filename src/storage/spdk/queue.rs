//! The queue of one worker: submission, polling, and handing out what has ended.

use std::sync::Arc;

use spdk_sys as sys;

use super::Shared;
use super::controller::{Controller, Member};
use super::op::{Overdue, State, Table, ended};
use super::status::{is_queue_gone, significant, translate};
use crate::error::{Error, IoStatus, Kind, Result};
use crate::limits::{DRAIN_TIMEOUT, POLL_BUDGET};
use crate::memory::Arena;
use crate::storage::{Command, Completion, Operation, Queue, Submit};

/// Polls between two looks at the clock: a look costs as much as an empty poll.
const TURNS_PER_TICK: u32 = 1024;

/// How often a command is sent again after a controller was reset under it.
const MAX_RETRIES: u8 = 3;

/// Smallest and largest number of entries of a queue pair; each has a page of PRP entries.
const QUEUE_SIZE: std::ops::RangeInclusive<u32> = 128..=1024;

/// What reads and writes are sent by: namespace, queue pair, buffer, first block, blocks, callback,
/// its argument, flags.
type Transfer = unsafe extern "C" fn(
    *mut sys::spdk_nvme_ns,
    *mut sys::spdk_nvme_qpair,
    *mut std::ffi::c_void,
    u64,
    u32,
    sys::spdk_nvme_cmd_cb,
    *mut std::ffi::c_void,
    u32,
) -> i32;

/// Whether a controller takes commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// It does.
    Active,
    /// Not now: commands are parked.
    Held,
    /// Never again.
    Dead,
}

/// A controller as this queue has it.
#[derive(Debug)]
pub(super) struct Lane {
    pub controller: Arc<Controller>,
    pub member: Arc<Member>,
    /// The phase word that was complied with last.
    pub seen: u32,
    /// Null while there is none.
    pub qpair: *mut sys::spdk_nvme_qpair,
    /// Commands that SPDK has, or that it has ended and that are not handed out yet.
    pub in_flight: u32,
    pub mode: Mode,
    pub queue_size: u32,
    pub requests: u32,
    /// Its queue pair could not be proven dead, and is leaked with the table.
    pub leaked: bool,
    /// Commands that were aborted, and those that a reset was asked for, since the last log line.
    pub aborts: u32,
    pub resets: u32,
}

/// A drive as this queue has it.
#[derive(Debug)]
pub(super) struct Port {
    pub ns: *mut sys::spdk_nvme_ns,
    pub lane: u16,
    /// log2 of the block size.
    shift: u8,
    /// First byte of the drive in the namespace: not 0 for a partition.
    start: u64,
    max_transfer: u32,
    boundary: u32,
    pub namespace: u32,
}

/// The queue of one worker over all drives. It stays on the thread that made it: SPDK's queue pairs
/// belong to one thread (raw pointers in it make it neither `Send` nor `Sync`).
#[derive(Debug)]
pub struct SpdkQueue {
    pub(super) table: Option<Table>,
    pub(super) free: Vec<u32>,
    /// Commands to be sent when their controller takes them again.
    pub(super) parked: Vec<u32>,
    pub(super) lanes: Vec<Lane>,
    pub(super) ports: Vec<Port>,
    /// Lane that is polled first, so that a full `out` does not starve the others.
    first: usize,
    turns: u32,
    /// Ticks after which a command is overdue.
    pub(super) timeout: u64,
    pub(super) next_scan: u64,
    pub(super) leaked: u64,
    writable: bool,
    pub(super) shared: Arc<Shared>,
    arena: Arc<Arena>,
}

impl SpdkQueue {
    pub(super) fn new(shared: Arc<Shared>, arena: Arc<Arena>, depth: u32) -> Result<Self> {
        // SAFETY: the environment is up (`Shared` has an `Env`).
        let hertz = unsafe { sys::spdk_get_ticks_hz() };
        let timeout = (shared.options.timeout.as_secs_f64() * hertz as f64) as u64;
        let mut queue = Self {
            table: Some(Table::new(depth)),
            // The lowest place is on top, so a lightly loaded queue stays on few lines.
            free: (0..depth).rev().collect(),
            parked: Vec::with_capacity(depth as usize),
            lanes: Vec::with_capacity(shared.controllers.len()),
            ports: Vec::with_capacity(shared.places.len()),
            first: 0,
            turns: 0,
            timeout,
            next_scan: 0,
            leaked: 0,
            writable: shared.options.mode.is_writable(),
            shared: Arc::clone(&shared),
            arena,
        };
        for (index, controller) in shared.controllers.iter().enumerate() {
            let lane = queue.lane(index, controller, depth)?;
            queue.lanes.push(lane);
        }
        for (place, info) in shared.places.iter().zip(&shared.infos) {
            let raw = shared.controllers[place.controller].raw();
            // SAFETY: attached, and in phase Running when `lane` joined it just now.
            let ns = unsafe { sys::spdk_nvme_ctrlr_get_ns(raw, place.namespace) };
            queue.ports.push(Port {
                ns,
                lane: place.controller as u16,
                shift: info.block_size.trailing_zeros() as u8,
                start: info.start,
                max_transfer: place.max_transfer,
                boundary: place.boundary,
                namespace: place.namespace,
            });
        }
        Ok(queue)
    }

    /// Makes the queue pair on one controller.
    fn lane(&self, index: usize, controller: &Arc<Controller>, depth: u32) -> Result<Lane> {
        // A command that MDTS splits takes one request, and one for each part. The slots in flight
        // are disjoint pieces of the arena, so the parts of `depth` commands are at most the
        // arena over the smallest part, and one more each for the last, shorter one and for a
        // start that is off a boundary.
        let places = self.shared.places.iter().filter(|place| place.controller == index);
        let part = places
            .map(|place| match place.boundary {
                0 => place.max_transfer,
                boundary => place.max_transfer.min(boundary),
            })
            .min();
        let part = u64::from(part.unwrap_or(u32::MAX).max(1));
        let parts = self.arena.len() as u64 / part + 2 * u64::from(depth);
        let requests = u32::try_from(parts + u64::from(depth)).map_err(|_| {
            Error::usage(format!("{parts} commands in flight on {}", controller.name))
                .remedy("choose a smaller --depth or --slot-size")
        })?;
        let wanted = u32::try_from(parts.min(1 << 20)).unwrap_or(1 << 20).max(depth + 1);
        let queue_size = wanted
            .next_power_of_two()
            .clamp(*QUEUE_SIZE.start(), (*QUEUE_SIZE.end()).max((depth + 1).next_power_of_two()))
            .min(controller.queue_size);
        let batch = self.shared.options.batch_doorbells;
        let (member, seen, qpair) =
            controller.join(|| alloc(controller, queue_size, requests, batch))?;
        Ok(Lane {
            controller: Arc::clone(controller),
            member,
            seen,
            qpair,
            in_flight: 0,
            mode: Mode::Active,
            queue_size,
            requests,
            leaked: false,
            aborts: 0,
            resets: 0,
        })
    }

    #[inline]
    pub(super) fn table(&mut self) -> &mut Table {
        self.table.as_mut().expect("present until drop")
    }

    /// Gives a command to SPDK. 0, or a negative errno: then it is not with SPDK.
    #[inline]
    pub(super) fn send(&mut self, index: u32) -> i32 {
        let table = self.table.as_mut().expect("present until drop");
        let at = table.at(index);
        let op = table.op(index);
        let port = &self.ports[usize::from(op.drive)];
        let lane = &mut self.lanes[usize::from(port.lane)];
        let lba = op.offset >> port.shift;
        let blocks = op.len >> port.shift;
        let buffer = op.lent.as_ref().expect("a command has its slot").addr().cast();
        // Before the call: SPDK may call back from within it.
        op.state = State::Sent;
        op.commands = op.commands.saturating_add(port.commands(op.offset, op.len));
        let (ns, qpair, argument) = (port.ns, lane.qpair, at.cast());
        let transfer = match op.operation {
            Operation::Read => Some(sys::spdk_nvme_ns_cmd_read as Transfer),
            Operation::Write | Operation::WriteDurable => {
                Some(sys::spdk_nvme_ns_cmd_write as Transfer)
            }
            Operation::Sync => None,
        };
        let flags = match op.operation {
            Operation::WriteDurable => sys::SPDK_NVME_IO_FLAGS_FORCE_UNIT_ACCESS,
            Operation::Read | Operation::Write | Operation::Sync => 0,
        };
        // SAFETY: queue pair and namespace are of one attached controller in phase Running (the
        // lane is active), and this is the queue pair's thread. The buffer is a slot of this
        // queue's arena (checked on submission), which is memory of SPDK's, at least `len` long;
        // its Lent in the op keeps it mapped and out of reach until SPDK has called back. The op
        // outlives the command: the table is freed only when SPDK has none of its commands.
        let answer = unsafe {
            match transfer {
                Some(call) => call(ns, qpair, buffer, lba, blocks, Some(ended), argument, flags),
                None => sys::spdk_nvme_ns_cmd_flush(ns, qpair, Some(ended), argument),
            }
        };
        if answer == 0 {
            lane.in_flight += 1;
        }
        answer
    }

    /// Hands out what has ended.
    #[inline]
    pub(super) fn hand_out(&mut self, out: &mut Vec<Completion>) {
        let table = self.table.as_mut().expect("present until drop");
        while out.len() < out.capacity() {
            let Some(index) = table.take_ended() else { break };
            let op = table.op(index);
            let drive = op.drive;
            let lane = &mut self.lanes[usize::from(self.ports[usize::from(drive)].lane)];
            let status = match op.verdict {
                None => {
                    lane.in_flight -= 1;
                    if significant(op.raw) == 0 {
                        IoStatus::Ok
                    } else if is_queue_gone(op.raw) && lane.mode == Mode::Dead {
                        IoStatus::Gone
                    } else if is_queue_gone(op.raw)
                        && op.overdue == Overdue::No
                        && op.retries < MAX_RETRIES
                    {
                        // The controller was reset under it: it goes there again.
                        op.retries += 1;
                        op.state = State::Parked;
                        self.parked.push(index);
                        continue;
                    } else {
                        translate(op.raw)
                    }
                }
                Some(verdict) => verdict,
            };
            op.state = State::Free;
            // SAFETY: SPDK has called back, which it does after the controller has completed the
            // command, or was disabled or has left the bus (module `controller`); or the command
            // was never with SPDK. Commands of which that is not known have no Lent any more.
            let slot = op.lent.take().map(|lent| unsafe { lent.reclaim() });
            let (tag, commands) = (op.tag, op.commands);
            self.free.push(index);
            out.push(Completion { slot, tag, drive, status, commands });
        }
    }
}

impl Port {
    /// Commands that SPDK makes of a transfer (lib/nvme/nvme_ns_cmd.c, `_nvme_ns_cmd_rw`): split at
    /// the boundary where it crosses one, else at the largest transfer.
    #[inline]
    fn commands(&self, offset: u64, len: u32) -> u16 {
        if self.boundary == 0 && len <= self.max_transfer {
            return 1;
        }
        self.split(offset, len)
    }

    #[inline(never)]
    fn split(&self, offset: u64, len: u32) -> u16 {
        let parts = |len: u64| len.div_ceil(u64::from(self.max_transfer)).max(1);
        let (mut at, end, mut count) = (offset, offset + u64::from(len), 0);
        let boundary = u64::from(self.boundary);
        if boundary == 0 || offset % boundary + u64::from(len) <= boundary {
            count = parts(u64::from(len));
        } else {
            while at < end {
                let next = ((at / boundary + 1) * boundary).min(end);
                count += parts(next - at);
                at = next;
            }
        }
        u16::try_from(count).unwrap_or(u16::MAX)
    }
}

/// Makes a connected queue pair.
pub(super) fn alloc(
    controller: &Controller,
    queue_size: u32,
    requests: u32,
    batch: bool,
) -> Result<*mut sys::spdk_nvme_qpair> {
    super::env::forget_errors();
    let lock = super::env::exclusive();
    // SAFETY: attached and in phase Running; SPDK takes the controller's lock.
    let qpair = unsafe { sys::shim_alloc_qpair(controller.raw(), queue_size, requests, batch) };
    drop(lock);
    if !qpair.is_null() {
        return Ok(qpair);
    }
    let what = format!("{}: no I/O queue of {queue_size} entries", controller.name);
    let error = Error::new(Kind::Resource, what).remedy(
        "use fewer workers than the controller has queues, and leave hugepages for its queues",
    );
    Err(match super::env::errors() {
        Some(lines) => error.caused_by(lines),
        None => error,
    })
}

impl Queue for SpdkQueue {
    fn submit(&mut self, command: Command) -> Submit {
        self.shared.infos[usize::from(command.drive)].check(&command, self.writable);
        let Some(index) = self.free.pop() else { return Submit::Busy(command) };
        let Command { slot, drive, operation, offset, len, tag } = command;
        let lent = slot.lend();
        let start = (lent.addr() as usize).wrapping_sub(self.arena.base() as usize);
        assert!(start < self.arena.len(), "a slot of another arena than the queue's");
        let port = &self.ports[usize::from(drive)];
        let (mode, first) = (self.lanes[usize::from(port.lane)].mode, port.start);
        let op = self.table().op(index);
        op.lent = Some(lent);
        op.tag = tag;
        op.offset = first + offset;
        op.born = 0;
        op.len = len;
        op.drive = drive;
        op.commands = 0;
        op.operation = operation;
        op.overdue = Overdue::No;
        op.retries = 0;
        op.verdict = None;
        if mode == Mode::Active {
            let answer = self.send(index);
            if answer != 0 {
                self.not_sent(index, answer);
            }
        } else {
            self.park(index);
        }
        Submit::Queued
    }

    /// Nothing to be done: SPDK rings the doorbells of a batch in the poll that follows.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        let count = self.lanes.len();
        for turn in 0..count {
            let at = self.first + turn;
            let at = if at >= count { at - count } else { at };
            let lane = &self.lanes[at];
            if lane.controller.word() != lane.seen {
                self.change_phase(at);
            }
            let lane = &self.lanes[at];
            if lane.in_flight == 0 || lane.mode != Mode::Active {
                continue;
            }
            let spare = out.capacity() - out.len();
            let ended = self.table.as_ref().expect("present until drop").ended();
            if spare <= ended {
                self.first = at;
                break;
            }
            let budget = (spare - ended).min(POLL_BUDGET) as u32;
            // SAFETY: this thread's queue pair, of a controller in phase Running. No reference
            // into the table is alive.
            if unsafe { sys::spdk_nvme_qpair_process_completions(lane.qpair, budget) } < 0 {
                self.failed(at);
            }
        }
        self.hand_out(out);
        if !self.parked.is_empty() {
            self.unpark();
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_TICK) {
            self.tick();
        }
        out.len() - before
    }

    fn in_flight(&self) -> u32 {
        self.table.as_ref().map_or(0, |table| table.depth() - self.free.len() as u32)
    }

    fn leaked(&self) -> u64 {
        self.leaked
    }
}

impl Drop for SpdkQueue {
    fn drop(&mut self) {
        self.close(DRAIN_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_counted_as_spdk_splits() {
        let port = |max_transfer, boundary| Port {
            ns: std::ptr::null_mut(),
            lane: 0,
            shift: 9,
            start: 0,
            max_transfer,
            boundary,
            namespace: 1,
        };
        let plain = port(128 << 10, 0);
        for (len, count) in [(512, 1), (128 << 10, 1), ((128 << 10) + 512, 2), (1 << 20, 8)] {
            assert_eq!(plain.commands(4096, len), count, "{len}");
        }
        let striped = port(128 << 10, 64 << 10);
        assert_eq!(striped.commands(0, 64 << 10), 1);
        assert_eq!(striped.commands(4096, 64 << 10), 2);
        assert_eq!(striped.commands(0, 128 << 10), 2);
        let wide = port(64 << 10, 128 << 10);
        assert_eq!(wide.commands(0, 128 << 10), 2);
        assert_eq!(wide.commands(64 << 10, 128 << 10), 2);
        assert_eq!(wide.commands((128 << 10) - 512, 1024), 2);
    }
}
