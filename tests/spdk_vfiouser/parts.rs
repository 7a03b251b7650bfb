//! Partitions: the suite on them, against the bytes that the whole drive has there.

use crc_fast::{CrcAlgorithm, checksum};
use millrace::error::Kind;
use millrace::storage::spdk::{Expected, SpdkDrive, SpdkOptions, SpdkStorage};
use millrace::storage::{Command, Operation, Storage, mem};

use crate::suite::{self, Rig};
use crate::target::Drive;
use crate::{fill, open, start, writable};

/// Partitions that are made: number, first and last block of 4096 bytes.
const PARTS: [(usize, u64, u64); 2] = [(1, 100, 1599), (3, 1601, 3999)];

/// Writes a GPT of `PARTS` with both its copies.
fn write_table(storage: &SpdkStorage, drive: u16) {
    let info = &storage.drives()[usize::from(drive)];
    let (block, blocks) = (u64::from(info.block_size), info.capacity / u64::from(info.block_size));
    let scale = 4096 / block;
    let mut entries = vec![0; 128 * 128];
    for (number, first, last) in PARTS {
        let entry = &mut entries[(number - 1) * 128..][..128];
        entry[..16].fill(7);
        entry[32..40].copy_from_slice(&(first * scale).to_le_bytes());
        entry[40..48].copy_from_slice(&((last + 1) * scale - 1).to_le_bytes());
    }
    let room = entries.len() as u64 / block;
    let crc = |bytes: &[u8]| (checksum(CrcAlgorithm::Crc32IsoHdlc, bytes) as u32).to_le_bytes();
    let header = |own: u64, other: u64, at: u64| {
        let mut header = vec![0; block as usize];
        header[..8].copy_from_slice(b"EFI PART");
        for (place, value) in [(8, 0x0001_0000_u32), (12, 92), (80, 128), (84, 128)] {
            header[place..place + 4].copy_from_slice(&value.to_le_bytes());
        }
        let usable = (2 + room, blocks - room - 2);
        for (place, value) in [(24, own), (32, other), (40, usable.0), (48, usable.1), (72, at)] {
            header[place..place + 8].copy_from_slice(&value.to_le_bytes());
        }
        header[88..92].copy_from_slice(&crc(&entries));
        let crc = crc(&header[..92]);
        header[16..20].copy_from_slice(&crc);
        header
    };
    let mut boot = vec![0; block as usize];
    boot[446 + 4] = 0xEE;
    boot[446 + 8] = 1;
    boot[446 + 12..446 + 16].fill(0xFF);
    boot[510..512].copy_from_slice(&[0x55, 0xAA]);
    let head = [boot, header(1, blocks - 1, 2), entries.clone()].concat();
    let tail = [entries.clone(), header(blocks - 1, 1, blocks - 1 - room)].concat();
    let mut rig = Rig::new(storage);
    for (offset, bytes) in [(0, &head), (info.capacity - tail.len() as u64, &tail)] {
        let mut slot = rig.pool.acquire().expect("a slot");
        slot.bytes_mut(bytes.len()).copy_from_slice(bytes);
        let (operation, len) = (Operation::Write, bytes.len() as u32);
        let done = rig.carry_out(Command { slot, drive, operation, offset, len, tag: 0 });
        assert!(done.status.is_ok(), "{}", done.status);
        rig.pool.release(done.slot.expect("its slot"));
    }
}

#[test]
fn a_partition_is_the_bytes_of_its_drive_from_its_start_on() {
    let (small, large) = (Drive::new(512), Drive::new(4096));
    let Some((_turn, target)) = start("a_partition_is_the_bytes_of_its_drive", &[&[small, large]])
    else {
        return;
    };
    let whole = [format!("{} ns:1", target.id(0)), format!("{} ns:2", target.id(0))];
    let storage = open(&whole, writable());
    fill(&storage);
    write_table(&storage, 0);
    write_table(&storage, 1);
    drop(storage);

    // Drive of the set, number in the table.
    let places = [(1, 0), (0, 1), (0, 0), (1, 1)];
    let names: Vec<_> =
        places.iter().map(|(of, at)| format!("{} part:{}", whole[*of], PARTS[*at].0)).collect();
    let first = |drive: u16| PARTS[places[usize::from(drive)].1].1 * 4096;
    let bytes = |drive: u16, offset: u64, buffer: &mut [u8]| {
        mem::fill(places[usize::from(drive)].0 as u16, first(drive) + offset, buffer);
    };
    let storage = open(&names, SpdkOptions::default());
    for (drive, info) in storage.drives().iter().enumerate() {
        let (_, start, end) = PARTS[places[drive].1];
        assert_eq!(info.name, names[drive]);
        assert_eq!((info.start, info.capacity), (start * 4096, (end + 1 - start) * 4096));
    }
    suite::reading(&storage, &bytes);
    suite::refusing_writes(&storage);
    drop(storage);

    // What is written to a partition stays in it.
    let storage = open(&names[..1], writable());
    suite::writing(&storage, &bytes);
    drop(storage);
    let storage = open(&names[1..], SpdkOptions::default());
    suite::reading(&storage, &|drive, offset, buffer: &mut [u8]| bytes(drive + 1, offset, buffer));
}

#[test]
fn partitions_and_drives_that_are_not_there_are_named() {
    let drive = Drive::new(512);
    let Some((_turn, target)) = start("partitions_that_are_not_there", &[&[drive], &[drive]])
    else {
        return;
    };
    let storage = open(&[target.id(0)], writable());
    write_table(&storage, 0);
    drop(storage);
    for (name, kind, word) in [
        (format!("{} part:2", target.id(0)), Kind::NotFound, "no partition 2"),
        (format!("{} part:1", target.id(1)), Kind::NotFound, "no partition table"),
        (format!("{} part:0", target.id(0)), Kind::Usage, "not a partition"),
        (format!("{} part:256", target.id(0)), Kind::Usage, "partition 256"),
    ] {
        let error = SpdkStorage::open(&[name], SpdkOptions::default()).unwrap_err();
        assert_eq!(error.kind(), kind, "{}", error.report());
        assert!(error.what().contains(word), "{}", error.report());
        assert!(error.remedy_text().is_some(), "{error}");
    }
    // The drive of an entry in the journal has been replaced by another.
    let mut known: SpdkDrive = format!("{} part:1", target.id(0)).parse().unwrap();
    known.name = "/dev/nvme0n1p1".into();
    let expected = |serial: &str| {
        Some(Expected { serial: serial.into(), bytes: None, source: "the journal".into() })
    };
    known.expected = expected("ANOTHER");
    let error = SpdkStorage::open_drives(&[known.clone()], SpdkOptions::default()).unwrap_err();
    assert!(error.what().contains("ANOTHER") && error.what().contains("MILLRACE0"), "{error}");
    known.expected = expected("MILLRACE0");
    let storage = SpdkStorage::open_drives(&[known], SpdkOptions::default());
    let storage = storage.unwrap_or_else(|e| panic!("{}", e.report()));
    let info = &storage.drives()[0];
    assert_eq!((info.name.as_str(), info.start), ("/dev/nvme0n1p1", 100 * 4096));
}
