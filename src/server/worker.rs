//! One worker: a pinned thread, one loop, run to completion.
//!
//! The slot is the request's state. A request that has one is found by the slot's number; a
//! request without one waits in line. Nothing is allocated after [`Worker::new`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::admit::{Admitted, Served, StoreLimits, admit};
use crate::error::{IoStatus, Result};
use crate::fabric::{ConnId, Endpoint, Event, Response};
use crate::limits::POLL_BUDGET;
use crate::memory::{Slot, SlotPool, seal};
use crate::object::Member;
use crate::stats::{Clock, Counters};
use crate::storage::{Command, Completion, DriveInfo, Queue, Submit};
use crate::wire::{self, CheckMode, Request, Status};

use objects::{Store, Task};

/// What a worker is told at start.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// What to do with the bytes that were read.
    pub check: CheckMode,
    /// Time from arrival within which each request is answered, with an error if need be.
    pub deadline: Duration,
    /// Time that requests in flight have to finish once the server stops.
    pub drain: Duration,
    /// Requests that can wait at once: connections times credits.
    pub max_pending: usize,
}

/// Time between two looks at deadlines and at the stop flag, in nanoseconds.
const TICK_NS: u64 = 10_000_000;

/// Idle turns between two readings of the clock.
const TURNS_PER_CLOCK: u32 = 64;

/// Least time between two log lines about failed reads, in nanoseconds: a dead drive under load
/// fails a hundred thousand requests a second.
const REPORT_NS: u64 = 1_000_000_000;

/// Time that a request waits for a slot before a client that does not take its answers is given
/// up; less where the deadline is short. A line that carries no single answer in this time is not
/// worth the wait of all others.
const SHED_AFTER: Duration = Duration::from_secs(1);

/// A request that waits for a slot.
#[derive(Debug, Clone, Copy)]
struct Pending {
    conn: ConnId,
    request: Request,
    admitted: Admitted,
    arrived: u64,
}

/// A request that has a slot.
#[derive(Debug, Clone, Copy)]
struct Active {
    pending: Pending,
    task: Task,
    submitted: u64,
    /// The client has had its answer, or gets none; the slot waits for drive or NIC alone.
    answered: bool,
}

/// When a completion was reaped, and when its turn has come.
#[derive(Debug, Clone, Copy)]
struct Times {
    reaped: u64,
    now: u64,
}

/// The loop of one core. Generic, so that backend and fabric are dispatched once, at start.
pub struct Worker<Q, E> {
    queue: Q,
    fabric: E,
    slots: SlotPool,
    drives: Arc<[DriveInfo]>,
    options: WorkerOptions,
    clock: Clock,
    counters: Arc<Counters>,
    /// Requests in line for a slot, oldest first.
    pending: VecDeque<Pending>,
    /// Requests on the drives, by the number of their slot.
    active: Vec<Option<Active>>,
    /// Commands that the queue had no room for; they go first.
    held: VecDeque<Command>,
    /// What is done for a store's objects; `None` where ranges of drives are served.
    store: Option<Store>,
    events: Vec<Event>,
    completions: Vec<Completion>,
    turns: u32,
    /// The last reading of the clock.
    now: u64,
    next_tick: u64,
    stopping: bool,
    /// When a stopping worker ends with work left.
    give_up: u64,
    next_report: u64,
    unreported: u64,
}

impl<Q: Queue, E: Endpoint> Worker<Q, E> {
    /// A worker that owns its queue, its endpoint and its slots. Allocates all that it ever will.
    pub fn new(
        queue: Q,
        fabric: E,
        slots: SlotPool,
        drives: Arc<[DriveInfo]>,
        options: WorkerOptions,
        counters: Arc<Counters>,
    ) -> Self {
        assert_eq!(counters.drives.len(), drives.len(), "counters for each drive");
        counters.slots.store(slots.count() as u64, Ordering::Relaxed);
        counters.slots_free.store(slots.available() as u64, Ordering::Relaxed);
        Self {
            queue,
            fabric,
            drives,
            clock: Clock::start(),
            pending: VecDeque::with_capacity(options.max_pending),
            active: vec![None; slots.count()],
            held: VecDeque::with_capacity(slots.count()),
            store: None,
            events: Vec::with_capacity(POLL_BUDGET),
            completions: Vec::with_capacity(POLL_BUDGET),
            turns: 0,
            now: 0,
            next_tick: 0,
            stopping: false,
            give_up: u64::MAX,
            next_report: 0,
            unreported: 0,
            slots,
            options,
            counters,
        }
    }

    /// Makes it serve the objects of a store instead of ranges of drives. Slots hold an object and
    /// its header.
    pub fn with_store(mut self, member: Member) -> Self {
        self.store = Some(Store::new(member, self.slots.count()));
        self
    }

    /// Serves until `stop` becomes true, then finishes what is in flight, within
    /// [`WorkerOptions::drain`].
    ///
    /// # Errors
    ///
    /// When the storage queue as a whole has failed.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<()> {
        seal::seal();
        let outcome = self.serve(stop);
        seal::unseal();
        outcome
    }

    fn serve(&mut self, stop: &AtomicBool) -> Result<()> {
        while !self.is_over(stop) {
            self.take_events();
            self.start_requests();
            self.queue.flush()?;
            self.finish_commands();
            self.fabric.flush();
        }
        Ok(())
    }

    /// Looks up from the work once a tick: at deadlines, counters, and the wish to stop. True once
    /// the server has stopped and nothing is left to do, or the time for that has passed.
    fn is_over(&mut self, stop: &AtomicBool) -> bool {
        self.turns = self.turns.wrapping_add(1);
        // A turn with work in it has read the clock, and may have taken long; an idle one is so
        // short that the clock would be most of it.
        if self.turns.is_multiple_of(TURNS_PER_CLOCK) {
            self.stamp();
        }
        if self.now < self.next_tick {
            return false;
        }
        self.next_tick = self.now + TICK_NS;
        self.expire(self.now);
        self.publish();
        if stop.load(Ordering::Relaxed) && !self.stopping {
            self.stopping = true;
            self.give_up = self.now + Clock::nanos(self.options.drain);
            self.fabric.refuse_new();
        }
        self.stopping && (self.is_idle() || self.now >= self.give_up)
    }

    /// Reads the clock.
    fn stamp(&mut self) -> u64 {
        self.now = self.clock.now();
        self.now
    }

    /// What the fabric has: new requests go in line, slots that were sent become free.
    fn take_events(&mut self) {
        self.fabric.poll(&mut self.events);
        if self.events.is_empty() {
            return;
        }
        let now = self.stamp();
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                Event::Request(conn, request) => self.take_in(conn, request, now),
                Event::Sent { slot, .. } => self.free(slot),
                Event::Pulled { tag, slot, ok, .. } => self.take_body(tag, slot, ok),
                Event::Opened(_) => Counters::add(&self.counters.opened, 1),
                Event::Closed(conn, why) => {
                    Counters::add(&self.counters.closed[why.number()], 1);
                    self.pending.retain(|waiting| waiting.conn != conn);
                }
            }
        }
        self.events = events;
    }

    fn take_in(&mut self, conn: ConnId, request: Request, now: u64) {
        Counters::add(&self.counters.requests, 1);
        if self.stopping {
            return self.refuse(conn, &request, Status::Stopping, 0);
        }
        let max_payload = self.slots.slot_size() as u32;
        let store = self.store.as_ref().map(Store::limits);
        match admit(&request, Served { drives: &self.drives, max_payload, store }) {
            Err((status, detail)) => self.refuse(conn, &request, status, detail),
            Ok(admitted) => {
                // Credits bound each connection, and max_pending is their sum.
                debug_assert!(self.pending.len() < self.pending.capacity());
                self.pending.push_back(Pending { conn, request, admitted, arrived: now });
            }
        }
    }

    /// Requests in line get slots and go to the drives, as long as there are slots and room.
    fn start_requests(&mut self) {
        if !self.held.is_empty() {
            self.submit_held();
        }
        if self.store.is_some() {
            self.turn_store();
        }
        if self.pending.is_empty() {
            return;
        }
        let now = self.stamp();
        while self.held.is_empty()
            && !self.queue.is_sated()
            && !self.pending.is_empty()
            && let Some(slot) = self.slots.acquire()
        {
            let pending = self.pending.pop_front().expect("checked above");
            match pending.admitted {
                Admitted::Read => self.start_read(slot, pending, now),
                Admitted::Describe => self.describe(slot, pending),
                Admitted::Get => self.start_get(slot, pending, now),
                Admitted::Put => self.fetch_body(slot, pending, now),
                Admitted::Delete => self.start_delete(slot, pending, now),
            }
        }
    }

    /// Gives a command to the drives; what they have no room for waits, in order.
    fn submit(&mut self, command: Command) {
        if !self.held.is_empty() {
            return self.held.push_back(command);
        }
        if let Submit::Busy(command) = self.queue.submit(command) {
            self.held.push_back(command);
        }
    }

    fn submit_held(&mut self) {
        // Until now they have waited in line; their time on the drive begins here.
        let now = self.stamp();
        while let Some(command) = self.held.pop_front() {
            let place = command.tag as usize;
            if let Submit::Busy(command) = self.queue.submit(command) {
                return self.held.push_front(command);
            }
            if let Some(active) = &mut self.active[place] {
                active.submitted = now;
            }
        }
    }

    /// What the drives have done is checked and answered.
    fn finish_commands(&mut self) {
        if self.queue.poll(&mut self.completions) == 0 {
            return;
        }
        let reaped = self.stamp();
        let mut now = reaped;
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            let place = completion.tag as usize;
            let active = self.active[place].take().expect("a completion has its request");
            Counters::add(&self.counters.commands, completion.commands.into());
            let times = Times { reaped, now };
            now = match active.task {
                Task::Read => self.finish_read(active, completion, times),
                Task::Get(read) => self.finish_get(active, read, completion, times),
                Task::Change => self.go_on_with_change(active, completion, times),
                Task::Body => unreachable!("the drives have nothing to do with it yet"),
            };
        }
        self.completions = completions;
    }

    /// Puts the stages of a request that was off its drive at `reaped` into its record, and counts
    /// it for that drive.
    fn note(
        &self,
        record: &mut wire::Completion,
        active: &Active,
        drive: u16,
        reaped: u64,
        end: u64,
    ) {
        let of_drive = &self.counters.drives[usize::from(drive)];
        let queued = active.submitted - active.pending.arrived;
        let (drive, check) = (reaped - active.submitted, end - reaped);
        record.queued_ns = queued.into();
        record.drive_ns = drive.into();
        record.check_ns = check.into();
        Counters::add(&self.counters.queued_ns, queued);
        Counters::add(&self.counters.drive_ns, drive);
        Counters::add(&self.counters.check_ns, check);
        self.counters.latency.record(queued + drive + check);
        of_drive.latency.record(drive);
        Counters::add(&of_drive.drive_ns, drive);
        Counters::add(&of_drive.bytes, record.length.get().into());
        Counters::add(&of_drive.failed, (record.status() != Status::Ok).into());
    }

    fn answer(
        &mut self,
        conn: ConnId,
        request: &Request,
        slot: Option<Slot>,
        start: usize,
        record: wire::Completion,
    ) {
        let len = record.length.get();
        self.counters.by_status.count(record.status() as u16);
        if record.status() == Status::Ok {
            Counters::add(&self.counters.served, 1);
            Counters::add(&self.counters.bytes, len.into());
        } else {
            Counters::add(&self.counters.failed, 1);
        }
        let response = Response {
            slot,
            start: start as u32,
            len,
            remote_addr: request.remote_addr.get(),
            rkey: request.rkey.get(),
            record,
            tag: request.id.get(),
        };
        self.fabric.respond(conn, response);
    }

    fn refuse(&mut self, conn: ConnId, request: &Request, status: Status, detail: u32) {
        let record = wire::Completion::new(request.id.get(), status, detail);
        self.answer(conn, request, None, 0, record);
    }

    /// Answers what is overdue. The slot of a command that was given to the drive stays with the
    /// drive until it completes: a deadline proves nothing about DMA. Nor would an answer stop the
    /// NIC from reading a body, so a client that does not deliver its body in time is cut off.
    fn expire(&mut self, now: u64) {
        let limit = Clock::nanos(self.options.deadline);
        let detail = u32::try_from(self.options.deadline.as_millis()).unwrap_or(u32::MAX);
        while let Some(oldest) = self.pending.front().copied()
            && now - oldest.arrived > limit
        {
            self.pending.pop_front();
            self.refuse(oldest.conn, &oldest.request, Status::TimedOut, detail);
        }
        // A client that does not take its answers must not starve the others of slots.
        let patience = SHED_AFTER.min(self.options.deadline / 4);
        if self.slots.available() == 0
            && let Some(oldest) = self.pending.front()
            && now - oldest.arrived > Clock::nanos(patience)
        {
            self.fabric.shed(patience);
        }
        for place in 0..self.active.len() {
            if let Some(active) = &mut self.active[place]
                && !active.answered
                && now - active.pending.arrived > limit
            {
                active.answered = true;
                let pending = active.pending;
                match active.task {
                    Task::Body => self.fabric.close(pending.conn),
                    _ => self.refuse(pending.conn, &pending.request, Status::TimedOut, detail),
                }
            }
        }
    }

    /// Logs a command that failed: what it was, where, and the cause.
    fn report_failure(&mut self, status: IoStatus, what: &str, drive: u16, offset: u64, now: u64) {
        self.report(now, |drives| {
            let name = &drives[usize::from(drive)].name;
            format!("{what} at offset {offset} of {name} failed: {status}")
        });
    }

    /// Logs a failure, and how many went unlogged since the last line. This is no longer the
    /// steady state, so it may allocate.
    fn report(&mut self, now: u64, what: impl FnOnce(&[DriveInfo]) -> String) {
        if now < self.next_report {
            self.unreported += 1;
            return;
        }
        self.next_report = now + REPORT_NS;
        seal::unseal();
        let unreported = std::mem::take(&mut self.unreported);
        log::error!("{} ({unreported} more failures not shown)", what(&self.drives));
        seal::seal();
    }

    fn free(&mut self, slot: Option<Slot>) {
        if let Some(slot) = slot {
            self.slots.release(slot);
        }
    }

    fn publish(&self) {
        let active = self.pending.len() + self.queue.in_flight() as usize;
        self.counters.active.store(active as u64, Ordering::Relaxed);
        self.counters.connections.store(self.fabric.connections().into(), Ordering::Relaxed);
        let leaked = self.queue.leaked() + self.fabric.leaked();
        self.counters.leaked.store(leaked, Ordering::Relaxed);
        self.counters.slots_free.store(self.slots.available() as u64, Ordering::Relaxed);
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty()
            && self.held.is_empty()
            && self.store.as_ref().is_none_or(Store::is_idle)
            && self.queue.in_flight() == 0
            && self.fabric.in_flight() == 0
    }
}

mod objects;
mod ranges;
#[cfg(test)]
mod tests;
