//! Workers on one store, each with a queue of its own, turn by turn on one thread; and a model of
//! what every key may hold.

use std::collections::HashMap;
use std::sync::Arc;

use millrace::check::crc;
use millrace::error::IoStatus;
use millrace::memory::{ArenaSpec, Pages, Slot, SlotPool};
use millrace::object::{
    BLOCK, Digest, Entry, Header, KeyName, Member, Mutation, Objects, Recheck, Refusal, Start,
    Ticket, WriteAt,
};
use millrace::storage::sim::{SimQueue, SimStorage};
use millrace::storage::{Command, Completion, Operation, Queue, Storage, Submit};

use crate::rig::{LIMIT, Random, STRIDE};

pub const KEYS: u64 = 6;

/// What a key holds: the number of the put, or nothing.
pub type Value = Option<u64>;

pub fn key(number: u64) -> KeyName {
    KeyName::new(format!("key/{number}").as_bytes()).unwrap()
}

/// The data of a put.
pub fn data(put: u64) -> Vec<u8> {
    let mut random = Random(put);
    let len = match random.below(4) {
        0 => 1 + random.below(16),
        1 => LIMIT.into(),
        _ => 1 + random.below(LIMIT.into()),
    };
    let mut bytes = vec![0; len as usize];
    bytes.chunks_mut(8).for_each(|chunk| {
        let word = random.next().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    });
    bytes
}

/// Everything that was begun on a key, in order; changes of one key never overlap.
#[derive(Debug, Clone)]
pub struct History {
    /// The first is what was there at the start.
    pub begun: Vec<Value>,
    /// The last one that was acknowledged.
    pub acknowledged: usize,
}

impl History {
    pub fn new(value: Value) -> Self {
        Self { begun: vec![value], acknowledged: 0 }
    }

    /// What may be there after a loss of power now.
    pub fn possible(&self) -> &[Value] {
        &self.begun[self.acknowledged..]
    }
}

pub type Model = HashMap<u64, History>;

enum Doing {
    Change { mutation: Box<Mutation>, key: u64, begun: usize },
    Read { ticket: Ticket, key: u64, entry: Entry, from: usize },
}

/// A worker, as a server has them.
pub struct Worker {
    queue: SimQueue,
    pool: SlotPool,
    member: Member,
    doing: Vec<Option<Doing>>,
    /// Reads whose key was being changed: looked at again.
    again: Vec<(Slot, Doing)>,
    pub reads: u64,
    pub moved: u64,
    pub acknowledged: u64,
    pub failed: u64,
}

const DEPTH: usize = 6;

impl Worker {
    pub fn new(storage: &SimStorage, objects: &Arc<Objects>) -> Self {
        let spec = ArenaSpec { bytes: DEPTH * STRIDE as usize, pages: Pages::Base, node: None };
        let arena = storage.arena(&spec).unwrap();
        let queue = storage.queue(&arena, DEPTH as u32).unwrap();
        let pool = SlotPool::new(arena, STRIDE as usize, DEPTH).unwrap();
        let member = objects.join().expect("a place for it");
        let doing = (0..DEPTH).map(|_| None).collect();
        let again = Vec::new();
        Self { queue, pool, member, doing, again, reads: 0, moved: 0, acknowledged: 0, failed: 0 }
    }

    pub fn is_idle(&self) -> bool {
        self.queue.in_flight() == 0 && self.again.is_empty()
    }

    /// Begins something random, if there is memory for it.
    pub fn begin(&mut self, random: &mut Random, model: &mut Model, puts: &mut u64) {
        let Some(mut slot) = self.pool.acquire() else { return };
        let number = random.below(KEYS);
        let key = key(number);
        let history = model.get_mut(&number).expect("every key has one");
        let what = random.below(10);
        if what < 4 {
            let Some((ticket, entry)) = self.member.begin_read(&key.digest()) else {
                let possible = history.possible();
                assert!(possible.contains(&None), "{key} is not found: {history:?}");
                return self.pool.release(slot);
            };
            let from = history.acknowledged;
            return self.read(slot, Doing::Read { ticket, key: number, entry, from });
        }
        let size = slot.size();
        let (start, value) = if what < 8 {
            *puts += 1;
            let data = data(*puts);
            let memory = slot.bytes_mut(size);
            memory[BLOCK..BLOCK + data.len()].copy_from_slice(&data);
            let (len, crc) = (data.len() as u32, crc(&data));
            let digest = key.digest();
            (self.member.start_put(&key, &digest, len, crc, memory), Some(*puts))
        } else {
            (self.member.start_delete(&key.digest(), slot.bytes_mut(size)), None)
        };
        match start {
            Start::Go(mutation, write) => {
                history.begun.push(value);
                let begun = history.begun.len() - 1;
                let doing = Doing::Change { mutation: Box::new(mutation), key: number, begun };
                self.write(slot, doing, write);
            }
            Start::Later => self.pool.release(slot),
            Start::Refused(Refusal::NotFound) => {
                assert!(history.possible().contains(&None), "{key}: {history:?}");
                self.pool.release(slot);
            }
            Start::Refused(Refusal::Stuck | Refusal::NoSpace) => self.pool.release(slot),
            Start::Refused(other) => panic!("{other}"),
        }
    }

    fn write(&mut self, slot: Slot, doing: Doing, write: WriteAt) {
        let WriteAt { drive, offset, len } = write;
        self.submit(slot, doing, Operation::WriteDurable, drive, offset, len);
    }

    fn read(&mut self, slot: Slot, doing: Doing) {
        let Doing::Read { entry, .. } = &doing else { unreachable!() };
        let layout = self.member.objects().layout();
        let ((drive, offset), len) = (layout.locate(entry.slot), layout.transfer_len(entry.length));
        self.submit(slot, doing, Operation::Read, drive, offset, len);
    }

    fn submit(
        &mut self,
        slot: Slot,
        doing: Doing,
        operation: Operation,
        drive: u16,
        offset: u64,
        len: u32,
    ) {
        let tag = slot.index();
        self.doing[tag as usize] = Some(doing);
        let command = Command { slot, drive, operation, offset, len, tag: tag.into() };
        assert!(matches!(self.queue.submit(command), Submit::Queued), "as deep as the memory");
    }

    /// One turn of the loop.
    pub fn turn(&mut self, model: &mut Model) {
        self.member.turn();
        for (slot, doing) in std::mem::take(&mut self.again) {
            self.look_again(slot, doing, model);
        }
        let mut out: Vec<Completion> = Vec::with_capacity(DEPTH);
        self.queue.flush().unwrap();
        self.queue.poll(&mut out);
        for done in out {
            let mut slot = done.slot.expect("nothing is stuck");
            match self.doing[done.tag as usize].take().expect("it was begun") {
                Doing::Change { mut mutation, key, begun } => {
                    let size = slot.size();
                    let step =
                        self.member.advance(&mut mutation, done.status, slot.bytes_mut(size));
                    let history = model.get_mut(&key).unwrap();
                    match step.answer {
                        Some(Ok(())) => {
                            history.acknowledged = begun;
                            self.acknowledged += 1;
                        }
                        Some(Err(_)) => self.failed += 1,
                        None => {}
                    }
                    match step.write {
                        Some(write) => {
                            self.write(slot, Doing::Change { mutation, key, begun }, write);
                        }
                        None => self.pool.release(slot),
                    }
                }
                doing @ Doing::Read { .. } => self.take_read(slot, doing, done.status, model),
            }
        }
    }

    fn take_read(&mut self, slot: Slot, doing: Doing, status: IoStatus, model: &Model) {
        let Doing::Read { ticket, key: number, entry, from } = doing else { unreachable!() };
        if !status.is_ok() {
            self.member.end_read(ticket);
            return self.pool.release(slot);
        }
        let objects = self.member.objects();
        let bytes = slot.bytes(objects.layout().transfer_len(entry.length) as usize);
        let digest = key(number).digest();
        let place = objects.place(entry.slot);
        let header = Header::first(bytes).and_then(|header| {
            header.expect(objects.store(), place, &digest, entry.sequence, entry.length)?;
            Ok(header)
        });
        let Ok(header) = header else { return self.look_again(slot, doing, model) };
        let found = &bytes[BLOCK..BLOCK + entry.length as usize];
        // Whether or not a server checks it: this is never a mixture.
        assert_eq!(crc(found), header.data_crc(), "a mixture in {}", key(number));
        let possible = &model[&number].begun[from..];
        let known = possible.iter().flatten().any(|put| data(*put) == found);
        assert!(known, "{} has what it must not have: {possible:?}", key(number));
        self.reads += 1;
        self.member.end_read(ticket);
        self.pool.release(slot);
    }

    fn look_again(&mut self, slot: Slot, doing: Doing, model: &Model) {
        let Doing::Read { ticket, key: number, entry, from } = doing else { unreachable!() };
        self.moved += 1;
        match self.member.recheck(&key(number).digest(), &entry) {
            Recheck::Moved(entry) => {
                self.read(slot, Doing::Read { ticket, key: number, entry, from });
            }
            Recheck::Gone => {
                let possible = &model[&number].begun[from..];
                assert!(possible.contains(&None), "{} is gone: {possible:?}", key(number));
                self.member.end_read(ticket);
                self.pool.release(slot);
            }
            Recheck::Later => self.again.push((slot, doing)),
            Recheck::Damaged => panic!("{} is called damaged", key(number)),
        }
    }
}

/// What a store holds, key by key, read through `storage` as a client would.
pub fn contents(storage: &SimStorage, objects: &Arc<Objects>) -> HashMap<Digest, Vec<u8>> {
    let spec = ArenaSpec { bytes: STRIDE as usize, pages: Pages::Base, node: None };
    let arena = storage.arena(&spec).unwrap();
    let mut queue = storage.queue(&arena, 1).unwrap();
    let mut pool = SlotPool::new(arena, STRIDE as usize, 1).unwrap();
    let mut found = HashMap::new();
    for slot in 0..objects.layout().slots() {
        let Some((digest, entry)) = objects.index().at(slot) else { continue };
        assert_eq!(objects.index().get(&digest), Some(entry));
        let (drive, offset) = objects.layout().locate(slot);
        let len = objects.layout().transfer_len(entry.length);
        let memory = pool.acquire().unwrap();
        let operation = Operation::Read;
        let command = Command { slot: memory, drive, operation, offset, len, tag: 0 };
        assert!(matches!(queue.submit(command), Submit::Queued));
        let mut out = Vec::with_capacity(1);
        while out.is_empty() {
            queue.poll(&mut out);
        }
        let memory = out.pop().unwrap().slot.unwrap();
        let bytes = memory.bytes(len as usize);
        let header = Header::first(bytes).expect("a header");
        let place = objects.place(slot);
        header
            .expect(objects.store(), place, &digest, entry.sequence, entry.length)
            .expect("the header that the index knows");
        let data = &bytes[BLOCK..BLOCK + entry.length as usize];
        assert_eq!(crc(data), header.data_crc());
        assert!(found.insert(digest, data.to_vec()).is_none(), "a key twice");
        pool.release(memory);
    }
    found
}
