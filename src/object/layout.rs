//! Which slot lies where.

use super::{BLOCK, Superblock};
use crate::limits::MAX_SLOT_SIZE;

/// Longest object that a store can be made for, in bytes: with its header it is one slot of memory.
pub const MAX_OBJECT: u32 = (MAX_SLOT_SIZE - BLOCK) as u32;

/// Distance of slots for objects of up to `object_limit` bytes.
pub(super) fn stride_of(object_limit: u32) -> u64 {
    BLOCK as u64 + u64::from(object_limit)
}

/// One drive's share of the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Number of the drive in its storage: what a command names it by.
    pub drive: u16,
    /// Number of the drive in the store: what its headers name it by.
    pub member: u16,
    /// Number of its first slot among all slots of the store.
    pub first: u32,
    /// Its slots.
    pub slots: u32,
}

/// The slots of all drives of a store. A slot's number counts through all drives, in the order of
/// the storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    parts: Vec<Part>,
    slots: u32,
    object_limit: u32,
    block_size: u32,
}

impl Layout {
    /// Bytes at the start of a drive before its first slot.
    pub const FIRST: u64 = BLOCK as u64;

    /// Slots of a drive of `bytes`, between its superblock and the copy of that.
    pub fn slots_of(bytes: u64, object_limit: u32) -> u64 {
        let usable = bytes - bytes % BLOCK as u64;
        usable.saturating_sub(2 * BLOCK as u64) / stride_of(object_limit)
    }

    /// Of drives with these superblocks, in the order of their storage, whose largest logical
    /// block is of `block_size` bytes. `None` where there are more than 2^32 - 2 slots.
    pub fn new(superblocks: &[Superblock], block_size: u32) -> Option<Self> {
        let mut parts = Vec::with_capacity(superblocks.len());
        let mut next: u32 = 0;
        for (drive, superblock) in superblocks.iter().enumerate() {
            let slots = u32::try_from(superblock.slots).ok()?;
            parts.push(Part { drive: drive as u16, member: superblock.drive, first: next, slots });
            next = next.checked_add(slots).filter(|next| *next < u32::MAX)?;
        }
        let object_limit = superblocks.first()?.object_limit;
        Some(Self { parts, slots: next, object_limit, block_size })
    }

    /// Slots in all.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The drives' shares, in the order of the storage.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Longest object in bytes.
    pub fn object_limit(&self) -> u32 {
        self.object_limit
    }

    /// Bytes of a slot: header and longest object.
    pub fn slot_size(&self) -> u32 {
        BLOCK as u32 + self.object_limit
    }

    /// The share that a slot belongs to.
    pub fn part_of(&self, slot: u32) -> &Part {
        let after = self.parts.partition_point(|part| part.first <= slot);
        &self.parts[after - 1]
    }

    /// Drive and byte offset of a slot.
    #[inline]
    pub fn locate(&self, slot: u32) -> (u16, u64) {
        debug_assert!(slot < self.slots);
        let part = self.part_of(slot);
        (part.drive, self.offset(u64::from(slot - part.first)))
    }

    /// Byte offset of a drive's slot number `slot`, counted from 0 on that drive.
    pub fn offset(&self, slot: u64) -> u64 {
        Self::FIRST + slot * stride_of(self.object_limit)
    }

    /// Bytes to be read or written for an object of `length` bytes: header block, data, and what
    /// fills the last logical block.
    #[inline]
    pub fn transfer_len(&self, length: u32) -> u32 {
        (BLOCK as u32 + length).next_multiple_of(self.block_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{State, StoreId};

    pub(crate) fn superblock(drive: u16, drives: u16, slots: u64) -> Superblock {
        Superblock {
            state: State::Ready,
            store: StoreId([7; 16]),
            drive,
            drives,
            object_limit: 8192,
            slots,
            bytes: slots * 12288 + 8192,
            created: 0,
        }
    }

    #[test]
    fn slots_count_through_the_drives() {
        // Named in another order than they were made in.
        let layout = Layout::new(&[superblock(1, 2, 3), superblock(0, 2, 5)], 512).unwrap();
        assert_eq!((layout.slots(), layout.slot_size()), (8, 12288));
        assert_eq!(layout.locate(0), (0, 4096));
        assert_eq!(layout.locate(2), (0, 4096 + 2 * 12288));
        assert_eq!(layout.locate(3), (1, 4096));
        assert_eq!(layout.locate(7), (1, 4096 + 4 * 12288));
        assert_eq!(layout.part_of(3).member, 0);
        assert_eq!(layout.transfer_len(1), 4096 + 512);
        assert_eq!(layout.transfer_len(8192), 12288);
    }

    #[test]
    fn both_superblocks_have_their_room() {
        assert_eq!(Layout::slots_of(4096 + 12288 + 4096, 8192), 1);
        assert_eq!(Layout::slots_of(4096 + 12288 + 4096 + 511, 8192), 1);
        assert_eq!(Layout::slots_of(4096 + 12288 + 4095, 8192), 0);
        assert_eq!(Layout::slots_of(100, 8192), 0);
    }

    #[test]
    fn more_slots_than_can_be_counted_are_refused() {
        assert!(Layout::new(&[superblock(0, 1, u64::from(u32::MAX))], 512).is_none());
    }
}
