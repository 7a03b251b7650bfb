//! Drives in RAM: the baseline that isolates the fabric, and what runs where no drive is.
//!
//! A read is one memcpy of the payload, done by `poll` just before the caller uses the bytes, so
//! they are still in the cache when they are checked and sent. The contents are a function of
//! drive and offset ([`fill`]), so whoever reads can compute what must come.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{
    Command, Completion, DriveInfo, DriveName, OpenMode, Operation, Queue, Storage, Submit,
    check_depth,
};
use crate::error::{Error, IoStatus, Result};
use crate::memory::{Arena, ArenaSpec, Pages, SharedBytes};

/// Logical block size of drives in RAM, in bytes: the size that most NVMe drives are formatted to.
pub const BLOCK_SIZE: u32 = 512;

/// Bytes after which one poll ends: bounds the time between two looks at the other side, which a
/// real drive would not delay at all.
const POLL_BYTES: u64 = 1 << 20;

/// Writes the contents that a fresh drive number `drive` has at byte `offset` into `to`.
///
/// Each aligned 8 bytes are a hash of drive and position (the finaliser of SplitMix64), so data of
/// a wrong drive, a wrong offset, or shifted data differs in every word.
pub fn fill(drive: u16, offset: u64, to: &mut [u8]) {
    let head = (offset.next_multiple_of(8) - offset) as usize;
    let (head, body) = to.split_at_mut(head.min(to.len()));
    if !head.is_empty() {
        let skip = (offset % 8) as usize;
        head.copy_from_slice(&word(drive, offset / 8).to_le_bytes()[skip..skip + head.len()]);
    }
    let mut index = offset.div_ceil(8);
    let mut words = body.chunks_exact_mut(8);
    for to in &mut words {
        to.copy_from_slice(&word(drive, index).to_le_bytes());
        index += 1;
    }
    let tail = words.into_remainder();
    let len = tail.len();
    tail.copy_from_slice(&word(drive, index).to_le_bytes()[..len]);
}

#[inline]
fn word(drive: u16, index: u64) -> u64 {
    let seed = (u64::from(drive) << 48) ^ index;
    let mut z = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The bytes of all drives of a set, shared by their queues.
#[derive(Debug)]
pub(super) struct MemDrives {
    pub(super) infos: Vec<DriveInfo>,
    bytes: Vec<SharedBytes>,
    pub(super) writable: bool,
}

impl MemDrives {
    /// Maps drives of `sizes` bytes, whose contents `init` writes.
    pub(super) fn open(
        sizes: &[u64],
        mode: OpenMode,
        spec: &ArenaSpec,
        init: &dyn Fn(u16, &mut [u8]),
    ) -> Result<Self> {
        let (mut infos, mut bytes) = (Vec::new(), Vec::new());
        for (number, &size) in sizes.iter().enumerate() {
            let drive = u16::try_from(number).map_err(|_| {
                Error::usage(format!("{} drives", sizes.len())).remedy("name fewer drives")
            })?;
            let name = DriveName::Memory(size).to_string();
            if size == 0 || !size.is_multiple_of(u64::from(BLOCK_SIZE)) {
                let what = format!("{name}: not a multiple of {BLOCK_SIZE} bytes above 0");
                return Err(Error::usage(what).remedy("write it like mem:512MiB"));
            }
            let map = ArenaSpec { bytes: size as usize, ..*spec };
            bytes.push(SharedBytes::new(Arena::map(&map)?, mode.is_writable(), |all| {
                init(drive, &mut all[..size as usize]);
            })?);
            infos.push(DriveInfo {
                name,
                serial: None,
                model: None,
                capacity: size,
                block_size: BLOCK_SIZE,
                memory_align: 1,
                max_transfer: None,
                start: 0,
                node: spec.node,
            });
        }
        Ok(Self { infos, bytes, writable: mode.is_writable() })
    }

    /// All bytes of a drive.
    pub(super) fn image(&self, drive: u16) -> Vec<u8> {
        let mut image = vec![0; self.infos[usize::from(drive)].capacity as usize];
        self.bytes[usize::from(drive)].copy_out(0, &mut image);
        image
    }

    /// Does what `command` asks for, for `len` bytes from `done` on.
    pub(super) fn transfer(&self, command: &mut Command, done: u32, len: u32) {
        let (from, to) = (done as usize, (done + len) as usize);
        let offset = command.offset as usize + from;
        let bytes = &self.bytes[usize::from(command.drive)];
        match command.operation {
            Operation::Read => bytes.copy_out(offset, &mut command.slot.bytes_mut(to)[from..]),
            Operation::Write | Operation::WriteDurable => {
                bytes.copy_in(offset, &command.slot.bytes(to)[from..])
            }
            Operation::Sync => {}
        }
    }
}

/// Drives in RAM.
#[derive(Debug, Clone)]
pub struct MemStorage(Arc<MemDrives>);

impl MemStorage {
    /// Makes drives of `sizes` bytes, on hugepages where enough are free, filled by [`fill`].
    ///
    /// # Errors
    ///
    /// `Usage` for a size that is not a multiple of [`BLOCK_SIZE`]; `Resource` where memory is
    /// short.
    pub fn open(sizes: &[u64], mode: OpenMode) -> Result<Self> {
        Self::open_on(sizes, mode, &ArenaSpec { bytes: 0, pages: Pages::Auto, node: None })
    }

    /// As [`MemStorage::open`], with pages and NUMA node of `spec`; its size is not used.
    pub fn open_on(sizes: &[u64], mode: OpenMode, spec: &ArenaSpec) -> Result<Self> {
        let init = |drive, all: &mut [u8]| fill(drive, 0, all);
        MemDrives::open(sizes, mode, spec, &init).map(|drives| Self(Arc::new(drives)))
    }
}

impl Storage for MemStorage {
    type Queue = MemQueue;

    fn drives(&self) -> &[DriveInfo] {
        &self.0.infos
    }

    fn name(&self) -> &'static str {
        "mem"
    }

    fn queue(&self, _arena: &Arc<Arena>, depth: u32) -> Result<MemQueue> {
        check_depth(depth)?;
        let waiting = VecDeque::with_capacity(depth as usize);
        Ok(MemQueue { drives: Arc::clone(&self.0), waiting, bytes: 0, depth: depth as usize })
    }
}

/// The queue of one worker over drives in RAM: first in, first out.
#[derive(Debug)]
pub struct MemQueue {
    drives: Arc<MemDrives>,
    waiting: VecDeque<Command>,
    /// Bytes of the commands that wait.
    bytes: u64,
    depth: usize,
}

impl Queue for MemQueue {
    fn submit(&mut self, command: Command) -> Submit {
        self.drives.infos[usize::from(command.drive)].check(&command, self.drives.writable);
        if self.waiting.len() == self.depth {
            return Submit::Busy(command);
        }
        self.bytes += u64::from(command.len);
        self.waiting.push_back(command);
        Submit::Queued
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let (before, mut bytes) = (out.len(), 0);
        while out.len() < out.capacity() && bytes < POLL_BYTES {
            let Some(mut command) = self.waiting.pop_front() else { break };
            let len = command.len;
            self.drives.transfer(&mut command, 0, len);
            bytes += u64::from(len);
            self.bytes -= u64::from(len);
            out.push(Completion {
                slot: Some(command.slot),
                tag: command.tag,
                drive: command.drive,
                status: IoStatus::Ok,
                commands: 1,
            });
        }
        out.len() - before
    }

    /// One poll would not get to it.
    fn is_sated(&self) -> bool {
        self.bytes >= POLL_BYTES
    }

    fn in_flight(&self) -> u32 {
        self.waiting.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SlotPool;

    #[test]
    fn contents_do_not_depend_on_where_a_read_starts() {
        let mut all = [0; 64];
        fill(3, 1024, &mut all);
        for start in 0..17 {
            for len in 0..=(64 - start) {
                let mut part = vec![0; len];
                fill(3, 1024 + start as u64, &mut part);
                assert_eq!(part, all[start..start + len], "{start}+{len}");
            }
        }
    }

    #[test]
    fn drives_and_offsets_differ_in_every_word() {
        let [mut a, mut b, mut c] = [[0; 4096]; 3];
        fill(0, 0, &mut a);
        fill(1, 0, &mut b);
        fill(0, 4096, &mut c);
        assert!(a.chunks(8).zip(b.chunks(8)).all(|(x, y)| x != y));
        assert!(a.chunks(8).zip(c.chunks(8)).all(|(x, y)| x != y));
    }

    #[test]
    fn a_queue_is_sated_by_what_one_poll_carries_out() {
        let storage = MemStorage::open(&[1 << 20], OpenMode::Read).unwrap();
        let spec = ArenaSpec { bytes: 8 * HALF, pages: Pages::Base, node: None };
        const HALF: usize = POLL_BYTES as usize / 2;
        let arena = Arc::new(Arena::map(&spec).unwrap());
        let mut queue = storage.queue(&arena, 8).unwrap();
        let mut pool = SlotPool::new(arena, HALF, 8).unwrap();
        let mut out = Vec::with_capacity(8);
        for sated in [false, true, true] {
            let (slot, operation) = (pool.acquire().unwrap(), Operation::Read);
            let command =
                Command { slot, drive: 0, operation, offset: 0, len: HALF as u32, tag: 0 };
            assert!(
                matches!(queue.submit(command), Submit::Queued),
                "it takes its depth all the same"
            );
            assert_eq!(queue.is_sated(), sated);
        }
        assert_eq!((queue.poll(&mut out), queue.is_sated()), (2, false));
        assert_eq!((queue.poll(&mut out), queue.is_sated()), (1, false));
    }

    #[test]
    fn odd_sizes_are_refused() {
        for size in [0, 100] {
            let error = MemStorage::open(&[size], OpenMode::Read).unwrap_err();
            assert!(error.remedy_text().is_some(), "{error}");
        }
    }
}
