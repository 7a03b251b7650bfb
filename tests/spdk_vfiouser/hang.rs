//! Drives that hang: the steps of the deadline are abort, then reset, then the drive fails. Each
//! command ends once, slots come back where nothing can reach them any more, and what is not
//! concerned goes on.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace::error::IoStatus;
use millrace::storage::spdk::{SpdkOptions, SpdkStorage};
use millrace::storage::{Command, Operation, Queue, Submit, mem};

use crate::faults::{LEN, Seen, load};
use crate::suite::{self, DEPTH, Rig};
use crate::target::{Drive, Trouble};
use crate::{fill, open, start, writable};

fn hasty() -> SpdkOptions {
    SpdkOptions { timeout: Duration::from_secs(1), ..SpdkOptions::default() }
}

fn with(trouble: Trouble) -> Drive {
    Drive { trouble, ..Drive::new(4096) }
}

/// Submits `count` reads of drive 0 with tags from 0 on.
fn submit(rig: &mut Rig<SpdkStorage>, count: u32) {
    for tag in 0..u64::from(count) {
        let slot = rig.pool.acquire().expect("a slot");
        let (operation, offset, len) = (Operation::Read, tag * LEN as u64, LEN as u32);
        let command = Command { slot, drive: 0, operation, offset, len, tag };
        assert!(matches!(rig.queue.submit(command), Submit::Queued));
    }
}

/// Turns until `count` commands have ended, each once; their statuses, by tag.
fn await_all(rig: &mut Rig<SpdkStorage>, count: u32) -> Vec<IoStatus> {
    let mut ended = HashSet::new();
    let mut statuses = vec![IoStatus::Ok; count as usize];
    let deadline = Instant::now() + Duration::from_secs(60);
    while ended.len() < count as usize {
        rig.turn();
        let Rig { out, pool, .. } = &mut *rig;
        for done in out.drain(..) {
            assert!(ended.insert(done.tag), "{} ended twice", done.tag);
            statuses[done.tag as usize] = done.status;
            if let Some(slot) = done.slot {
                pool.release(slot);
            }
        }
        assert!(Instant::now() < deadline, "{} of {count} ended", ended.len());
    }
    assert_eq!(rig.queue.in_flight(), 0);
    statuses
}

fn nothing_is_lost(rig: &Rig<SpdkStorage>) {
    assert_eq!((rig.pool.available(), rig.queue.leaked()), (rig.pool.count(), 0));
}

/// First step. By TCP, since SPDK's vfio-user transport cannot look for the command to abort.
#[test]
fn a_command_that_hangs_is_aborted() {
    let Some((_turn, target)) =
        start("a_command_that_hangs_is_aborted", &[&[with(Trouble::Delays)]])
    else {
        return;
    };
    let storage = open(&[target.listen(0).unwrap()], writable());
    fill(&storage);
    drop(storage);
    let storage = open(&[target.listen(0).unwrap()], hasty());
    let mut rig = Rig::new(&storage);
    let connected = target.controllers(0);
    target.delay(0, 0, Duration::from_secs(600));
    submit(&mut rig, DEPTH);
    let statuses = await_all(&mut rig, DEPTH);
    assert!(statuses.iter().all(|status| *status == IoStatus::Aborted), "{statuses:?}");
    nothing_is_lost(&rig);
    assert_eq!(target.controllers(0), connected, "the abort was enough: nothing was reset");
    target.delay(0, 0, Duration::ZERO);
    suite::reading(&storage, &mem::fill);
}

/// Second step: a reset ends what hangs. Other drives, and other workers on the same drive, see
/// nothing but data.
#[test]
fn a_drive_that_hangs_is_reset_and_goes_on() {
    let Some((_turn, target)) = start(
        "a_drive_that_hangs_is_reset_and_goes_on",
        &[&[with(Trouble::Hangs)], &[Drive::new(4096)]],
    ) else {
        return;
    };
    let names = [target.id(0), target.id(1)];
    let storage = open(&names, writable());
    fill(&storage);
    drop(storage);
    let storage = open(&names, hasty());
    let mut rig = Rig::new(&storage);
    let hanging = DEPTH / 2;
    target.hang(0, 0, hanging);
    submit(&mut rig, hanging);
    rig.turn();
    let (over, beat) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut rig = Rig::new(&storage);
            let seen = load(&mut rig, 2, &beat, &|_| over.load(Ordering::Relaxed));
            nothing_is_lost(&rig);
            seen
        });
        let statuses = await_all(&mut rig, hanging);
        assert!(statuses.iter().all(|status| *status == IoStatus::Aborted), "{statuses:?}");
        nothing_is_lost(&rig);
        // And the same worker reads from both again.
        let seen = load(&mut rig, 2, &beat, &|seen| seen.ok[0] > 100 && seen.ok[1] > 100);
        assert_eq!((seen.aborted, seen.gone), ([0; 2], [0; 2]));
        over.store(true, Ordering::Relaxed);
        let seen = other.join().expect("the other worker");
        assert_eq!((seen.aborted, seen.gone), ([0; 2], [0; 2]), "sent again, not aborted");
        assert!(seen.ok.iter().all(|count| *count > 0));
    });
    suite::reading(&storage, &mem::fill);
}

/// Last step, where the closed connection proves that nothing is reached: the slots come back.
#[test]
fn a_target_that_freezes_behind_a_network_takes_its_drive_and_no_slot() {
    let test = "a_target_that_freezes_behind_a_network";
    let Some((turn, frozen)) = start(test, &[&[Drive::new(4096)]]) else { return };
    drop(turn);
    let Some((_turn, staying)) = start(test, &[&[Drive::new(4096)]]) else { return };
    let names = [frozen.listen(0).unwrap(), staying.id(0)];
    let storage = open(&names, writable());
    fill(&storage);
    drop(storage);
    let storage = open(&names, hasty());
    let mut rig = Rig::new(&storage);
    frozen.freeze();
    submit(&mut rig, DEPTH);
    let statuses = await_all(&mut rig, DEPTH);
    // The reset closes the connection, which ends them, and does not find the target again.
    assert!(statuses.iter().all(|status| *status == IoStatus::Aborted), "{statuses:?}");
    nothing_is_lost(&rig);
    let enough = |seen: &Seen| seen.ok[1] > 1000 && seen.gone[0] > 0;
    let seen = load(&mut rig, 2, &AtomicU64::new(0), &enough);
    nothing_is_lost(&rig);
    assert!(seen.ok[0] == 0 && seen.gone[0] > 0 && seen.gone[1] == 0);
}

/// Last step, where nobody can vouch for the controller: its slots are leaked and counted. The
/// storage ends all the same, though its controller never answers.
#[test]
fn a_controller_that_freezes_takes_its_drive_and_nothing_else() {
    const NAME: &str = "hang::a_controller_that_freezes_takes_its_drive_and_nothing_else";
    if !crate::in_a_process_of_its_own(NAME) {
        return;
    }
    let test = "a_controller_that_freezes";
    let Some((turn, frozen)) = start(test, &[&[Drive::new(4096)]]) else { return };
    drop(turn);
    let Some((_turn, staying)) = start(test, &[&[Drive::new(4096)]]) else { return };
    let names = [frozen.id(0), staying.id(0)];
    let storage = open(&names, writable());
    fill(&storage);
    drop(storage);
    let storage = open(&names, hasty());
    let mut rig = Rig::new(&storage);
    frozen.freeze();
    submit(&mut rig, DEPTH);
    let statuses = await_all(&mut rig, DEPTH);
    assert!(statuses.iter().all(|status| *status == IoStatus::Gone), "{statuses:?}");
    let lost = (rig.pool.count() - rig.pool.available()) as u64;
    assert_eq!((lost, rig.queue.leaked()), (u64::from(DEPTH), u64::from(DEPTH)));
    let seen = load(&mut rig, 2, &AtomicU64::new(0), &|seen| seen.ok[1] > 1000);
    assert!(seen.ok[0] == 0 && seen.gone[0] > 0 && seen.gone[1] == 0);
    let arena = std::sync::Arc::clone(rig.pool.arena());
    drop(rig);
    assert!(std::sync::Arc::strong_count(&arena) > 1, "leaked memory is never unmapped");
    drop(storage);
}
