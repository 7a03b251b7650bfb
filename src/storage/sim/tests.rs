use super::*;
use crate::memory::SlotPool;
use crate::storage::{Command, Completion, Operation, Queue, Submit};

/// Reads 64 blocks of 4 KiB, and gives tag, status and commands in the order of completion, up to
/// `turns` turns.
fn run(spec: SimSpec, turns: usize) -> Vec<(u64, IoStatus, u16)> {
    let storage = SimStorage::open(spec).unwrap();
    let arena =
        storage.arena(&ArenaSpec { bytes: 16 * 4096, pages: Pages::Base, node: None }).unwrap();
    let mut pool = SlotPool::new(Arc::clone(&arena), 4096, 16).unwrap();
    let mut queue = storage.queue(&arena, 16).unwrap();
    let mut out: Vec<Completion> = Vec::with_capacity(16);
    let (mut ended, mut next) = (Vec::new(), 0);
    for _ in 0..turns {
        while next < 64 {
            let Some(slot) = pool.acquire() else { break };
            let command = Command {
                slot,
                drive: 0,
                operation: Operation::Read,
                offset: next * 4096,
                len: 4096,
                tag: next,
            };
            match queue.submit(command) {
                Submit::Queued => next += 1,
                Submit::Busy(command) => {
                    pool.release(command.slot);
                    break;
                }
            }
        }
        queue.flush().unwrap();
        queue.poll(&mut out);
        for done in out.drain(..) {
            pool.release(done.slot.unwrap());
            ended.push((done.tag, done.status, done.commands));
        }
        if ended.len() == 64 {
            break;
        }
    }
    ended
}

fn tags(ended: &[(u64, IoStatus, u16)]) -> Vec<u64> {
    ended.iter().map(|(tag, ..)| *tag).collect()
}

fn faulty(seed: u64) -> SimSpec {
    SimSpec {
        seed,
        error_rate: 0.2,
        short_rate: 0.3,
        busy_rate: 0.2,
        tail_one_in: 8,
        ..SimSpec::default()
    }
}

#[test]
fn a_seed_gives_the_same_run_and_another_seed_another() {
    let first = run(faulty(1), 1000);
    assert_eq!(first.len(), 64);
    assert_eq!(first, run(faulty(1), 1000));
    assert_ne!(first, run(faulty(2), 1000));
    assert!(first.iter().any(|(_, status, _)| !status.is_ok()));
    assert!(first.iter().any(|(.., commands)| *commands > 1), "short reads are sent again");
}

#[test]
fn order_is_kept_where_asked_for() {
    let ordered = run(SimSpec { reorder: false, ..SimSpec::default() }, 1000);
    assert!(tags(&ordered).is_sorted());
    assert!(!tags(&run(SimSpec::default(), 1000)).is_sorted());
}

#[test]
fn faults_are_where_they_were_put() {
    let at = |block: u64, fault| FaultAt { drive: 0, range: block * 4096..block * 4096 + 1, fault };
    let faults = vec![
        at(3, Fault::Status(IoStatus::Errno(libc::EIO as u16))),
        at(5, Fault::End),
        at(7, Fault::Stuck),
    ];
    let ended = run(SimSpec { faults, ..SimSpec::default() }, 1000);
    assert_eq!(ended.len(), 63, "the stuck one never ends");
    for (tag, status, _) in ended {
        let expected = match tag {
            3 => IoStatus::Errno(libc::EIO as u16),
            5 => IoStatus::Short,
            _ => IoStatus::Ok,
        };
        assert_eq!(status, expected, "{tag}");
    }
}

#[test]
fn a_drive_goes_after_so_many_commands() {
    let ended = run(SimSpec { gone_after: Some((0, 20)), ..SimSpec::default() }, 1000);
    assert!(ended.iter().all(|(tag, status, _)| status.is_ok() == (*tag < 20)), "{ended:?}");
}

#[test]
fn real_time_is_kept() {
    let time = Duration::from_millis(20);
    let began = std::time::Instant::now();
    let spec = SimSpec { latency: Latency::Time(time, time), ..SimSpec::default() };
    assert_eq!(run(spec, usize::MAX).len(), 64);
    assert!(began.elapsed() >= 4 * time, "64 commands at a depth of 16");
}

#[test]
fn a_stuck_command_costs_its_slot_and_keeps_the_arena() {
    let spec = SimSpec { stuck_rate: 1.0, ..SimSpec::default() };
    let storage = SimStorage::open(spec).unwrap();
    let arena = storage.arena(&ArenaSpec { bytes: 4096, pages: Pages::Base, node: None }).unwrap();
    let mut pool = SlotPool::new(Arc::clone(&arena), 4096, 1).unwrap();
    let mut queue = storage.queue(&arena, 1).unwrap();
    let slot = pool.acquire().unwrap();
    let command =
        Command { slot, drive: 0, operation: Operation::Read, offset: 0, len: 512, tag: 0 };
    assert!(matches!(queue.submit(command), Submit::Queued));
    drop((queue, pool));
    assert_eq!(Arc::strong_count(&arena), 2);
}

#[test]
fn specs_are_checked() {
    for spec in [
        SimSpec { error_rate: 1.5, ..SimSpec::default() },
        SimSpec { busy_rate: 1.0, ..SimSpec::default() },
        SimSpec { latency: Latency::Turns(2, 1), ..SimSpec::default() },
        SimSpec { drives: vec![1000], ..SimSpec::default() },
    ] {
        assert!(SimStorage::open(spec).unwrap_err().remedy_text().is_some());
    }
}
