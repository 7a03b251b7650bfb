//! Partition tables, for drives that no kernel looks at: GPT (UEFI Specification 2.10, section 5.3)
//! and MBR with logical partitions, numbered as Linux numbers them (block/partitions/efi.c and
//! msdos.c), so that a partition names the same bytes through every backend.
//!
//! A table is written by whoever could write the drive. What does not add up is an error here, also
//! where the kernel would make the best of it: bytes that are not the partition's are never served
//! as if they were.

use crc_fast::{CrcAlgorithm, checksum};

use crate::error::{Error, Kind, Result};

/// Highest partition number that Linux gives out (DISK_MAX_PARTS, less the disk itself).
pub const MAX_PARTITION: u32 = 255;

/// Largest array of GPT entries that is read: what the kernel takes (KMALLOC_MAX_SIZE).
const MAX_ENTRIES: u64 = 4 << 20;

/// A run of bytes on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// Its number: N of `nvme0n1pN`.
    pub number: u32,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Partition {
    fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// A disk as the parser sees it.
pub struct Disk<'a> {
    /// What it is called in errors.
    pub name: &'a str,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// Fills the buffer from a byte offset; both are whole blocks within the disk.
    pub read: &'a mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
}

/// Finds partition `number` of `disk`.
///
/// # Errors
///
/// `Usage` for numbers that Linux has not; `NotFound` without a table or without that partition;
/// `Data` where the table is damaged, or the partition leaves the disk or overlaps another.
pub fn find(disk: &mut Disk<'_>, number: u32) -> Result<Partition> {
    if number == 0 || number > MAX_PARTITION {
        return Err(Error::usage(format!("partition {number} of {}", disk.name))
            .remedy(format!("choose a partition from 1 to {MAX_PARTITION}")));
    }
    let found = table(disk)?;
    let numbers = found.iter().map(|p| p.number.to_string()).collect::<Vec<_>>().join(", ");
    let Some(wanted) = found.iter().find(|p| p.number == number) else {
        let remedy = match numbers.is_empty() {
            true => "leave the partition out to serve the whole drive".to_owned(),
            false => format!("choose one of {numbers}"),
        };
        let what = format!("{} has no partition {number}", disk.name);
        return Err(Error::new(Kind::NotFound, what).remedy(remedy));
    };
    let other = found
        .iter()
        .find(|p| p.number != number && p.start < wanted.end() && wanted.start < p.end());
    match other {
        None => Ok(*wanted),
        Some(other) => Err(disk.damaged(&format!(
            "partitions {number} (bytes {}+{}) and {} (bytes {}+{}) overlap",
            wanted.start, wanted.bytes, other.number, other.start, other.bytes
        ))),
    }
}

/// All partitions of `disk`, by number. Each lies within the disk; they may overlap.
///
/// # Errors
///
/// As [`find`], without those of one partition.
pub fn table(disk: &mut Disk<'_>) -> Result<Vec<Partition>> {
    let block = u64::from(disk.block_size);
    if !block.is_power_of_two() || block < 512 || disk.bytes < 4 * block {
        let what = format!("{}: {} bytes in blocks of {block}", disk.name, disk.bytes);
        return Err(Error::new(Kind::Unsupported, what).remedy("name the whole drive"));
    }
    let first = disk.block(0)?;
    if !has_signature(&first) {
        return Err(Error::new(
            Kind::NotFound,
            format!("{} has no partition table that is known here (GPT, MBR)", disk.name),
        )
        .remedy("leave the partition out to serve the whole drive, or use --backend uring"));
    }
    let records = records(&first);
    // The kernel takes a GPT by its protective record, whatever stands beside it.
    if records.iter().any(|r| r.kind == PROTECTIVE && r.start == 1) {
        return gpt(disk);
    }
    mbr(disk, &first, &records)
}

impl Disk<'_> {
    fn block(&mut self, lba: u64) -> Result<Vec<u8>> {
        self.blocks(lba, u64::from(self.block_size))
    }

    /// `bytes` from block `lba` on, read in whole blocks.
    fn blocks(&mut self, lba: u64, bytes: u64) -> Result<Vec<u8>> {
        let block = u64::from(self.block_size);
        let whole = bytes.next_multiple_of(block);
        let start = lba.checked_mul(block);
        let start = start.filter(|s| s.checked_add(whole).is_some_and(|end| end <= self.bytes));
        let start = start.ok_or_else(|| {
            self.damaged(&format!("it points to block {lba}, beyond the end of the drive"))
        })?;
        let mut data = vec![0; whole as usize];
        (self.read)(start, &mut data)?;
        data.truncate(bytes as usize);
        Ok(data)
    }

    /// The run of blocks as a partition, if it lies within the disk.
    fn partition(&self, number: u32, lba: u64, blocks: u64) -> Result<Partition> {
        let block = u64::from(self.block_size);
        let inside = lba > 0
            && blocks > 0
            && lba.checked_add(blocks).is_some_and(|end| end <= self.bytes / block);
        if !inside {
            return Err(self.damaged(&format!(
                "partition {number} is blocks {lba}+{blocks} of {}",
                self.bytes / block
            )));
        }
        Ok(Partition { number, start: lba * block, bytes: blocks * block })
    }

    fn damaged(&self, why: &str) -> Error {
        Error::new(Kind::Data, format!("the partition table of {}: {why}", self.name)).remedy(
            "look at it with sfdisk --verify or sgdisk --verify while the kernel has the drive \
             (millrace device restore), and mend it there",
        )
    }
}

/// Of a GPT header, what is used.
struct Header {
    backup: u64,
    entries: u64,
    count: u64,
}

/// Bytes of an entry. The format allows more; Linux, and so this, takes no others.
const ENTRY: u64 = 128;

fn gpt(disk: &mut Disk<'_>) -> Result<Vec<Partition>> {
    let last = disk.bytes / u64::from(disk.block_size) - 1;
    let (header, entries) = match copy(disk, 1) {
        Ok((header, entries)) => {
            if header.backup > last {
                log::warn!("{}: its GPT was made for a larger drive", disk.name);
            } else if let Err(e) = copy(disk, header.backup) {
                log::warn!("{}: its backup GPT is damaged: {}", disk.name, e.what());
            }
            (header, entries)
        }
        Err(primary) => match copy(disk, last) {
            Ok(backup) => {
                log::warn!("{}: the backup GPT is used: {}", disk.name, primary.what());
                backup
            }
            Err(_) => return Err(primary),
        },
    };
    let mut found = Vec::new();
    for (number, entry) in (1..=MAX_PARTITION.min(header.count as u32)).zip(entries.chunks(128)) {
        // An all-zero type marks a free entry.
        if entry[..16].iter().all(|byte| *byte == 0) {
            continue;
        }
        let (first, end) = (long(entry, 32), long(entry, 40));
        let blocks = end.checked_sub(first).and_then(|more| more.checked_add(1)).unwrap_or(0);
        found.push(disk.partition(number, first, blocks)?);
    }
    Ok(found)
}

/// Reads and checks one copy of the GPT, as is_gpt_valid of the kernel does.
fn copy(disk: &mut Disk<'_>, lba: u64) -> Result<(Header, Vec<u8>)> {
    let last = disk.bytes / u64::from(disk.block_size) - 1;
    let mut data = disk.block(lba)?;
    let bad = |disk: &Disk<'_>, why: String| Err(disk.damaged(&format!("GPT at {lba}: {why}")));
    if &data[..8] != b"EFI PART" {
        return bad(disk, "no signature".into());
    }
    let size = word(&data, 12) as usize;
    if size < 92 || size > data.len() {
        return bad(disk, format!("a header of {size} bytes"));
    }
    let told = word(&data, 16);
    data[16..20].fill(0);
    let crc = crc32(&data[..size]);
    if crc != told {
        return bad(disk, format!("the header's CRC is {crc:08x}, not {told:08x}"));
    }
    let own = long(&data, 24);
    if own != lba {
        return bad(disk, format!("the header says that it is at {own}"));
    }
    let (first_usable, last_usable) = (long(&data, 40), long(&data, 48));
    if first_usable > last_usable || last_usable > last {
        return bad(disk, format!("usable blocks are {first_usable} to {last_usable} of {last}"));
    }
    let (count, entry) = (u64::from(word(&data, 80)), u64::from(word(&data, 84)));
    if entry != ENTRY || count * ENTRY > MAX_ENTRIES {
        return bad(disk, format!("{count} entries of {entry} bytes"));
    }
    let header = Header { backup: long(&data, 32), entries: long(&data, 72), count };
    let told = word(&data, 88);
    let entries = disk.blocks(header.entries, count * ENTRY)?;
    let crc = crc32(&entries);
    if crc != told {
        return bad(disk, format!("the entries' CRC is {crc:08x}, not {told:08x}"));
    }
    Ok((header, entries))
}

/// One of the four records of a boot sector.
#[derive(Debug, Clone, Copy)]
struct Record {
    flag: u8,
    kind: u8,
    start: u64,
    blocks: u64,
}

/// Type of the record that keeps MBR programs away from a GPT.
const PROTECTIVE: u8 = 0xEE;

/// Type of Windows' dynamic disks, which have a table of their own.
const LDM: u8 = 0x42;

impl Record {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0F | 0x85)
    }
}

fn has_signature(sector: &[u8]) -> bool {
    sector[510..512] == [0x55, 0xAA]
}

fn records(sector: &[u8]) -> [Record; 4] {
    std::array::from_fn(|index| {
        let record = &sector[446 + 16 * index..][..16];
        let (start, blocks) = (word(record, 8).into(), word(record, 12).into());
        Record { flag: record[0], kind: record[4], start, blocks }
    })
}

fn mbr(disk: &mut Disk<'_>, first: &[u8], records: &[Record; 4]) -> Result<Vec<Partition>> {
    // A boot sector of a file system ends in the same two bytes. AIX's label does too.
    let foreign = first.starts_with(&[0xC9, 0xC2, 0xD4, 0xC1])
        || records.iter().any(|r| !matches!(r.flag, 0 | 0x80))
        || records.iter().any(|r| matches!(r.kind, PROTECTIVE | LDM));
    if foreign {
        return Err(disk.damaged("it is neither a GPT nor a plain MBR"));
    }
    let mut found = Vec::new();
    let mut next = 5;
    for (number, record) in (1..).zip(records) {
        if record.blocks == 0 {
            continue;
        }
        let partition = disk.partition(number, record.start, record.blocks)?;
        if record.is_extended() {
            // Linux gives it a device of two sectors, for boot loaders: nothing to be served.
            logical(disk, record, &mut next, &mut found)?;
        } else {
            found.push(partition);
        }
    }
    Ok(found)
}

/// The logical partitions in an extended one: a chain of boot sectors.
fn logical(
    disk: &mut Disk<'_>,
    outer: &Record,
    next: &mut u32,
    found: &mut Vec<Partition>,
) -> Result<()> {
    let end = outer.start + outer.blocks;
    let (mut at, mut room) = (outer.start, outer.blocks);
    let mut seen = Vec::new();
    loop {
        if seen.contains(&at) || seen.len() as u32 > MAX_PARTITION {
            return Err(disk.damaged(&format!("its logical partitions form a loop at {at}")));
        }
        seen.push(at);
        let sector = disk.block(at)?;
        if !has_signature(&sector) {
            // An extended partition that nobody has filled yet.
            return Ok(());
        }
        let records = records(&sector);
        for (index, record) in records.iter().enumerate() {
            if record.blocks == 0 || record.is_extended() {
                continue;
            }
            let start = at + record.start;
            let fits = start > at && start + record.blocks <= end;
            // The kernel does not look at these where they cannot be meant: often there is garbage.
            if index >= 2 && (!fits || record.start + record.blocks > room) {
                continue;
            }
            if !fits {
                return Err(disk.damaged(&format!(
                    "logical partition {next} is blocks {start}+{}, outside of the extended one",
                    record.blocks
                )));
            }
            if *next > MAX_PARTITION {
                return Ok(());
            }
            found.push(disk.partition(*next, start, record.blocks)?);
            *next += 1;
        }
        let Some(link) = records.iter().find(|r| r.blocks > 0 && r.is_extended()) else {
            return Ok(());
        };
        if link.start >= outer.blocks {
            return Err(disk.damaged(&format!("a link to block {} leads outside", link.start)));
        }
        (at, room) = (outer.start + link.start, link.blocks);
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |field| u32::from_le_bytes(*field))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |field| u64::from_le_bytes(*field))
}

/// CRC-32 as Ethernet has it, which UEFI names (section 5.3.2).
fn crc32(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32IsoHdlc, bytes) as u32
}

#[cfg(test)]
mod tests;
