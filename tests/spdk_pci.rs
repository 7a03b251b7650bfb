//! The userspace backend on PCI functions: run in a guest by tests/guest/spdk.sh, which names the
//! drives (bound to vfio-pci) in the environment. Writes to them.

#[path = "support/skip.rs"]
mod skip;
#[path = "storage_contract/suite.rs"]
mod suite;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use millrace::error::IoStatus;
use millrace::memory::Pages;
use millrace::memory::seal::CountingAllocator;
use millrace::storage::spdk::{SpdkOptions, SpdkStorage};
use millrace::storage::{Command, OpenMode, Operation, Queue, Storage, Submit, mem};
use suite::Rig;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Pages of the suite's arenas: SPDK has hugepages only.
const PAGES: Pages = Pages::Auto;

/// Bytes from the start of each drive that the loads read.
const USED: u64 = 4 << 20;

/// The drives in the variable `name`, separated by commas, or `None` after saying so.
fn drives(test: &str, name: &str) -> Option<Vec<String>> {
    let _ = env_logger::builder().is_test(true).try_init();
    match std::env::var(name) {
        Ok(list) if !list.is_empty() => Some(list.split(',').map(str::to_owned).collect()),
        _ => {
            skip::skip(test, &format!("{name} names no drive; tests/guest/spdk.sh runs it"));
            None
        }
    }
}

fn open(names: &[String], mode: OpenMode) -> SpdkStorage {
    let options = SpdkOptions { mode, ..SpdkOptions::default() };
    SpdkStorage::open(names, options).unwrap_or_else(|e| panic!("{}", e.report()))
}

/// Writes what each drive must have.
fn fill(storage: &SpdkStorage) {
    let mut rig = Rig::new(storage);
    for (drive, info) in storage.drives().iter().enumerate() {
        let drive = drive as u16;
        for offset in (0..info.capacity).step_by(suite::SLOT) {
            let (operation, len) = (Operation::Write, suite::SLOT as u32);
            let mut slot = rig.pool.acquire().expect("a slot");
            mem::fill(drive, offset, slot.bytes_mut(suite::SLOT));
            let done = rig.carry_out(Command { slot, drive, operation, offset, len, tag: 0 });
            assert!(done.status.is_ok(), "{offset} of drive {drive}: {}", done.status);
            rig.pool.release(done.slot.expect("its slot"));
        }
    }
}

/// Reads of all drives at full depth until `stop` says so; the statuses by drive. Each command
/// ends once, and data that comes is right.
fn load(
    rig: &mut Rig<SpdkStorage>,
    drives: u16,
    mut stop: impl FnMut(&[Vec<IoStatus>]) -> bool,
) -> Vec<Vec<IoStatus>> {
    let mut statuses = vec![Vec::new(); usize::from(drives)];
    let mut open = HashSet::new();
    let mut expected = vec![0; 4096];
    let place = |tag: u64| ((tag % u64::from(drives)) as u16, tag * 4096 % USED);
    let (mut next, mut stopping) = (0, false);
    let deadline = Instant::now() + Duration::from_secs(120);
    while !stopping || !open.is_empty() {
        stopping = stopping || stop(&statuses);
        while let Some(slot) = rig.pool.acquire() {
            if stopping {
                rig.pool.release(slot);
                break;
            }
            let (drive, offset) = place(next);
            let (operation, len) = (Operation::Read, 4096);
            let command = Command { slot, drive, operation, offset, len, tag: next };
            let Submit::Busy(command) = rig.queue.submit(command) else {
                open.insert(next);
                next += 1;
                continue;
            };
            rig.pool.release(command.slot);
            break;
        }
        rig.turn();
        let Rig { out, pool, .. } = rig;
        for done in out.drain(..) {
            assert!(open.remove(&done.tag), "{} ended twice", done.tag);
            let (drive, offset) = place(done.tag);
            if let Some(slot) = done.slot {
                if done.status.is_ok() {
                    mem::fill(drive, offset, &mut expected);
                    assert!(slot.bytes(4096) == &expected[..], "drive {drive} at {offset}");
                }
                pool.release(slot);
            }
            statuses[usize::from(drive)].push(done.status);
        }
        assert!(Instant::now() < deadline, "{} commands do not end", open.len());
    }
    statuses
}

fn count(statuses: &[IoStatus], wanted: IoStatus) -> usize {
    statuses.iter().filter(|status| **status == wanted).count()
}

/// All on the drives of one opening, in the order that leaves them usable for the next step.
#[test]
fn pci_drives_read_are_reset_and_are_pulled() {
    let test = "pci_drives_read_are_reset_and_are_pulled";
    let Some(names) = drives(test, "MILLRACE_SPDK_DRIVES") else { return };
    let storage = open(&names, OpenMode::ReadWrite);
    for info in storage.drives() {
        println!("{info:?}");
    }
    fill(&storage);
    suite::writing(&storage, &mem::fill);
    fill(&storage);
    suite::refusing_writes(&open_again(storage, &names));
    let storage = open(&names, OpenMode::Read);
    suite::reading(&storage, &mem::fill);
    let drives = names.len() as u16;
    let mut rig = Rig::new(&storage);

    // Resets under load: every command ends, with data.
    std::thread::scope(|scope| {
        let resets = scope.spawn(|| {
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(300));
                storage.reset(0).unwrap_or_else(|e| panic!("{}", e.report()));
            }
        });
        let statuses = load(&mut rig, drives, |_| resets.is_finished());
        assert!(statuses.iter().flatten().all(|status| status.is_ok()), "data, or sent again");
        println!("commands over 3 resets: {:?}", statuses.iter().map(Vec::len).collect::<Vec<_>>());
    });
    assert_eq!((rig.pool.available(), rig.queue.leaked()), (rig.pool.count(), 0));

    // A drive is pulled under load: its commands end with Gone, the others go on.
    let Ok(pull) = std::env::var("MILLRACE_SPDK_PULL") else { return };
    let last = usize::from(drives) - 1;
    let mut pulled = None;
    let statuses = load(&mut rig, drives, |statuses| {
        if pulled.is_none() && statuses[last].len() > 200 {
            let child = std::process::Command::new("bash").args(["-c", &pull]).spawn();
            pulled = Some(child.expect("bash runs"));
        }
        let gone = count(&statuses[last], IoStatus::Gone);
        gone > 50 && statuses[0].len() > 400
    });
    let status = pulled.expect("pulled").wait().expect("its end");
    assert!(status.success(), "{pull}: {status}");
    for (drive, statuses) in statuses.iter().enumerate() {
        let (ok, gone) = (count(statuses, IoStatus::Ok), count(statuses, IoStatus::Gone));
        println!("drive {drive}: {ok} well, {gone} gone");
        assert_eq!(ok + gone, statuses.len(), "{statuses:?}");
        assert_eq!(gone > 0, drive == last);
    }
    let lost = (rig.pool.count() - rig.pool.available()) as u64;
    assert_eq!((lost, rig.queue.leaked()), (0, 0), "it has left the bus: nothing is in doubt");
}

/// Closes and opens to read, twice: an opening leaves nothing behind that would disturb the next.
fn open_again(storage: SpdkStorage, names: &[String]) -> SpdkStorage {
    drop(storage);
    drop(open(names, OpenMode::Read));
    open(names, OpenMode::Read)
}

/// An unrecovered read error of the medium at 1 MiB of the drive.
#[test]
fn a_bad_sector_is_the_error_of_one_command() {
    let test = "a_bad_sector_is_the_error_of_one_command";
    let Some(names) = drives(test, "MILLRACE_SPDK_BAD") else { return };
    let storage = open(&names, OpenMode::Read);
    let mut rig = Rig::new(&storage);
    for (offset, bad) in [(0, false), (1 << 20, true), ((1 << 20) + 4096, false), (1 << 20, true)] {
        let slot = rig.pool.acquire().expect("a slot");
        let (operation, len) = (Operation::Read, 4096);
        let done = rig.carry_out(Command { slot, drive: 0, operation, offset, len, tag: 0 });
        let wanted = if bad { IoStatus::Nvme { sct: 2, sc: 0x81 } } else { IoStatus::Ok };
        assert_eq!(done.status, wanted, "at {offset}");
        rig.pool.release(done.slot.expect("its slot"));
    }
}
