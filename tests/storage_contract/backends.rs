//! The suite over files, RAM and simulated drives.

use std::path::Path;

use millrace::error::IoStatus;
use millrace::storage::mem::{self, MemStorage};
use millrace::storage::sim::{SimSpec, SimStorage};
use millrace::storage::uring::{UringOptions, UringStorage};
use millrace::storage::{Command, DriveName, OpenMode, Operation, Queue, Storage, Submit};

use crate::suite::{self, Rig};

/// Size of the drives.
pub const BYTES: usize = 4 << 20;

/// Writes what drive number `drive` has to a file.
pub fn make_file(path: &Path, drive: u16) {
    let mut bytes = vec![0; BYTES];
    mem::fill(drive, 0, &mut bytes);
    std::fs::write(path, bytes).expect("a file on disk");
}

/// Every set of the three registrations.
pub fn registrations() -> impl Iterator<Item = UringOptions> {
    (0..8).map(|bits| UringOptions {
        regbufs: bits & 1 != 0,
        regfiles: bits & 2 != 0,
        regring: bits & 4 != 0,
        iopoll: false,
        sqpoll: false,
    })
}

/// Opens paths, with the whole report where that fails.
pub fn open(paths: &[&Path], mode: OpenMode, options: UringOptions) -> UringStorage {
    let names: Vec<_> = paths.iter().map(|path| DriveName::Path((*path).to_owned())).collect();
    UringStorage::open(&names, mode, options).unwrap_or_else(|e| panic!("{}", e.report()))
}

#[test]
fn uring_reads_files_with_every_set_of_registrations() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    make_file(&one, 0);
    make_file(&two, 1);
    for options in registrations() {
        println!("{options:?}");
        let storage = open(&[&one, &two], OpenMode::Read, options);
        assert_eq!((storage.name(), storage.options()), ("uring", options));
        suite::reading(&storage, &mem::fill);
        suite::refusing_writes(&storage);
    }
}

#[test]
fn uring_reads_files_through_a_submission_thread() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("drive");
    make_file(&path, 0);
    let storage =
        open(&[&path], OpenMode::Read, UringOptions { sqpoll: true, ..UringOptions::default() });
    suite::reading(&storage, &mem::fill);
}

#[test]
fn uring_writes_files_with_every_set_of_registrations() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("drive");
    for options in registrations() {
        println!("{options:?}");
        make_file(&path, 0);
        suite::writing(&open(&[&path], OpenMode::ReadWrite, options), &mem::fill);
    }
}

#[test]
fn a_file_that_was_cut_ends_reads_short() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("drive");
    make_file(&path, 0);
    let storage = open(&[&path], OpenMode::Read, UringOptions::default());
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Not at a block boundary: the last block of the file comes in part.
    file.set_len(4096 + 100).unwrap();
    let mut rig = Rig::new(&storage);
    for (offset, len) in [(0, 16384), (65536, 4096)] {
        let slot = rig.pool.acquire().unwrap();
        let operation = Operation::Read;
        let done = rig.carry_out(Command { slot, drive: 0, operation, offset, len, tag: 1 });
        assert_eq!(done.status, IoStatus::Short, "bytes {offset}+{len}");
        rig.pool.release(done.slot.expect("its slot"));
    }
}

#[test]
fn one_turn_of_the_loop_enters_the_kernel_at_most_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("drive");
    make_file(&path, 0);
    let storage = open(&[&path], OpenMode::Read, UringOptions::default());
    let mut rig = Rig::new(&storage);
    for turn in 0..200 {
        let slot = rig.pool.acquire().unwrap();
        let (operation, offset) = (Operation::Read, turn * 4096);
        let command = Command { slot, drive: 0, operation, offset, len: 4096, tag: turn };
        let before = rig.queue.enters();
        rig.carry_out(command);
        let entered = rig.queue.enters() - before;
        assert!((1..=2).contains(&entered), "{entered}: one to submit, one to collect");
        let done = rig.queue.enters();
        (0..10).for_each(|_| rig.turn());
        assert_eq!(rig.queue.enters(), done, "nothing is in flight");
        rig = Rig::new(&storage);
    }
}

#[test]
fn mem_keeps_the_contract() {
    let storage = MemStorage::open(&[1 << 20, 512 << 10], OpenMode::Read).unwrap();
    suite::reading(&storage, &mem::fill);
    suite::refusing_writes(&storage);
    suite::writing(&MemStorage::open(&[1 << 20], OpenMode::ReadWrite).unwrap(), &mem::fill);
}

#[test]
fn sim_keeps_the_contract() {
    for (seed, reorder, short_rate) in [(1, true, 0.0), (2, false, 0.0), (3, true, 0.5)] {
        let drives = vec![1 << 20, 512 << 10];
        let spec = SimSpec { seed, reorder, short_rate, drives, ..SimSpec::default() };
        let storage = SimStorage::open(spec.clone()).unwrap();
        suite::reading(&storage, &mem::fill);
        suite::refusing_writes(&storage);
        let writable = SimSpec { mode: OpenMode::ReadWrite, ..spec };
        suite::writing(&SimStorage::open(writable.clone()).unwrap(), &mem::fill);
        let volatile = SimSpec { volatile: true, ..writable };
        suite::writing(&SimStorage::open(volatile).unwrap(), &mem::fill);
    }
}

/// What was durable when the power went is there; of the rest, each sector is old or new.
#[test]
fn a_loss_of_power_takes_what_was_not_durable() {
    let (mut all, mut none, mut torn) = (0, 0, 0);
    for seed in 0..200_u64 {
        let spec =
            SimSpec { mode: OpenMode::ReadWrite, volatile: true, seed, ..SimSpec::default() };
        let storage = SimStorage::open(spec).unwrap();
        let before = storage.images().remove(0);
        let mut rig = Rig::new(&storage);
        let mut write = |operation, offset: u64, byte| {
            let mut slot = rig.pool.acquire().unwrap();
            slot.bytes_mut(8192).fill(byte);
            let len = if operation == Operation::Sync { 0 } else { 8192 };
            let done = rig.carry_out(Command { slot, drive: 0, operation, offset, len, tag: 0 });
            assert_eq!(done.status, IoStatus::Ok);
            rig.pool.release(done.slot.unwrap());
        };
        write(Operation::Write, 0, 1);
        write(Operation::Sync, 0, 0);
        write(Operation::WriteDurable, 8192, 2);
        write(Operation::Write, 16384, 3);
        write(Operation::Write, 24576, 4);
        // In the place of a write that is not durable, and not before it: the older is gone.
        write(Operation::WriteDurable, 24576, 5);
        let left = storage.crash(seed).remove(0);
        assert!(left[..8192].iter().all(|byte| *byte == 1), "synced: seed {seed}");
        assert!(left[8192..16384].iter().all(|byte| *byte == 2), "durable: seed {seed}");
        assert!(left[24576..32768].iter().all(|byte| *byte == 5), "durable: seed {seed}");
        assert!(left[32768..] == before[32768..], "the rest: seed {seed}");
        let new = (16384..24576).step_by(512).filter(|at| {
            let sector = &left[*at..at + 512];
            let new = sector.iter().all(|byte| *byte == 3);
            assert!(new || *sector == before[*at..at + 512], "a torn sector: seed {seed}");
            new
        });
        match new.count() {
            0 => none += 1,
            16 => all += 1,
            _ => torn += 1,
        }
    }
    assert!(all > 10 && none > 10 && torn > 10, "{all} whole, {none} lost, {torn} torn");
}

/// A write that has not completed may be on the medium in part; reads do not see it.
#[test]
fn a_loss_of_power_may_leave_what_was_in_flight() {
    let mut seen = 0;
    for seed in 0..50_u64 {
        let spec = SimSpec {
            mode: OpenMode::ReadWrite,
            volatile: true,
            stuck_rate: 1.0,
            seed,
            ..SimSpec::default()
        };
        let storage = SimStorage::open(spec).unwrap();
        let before = storage.images();
        let mut rig = Rig::new(&storage);
        let mut slot = rig.pool.acquire().unwrap();
        slot.bytes_mut(4096).fill(7);
        let operation = Operation::WriteDurable;
        let command = Command { slot, drive: 0, operation, offset: 0, len: 4096, tag: 0 };
        assert!(matches!(rig.queue.submit(command), Submit::Queued));
        (0..10).for_each(|_| rig.turn());
        assert!(storage.images() == before);
        let left = storage.crash(seed).remove(0);
        assert!(left[4096..] == before[0][4096..]);
        seen += usize::from(left[..512] == [7; 512]);
    }
    assert!((5..45).contains(&seen), "{seen} of 50");
}
