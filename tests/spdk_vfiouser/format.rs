//! Geometry and formats: what a drive says of itself, what is refused, what is split.

use std::sync::Arc;

use millrace::error::Kind;
use millrace::memory::{ArenaSpec, Pages, SlotPool};
use millrace::storage::spdk::{SpdkOptions, SpdkStorage};
use millrace::storage::{Command, Completion, Operation, Queue, Storage, Submit, mem};

use crate::target::Drive;
use crate::{fill, open, start, writable};

#[test]
fn drives_say_what_they_are() {
    let (small, large) = (Drive::new(512), Drive::new(4096));
    let Some((_turn, target)) = start("drives_say_what_they_are", &[&[large, small]]) else {
        return;
    };
    let names = [target.id(0), format!("{} ns:2", target.id(0))];
    let storage = open(&names, SpdkOptions::default());
    let [first, second] = storage.drives() else { panic!("two drives") };
    assert_eq!((first.block_size, second.block_size), (4096, 512));
    assert_eq!((first.capacity, second.capacity), (16 << 20, 16 << 20));
    assert_eq!(first.serial.as_deref(), Some("MILLRACE0"));
    assert_eq!(first.model.as_deref(), Some("RAM drive"));
    assert_eq!((first.name.as_str(), first.start), (names[0].as_str(), 0));
    assert!(first.max_transfer.is_some_and(|max| max >= 4096));
    // A controller has one owner.
    let again = SpdkStorage::open(&names[..1], SpdkOptions::default()).unwrap_err();
    assert_eq!(again.kind(), Kind::Busy, "{}", again.report());
    drop(storage);
    let missing = format!("{} ns:7", target.id(0));
    let error = SpdkStorage::open(&[missing], SpdkOptions::default()).unwrap_err();
    assert!(error.what().contains("active are [1, 2]"), "{error}");
}

#[test]
fn metadata_is_refused_and_explained() {
    let metadata = Drive { metadata: 8, ..Drive::new(512) };
    let Some((_turn, target)) = start("metadata_is_refused_and_explained", &[&[metadata]]) else {
        return;
    };
    let error = SpdkStorage::open(&[target.id(0)], SpdkOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.what().contains("8 bytes of metadata for each block of 512"), "{error}");
    assert!(error.report().contains("never does that"), "{}", error.report());
}

#[test]
fn a_target_that_is_not_there_is_named_with_spdks_own_words() {
    let Some((_turn, _target)) = start("a_target_that_is_not_there", &[]) else { return };
    let name = "trtype:VFIOUSER traddr:/nonexistent subnqn:nqn.2026-12.io.millrace:none";
    let error = SpdkStorage::open(&[name.into()], SpdkOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::Device);
    assert!(error.report().contains("/nonexistent"), "{}", error.report());
    for name in ["trtype:NONE traddr:x", "0000:ff:1f.7", "mem:1MiB", "/dev/null", "nothing:here"] {
        let error = SpdkStorage::open(&[name.into()], SpdkOptions::default()).expect_err(name);
        assert!(error.remedy_text().is_some(), "{name}: {error}");
    }
}

/// Requests larger than the drive's largest transfer, on a list of ranges that cross hugepage
/// borders and start anywhere: the bytes are right, and the commands are counted.
#[test]
fn large_requests_are_split_and_counted() {
    let (small, large) = (Drive::new(512), Drive::new(4096));
    let Some((_turn, target)) = start("large_requests_are_split_and_counted", &[&[small, large]])
    else {
        return;
    };
    let names = [format!("{} ns:1", target.id(0)), format!("{} ns:2", target.id(0))];
    let storage = open(&names, writable());
    fill(&storage);
    let most: u32 = 8 << 20;
    let slot_size = most as usize + 4096;
    let bytes = SlotPool::bytes_needed(slot_size, 3);
    let arena =
        storage.arena(&ArenaSpec { bytes, pages: Pages::Auto, node: None }).expect("an arena");
    let mut queue = storage.queue(&arena, 3).expect("a queue");
    let mut pool = SlotPool::new(Arc::clone(&arena), slot_size, 3).expect("slots");
    let mut out: Vec<Completion> = Vec::with_capacity(4);
    let mut expected = vec![0; most as usize];
    for (drive, info) in storage.drives().iter().enumerate() {
        let block = info.block_size;
        let max = info.max_transfer.expect("known") as u32;
        let end = info.capacity;
        let ranges = [
            (0, block),
            (end - u64::from(block), block),
            (0, max),
            (u64::from(block), max + block),
            ((2 << 20) - u64::from(block), 2 * block),
            ((2 << 20) - u64::from(block), (2 << 20) + 2 * block),
            (3 * u64::from(block), most),
            (end - u64::from(most), most),
        ];
        // All at once, three at a time.
        let mut todo = ranges.iter().enumerate();
        let mut left = ranges.len();
        while left > 0 {
            while let Some(slot) = pool.acquire() {
                let Some((tag, &(offset, len))) = todo.next() else {
                    pool.release(slot);
                    break;
                };
                let (drive, tag) = (drive as u16, tag as u64);
                let operation = Operation::Read;
                let submitted = queue.submit(Command { slot, drive, operation, offset, len, tag });
                assert!(matches!(submitted, Submit::Queued));
            }
            queue.poll(&mut out);
            for done in out.drain(..) {
                let (offset, len) = ranges[done.tag as usize];
                assert!(done.status.is_ok(), "{offset}+{len}: {}", done.status);
                assert_eq!(u32::from(done.commands), len.div_ceil(max), "{offset}+{len}");
                let slot = done.slot.expect("its slot");
                mem::fill(drive as u16, offset, &mut expected[..len as usize]);
                assert!(slot.bytes(len as usize) == &expected[..len as usize], "{offset}+{len}");
                pool.release(slot);
                left -= 1;
            }
        }
    }
    assert_eq!((queue.in_flight(), queue.leaked(), pool.available()), (0, 0, 3));
}
