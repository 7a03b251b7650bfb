//! The contract of `Storage` and `Queue`, as tests over any backend.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use millrace::error::IoStatus;
use millrace::memory::{Arena, ArenaSpec, SlotPool, seal};
use millrace::storage::{Command, Completion, Operation, Queue, Storage, Submit};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::PAGES;

/// Slot size of the suite: several blocks of every drive.
pub const SLOT: usize = 64 << 10;

/// Storage depth of the suite.
pub const DEPTH: u32 = 16;

/// Bytes that a drive must have at an offset: drive, offset, buffer.
pub type Expected<'a> = &'a (dyn Fn(u16, u64, &mut [u8]) + Sync);

/// A generator that a failing run can be repeated with.
pub fn random(seed: u8) -> TestRng {
    TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32])
}

/// What one worker has: a queue, its slots, and room for completions.
pub struct Rig<'a, S: Storage> {
    storage: &'a S,
    pub queue: S::Queue,
    pub pool: SlotPool,
    pub out: Vec<Completion>,
}

impl<'a, S: Storage> Rig<'a, S> {
    /// Twice as many slots as the depth, as a server has.
    pub fn new(storage: &'a S) -> Self {
        let bytes = SLOT * 2 * DEPTH as usize;
        let spec = ArenaSpec { bytes, pages: PAGES, node: None };
        let arena = storage.arena(&spec).expect("an arena");
        Self::on(storage, arena)
    }

    /// On an arena that is cut into no slots yet.
    pub fn on(storage: &'a S, arena: Arc<Arena>) -> Self {
        let queue = storage.queue(&arena, DEPTH).unwrap_or_else(|e| panic!("{}", e.report()));
        let pool = SlotPool::new(arena, SLOT, 2 * DEPTH as usize).expect("slots");
        Self { storage, queue, pool, out: Vec::with_capacity(DEPTH as usize) }
    }

    /// A read of a random place.
    fn read(&mut self, random: &mut TestRng, tag: u64) -> Command {
        let drive = (random.next_u32() as usize % self.storage.drives().len()) as u16;
        let info = &self.storage.drives()[usize::from(drive)];
        let block = u64::from(info.block_size);
        let most = (SLOT as u64).min(info.capacity) / block;
        let len = (1 + random.next_u64() % most) * block;
        let offset = random.next_u64() % ((info.capacity - len) / block + 1) * block;
        let slot = self.pool.acquire().expect("twice as many slots as the depth");
        Command { slot, drive, operation: Operation::Read, offset, len: len as u32, tag }
    }

    /// One turn of a worker's loop.
    pub fn turn(&mut self) {
        self.queue.flush().expect("the queue is well");
        let (before, room) = (self.out.len(), self.out.capacity() - self.out.len());
        let count = self.queue.poll(&mut self.out);
        assert!(count <= room && self.out.len() == before + count, "poll says what it appended");
    }

    /// Turns until one command has ended, and takes it.
    pub fn one(&mut self) -> Completion {
        while self.out.is_empty() {
            self.turn();
        }
        self.out.remove(0)
    }

    /// Carries out one command.
    pub fn carry_out(&mut self, mut command: Command) -> Completion {
        loop {
            match self.queue.submit(command) {
                Submit::Queued => return self.one(),
                Submit::Busy(same) => command = same,
            }
            self.turn();
        }
    }
}

/// The whole contract for reading, on drives that end every command well.
pub fn reading<S: Storage>(storage: &S, expected: Expected) {
    reads_give_the_bytes_of_the_drive(storage, expected);
    a_full_queue_gives_the_command_back(storage);
    poll_keeps_to_the_room_it_has(storage);
    nothing_is_allocated_in_steady_state(storage, expected);
    a_queue_is_dropped_with_commands_in_flight(storage);
    wrong_commands_do_not_reach_the_drive(storage);
    workers_share_the_drives(storage, expected);
    depths_are_bounded(storage);
}

fn reads_give_the_bytes_of_the_drive<S: Storage>(storage: &S, expected: Expected) {
    let mut rig = Rig::new(storage);
    let mut random = random(1);
    let commands = read_many(&mut rig, &mut random, 400, expected);
    assert!(commands >= 400);
}

/// Carries out `count` random reads at full depth; allocates nothing but its own books, which are
/// made before the first. Returns the commands that the drives got.
fn read_many<S: Storage>(
    rig: &mut Rig<S>,
    random: &mut TestRng,
    count: u64,
    expected: Expected,
) -> u64 {
    let mut wanted = vec![None; count as usize];
    let mut buffer = vec![0; SLOT];
    let (mut sent, mut ended, mut commands) = (0, 0, 0);
    while ended < count {
        while sent < count {
            let command = rig.read(random, sent);
            let place = (command.drive, command.offset, command.len);
            match rig.queue.submit(command) {
                Submit::Queued => {
                    wanted[sent as usize] = Some(place);
                    sent += 1;
                }
                Submit::Busy(command) => {
                    rig.pool.release(command.slot);
                    break;
                }
            }
        }
        assert_eq!(u64::from(rig.queue.in_flight()), sent - ended);
        rig.turn();
        let Rig { out, pool, queue, .. } = rig;
        for done in out.drain(..) {
            let place = wanted[done.tag as usize].take();
            let (drive, offset, len) = place.expect("each tag ends once");
            assert_eq!((done.status, done.drive), (IoStatus::Ok, drive));
            let slot = done.slot.expect("a command that ended gives its slot back");
            let buffer = &mut buffer[..len as usize];
            expected(drive, offset, buffer);
            assert!(slot.bytes(len as usize) == buffer, "drive {drive}, bytes {offset}+{len}");
            pool.release(slot);
            commands += u64::from(done.commands);
            ended += 1;
        }
        assert_eq!(u64::from(queue.in_flight()), sent - ended);
    }
    assert_eq!(rig.pool.available(), rig.pool.count(), "every slot is back");
    commands
}

fn a_full_queue_gives_the_command_back<S: Storage>(storage: &S) {
    let mut rig = Rig::new(storage);
    let mut random = random(2);
    for tag in 0..u64::from(DEPTH) {
        let command = rig.read(&mut random, tag);
        assert!(matches!(rig.queue.submit(command), Submit::Queued), "{tag} of {DEPTH}");
        assert_eq!(u64::from(rig.queue.in_flight()), tag + 1);
    }
    let command = rig.read(&mut random, 99);
    let (offset, len, index) = (command.offset, command.len, command.slot.index());
    let Submit::Busy(same) = rig.queue.submit(command) else { panic!("one more than the depth") };
    assert_eq!((same.tag, same.offset, same.len), (99, offset, len));
    assert_eq!(same.slot.index(), index);
    assert_eq!(rig.queue.in_flight(), DEPTH);
    let mut tags = HashSet::new();
    for _ in 0..DEPTH {
        tags.insert(rig.one().tag);
    }
    assert_eq!(tags, (0..u64::from(DEPTH)).collect());
    assert!(rig.carry_out(same).status.is_ok(), "there is room again");
}

fn poll_keeps_to_the_room_it_has<S: Storage>(storage: &S) {
    let mut rig = Rig::new(storage);
    let mut random = random(3);
    for tag in 0..8 {
        let command = rig.read(&mut random, tag);
        assert!(matches!(rig.queue.submit(command), Submit::Queued));
    }
    rig.out = Vec::new();
    rig.turn();
    assert_eq!(rig.out.capacity(), 0, "no room: nothing is taken, nothing allocated");
    assert_eq!(rig.queue.in_flight(), 8);
    rig.out = Vec::with_capacity(3);
    let room = rig.out.capacity();
    let mut ended = 0;
    while ended < 8 {
        rig.turn();
        assert!(rig.out.len() <= room && rig.out.capacity() == room);
        ended += rig.out.len();
        rig.out.clear();
    }
    assert_eq!((ended, rig.queue.in_flight()), (8, 0));
}

fn nothing_is_allocated_in_steady_state<S: Storage>(storage: &S, expected: Expected) {
    let mut rig = Rig::new(storage);
    let mut random = random(4);
    read_many(&mut rig, &mut random, 50, expected);
    let info = &storage.drives()[0];
    let len = info.block_size;
    let before = seal::sealed_allocations();
    seal::seal();
    for turn in 0..500_u64 {
        while let Some(slot) = rig.pool.acquire() {
            let offset = turn * u64::from(len) % info.capacity;
            let operation = Operation::Read;
            let command = Command { slot, drive: 0, operation, offset, len, tag: turn };
            if let Submit::Busy(command) = rig.queue.submit(command) {
                rig.pool.release(command.slot);
                break;
            }
        }
        rig.turn();
        let Rig { out, pool, .. } = &mut rig;
        out.drain(..).for_each(|done| pool.release(done.slot.expect("its slot")));
    }
    seal::unseal();
    assert_eq!(seal::sealed_allocations(), before);
}

fn a_queue_is_dropped_with_commands_in_flight<S: Storage>(storage: &S) {
    let mut random = random(5);
    for flushed in [false, true] {
        let mut rig = Rig::new(storage);
        let arena = Arc::clone(rig.pool.arena());
        for tag in 0..u64::from(DEPTH) {
            let command = rig.read(&mut random, tag);
            assert!(matches!(rig.queue.submit(command), Submit::Queued));
        }
        if flushed {
            rig.queue.flush().expect("the queue is well");
        }
        drop(rig);
        assert_eq!(Arc::strong_count(&arena), 1, "all ended, so nothing is leaked");
    }
}

fn wrong_commands_do_not_reach_the_drive<S: Storage>(storage: &S) {
    let info = &storage.drives()[0];
    let (block, end) = (u64::from(info.block_size), info.capacity);
    for (offset, len) in [
        (end, block),
        (end - block, 2 * block),
        (u64::MAX - block + 1, block),
        (1, block),
        (0, block + 1),
        (0, 0),
        (0, SLOT as u64 + block),
    ] {
        let mut rig = Rig::new(storage);
        let slot = rig.pool.acquire().expect("a slot");
        let operation = Operation::Read;
        let command = Command { slot, drive: 0, operation, offset, len: len as u32, tag: 0 };
        let submitted = catch_unwind(AssertUnwindSafe(|| rig.queue.submit(command)));
        assert!(submitted.is_err(), "bytes {offset}+{len} of {end}");
        assert_eq!(rig.queue.in_flight(), 0);
    }
}

fn workers_share_the_drives<S: Storage>(storage: &S, expected: Expected) {
    std::thread::scope(|scope| {
        for seed in 6..9 {
            scope.spawn(move || {
                read_many(&mut Rig::new(storage), &mut random(seed), 100, expected);
            });
        }
    });
}

fn depths_are_bounded<S: Storage>(storage: &S) {
    let spec = ArenaSpec { bytes: SLOT, pages: PAGES, node: None };
    let arena = storage.arena(&spec).expect("an arena");
    for depth in [0, millrace::limits::MAX_DEPTH + 1] {
        let error = storage.queue(&arena, depth).map(drop).expect_err("out of range");
        assert!(error.report().contains("--depth"), "{}", error.report());
    }
}

/// The contract for writing: written, made durable, read back; the rest of the drive stays.
pub fn writing<S: Storage>(storage: &S, expected: Expected) {
    let mut rig = Rig::new(storage);
    let block = storage.drives()[0].block_size.max(4096);
    let mut random = random(10);
    let mut wrote = vec![0; block as usize];
    for round in 0..20_u64 {
        let offset = 2 * round * u64::from(block);
        random.fill_bytes(&mut wrote);
        let mut slot = rig.pool.acquire().expect("a slot");
        slot.bytes_mut(wrote.len()).copy_from_slice(&wrote);
        let base = |slot, operation, offset, len| Command {
            slot,
            drive: 0,
            operation,
            offset,
            len,
            tag: round,
        };
        let operation = [Operation::Write, Operation::WriteDurable][round as usize % 2];
        let done = rig.carry_out(base(slot, operation, offset, block));
        assert_eq!((done.status, done.tag), (IoStatus::Ok, round));
        let slot = done.slot.expect("its slot");
        let done = rig.carry_out(base(slot, Operation::Sync, 0, 0));
        assert_eq!(done.status, IoStatus::Ok);
        let mut slot = done.slot.expect("its slot");
        slot.bytes_mut(2 * wrote.len()).fill(0);
        let done = rig.carry_out(base(slot, Operation::Read, offset, 2 * block));
        let slot = done.slot.expect("its slot");
        let mut next = vec![0; block as usize];
        expected(0, offset + u64::from(block), &mut next);
        assert!(slot.bytes(2 * wrote.len()) == [&wrote[..], &next[..]].concat(), "round {round}");
        rig.pool.release(slot);
    }
}

/// Drives that were opened to be read take no write, whoever asks.
pub fn refusing_writes<S: Storage>(storage: &S) {
    let block = storage.drives()[0].block_size;
    for (operation, len) in
        [(Operation::Write, block), (Operation::WriteDurable, block), (Operation::Sync, 0)]
    {
        let mut rig = Rig::new(storage);
        let slot = rig.pool.acquire().expect("a slot");
        let command = Command { slot, drive: 0, operation, offset: 0, len, tag: 0 };
        let submitted = catch_unwind(AssertUnwindSafe(|| rig.queue.submit(command)));
        assert!(submitted.is_err(), "{operation:?}");
    }
}
