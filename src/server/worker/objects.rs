//! What a worker does for the objects of a store.
//!
//! ```text
//!   get     index -> read header and data at once -> compare -> answer from the data's place
//!   put     slot -> body into it, data in place -> compare -> data, header, old header: durably
//!   delete  header cleared durably
//! ```
//!
//! A get whose slot turns out to hold something else looks again: the object may have been
//! replaced or deleted meanwhile. A put or a delete whose key is being changed waits with its slot:
//! the other change has one already, so nobody waits in a circle.

use std::collections::VecDeque;

use super::{Active, Pending, StoreLimits, Times, Worker};
use crate::check::{check, crc};
use crate::error::IoStatus;
use crate::fabric::{Endpoint, Pull};
use crate::memory::Slot;
use crate::object::{
    BLOCK, Damage, Digest, Entry, Header, KeyName, Member, Mutation, Objects, Recheck, Refusal,
    Start, Ticket, WriteAt,
};
use crate::stats::Counters;
use crate::storage::{Command, Completion, Operation, Queue};
use crate::wire::{self, CheckMode, PUT_PREFIX, PutPrefix, Request, Status};

/// Where in a slot the body of a put starts: its data is then where it goes to the drive from.
const BODY_START: usize = BLOCK - PUT_PREFIX;

const _: () = assert!(crate::object::MAX_KEY == wire::MAX_KEY);
const _: () = assert!(crate::object::DIGEST_SIZE == wire::DIGEST_SIZE);

/// What a request with a slot is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Task {
    /// Reads a range of a drive.
    Read,
    /// Reads an object.
    Get(ObjectRead),
    /// Fetches the body of a put.
    Body,
    /// Changes the store: a put that has its body, or a delete.
    Change,
}

/// A read of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectRead {
    ticket: Ticket,
    entry: Entry,
}

/// A worker's part of the store.
#[derive(Debug)]
pub(super) struct Store {
    member: Member,
    limits: StoreLimits,
    /// Puts and deletes under way, by the number of their slot.
    changes: Vec<Option<Mutation>>,
    /// Slots of requests that wait for a change of their key.
    later: VecDeque<Slot>,
}

impl Store {
    pub(super) fn new(member: Member, slots: usize) -> Self {
        let objects = member.objects();
        let object_limit = objects.layout().object_limit();
        let limits = StoreLimits { object_limit, writable: objects.is_writable() };
        let changes = (0..slots).map(|_| None).collect();
        Self { member, limits, changes, later: VecDeque::with_capacity(slots) }
    }

    pub(super) fn limits(&self) -> StoreLimits {
        self.limits
    }

    pub(super) fn is_idle(&self) -> bool {
        self.later.is_empty() && self.member.changes_in_flight() == 0
    }
}

fn digest(request: &Request) -> Digest {
    Digest(request.digest)
}

/// Status and detail of what a store refuses.
fn status_of(refusal: Refusal) -> (Status, u32) {
    match refusal {
        Refusal::NotFound => (Status::NotFound, 0),
        Refusal::NoSpace => (Status::NoSpace, 0),
        Refusal::ReadOnly => (Status::ReadOnly, 0),
        Refusal::Length(limit) => (Status::TooLong, limit),
        Refusal::Stuck => (Status::Stuck, 0),
    }
}

/// Compares what was read with what the index says; gives the CRC of the data.
fn examine(
    objects: &Objects,
    digest: &Digest,
    entry: &Entry,
    mode: CheckMode,
    bytes: &[u8],
) -> Result<u64, Damage> {
    let header = Header::first(bytes)?;
    let place = objects.place(entry.slot);
    header.expect(objects.store(), place, digest, entry.sequence, entry.length)?;
    let data = &bytes[BLOCK..BLOCK + entry.length as usize];
    match check(mode, data) {
        Some(crc) if crc != header.data_crc() => Err(Damage::Data),
        _ => Ok(header.data_crc()),
    }
}

impl<Q: Queue, E: Endpoint> Worker<Q, E> {
    fn store(&mut self) -> &mut Store {
        self.store.as_mut().expect("requests by key are admitted where there is a store")
    }

    /// Once a turn: lets freed slots of the drives come free, and looks whether those who wait for
    /// a change of their key can go on.
    pub(super) fn turn_store(&mut self) {
        let store = self.store();
        store.member.turn();
        for _ in 0..store.later.len() {
            let Some(slot) = self.store().later.pop_front() else { return };
            let active = self.active[slot.index() as usize].take().expect("it waits with its slot");
            match active.task {
                Task::Get(read) => self.look_again(active, read, slot, Damage::Header),
                _ if active.answered => self.free(Some(slot)),
                _ => self.change(active, slot),
            }
        }
    }

    fn wait(&mut self, active: Active, slot: Slot) {
        self.active[slot.index() as usize] = Some(active);
        self.store().later.push_back(slot);
    }

    fn turn_down(&mut self, pending: &Pending, slot: Slot, (status, detail): (Status, u32)) {
        self.free(Some(slot));
        self.refuse(pending.conn, &pending.request, status, detail);
    }

    /// Looks the object up and reads it.
    pub(super) fn start_get(&mut self, slot: Slot, pending: Pending, now: u64) {
        match self.store().member.begin_read(&digest(&pending.request)) {
            None => self.turn_down(&pending, slot, (Status::NotFound, 0)),
            Some((ticket, entry)) => {
                let task = Task::Get(ObjectRead { ticket, entry });
                let active = Active { pending, task, submitted: now, answered: false };
                self.read_object(active, ObjectRead { ticket, entry }, slot);
            }
        }
    }

    fn read_object(&mut self, active: Active, read: ObjectRead, slot: Slot) {
        let ObjectRead { ticket, entry } = read;
        let layout = self.store().member.objects().layout();
        let ((drive, offset), len) = (layout.locate(entry.slot), layout.transfer_len(entry.length));
        let request = &active.pending.request;
        if entry.damaged || entry.length > request.length.get() {
            self.store().member.end_read(ticket);
            return if entry.damaged {
                self.report_damage(active, &entry, slot, Damage::Header);
            } else {
                self.turn_down(&active.pending, slot, (Status::TooLong, entry.length));
            };
        }
        let place = slot.index() as usize;
        self.active[place] = Some(Active { task: Task::Get(read), ..active });
        let (operation, tag) = (Operation::Read, place as u64);
        self.submit(Command { slot, drive, operation, offset, len, tag });
    }

    /// Answers a get, or reads once more if the object has moved.
    pub(super) fn finish_get(
        &mut self,
        active: Active,
        read: ObjectRead,
        completion: Completion,
        times: Times,
    ) -> u64 {
        let Times { reaped, now } = times;
        let request = active.pending.request;
        let (status, detail) = Status::of_io(completion.status);
        if active.answered || status != Status::Ok {
            self.store().member.end_read(read.ticket);
            if !active.answered {
                let layout = self.store().member.objects().layout();
                let (drive, offset) = layout.locate(read.entry.slot);
                self.report_failure(completion.status, "a read of an object", drive, offset, now);
                let mut record = wire::Completion::new(request.id.get(), status, detail);
                self.note(&mut record, &active, completion.drive, reaped, now);
                self.answer(active.pending.conn, &request, None, 0, record);
            }
            self.free(completion.slot);
            return now;
        }
        let slot = completion.slot.expect("a whole read gives its slot back");
        let (mode, entry) = (self.options.check, read.entry);
        let store = self.store();
        let objects = store.member.objects();
        let bytes = slot.bytes(objects.layout().transfer_len(entry.length) as usize);
        match examine(objects, &digest(&request), &entry, mode, bytes) {
            Ok(crc) => {
                store.member.end_read(read.ticket);
                let end = if mode == CheckMode::None { now } else { self.stamp() };
                let mut record =
                    wire::Completion::new(request.id.get(), Status::Ok, 0).with_crc(crc);
                record.length = entry.length.into();
                record.commands = u32::from(completion.commands).into();
                self.note(&mut record, &active, completion.drive, reaped, end);
                self.answer(active.pending.conn, &request, Some(slot), BLOCK, record);
                end
            }
            Err(damage) => {
                self.look_again(active, read, slot, damage);
                self.stamp()
            }
        }
    }

    /// What was read is not what the index had said: the object was changed meanwhile, or is
    /// damaged.
    fn look_again(&mut self, active: Active, read: ObjectRead, slot: Slot, damage: Damage) {
        let ObjectRead { ticket, entry } = read;
        let member = &mut self.store().member;
        if active.answered {
            member.end_read(ticket);
            return self.free(Some(slot));
        }
        match member.recheck(&digest(&active.pending.request), &entry) {
            Recheck::Moved(entry) => self.read_object(active, ObjectRead { ticket, entry }, slot),
            Recheck::Later => self.wait(active, slot),
            Recheck::Gone => {
                member.end_read(ticket);
                self.turn_down(&active.pending, slot, (Status::NotFound, 0));
            }
            Recheck::Damaged => {
                member.end_read(ticket);
                self.report_damage(active, &entry, slot, damage);
            }
        }
    }

    fn report_damage(&mut self, active: Active, entry: &Entry, slot: Slot, damage: Damage) {
        let (drive, offset) = self.store().member.objects().layout().locate(entry.slot);
        Counters::add(&self.counters.drives[usize::from(drive)].damaged, 1);
        let now = self.stamp();
        let sequence = entry.sequence;
        self.report(now, |drives| {
            let name = &drives[usize::from(drive)].name;
            format!("object {sequence} at offset {offset} of {name} is damaged: {damage}")
        });
        self.turn_down(&active.pending, slot, (Status::Damaged, damage.code()));
    }

    /// Has the fabric fetch the body of a put.
    pub(super) fn fetch_body(&mut self, slot: Slot, pending: Pending, now: u64) {
        let place = slot.index() as usize;
        let request = &pending.request;
        let pull = Pull {
            slot,
            start: BODY_START as u32,
            len: request.body() as u32,
            id: request.id.get(),
            remote_addr: request.remote_addr.get(),
            rkey: request.rkey.get(),
            tag: place as u64,
        };
        self.fabric.pull(pending.conn, pull);
        let task = Task::Body;
        self.active[place] = Some(Active { pending, task, submitted: now, answered: false });
    }

    /// The body of a put has come, or its connection is gone and nothing has happened.
    pub(super) fn take_body(&mut self, tag: u64, slot: Option<Slot>, whole: bool) {
        let active = self.active[tag as usize].take().expect("a body has its request");
        let Some(slot) = slot else { return };
        if !whole || active.answered {
            return self.free(Some(slot));
        }
        match judge_body(&active.pending.request, &slot) {
            Ok(()) => self.change(Active { task: Task::Change, ..active }, slot),
            Err(flaw) => self.turn_down(&active.pending, slot, flaw),
        }
    }

    pub(super) fn start_delete(&mut self, slot: Slot, pending: Pending, now: u64) {
        self.change(Active { pending, task: Task::Change, submitted: now, answered: false }, slot);
    }

    /// Begins a put whose body is in the slot, or a delete.
    fn change(&mut self, mut active: Active, mut slot: Slot) {
        let request = active.pending.request;
        let (digest, length) = (digest(&request), request.length.get());
        let size = slot.size();
        let member = &mut self.store().member;
        let start = if request.body() > 0 {
            let prefix = prefix_of(&slot).expect("judged when it came");
            let key = KeyName::new(prefix.key()).expect("judged when it came");
            member.start_put(&key, &digest, length, prefix.crc.get(), slot.bytes_mut(size))
        } else {
            member.start_delete(&digest, slot.bytes_mut(size))
        };
        match start {
            Start::Later => self.wait(active, slot),
            Start::Refused(refusal) => {
                self.turn_down(&active.pending, slot, status_of(refusal));
            }
            Start::Go(mutation, write) => {
                active.submitted = self.stamp();
                self.write(active, mutation, write, slot);
            }
        }
    }

    fn write(&mut self, active: Active, mutation: Mutation, write: WriteAt, slot: Slot) {
        let place = slot.index() as usize;
        self.store().changes[place] = Some(mutation);
        self.active[place] = Some(active);
        let WriteAt { drive, offset, len } = write;
        let (operation, tag) = (Operation::WriteDurable, place as u64);
        self.submit(Command { slot, drive, operation, offset, len, tag });
    }

    /// A write of a put or a delete is done: answers where that is due, and writes on.
    pub(super) fn go_on_with_change(
        &mut self,
        mut active: Active,
        completion: Completion,
        times: Times,
    ) -> u64 {
        let Times { reaped, now } = times;
        let place = completion.tag as usize;
        if completion.status != IoStatus::Ok {
            self.report_write(&completion, now);
        }
        let Store { member, changes, .. } = self.store();
        let mut mutation = changes[place].take().expect("a write has its change");
        let Some(mut slot) = completion.slot else {
            // The queue has failed, and with it the worker.
            member.abandon(mutation);
            if !active.answered {
                let (status, detail) = Status::of_io(completion.status);
                self.refuse(active.pending.conn, &active.pending.request, status, detail);
            }
            return now;
        };
        let size = slot.size();
        let step = member.advance(&mut mutation, completion.status, slot.bytes_mut(size));
        if let Some(outcome) = step.answer
            && !std::mem::replace(&mut active.answered, true)
        {
            let (status, detail) = Status::of_io(outcome.err().unwrap_or(IoStatus::Ok));
            let request = active.pending.request;
            let mut record = wire::Completion::new(request.id.get(), status, detail);
            record.commands = u32::from(completion.commands).into();
            self.note(&mut record, &active, completion.drive, reaped, reaped);
            self.answer(active.pending.conn, &request, None, 0, record);
        }
        match step.write {
            Some(write) => self.write(active, mutation, write, slot),
            None => self.free(Some(slot)),
        }
        now
    }

    fn report_write(&mut self, completion: &Completion, now: u64) {
        let (status, drive) = (completion.status, usize::from(completion.drive));
        self.report(now, |drives| format!("a write to {} failed: {status}", drives[drive].name));
    }
}

fn prefix_of(slot: &Slot) -> Result<PutPrefix, (Status, u32)> {
    PutPrefix::parse(&slot.bytes(BLOCK)[BODY_START..]).map_err(|_| (Status::BadKey, 1))
}

/// Judges a body once it is in the server's own memory, before anything is written.
fn judge_body(request: &Request, slot: &Slot) -> Result<(), (Status, u32)> {
    let prefix = prefix_of(slot)?;
    if Digest::of(prefix.key()) != digest(request) {
        return Err((Status::BadKey, 2));
    }
    let end = BLOCK + request.length.get() as usize;
    if crc(&slot.bytes(end)[BLOCK..]) != prefix.crc.get() {
        return Err((Status::BodyCrc, 0));
    }
    Ok(())
}
