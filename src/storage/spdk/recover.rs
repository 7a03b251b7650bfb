//! The slow paths of a queue: phases of controllers, failures, deadlines, and the end.

use std::mem;
use std::time::{Duration, Instant};

use spdk_sys as sys;

use super::controller::{Kin, Phase};
use super::env;
use super::op::{Overdue, State, abort_ended};
use super::queue::{Mode, SpdkQueue, alloc};
use crate::error::IoStatus;
use crate::memory::Lent;
use crate::storage::{Completion, Queue};

/// Looks for overdue commands in each timeout.
const SCANS_PER_TIMEOUT: u64 = 16;

/// How long abort and reset may take beyond two timeouts before a drive is given up. Above what
/// initialisation takes when it goes well (CAP.TO of most drives is below 10 s).
const RESET_BOUND: Duration = Duration::from_secs(30);

impl SpdkQueue {
    /// Complies with the phase that a controller is in now.
    #[cold]
    pub(super) fn change_phase(&mut self, at: usize) {
        let word = self.lanes[at].controller.word();
        match Phase::of(word) {
            Phase::Quiesce => self.lanes[at].mode = Mode::Held,
            Phase::Release => {
                self.lanes[at].mode = Mode::Held;
                self.release(at);
            }
            Phase::Running => self.resume(at),
            Phase::Removed => {
                self.lanes[at].mode = Mode::Dead;
                self.release(at);
            }
            Phase::Lost => {
                self.lanes[at].mode = Mode::Dead;
                if self.lanes[at].controller.kin == Kin::Fabric {
                    // Closing the connection is the proof.
                    self.release(at);
                } else {
                    self.leak(at);
                }
            }
        }
        self.lanes[at].seen = word;
        self.lanes[at].member.acknowledge(word);
    }

    /// Frees the queue pair, on which SPDK calls back for every command in it.
    fn release(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        let qpair = mem::replace(&mut lane.qpair, std::ptr::null_mut());
        if qpair.is_null() {
            return;
        }
        let lock = env::exclusive();
        // SAFETY: this thread's queue pair. The controller is disabled or off the bus, or it is a
        // connection (phases Release, Removed, Lost of a fabric), or nothing is in flight; so
        // what SPDK ends here is not reached by the controller any more. The pointer is not used
        // again.
        unsafe { sys::spdk_nvme_ctrlr_free_io_qpair(qpair) };
        drop(lock);
        self.leak(at);
    }

    /// Gives up the slots of what SPDK has not called back for.
    fn leak(&mut self, at: usize) {
        let mut count = 0;
        for index in 0..self.table().depth() {
            let op = self.table().op(index);
            let (state, drive) = (op.state, op.drive);
            if state != State::Sent || usize::from(self.ports[usize::from(drive)].lane) != at {
                continue;
            }
            // A Lent that is let go of is leaked: that is what is wanted here.
            let _leaked: Option<Lent> = self.table().op(index).lent.take();
            self.lanes[at].in_flight -= 1;
            self.table().end(index, IoStatus::Gone);
            count += 1;
        }
        let lane = &mut self.lanes[at];
        lane.leaked |= count > 0 || !lane.qpair.is_null();
        if count > 0 {
            self.leaked += count;
            log::error!("{}: {count} slots in flight are leaked", lane.controller.name);
        }
    }

    /// Takes up a controller that runs: after a reset, or after one that was called off.
    fn resume(&mut self, at: usize) {
        let batch = self.shared.options.batch_doorbells;
        let lane = &mut self.lanes[at];
        if lane.qpair.is_null() {
            match alloc(&lane.controller, lane.queue_size, lane.requests, batch) {
                Ok(qpair) => lane.qpair = qpair,
                Err(e) => {
                    log::error!("after the reset: {}", e.report());
                    lane.controller.give_up();
                    return;
                }
            }
            let raw = lane.controller.raw();
            for port in self.ports.iter_mut().filter(|port| usize::from(port.lane) == at) {
                // A reset may have replaced the handles.
                // SAFETY: attached and running.
                port.ns = unsafe { sys::spdk_nvme_ctrlr_get_ns(raw, port.namespace) };
                // SAFETY: not null, so it is a handle of this controller.
                if port.ns.is_null() || !unsafe { sys::spdk_nvme_ns_is_active(port.ns) } {
                    log::error!("{}: its namespace is gone", lane.controller.name);
                    lane.controller.give_up();
                    return;
                }
            }
        }
        lane.mode = Mode::Active;
    }

    /// SPDK says that a queue pair has failed: a connection broke, or the controller is gone.
    #[cold]
    pub(super) fn failed(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        lane.mode = Mode::Held;
        lane.controller.ask_reset();
    }

    /// Deals with a command that SPDK did not take.
    #[cold]
    pub(super) fn not_sent(&mut self, index: u32, answer: i32) {
        let op = self.table().op(index);
        op.state = State::Parked;
        op.commands = 0;
        if answer == -libc::EINVAL {
            self.table().end(index, IoStatus::Errno(libc::EINVAL as u16));
            return;
        }
        // Without memory for the request it waits for others to end; else the queue has failed.
        self.parked.push(index);
        if answer != -libc::ENOMEM {
            let drive = usize::from(self.table().op(index).drive);
            self.failed(usize::from(self.ports[drive].lane));
        }
    }

    /// Keeps a command until its controller takes commands.
    #[cold]
    pub(super) fn park(&mut self, index: u32) {
        self.table().op(index).state = State::Parked;
        self.parked.push(index);
    }

    /// Sends parked commands whose controller takes them, and ends those whose controller is gone.
    #[cold]
    pub(super) fn unpark(&mut self) {
        let mut kept = 0;
        let mut blocked = false;
        for at in 0..self.parked.len() {
            let index = self.parked[at];
            let drive = usize::from(self.table().op(index).drive);
            let mode = self.lanes[usize::from(self.ports[drive].lane)].mode;
            let keep = match mode {
                Mode::Dead => {
                    self.table().end(index, IoStatus::Gone);
                    false
                }
                Mode::Active if !blocked => {
                    let commands = self.table().op(index).commands;
                    // It may take as long as any other from here on: after a reset that took
                    // time, what was sent again would be overdue at once, and reset once more.
                    let born = mem::take(&mut self.table().op(index).born);
                    let answer = self.send(index);
                    if answer != 0 {
                        let op = self.table().op(index);
                        (op.state, op.commands, op.born) = (State::Parked, commands, born);
                        // The order is kept; the poll finds out about a queue that has failed.
                        blocked = true;
                    }
                    answer != 0
                }
                Mode::Active | Mode::Held => true,
            };
            if keep {
                self.parked[kept] = index;
                kept += 1;
            }
        }
        self.parked.truncate(kept);
    }

    /// Looks at the clock: overdue commands, and connections without commands.
    #[cold]
    pub(super) fn tick(&mut self) {
        // SAFETY: reads the time-stamp counter.
        let now = unsafe { sys::spdk_get_ticks() };
        for lane in &mut self.lanes {
            if lane.controller.kin == Kin::Fabric
                && lane.mode == Mode::Active
                && lane.in_flight == 0
            {
                // SAFETY: this thread's queue pair, as in `poll`.
                let answer = unsafe { sys::spdk_nvme_qpair_process_completions(lane.qpair, 1) };
                if answer < 0 {
                    lane.mode = Mode::Held;
                    lane.controller.ask_reset();
                }
            }
        }
        if now < self.next_scan {
            return;
        }
        self.next_scan = now + self.timeout / SCANS_PER_TIMEOUT;
        if self.in_flight() > 0 {
            self.scan(now);
        }
    }

    /// One step for each command that is overdue: abort, then reset, then the drive is given up.
    fn scan(&mut self, now: u64) {
        // SAFETY: a constant of the machine.
        let hertz = unsafe { sys::spdk_get_ticks_hz() };
        let last = 2 * self.timeout + RESET_BOUND.as_secs() * hertz;
        for index in 0..self.table().depth() {
            let op = self.table().op(index);
            if !matches!(op.state, State::Sent | State::Parked) {
                continue;
            }
            if op.born == 0 {
                // Age counts from the first look: a thread that did not poll for a while has not
                // made its commands slow.
                op.born = now;
                continue;
            }
            let age = now.saturating_sub(op.born);
            let (state, drive, overdue) = (op.state, usize::from(op.drive), op.overdue);
            if age < self.timeout {
                continue;
            }
            let at = usize::from(self.ports[drive].lane);
            let lane = &self.lanes[at];
            if age >= last {
                lane.controller.give_up();
                continue;
            }
            if state != State::Sent || lane.mode != Mode::Active || overdue == Overdue::Reset {
                continue;
            }
            let step = if age >= 2 * self.timeout {
                Overdue::Reset
            } else if overdue == Overdue::No {
                self.abort(at, index)
            } else {
                continue;
            };
            let lane = &mut self.lanes[at];
            match step {
                Overdue::No => continue,
                Overdue::Aborted => lane.aborts += 1,
                Overdue::Reset => {
                    lane.resets += 1;
                    lane.controller.ask_reset();
                }
            }
            self.table().op(index).overdue = step;
        }
        for lane in &mut self.lanes {
            let (aborts, resets) = (mem::take(&mut lane.aborts), mem::take(&mut lane.resets));
            let name = &lane.controller.name;
            if aborts > 0 {
                log::error!("{name}: {aborts} commands are overdue: aborting them");
            }
            if resets > 0 {
                log::error!("{name}: {resets} commands are overdue: the controller is to be reset");
            }
        }
    }

    /// Has the controller abort a command. The step that was taken: `No` where as many aborts as
    /// may be are on their way, so that it is tried again at the next look.
    fn abort(&mut self, at: usize, index: u32) -> Overdue {
        let argument = self.table().at(index).cast();
        let lane = &self.lanes[at];
        // The vfio-user transport cannot look for a command (it has no qpair_iterate_requests).
        if lane.controller.kin == Kin::VfioUser {
            return Overdue::Reset;
        }
        let Some(ended) = lane.controller.begin_abort() else { return Overdue::No };
        let raw = lane.controller.raw();
        // SAFETY: attached and running; this thread's queue pair; the first argument only names the
        // command that was sent with it. The last is a counter of the controller, which outlives
        // its admin queue: it is not freed before that is detached, after which nothing calls back.
        let answer = unsafe {
            sys::spdk_nvme_ctrlr_cmd_abort_ext(raw, lane.qpair, argument, Some(abort_ended), ended)
        };
        if answer == 0 {
            return Overdue::Aborted;
        }
        lane.controller.abort_not_sent();
        // Without memory for the request others are on their way.
        if answer == -libc::ENOMEM { Overdue::No } else { Overdue::Reset }
    }

    /// Ends the queue: waits for what is in flight, at most for `bound`.
    pub(super) fn close(&mut self, bound: Duration) {
        let deadline = Instant::now() + bound;
        let mut out: Vec<Completion> = Vec::with_capacity(self.table().depth() as usize);
        while self.in_flight() > 0 && Instant::now() < deadline {
            self.poll(&mut out);
            out.clear();
        }
        for at in 0..self.lanes.len() {
            let lane = &self.lanes[at];
            if lane.in_flight > 0 && lane.mode == Mode::Active && lane.controller.kin != Kin::Fabric
            {
                lane.controller.give_up();
            }
            let lane = &self.lanes[at];
            if lane.controller.word() != lane.seen {
                self.change_phase(at);
            }
            let lane = &self.lanes[at];
            if lane.mode == Mode::Held && lane.in_flight > 0 {
                // In the middle of a reset that does not end: nothing is known.
                lane.controller.give_up();
                self.change_phase(at);
            }
            if !self.lanes[at].leaked {
                self.release(at);
            }
            let lane = &self.lanes[at];
            lane.controller.leave(&lane.member);
        }
        // What SPDK has ended, and what it never had, comes back to its arena.
        self.lanes.iter_mut().for_each(|lane| lane.mode = Mode::Dead);
        self.unpark();
        self.hand_out(&mut out);
        drop(out);
        let table = self.table.take().expect("closed once");
        if self.lanes.iter().any(|lane| lane.leaked) {
            // SPDK may still name commands of the table: it stays.
            log::error!("{} slots and their queue are leaked", self.leaked);
        } else {
            // SAFETY: all queue pairs are freed, and with each SPDK has called back for all of its
            // commands (`leak` found none).
            unsafe { table.free() };
        }
    }
}
