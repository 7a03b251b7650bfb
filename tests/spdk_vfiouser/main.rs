//! The userspace backend on real NVMe controllers that SPDK's target plays over vfio-user.

mod faults;
mod format;
mod hang;
mod parts;
mod serve;
mod steady;
#[path = "../storage_contract/suite.rs"]
mod suite;
#[path = "../support/mod.rs"]
mod support;
mod target;

use std::sync::{Mutex, MutexGuard};

use millrace::fabric::rdma;
use millrace::host::Root;
use millrace::memory::Pages;
use millrace::memory::seal::CountingAllocator;
use millrace::storage::spdk::{SpdkOptions, SpdkStorage};
use millrace::storage::{Command, OpenMode, Operation, Queue, Storage, Submit, mem};

use suite::Rig;
use target::{Drive, Target};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Pages of the suite's arenas: SPDK has hugepages only.
const PAGES: Pages = Pages::Auto;

/// One target at a time: each polls on a CPU of its own.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A target for one test, or `None` after saying what this machine lacks for it.
fn start(test: &str, controllers: &[&[Drive]]) -> Option<(MutexGuard<'static, ()>, Target)> {
    let _ = env_logger::builder().is_test(true).try_init();
    let turn = turn();
    if let Err(reason) = Target::possible() {
        support::skip(test, &reason);
        return None;
    }
    Some((turn, Target::start(controllers).unwrap_or_else(|e| panic!("{e}"))))
}

fn open(names: &[String], options: SpdkOptions) -> SpdkStorage {
    SpdkStorage::open(names, options).unwrap_or_else(|e| panic!("{}", e.report()))
}

fn writable() -> SpdkOptions {
    SpdkOptions { mode: OpenMode::ReadWrite, ..SpdkOptions::default() }
}

/// True in a process that runs the test `name` alone; elsewhere runs it in one, to its good end.
fn in_a_process_of_its_own(name: &str) -> bool {
    const CHILD: &str = "MILLRACE_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let _turn = turn();
    let program = std::env::current_exe().expect("this program");
    let child = std::process::Command::new(program)
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .status();
    assert!(child.expect("it runs").success());
    false
}

/// Writes what each drive must have, through the backend itself.
fn fill(storage: &SpdkStorage) {
    let mut rig = Rig::new(storage);
    for (drive, info) in storage.drives().iter().enumerate() {
        let drive = drive as u16;
        let mut offsets = (0..info.capacity).step_by(suite::SLOT).peekable();
        while offsets.peek().is_some() || rig.queue.in_flight() > 0 {
            while let (Some(&offset), Some(mut slot)) = (offsets.peek(), rig.pool.acquire()) {
                let len = (info.capacity - offset).min(suite::SLOT as u64) as u32;
                mem::fill(drive, offset, slot.bytes_mut(len as usize));
                let operation = Operation::Write;
                match rig.queue.submit(Command { slot, drive, operation, offset, len, tag: 0 }) {
                    Submit::Queued => offsets.next(),
                    Submit::Busy(command) => {
                        rig.pool.release(command.slot);
                        break;
                    }
                };
            }
            rig.turn();
            let Rig { out, pool, .. } = &mut rig;
            for done in out.drain(..) {
                assert!(done.status.is_ok(), "{}", done.status);
                pool.release(done.slot.expect("its slot"));
            }
        }
    }
}

#[test]
fn spdk_keeps_the_contract() {
    let (small, large) = (Drive::new(512), Drive::new(4096));
    let Some((_turn, target)) = start("spdk_keeps_the_contract", &[&[small, large], &[large]])
    else {
        return;
    };
    // Two namespaces of one controller, and one of another.
    let names = [format!("{} ns:1", target.id(0)), format!("{} ns:2", target.id(0)), target.id(1)];
    let storage = open(&names, writable());
    fill(&storage);
    suite::writing(&storage, &mem::fill);
    fill(&storage);
    drop(storage);
    let storage = open(&names, SpdkOptions::default());
    suite::reading(&storage, &mem::fill);
    suite::refusing_writes(&storage);
    drop(storage);
    // The doorbell of each command by itself.
    let single = SpdkOptions { batch_doorbells: false, ..SpdkOptions::default() };
    suite::reading(&open(&names, single), &mem::fill);
}

/// SPDK's own RDMA transport, where it has one, and this program's fabric reach one and the same
/// libibverbs: both are in this binary, and the environment is up when devices are listed.
#[test]
fn spdk_and_the_rdma_fabric_live_in_one_program() {
    let drive = Drive::new(4096);
    let Some((_turn, target)) = start("spdk_and_the_rdma_fabric", &[&[drive]]) else { return };
    let storage = open(&[target.id(0)], SpdkOptions::default());
    match rdma::available(&Root::system()) {
        Ok(devices) => println!("{} RDMA devices", devices.len()),
        Err(e) => println!("{}", e.report()),
    }
    assert_eq!(storage.drives().len(), 1);
}
