//! Faults under load: a controller that is reset, a target that dies.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace::error::IoStatus;
use millrace::storage::spdk::{SpdkOptions, SpdkStorage};
use millrace::storage::{Command, Completion, Operation, Queue, Submit, mem};

use crate::suite::{self, DEPTH, Rig};
use crate::target::Drive;
use crate::{fill, open, start, writable};

/// What a load has seen.
#[derive(Default)]
pub struct Seen {
    pub ok: [u64; 2],
    pub gone: [u64; 2],
    pub aborted: [u64; 2],
}

pub const LEN: usize = 16 << 10;

/// Keeps `rig` loaded with reads of all drives until `stop` says so and all have ended. Each has
/// to end once; data that comes has to be right. `beat` counts what ended.
pub fn load(
    rig: &mut Rig<SpdkStorage>,
    drives: u16,
    beat: &AtomicU64,
    stop: &dyn Fn(&Seen) -> bool,
) -> Seen {
    let mut seen = Seen::default();
    let mut open = HashSet::new();
    let mut expected = vec![0; LEN];
    let mut next = 0_u64;
    let place = |tag: u64| ((tag % u64::from(drives)) as u16, tag * LEN as u64 % (16 << 20));
    let mut stopping = false;
    let deadline = Instant::now() + Duration::from_secs(60);
    while !stopping || !open.is_empty() {
        stopping = stopping || stop(&seen);
        while let Some(slot) = rig.pool.acquire() {
            if stopping {
                rig.pool.release(slot);
                break;
            }
            let (drive, offset) = place(next);
            let (operation, len) = (Operation::Read, LEN as u32);
            match rig.queue.submit(Command { slot, drive, operation, offset, len, tag: next }) {
                Submit::Queued => {
                    assert!(open.insert(next));
                    next += 1;
                }
                Submit::Busy(command) => {
                    rig.pool.release(command.slot);
                    break;
                }
            }
        }
        assert_eq!(rig.queue.in_flight() as usize, open.len());
        rig.turn();
        let Rig { out, pool, .. } = rig;
        for done in out.drain(..) {
            let Completion { slot, tag, drive, status, .. } = done;
            assert!(open.remove(&tag), "{tag} ended twice");
            beat.fetch_add(1, Ordering::Relaxed);
            match status {
                IoStatus::Ok => {
                    let (drive, offset) = place(tag);
                    mem::fill(drive, offset, &mut expected);
                    let bytes = slot.as_ref().expect("data has a slot").bytes(LEN);
                    assert!(bytes == &expected[..], "drive {drive} at {offset}");
                    seen.ok[usize::from(drive)] += 1;
                }
                IoStatus::Gone => seen.gone[usize::from(drive)] += 1,
                IoStatus::Aborted => seen.aborted[usize::from(drive)] += 1,
                other => panic!("{other} was not asked for"),
            }
            if let Some(slot) = slot {
                pool.release(slot);
            }
        }
        assert!(Instant::now() < deadline, "{} commands do not end", open.len());
    }
    seen
}

#[test]
fn a_reset_under_load_loses_no_command() {
    let drive = Drive::new(4096);
    let Some((_turn, target)) = start("a_reset_under_load_loses_no_command", &[&[drive, drive]])
    else {
        return;
    };
    let names = [format!("{} ns:1", target.id(0)), format!("{} ns:2", target.id(0))];
    let storage = open(&names, writable());
    fill(&storage);
    let (ended, beat) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let workers = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut rig = Rig::new(&storage);
                let seen = load(&mut rig, 2, &beat, &|_| ended.load(Ordering::Relaxed));
                assert_eq!((seen.aborted, seen.gone), ([0; 2], [0; 2]), "sent again, not aborted");
                assert_eq!(rig.pool.available(), rig.pool.count());
                assert_eq!(rig.queue.leaked(), 0);
                seen.ok
            })
        });
        for _ in 0..5 {
            let before = beat.load(Ordering::Relaxed);
            while beat.load(Ordering::Relaxed) < before + 200 {
                std::thread::sleep(Duration::from_millis(1));
            }
            storage.reset(0).unwrap_or_else(|e| panic!("{}", e.report()));
        }
        ended.store(true, Ordering::Relaxed);
        for worker in workers {
            assert!(worker.join().expect("a worker").iter().all(|count| *count > 0));
        }
    });
    // And it is as good as new.
    suite::reading(&storage, &mem::fill);
}

#[test]
fn a_queue_that_is_not_polled_stops_a_reset_and_not_the_drive() {
    let drive = Drive::new(4096);
    let Some((_turn, target)) = start("a_queue_that_is_not_polled", &[&[drive]]) else { return };
    let storage = open(&[target.id(0)], writable());
    fill(&storage);
    let mut rig = Rig::new(&storage);
    let error = storage.reset(0).unwrap_err();
    assert!(error.what().contains("not being polled"), "{}", error.report());
    let seen = load(&mut rig, 1, &AtomicU64::new(0), &|seen| seen.ok[0] > 100);
    assert_eq!((seen.gone[0], seen.aborted[0]), (0, 0));
}

/// In a process of its own: SPDK 24.09 keeps the dead controller in its list of memory maps, stops
/// there when new memory comes, and so leaves that memory unmapped for vfio-user controllers that
/// are attached later.
#[test]
fn a_target_that_dies_takes_its_drive_and_nothing_else() {
    const NAME: &str = "faults::a_target_that_dies_takes_its_drive_and_nothing_else";
    if !crate::in_a_process_of_its_own(NAME) {
        return;
    }
    let drive = Drive::new(4096);
    let Some((turn, mut dying)) = start("a_target_that_dies", &[&[drive]]) else { return };
    drop(turn);
    let Some((_turn, staying)) = start("a_target_that_dies", &[&[drive]]) else { return };
    let storage = open(&[dying.id(0), staying.id(0)], writable());
    fill(&storage);
    drop(storage);
    let options = SpdkOptions { timeout: Duration::from_secs(1), ..SpdkOptions::default() };
    let storage = open(&[dying.id(0), staying.id(0)], options);
    let mut rig = Rig::new(&storage);
    let (beat, killed) = (AtomicU64::new(0), AtomicBool::new(false));
    let killer = |seen: &Seen| {
        if seen.ok[0] > 500 && !killed.load(Ordering::Relaxed) {
            killed.store(true, Ordering::Relaxed);
            return true;
        }
        false
    };
    load(&mut rig, 2, &beat, &killer);
    // Commands are in flight when it dies.
    let mut in_flight = 0;
    while let Some(slot) = rig.pool.acquire() {
        let (operation, offset, len) = (Operation::Read, 0, LEN as u32);
        let command = Command { slot, drive: 0, operation, offset, len, tag: 0 };
        if let Submit::Busy(command) = rig.queue.submit(command) {
            rig.pool.release(command.slot);
            break;
        }
        in_flight += 1;
    }
    assert_eq!(in_flight, DEPTH);
    dying.kill();
    let mut statuses = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(30);
    while statuses.len() < in_flight as usize {
        rig.turn();
        let Rig { out, pool, .. } = &mut rig;
        for done in out.drain(..) {
            statuses.push(done.status);
            if let Some(slot) = done.slot {
                pool.release(slot);
            }
        }
        assert!(Instant::now() < deadline, "{} of {in_flight} ended", statuses.len());
    }
    assert!(statuses.iter().all(|status| *status == IoStatus::Gone), "{statuses:?}");
    // What nobody can vouch for is leaked, and counted.
    let lost = (rig.pool.count() - rig.pool.available()) as u64;
    assert_eq!(lost, rig.queue.leaked());
    // The other drive goes on, and this one says at once that it is gone.
    let seen = load(&mut rig, 2, &beat, &|seen| seen.ok[1] > 1000);
    assert!(seen.gone[0] >= 1000 && seen.ok[0] == 0 && seen.gone[1] == 0);
}
