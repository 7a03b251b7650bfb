//! What a block device holds, by the magic bytes of file systems, volume managers, partition tables
//! and the like. Reads at most 3 MiB, writes nothing.
//!
//! A prober of our own, since it must see members that no tool on the machine has taken into use,
//! and run where no blkid is installed. A false alarm costs a person one flag; a miss may cost the
//! data, so a device with bytes other than zero and no known magic counts as holding data too.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use super::Root;
use crate::error::{Context, Result};

/// Name given to content that no magic explains.
pub const UNKNOWN: &str = "data of an unknown kind";

/// Bytes at an offset from the start that name what a device holds.
struct Magic(&'static str, usize, &'static [u8]);

const MAGICS: &[Magic] = &[
    Magic("xfs", 0, b"XFSB"),
    Magic("btrfs", 0x1_0040, b"_BHRfS_M"),
    Magic("vfat", 0x52, b"FAT32   "),
    Magic("vfat", 0x36, b"FAT16   "),
    Magic("vfat", 0x36, b"FAT12   "),
    Magic("exfat", 3, b"EXFAT   "),
    Magic("ntfs", 3, b"NTFS    "),
    Magic("f2fs", 0x400, &[0x10, 0x20, 0xF5, 0xF2]),
    Magic("iso9660", 0x8001, b"CD001"),
    // The magic ends the first page, whose size depends on the architecture.
    Magic("swap", 4096 - 10, b"SWAPSPACE2"),
    Magic("swap", 4096 - 10, b"SWAP-SPACE"),
    Magic("swap", 16384 - 10, b"SWAPSPACE2"),
    Magic("swap", 65536 - 10, b"SWAPSPACE2"),
    Magic("LVM2 member", 24, b"LVM2 001"),
    Magic("LVM2 member", 512 + 24, b"LVM2 001"),
    Magic("LVM2 member", 1024 + 24, b"LVM2 001"),
    Magic("LVM2 member", 1536 + 24, b"LVM2 001"),
    Magic("md member (1.1)", 0, &MD_MAGIC),
    Magic("md member (1.2)", 4096, &MD_MAGIC),
    Magic("LUKS", 0, b"LUKS\xBA\xBE"),
    Magic("LUKS", 0x4000, b"SKUL\xBA\xBE"),
    Magic(
        "bcache or bcachefs",
        4096 + 24,
        b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA\x82\x65\xF5\x7F\x48\xBA\x6D\x81",
    ),
    Magic("Ceph BlueStore", 0, b"bluestore block device\n"),
    Magic("GPT", 512, b"EFI PART"),
    Magic("GPT", 4096, b"EFI PART"),
    Magic("millrace store", 0, MILLRACE_MAGIC),
];

/// First bytes of this program's own superblocks (docs/FORMAT.md).
const MILLRACE_MAGIC: &[u8] = b"MILLRACE";

/// `MD_SB_MAGIC` of linux/raid/md_p.h, little-endian (0.90 is in host order: the same here).
const MD_MAGIC: [u8; 4] = 0xA92B_4EFC_u32.to_le_bytes();

const MIB: usize = 1 << 20;

/// Both ends of a block device.
struct Ends {
    size: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
    tail_at: u64,
}

/// Names of everything that the block device `name` (as in /dev) holds, each once, in no particular
/// order; empty for a blank device. Fails where the device cannot be read.
pub fn probe(root: &Root, name: &str) -> Result<Vec<&'static str>> {
    let path = format!("/dev/{name}");
    read_ends(root, &path).map(|ends| recognise(&ends)).context(|| format!("cannot read {path}"))
}

/// The same for a drive of `size` bytes of which `read` gives the bytes at an offset, whatever way
/// it reads them. Fails where `read` does.
pub fn probe_with(
    size: u64,
    read: &mut impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<Vec<&'static str>> {
    ends(size, read).map(|ends| recognise(&ends))
}

fn read_ends(root: &Root, path: &str) -> io::Result<Ends> {
    let mut file = File::open(root.path(path))?;
    let size = file.seek(SeekFrom::End(0))?;
    ends(size, &mut |at, bytes| {
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(bytes)
    })
}

fn ends<E>(
    size: u64,
    read: &mut impl FnMut(u64, &mut [u8]) -> std::result::Result<(), E>,
) -> std::result::Result<Ends, E> {
    let mut part = |at: u64, length: u64| {
        let mut bytes = vec![0; length as usize];
        read(at, &mut bytes).map(|()| bytes)
    };
    let head = part(0, size.min(2 * MIB as u64))?;
    let tail_at = size.saturating_sub(MIB as u64);
    let tail = part(tail_at, size - tail_at)?;
    Ok(Ends { size, head, tail, tail_at })
}

impl Ends {
    /// True where `bytes` stand at `at`, which may be in neither end that was read.
    fn has(&self, at: u64, bytes: &[u8]) -> bool {
        let in_head = usize::try_from(at).ok().and_then(|at| self.head.get(at..));
        let in_tail = || {
            at.checked_sub(self.tail_at).and_then(|at| self.tail.get(usize::try_from(at).ok()?..))
        };
        in_head.or_else(in_tail).is_some_and(|rest| rest.starts_with(bytes))
    }
}

fn recognise(ends: &Ends) -> Vec<&'static str> {
    let mut found: Vec<&'static str> = Vec::new();
    let mut add = |name| {
        if !found.contains(&name) {
            found.push(name);
        }
    };
    for Magic(name, at, bytes) in MAGICS {
        if ends.has(*at as u64, bytes) {
            add(name);
        }
    }
    if let Some(name) = ext(&ends.head) {
        add(name);
    }
    if has_md_at_end(ends) {
        add("md member (0.90 or 1.0)");
    }
    if has_zfs_label(ends) {
        add("ZFS member");
    }
    // The backup, where the first header has been wiped.
    for block in [512, 4096] {
        if ends.size >= block && ends.has(ends.size - block, b"EFI PART") {
            add("GPT");
        }
    }
    // The copy, where the first superblock is gone.
    let end = ends.size - ends.size % 4096;
    if end.checked_sub(4096).is_some_and(|copy| ends.has(copy, MILLRACE_MAGIC)) {
        add("millrace store");
    }
    // Boot sectors of file systems end with the same two bytes.
    if found.is_empty() && ends.has(510, &[0x55, 0xAA]) {
        found.push("MBR");
    }
    if found.is_empty() && !(is_blank(&ends.head) && is_blank(&ends.tail)) {
        found.push(UNKNOWN);
    }
    found
}

fn is_blank(bytes: &[u8]) -> bool {
    // By blocks, which is fast in every build.
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| *chunk == ZEROS[..chunk.len()])
}

/// ext2, 3 and 4 share a magic and differ by features (fs/ext4/ext4.h): a journal makes ext3;
/// extents, 64-bit addresses or flexible groups make ext4.
fn ext(head: &[u8]) -> Option<&'static str> {
    let super_block = head.get(1024..2048)?;
    if super_block[0x38..0x3A] != [0x53, 0xEF] {
        return None;
    }
    let word = |at: usize| u32::from_le_bytes(super_block[at..at + 4].try_into().unwrap());
    let (compatible, incompatible) = (word(0x5C), word(0x60));
    Some(match (incompatible & (0x40 | 0x80 | 0x200) != 0, compatible & 4 != 0) {
        (true, _) => "ext4",
        (false, true) => "ext3",
        (false, false) => "ext2",
    })
}

/// Version 0.90 keeps its superblock 64 KiB before the last multiple of 64 KiB, 1.0 at the last
/// multiple of 4 KiB that lies at least 8 KiB before the end (`calc_dev_sboffset` and
/// `super_1_load` of drivers/md/md.c).
fn has_md_at_end(ends: &Ends) -> bool {
    let sectors = ends.size / 512;
    let old = (ends.size & !0xFFFF).checked_sub(0x1_0000);
    let new = sectors.checked_sub(16).map(|sector| (sector & !7) * 512);
    [old, new].into_iter().flatten().any(|at| ends.has(at, &MD_MAGIC))
}

/// A pool's member has four labels of 256 KiB, two at each end; each holds a ring of uberblocks in
/// its second half, one per KiB or more, in the byte order of the machine that wrote them
/// (OpenZFS include/sys/vdev_impl.h, uberblock_impl.h).
fn has_zfs_label(ends: &Ends) -> bool {
    const LABEL: u64 = 256 << 10;
    const MAGIC: u64 = 0x00BA_B10C;
    let end = ends.size & !(LABEL - 1);
    let labels = [Some(0), Some(LABEL), end.checked_sub(2 * LABEL), end.checked_sub(LABEL)];
    labels.into_iter().flatten().any(|label| {
        (label + LABEL / 2..label + LABEL)
            .step_by(1024)
            .any(|at| ends.has(at, &MAGIC.to_le_bytes()) || ends.has(at, &MAGIC.to_be_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 8 * MIB + 3 * 512;

    fn probe_bytes(writes: &[(usize, &[u8])]) -> Vec<&'static str> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("dev")).unwrap();
        let mut bytes = vec![0; SIZE];
        for (at, write) in writes {
            bytes[*at..at + write.len()].copy_from_slice(write);
        }
        std::fs::write(dir.path().join("dev/x"), bytes).unwrap();
        probe(&Root::at(dir.path()), "x").unwrap()
    }

    #[test]
    fn every_magic_is_found_by_its_name() {
        for Magic(name, at, bytes) in MAGICS {
            assert_eq!(probe_bytes(&[(*at, bytes)]), [*name]);
        }
    }

    #[test]
    fn superblocks_with_an_odd_place_are_found() {
        let ext = |compatible: u8, incompatible: u8| {
            probe_bytes(&[(0x438, &[0x53, 0xEF]), (0x45C, &[compatible]), (0x460, &[incompatible])])
        };
        assert_eq!(ext(0, 0), ["ext2"]);
        assert_eq!(ext(4, 0), ["ext3"]);
        assert_eq!(ext(4, 0x40), ["ext4"]);
        let last_64k = (SIZE & !0xFFFF) - 0x1_0000;
        assert_eq!(probe_bytes(&[(last_64k, &MD_MAGIC)]), ["md member (0.90 or 1.0)"]);
        let version_1_0 = ((SIZE / 512 - 16) & !7) * 512;
        assert_eq!(probe_bytes(&[(version_1_0, &MD_MAGIC)]), ["md member (0.90 or 1.0)"]);
        let uberblock = 0x00BA_B10C_u64.to_le_bytes();
        assert_eq!(probe_bytes(&[((128 << 10) + 4096, &uberblock)]), ["ZFS member"]);
        let last_label = (SIZE & !((256 << 10) - 1)) - (256 << 10);
        assert_eq!(probe_bytes(&[(last_label + (128 << 10), &uberblock)]), ["ZFS member"]);
        assert_eq!(probe_bytes(&[(SIZE - 512, b"EFI PART")]), ["GPT"]);
        let last_4k = SIZE - SIZE % 4096 - 4096;
        assert_eq!(probe_bytes(&[(last_4k, MILLRACE_MAGIC)]), ["millrace store"]);
    }

    #[test]
    fn blank_and_unknown_content_differ() {
        assert!(probe_bytes(&[]).is_empty());
        assert_eq!(probe_bytes(&[(510, &[0x55, 0xAA])]), ["MBR"]);
        assert_eq!(probe_bytes(&[(100_000, &[1])]), [UNKNOWN]);
        assert_eq!(probe_bytes(&[(SIZE - 1, &[1])]), [UNKNOWN]);
    }

    #[test]
    fn a_device_smaller_than_every_offset_is_no_fault() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("dev")).unwrap();
        std::fs::write(dir.path().join("dev/x"), [0; 512]).unwrap();
        assert!(probe(&Root::at(dir.path()), "x").unwrap().is_empty());
        assert!(probe(&Root::at(dir.path()), "y").is_err());
    }
}
