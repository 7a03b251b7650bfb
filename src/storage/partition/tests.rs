use std::io::Write as _;
use std::process::{Command, Stdio};

use super::*;
use crate::skip::skip;

/// A disk in memory.
struct Made {
    block: u32,
    bytes: Vec<u8>,
}

impl Made {
    fn new(block: u32, blocks: u64) -> Self {
        Self { block, bytes: vec![0; (blocks * u64::from(block)) as usize] }
    }

    fn put(&mut self, lba: u64, at: usize, bytes: &[u8]) {
        let start = lba as usize * self.block as usize + at;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// A record of the boot sector in block `lba`.
    fn record(&mut self, lba: u64, slot: usize, kind: u8, start: u32, blocks: u32) {
        let mut record = [0; 16];
        record[4] = kind;
        record[8..12].copy_from_slice(&start.to_le_bytes());
        record[12..].copy_from_slice(&blocks.to_le_bytes());
        self.put(lba, 446 + 16 * slot, &record);
        self.put(lba, 510, &[0x55, 0xAA]);
    }

    /// A GPT of 128 entries, both copies, with partitions of first and last block by number.
    fn gpt(block: u32, blocks: u64, partitions: &[(usize, u64, u64)]) -> Self {
        let mut made = Self::new(block, blocks);
        made.record(0, 0, PROTECTIVE, 1, (blocks - 1) as u32);
        let mut entries = vec![0; 128 * 128];
        for &(number, first, last) in partitions {
            let entry = &mut entries[(number - 1) * 128..][..128];
            entry[..16].fill(7);
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&last.to_le_bytes());
        }
        let room = entries.len() as u64 / u64::from(block);
        made.header(1, blocks - 1, 2, &entries, |_| {});
        made.header(blocks - 1, 1, blocks - 1 - room, &entries, |_| {});
        made
    }

    /// Writes a header and its entries; `spoil` changes the header before its CRC is made.
    fn header(&mut self, lba: u64, other: u64, at: u64, entries: &[u8], spoil: impl Fn(&mut [u8])) {
        let blocks = (self.bytes.len() / self.block as usize) as u64;
        let mut header = vec![0; 92];
        header[..8].copy_from_slice(b"EFI PART");
        for (place, value) in [(8, 0x0001_0000), (12, 92), (80, 128), (84, 128)] {
            header[place..place + 4].copy_from_slice(&u32::to_le_bytes(value));
        }
        for (place, value) in [(24, lba), (32, other), (40, 34), (48, blocks - 34), (72, at)] {
            header[place..place + 8].copy_from_slice(&value.to_le_bytes());
        }
        header[88..92].copy_from_slice(&crc32(entries).to_le_bytes());
        spoil(&mut header);
        let crc = crc32(&header);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        self.put(lba, 0, &header);
        self.put(at, 0, entries);
    }

    fn with<T>(&self, work: impl FnOnce(&mut Disk<'_>) -> T) -> T {
        let mut read = |at: u64, buffer: &mut [u8]| {
            assert!(at.is_multiple_of(self.block.into()), "a read at {at}");
            assert!(buffer.len().is_multiple_of(self.block as usize), "a read of {}", buffer.len());
            buffer.copy_from_slice(&self.bytes[at as usize..][..buffer.len()]);
            Ok(())
        };
        let bytes = self.bytes.len() as u64;
        work(&mut Disk { name: "made", block_size: self.block, bytes, read: &mut read })
    }

    fn find(&self, number: u32) -> Result<Partition> {
        self.with(|disk| find(disk, number))
    }

    /// Number, first block and blocks of each partition.
    fn list(&self) -> Vec<(u32, u64, u64)> {
        let block = u64::from(self.block);
        let found = self.with(table).unwrap_or_else(|e| panic!("{}", e.report()));
        found.iter().map(|p| (p.number, p.start / block, p.bytes / block)).collect()
    }

    /// The error for partition `number`, of which `word` is a part.
    #[track_caller]
    fn fails(&self, number: u32, kind: Kind, word: &str) {
        let error = self.find(number).unwrap_err();
        assert_eq!(error.kind(), kind, "{}", error.report());
        assert!(error.what().contains(word), "{} should say {word}", error.report());
        assert!(error.remedy_text().is_some(), "{error}");
    }
}

#[test]
fn gpt_entries_are_numbered_by_their_place() {
    for block in [512, 4096] {
        let made = Made::gpt(block, 2048, &[(1, 64, 127), (3, 128, 128), (128, 1000, 1999)]);
        assert_eq!(made.list(), [(1, 64, 64), (3, 128, 1), (128, 1000, 1000)]);
        let found = made.find(3).unwrap();
        assert_eq!((found.start, found.bytes), (128 * u64::from(block), block.into()));
        made.fails(2, Kind::NotFound, "no partition 2");
        made.fails(0, Kind::Usage, "partition 0");
        made.fails(256, Kind::Usage, "partition 256");
    }
}

#[test]
fn a_damaged_gpt_is_read_from_its_backup_or_not_at_all() {
    let whole = Made::gpt(512, 2048, &[(1, 64, 127)]);
    for (lba, at) in [(1, 0), (1, 40), (1, 90), (2, 5), (2, 32)] {
        let mut made = Made { block: 512, bytes: whole.bytes.clone() };
        made.put(lba, at, &[0xA5]);
        assert_eq!(made.list(), [(1, 64, 64)], "byte {at} of block {lba}");
        // A backup that is damaged as well: there is no table, and no guess.
        made.put(2047, 41, &[0xA5]);
        made.fails(1, Kind::Data, "GPT at 1");
    }
    // A good primary needs no backup.
    let mut made = Made { block: 512, bytes: whole.bytes.clone() };
    made.put(2047, 0, &[0; 512]);
    assert_eq!(made.list(), [(1, 64, 64)]);
    // A copy of the header in another place is not the header.
    let mut made = Made { block: 512, bytes: whole.bytes };
    let backup = made.bytes[2047 * 512..].to_vec();
    made.put(1, 0, &backup);
    made.put(2047, 0, &[0; 512]);
    made.fails(1, Kind::Data, "says that it is at 2047");
}

#[test]
fn hostile_gpt_fields_are_refused() {
    let entries = vec![0; 128 * 128];
    let cases: [(usize, &[u8], &str); 8] = [
        (12, &91u32.to_le_bytes(), "header of 91"),
        (12, &u32::MAX.to_le_bytes(), "header of 4294967295"),
        (48, &u64::MAX.to_le_bytes(), "usable blocks"),
        (40, &u64::MAX.to_le_bytes(), "usable blocks"),
        (72, &u64::MAX.to_le_bytes(), "beyond the end"),
        (72, &2040u64.to_le_bytes(), "beyond the end"),
        (80, &u32::MAX.to_le_bytes(), "entries of 128"),
        (84, &129u32.to_le_bytes(), "entries of 129"),
    ];
    for (place, value, word) in cases {
        let mut made = Made::new(512, 2048);
        made.record(0, 0, PROTECTIVE, 1, 2047);
        made.header(1, 2047, 2, &entries, |header| {
            header[place..place + value.len()].copy_from_slice(value);
            // What is not covered by the CRC that follows would be told as a wrong CRC.
            if place == 12 {
                header[0] = b'E';
            }
        });
        made.fails(1, Kind::Data, word);
    }
}

#[test]
fn gpt_partitions_stay_on_the_disk_and_apart() {
    for (first, last) in [(64, 2048), (64, u64::MAX), (u64::MAX, u64::MAX), (127, 64), (0, 10)] {
        Made::gpt(512, 2048, &[(1, first, last)]).fails(1, Kind::Data, "partition 1 is blocks");
    }
    let made = Made::gpt(512, 2048, &[(1, 64, 127), (2, 127, 200), (3, 201, 300)]);
    made.fails(1, Kind::Data, "overlap");
    made.fails(2, Kind::Data, "overlap");
    assert_eq!(made.find(3).unwrap().start, 201 * 512);
}

/// Two primary partitions, and an extended one with logical ones at 1100, 1200, ...
fn chain(block: u32, logical: u32) -> Made {
    let mut made = Made::new(block, 4096);
    made.record(0, 0, 0x83, 64, 100);
    made.record(0, 1, 0x05, 1000, 3000);
    made.record(0, 3, 0x07, 200, 300);
    for number in 0..logical {
        let at = 1000 + 100 * u64::from(number);
        made.record(at, 0, 0x83, 10, 50);
        if number + 1 < logical {
            made.record(at, 1, 0x05, 100 * (number + 1), 100);
        }
    }
    made
}

#[test]
fn mbr_partitions_are_numbered_as_linux_does() {
    for block in [512, 4096] {
        let made = chain(block, 3);
        let logical = [(5, 1010, 50), (6, 1110, 50), (7, 1210, 50)];
        let mut expected = vec![(1, 64, 100)];
        expected.extend(logical);
        expected.push((4, 200, 300));
        assert_eq!(made.list(), expected);
        assert_eq!(made.find(6).unwrap().start, 1110 * u64::from(block));
        made.fails(2, Kind::NotFound, "no partition 2");
    }
}

#[test]
fn hostile_mbrs_are_refused() {
    // A loop, and a link to the first sector of the chain itself.
    for link in [0, 100] {
        let mut made = chain(512, 3);
        made.record(1200, 1, 0x05, link, 100);
        made.fails(5, Kind::Data, "loop");
    }
    let mut made = chain(512, 2);
    made.record(1100, 1, 0x05, 3000, 10);
    made.fails(5, Kind::Data, "leads outside");
    let mut made = chain(512, 2);
    made.record(1100, 0, 0x83, 10, u32::MAX);
    made.fails(6, Kind::Data, "outside of the extended one");
    for (start, blocks) in [(64, u32::MAX), (u32::MAX, 1), (4096, 1), (0, 10)] {
        let mut made = Made::new(512, 4096);
        made.record(0, 0, 0x83, start, blocks);
        made.fails(1, Kind::Data, "partition 1 is blocks");
    }
    let mut made = Made::new(512, 4096);
    made.record(0, 0, 0x83, 64, 100);
    made.record(0, 1, 0x83, 163, 100);
    made.fails(2, Kind::Data, "overlap");
    // Garbage in the third and fourth record of a link is left alone, as the kernel leaves it.
    let mut made = chain(512, 2);
    made.record(1000, 2, 0x83, 5, u32::MAX);
    assert_eq!(made.list().len(), 4);
}

#[test]
fn what_is_no_table_has_no_partitions() {
    Made::new(512, 64).fails(1, Kind::NotFound, "no partition table");
    Made::new(512, 3).fails(1, Kind::Unsupported, "1536 bytes");
    let mut fat = Made::new(512, 64);
    fat.put(0, 446, &[b'x'; 64]);
    fat.put(0, 510, &[0x55, 0xAA]);
    fat.fails(1, Kind::Data, "neither a GPT nor a plain MBR");
    let mut dynamic = Made::new(512, 64);
    dynamic.record(0, 0, LDM, 1, 63);
    dynamic.fails(1, Kind::Data, "neither");
}

/// Any single byte of a table may be wrong: what is found lies on the disk, or there is an error.
#[test]
fn no_byte_makes_it_panic_or_leave_the_disk() {
    for made in [Made::gpt(512, 256, &[(1, 40, 99), (2, 100, 199)]), chain(512, 3)] {
        let places: Vec<usize> = (0..made.bytes.len()).filter(|at| made.bytes[*at] != 0).collect();
        for at in places {
            for value in [0, 1, 0x7F, 0xFF] {
                let mut spoiled = Made { block: made.block, bytes: made.bytes.clone() };
                spoiled.bytes[at] = value;
                let Ok(found) = spoiled.with(table) else { continue };
                assert!(found.iter().all(|p| p.end() <= made.bytes.len() as u64 && p.bytes > 0));
            }
        }
    }
}

/// Tables made by sfdisk, and what partx (libblkid) makes of them.
#[test]
fn other_programs_agree() {
    let gpt = "label: gpt\nstart=2048, size=4096\nstart=8192, size=2048\n";
    let mbr = "label: dos\nstart=2048, size=2048, type=83\nstart=4096, size=20480, type=5\n\
               start=6144, size=2048, type=83\nstart=10240, size=4096, type=83\n\
               start=16384, size=2048, type=83\n";
    let skip = |what: &str| skip("storage::partition other_programs_agree", what);
    for script in [gpt, mbr] {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(16 << 20).unwrap();
        let sfdisk = Command::new("sfdisk")
            .args(["--quiet", "--no-reread", "--no-tell-kernel"])
            .arg(file.path())
            .stdin(Stdio::piped())
            .spawn();
        let Ok(mut sfdisk) = sfdisk else { return skip("sfdisk does not run") };
        sfdisk.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(sfdisk.wait().unwrap().success());
        let made = Made { block: 512, bytes: std::fs::read(file.path()).unwrap() };
        let partx =
            Command::new("partx").args(["-g", "-o", "NR,START,SECTORS"]).arg(file.path()).output();
        let Ok(output) = partx else { return skip("partx does not run") };
        let text = String::from_utf8(output.stdout).unwrap();
        let mut theirs: Vec<(u32, u64, u64)> = Vec::new();
        for line in text.lines() {
            let fields: Vec<u64> =
                line.split_whitespace().map(|field| field.parse().unwrap()).collect();
            theirs.push((fields[0] as u32, fields[1], fields[2]));
        }
        // The extended partition itself is no drive here.
        theirs.retain(|(number, ..)| script == gpt || *number != 2);
        let mut ours = made.list();
        ours.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(ours, theirs, "{script}");
        assert!(ours.len() >= 2);
    }
}

/// A loop device with partitions, taken away when it is dropped.
struct Loop {
    name: String,
    _file: tempfile::NamedTempFile,
}

impl Loop {
    fn new(made: &Made) -> Option<Self> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&made.bytes).unwrap();
        let output = Command::new("losetup")
            .args(["--find", "--show", "--partscan", "--sector-size", &made.block.to_string()])
            .arg(file.path())
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        let device = String::from_utf8(output.stdout).unwrap();
        Some(Self { name: device.trim().trim_start_matches("/dev/").into(), _file: file })
    }

    /// Number, start and size in bytes of what the kernel has made of it.
    fn partitions(&self) -> Vec<(u32, u64, u64)> {
        let root = crate::host::Root::system();
        let folder = format!("/sys/class/block/{}", self.name);
        let mut found = Vec::new();
        for entry in root.list(&folder).unwrap() {
            let number = |file: &str| root.read_number(format!("{folder}/{entry}/{file}"));
            if let Ok(partition) = number("partition") {
                let (start, size) = (number("start").unwrap(), number("size").unwrap());
                found.push((partition as u32, start * 512, size * 512));
            }
        }
        found.sort_unstable();
        found
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &format!("/dev/{}", self.name)]).status();
    }
}

/// What the kernel makes of the same tables, on kernels that know partitions.
#[test]
fn the_kernel_agrees() {
    let mut disks = Vec::new();
    for block in [512, 4096] {
        let parts = [(1, 64, 127), (3, 128, 128), (128, 1000, 1999)];
        disks.push(Made::gpt(block, 2048, &parts));
        // Damage that the kernel gets over as well: the backup's, and records beside.
        let mut spoiled = Made::gpt(block, 2048, &parts);
        spoiled.put(2047, 0, &[0; 512]);
        spoiled.record(0, 2, 0x83, 1500, 10);
        disks.push(spoiled);
        disks.push(chain(block, 0));
        disks.push(chain(block, 1));
        disks.push(chain(block, 3));
        let mut garbage = chain(block, 3);
        garbage.record(1100, 2, 0x83, 5, u32::MAX);
        garbage.record(1100, 3, 0x83, 60, 20);
        disks.push(garbage);
        // Two extended partitions: the numbers go on.
        let mut two = Made::new(block, 4096);
        two.record(0, 0, 0x0F, 100, 500);
        two.record(0, 1, 0x85, 1000, 500);
        two.record(100, 0, 0x83, 10, 20);
        two.record(1000, 0, 0x83, 30, 40);
        disks.push(two);
    }
    for (number, made) in disks.iter().enumerate() {
        let device = Loop::new(made);
        let Some(device) = device.filter(|device| number > 0 || !device.partitions().is_empty())
        else {
            let what = "no loop device, or a kernel without partitions";
            return skip("storage::partition the_kernel_agrees", what);
        };
        let mut ours: Vec<_> =
            made.with(table).unwrap().iter().map(|p| (p.number, p.start, p.bytes)).collect();
        ours.sort_unstable();
        let mut theirs = device.partitions();
        // An extended partition has a device of two sectors there, and is none here.
        theirs.retain(|(n, _, size)| {
            *size > 1024.max(made.block.into()) || { ours.iter().any(|(ours, ..)| ours == n) }
        });
        assert_eq!(ours, theirs, "disk {number}");
    }
    println!("{} disks", disks.len());
}
