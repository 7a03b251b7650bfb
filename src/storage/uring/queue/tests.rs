use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::*;
use crate::memory::{ArenaSpec, Pages, Slot, SlotPool};
use crate::skip::skip;
use crate::storage::{DriveInfo, OpenMode};

const BLOCK: u32 = 512;

fn op(len: u32) -> Op {
    Op { len, ..Op::idle() }
}

#[test]
fn short_transfers_go_on_from_the_last_whole_block() {
    let mut op = op(4096);
    assert_eq!(op.judge(1000, BLOCK), Verdict::Again);
    assert_eq!(op.done, 512);
    assert_eq!(op.judge(3000, BLOCK), Verdict::Again);
    assert_eq!(op.done, 3072);
    assert_eq!(op.judge(1024, BLOCK), Verdict::End(IoStatus::Ok));
}

#[test]
fn the_end_of_a_drive_is_short_at_once_or_after_a_bound() {
    assert_eq!(op(4096).judge(0, BLOCK), Verdict::End(IoStatus::Short));
    let mut op = op(4096);
    let tries = (0..).take_while(|_| op.judge(100, BLOCK) == Verdict::Again).count();
    assert_eq!(tries, usize::from(MAX_RETRIES));
}

#[test]
fn errors_keep_their_meaning_and_retries_are_bounded() {
    for (errno, status) in [
        (libc::EINVAL, IoStatus::Errno(libc::EINVAL as u16)),
        (libc::ENODEV, IoStatus::Gone),
        (libc::ECANCELED, IoStatus::Aborted),
    ] {
        assert_eq!(op(512).judge(-errno, BLOCK), Verdict::End(status));
    }
    for errno in [libc::EAGAIN, libc::EINTR] {
        let mut op = op(512);
        // A worker that spins gets here a thousand times within a millisecond.
        assert!((0..1000).all(|_| op.judge(-errno, BLOCK) == Verdict::Again));
        op.since = Instant::now().checked_sub(RETRY_TIME);
        assert_eq!(op.judge(-errno, BLOCK), Verdict::End(IoStatus::Errno(errno as u16)));
        // Progress begins the time anew.
        op.since = Instant::now().checked_sub(RETRY_TIME);
        op.len = 2 * BLOCK;
        assert_eq!(op.judge(BLOCK as i32, BLOCK), Verdict::Again);
        assert_eq!(op.judge(-errno, BLOCK), Verdict::Again);
    }
}

#[test]
fn a_failed_read_is_tried_once_more_alone() {
    let mut op = op(512);
    assert_eq!(op.judge(-libc::EIO, BLOCK), Verdict::Alone);
    assert_eq!(op.judge(-libc::EIO, BLOCK), Verdict::End(IoStatus::Errno(libc::EIO as u16)));
    let mut write = Op { operation: Operation::Write, ..super::tests::op(512) };
    let failed = Verdict::End(IoStatus::Errno(libc::EIO as u16));
    assert_eq!(write.judge(-libc::EIO, BLOCK), failed, "what of it was written is not known");
}

/// A queue over the reading end of a pipe: a drive that answers when the test wants it to.
fn over_a_pipe(depth: u32) -> (UringQueue, SlotPool, File) {
    over_a_pipe_with(depth, UringOptions::default())
}

fn over_a_pipe_with(depth: u32, options: UringOptions) -> (UringQueue, SlotPool, File) {
    let mut ends = [0; 2];
    // SAFETY: pipe2(2) writes two descriptors, which are owned below.
    let (from, to) = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    };
    let info = DriveInfo {
        name: "pipe".into(),
        serial: None,
        model: None,
        capacity: 1 << 20,
        block_size: BLOCK,
        memory_align: 4,
        max_transfer: None,
        start: 0,
        node: None,
    };
    let drives = Drives { infos: vec![info], files: vec![from], mode: OpenMode::Read };
    let spec = ArenaSpec { bytes: 8 * 4096, pages: Pages::Base, node: None };
    let arena = Arc::new(Arena::map(&spec).unwrap());
    let pool = SlotPool::new(Arc::clone(&arena), 4096, 8).unwrap();
    let queue = UringQueue::new(Arc::new(drives), arena, depth, options).unwrap();
    (queue, pool, to)
}

fn read(slot: Slot, tag: u64) -> Command {
    Command { slot, drive: 0, operation: Operation::Read, offset: 0, len: 1024, tag }
}

fn turn(queue: &mut UringQueue, out: &mut Vec<Completion>) {
    queue.flush().unwrap();
    queue.poll(out);
}

#[test]
fn a_short_read_of_the_kernel_is_hidden_and_counted() {
    let (mut queue, mut pool, mut to) = over_a_pipe(4);
    let mut out = Vec::with_capacity(4);
    let Submit::Queued = queue.submit(read(pool.acquire().unwrap(), 7)) else { panic!("busy") };
    turn(&mut queue, &mut out);
    to.write_all(&[1; 512]).unwrap();
    for _ in 0..100 {
        turn(&mut queue, &mut out);
    }
    assert_eq!((out.len(), queue.in_flight()), (0, 1));
    to.write_all(&[2; 512]).unwrap();
    while out.is_empty() {
        turn(&mut queue, &mut out);
    }
    let done = out.pop().unwrap();
    assert_eq!((done.status, done.commands, done.tag), (IoStatus::Ok, 2, 7));
    let slot = done.slot.unwrap();
    assert_eq!(slot.bytes(1024), [[1; 512], [2; 512]].concat());
    // One for the first command, one for its result, one for the second, one for its result.
    assert!(queue.enters() <= 4, "{} system calls", queue.enters());
    assert_eq!(queue.stale_completions(), 0);
}

/// As if the kernel had ended all that was submitted, merged into one command, by an error. What
/// has not been flushed is not the kernel's yet, so another ring can take its place.
fn fail_all(queue: &mut UringQueue) {
    let ring = Ring::new(queue.ops.len() as u32, queue.options).unwrap();
    ring.register_files(&queue.drives.files).unwrap();
    // SAFETY: the queue holds the arena for as long as the ring.
    unsafe { ring.register_arena(&queue.arena).unwrap() };
    queue.ring = Some(ring);
    for (index, op) in queue.ops.iter_mut().enumerate().filter(|(_, op)| op.lent.is_some()) {
        assert_eq!(op.judge(-libc::EIO, BLOCK), Verdict::Alone);
        queue.alone.push_back(index as u32);
    }
}

#[test]
fn reads_that_failed_together_are_repeated_one_at_a_time() {
    let (mut queue, mut pool, mut to) = over_a_pipe(4);
    let mut out = Vec::with_capacity(4);
    for tag in 0..3 {
        let Submit::Queued = queue.submit(read(pool.acquire().unwrap(), tag)) else {
            panic!("busy")
        };
    }
    fail_all(&mut queue);
    for done in 1..=3 {
        turn(&mut queue, &mut out);
        assert!(queue.alone_now);
        to.write_all(&[done; 1024]).unwrap();
        while out.len() < usize::from(done) {
            turn(&mut queue, &mut out);
        }
    }
    for _ in 0..10 {
        turn(&mut queue, &mut out);
    }
    // Had two of them been in flight at once, one could have had the bytes of the other.
    let bytes = |done: &Completion| done.slot.as_ref().unwrap().bytes(1024)[0];
    assert_eq!(out.iter().map(bytes).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(out.iter().all(|done| (done.status, done.commands) == (IoStatus::Ok, 2)));
    assert!(queue.alone.is_empty() && !queue.alone_now);
}

#[test]
fn a_dropped_queue_forgets_what_waits_to_be_alone() {
    let (mut queue, mut pool, _to) = over_a_pipe(4);
    let arena = Arc::clone(pool.arena());
    for tag in 0..2 {
        let Submit::Queued = queue.submit(read(pool.acquire().unwrap(), tag)) else {
            panic!("busy")
        };
    }
    fail_all(&mut queue);
    queue.flush().unwrap();
    assert!(queue.alone_now, "one is in flight, one waits");
    drop(queue);
    drop(pool);
    assert_eq!(Arc::strong_count(&arena), 1, "nothing is leaked");
}

#[test]
fn a_dropped_queue_cancels_what_waits() {
    let (mut queue, mut pool, _to) = over_a_pipe(4);
    let arena = Arc::clone(pool.arena());
    let Submit::Queued = queue.submit(read(pool.acquire().unwrap(), 0)) else { panic!("busy") };
    queue.flush().unwrap();
    let began = Instant::now();
    drop(queue);
    assert!(began.elapsed() < DRAIN_TIMEOUT, "cancelled, not waited for");
    drop(pool);
    assert_eq!(Arc::strong_count(&arena), 1, "nothing is leaked");
}

#[test]
fn a_dropped_queue_has_let_go_of_its_drives() {
    for regfiles in [true, false] {
        let (queue, _pool, to) =
            over_a_pipe_with(4, UringOptions { regfiles, ..Default::default() });
        drop(queue);
        let mut end = libc::pollfd { fd: to.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: poll(2) writes one entry. It says POLLERR where nobody holds the reading end.
        assert_eq!(unsafe { libc::poll(&raw mut end, 1, 0) }, 1, "regfiles {regfiles}: held still");
        assert_eq!(end.revents, libc::POLLERR);
    }
}

#[test]
fn what_does_not_end_is_leaked_with_its_memory() {
    let (mut queue, mut pool, mut to) = over_a_pipe(4);
    let arena = Arc::clone(pool.arena());
    let Submit::Queued = queue.submit(read(pool.acquire().unwrap(), 0)) else { panic!("busy") };
    queue.flush().unwrap();
    assert!(!queue.drain(Duration::from_millis(1), false), "the read waits for data");
    let before = leaked_rings();
    // As if the ring could not be drained: drop does not ask it any more.
    queue.failed = true;
    drop(queue);
    // Other tests leak rings at the same time.
    assert!(leaked_rings() > before);
    drop(pool);
    assert!(Arc::strong_count(&arena) > 1, "the arena stays mapped");
    // The kernel still has the read; its memory is still there to be written.
    to.write_all(&[9; 1024]).unwrap();
    // SAFETY: io_uring_enter is not called any more, so nothing is to be seen but that no crash
    // follows; the first byte of a mapped arena may be read.
    assert!(unsafe { arena.base().read_volatile() } <= 9);
}

#[test]
fn a_failed_ring_ends_its_commands_without_their_slots() {
    let (mut queue, mut pool, _to) = over_a_pipe(4);
    let Submit::Queued = queue.submit(read(pool.acquire().unwrap(), 5)) else { panic!("busy") };
    queue.flush().unwrap();
    queue.failed = true;
    let mut out = Vec::with_capacity(4);
    assert_eq!(queue.poll(&mut out), 1);
    let done = out.pop().unwrap();
    assert_eq!((done.status, done.tag), (IoStatus::Gone, 5));
    assert!(done.slot.is_none());
    assert_eq!((queue.leaked(), queue.in_flight()), (1, 0));
    assert!(queue.flush().is_err());
    assert!(matches!(queue.submit(read(pool.acquire().unwrap(), 6)), Submit::Busy(_)));
}

#[test]
fn slots_beyond_one_gib_are_in_a_registered_slice() {
    let size = crate::limits::MAX_SLOT_SIZE;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![0xA5; 8192]).unwrap();
    let name = crate::storage::DriveName::Path(file.path().to_owned());
    let storage =
        super::super::UringStorage::open(&[name], OpenMode::Read, UringOptions::default()).unwrap();
    let spec = ArenaSpec { bytes: 17 * size, pages: Pages::Base, node: None };
    let arena = Arc::new(Arena::map(&spec).unwrap());
    let mut queue = match crate::storage::Storage::queue(&storage, &arena, 32) {
        Ok(queue) => queue,
        Err(e) if e.kind() == Kind::Resource => {
            let test = "storage::uring slots_beyond_one_gib_are_in_a_registered_slice";
            return skip(test, e.what());
        }
        Err(e) => panic!("{}", e.report()),
    };
    let mut pool = SlotPool::new(arena, size, 17).unwrap();
    let mut out = Vec::with_capacity(32);
    while let Some(slot) = pool.acquire() {
        let Submit::Queued = queue.submit(read(slot, 0)) else { panic!("busy") };
    }
    while out.len() < 17 {
        turn(&mut queue, &mut out);
    }
    for done in out {
        assert_eq!(done.status, IoStatus::Ok);
        assert_eq!(done.slot.unwrap().bytes(1024), [0xA5; 1024]);
    }
}
