//! The first block of a slot: which object the slot holds. Byte table in docs/FORMAT.md.
//!
//! The header is 512 bytes, so that no drive tears it: a sector is written whole or not at all. It
//! stands at the start of the block and once more in its middle. The copy tells damage from a write
//! that a crash has cut short, and still gives the key where the first one is damaged.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::superblock::VERSION;
use super::{BLOCK, Digest, KeyName, StoreId};
use crate::check::crc;

/// Bytes of a header.
pub const HEADER_SIZE: usize = 512;

/// Where the copy stands in its block.
const COPY_AT: usize = 2048;

const MAGIC: [u8; 8] = *b"MILLSLOT";

const CRC_AT: usize = HEADER_SIZE - 8;

/// Bits in which a store's UUID may differ for the bytes to count as a damaged header of that
/// store. Random bytes are as close as this once in 2^87.
const NEAR: u32 = 8;

/// What is wrong with an object. The numbers are the `detail` on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Damage {
    /// Nothing that looks like a header is where one has to be.
    Missing = 1,
    /// The header's CRC does not match, or it contradicts itself.
    Header = 2,
    /// The header is of another store.
    Store = 3,
    /// The header belongs to another slot or drive: it was written to the wrong place.
    Place = 4,
    /// The header has another key.
    Key = 5,
    /// The header has another sequence number: a write was lost.
    Sequence = 6,
    /// The header has another length.
    Length = 7,
    /// The CRC of the data does not match.
    Data = 8,
    /// The header's copy is damaged, the header itself is not: the object can be read.
    Copy = 9,
}

impl Damage {
    /// All of them.
    pub const ALL: [Damage; 9] = [
        Damage::Missing,
        Damage::Header,
        Damage::Store,
        Damage::Place,
        Damage::Key,
        Damage::Sequence,
        Damage::Length,
        Damage::Data,
        Damage::Copy,
    ];

    /// The number on the wire.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The damage of that number.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|damage| damage.code() == code)
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Damage::Missing => "header missing: nothing like one is in the slot",
            Damage::Header => "header damaged: its CRC does not match",
            Damage::Store => "header of another store",
            Damage::Place => "header of another slot: a write went to the wrong place",
            Damage::Key => "header of another key",
            Damage::Sequence => "header of another version of the object: a write was lost",
            Damage::Length => "header of another length",
            Damage::Data => "data damaged: its CRC does not match",
            Damage::Copy => "copy of the header damaged; the object itself can be read",
        })
    }
}

/// Where a header says that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the drive in the store.
    pub member: u16,
    /// Number of the slot on that drive.
    pub slot: u64,
}

/// What a header says of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its key.
    pub key: KeyName,
    /// Bytes of data: 1 to the store's limit.
    pub length: u32,
    /// CRC-64/NVME of the data.
    pub data_crc: u64,
    /// Grows with every change in the store; the highest of a key is the object.
    pub sequence: u64,
}

/// A header as it is on the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    magic: [u8; 8],
    version: U16,
    key_len: U16,
    length: U32,
    store: [u8; 16],
    sequence: U64,
    data_crc: U64,
    digest: [u8; 24],
    slot: U64,
    drive: U16,
    reserved: [u8; 6],
    key: [u8; 256],
    reserved_end: [u8; 160],
    crc: U64,
}

const _: () = assert!(size_of::<Header>() == HEADER_SIZE);

/// What the first block of a slot turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'a> {
    /// No header of this store.
    Free,
    /// An object. `copy`: what is wrong with the header's copy, where that is no crash's doing.
    Object {
        /// The header.
        header: &'a Header,
        /// [`Damage::Copy`], or nothing.
        copy: Option<Damage>,
    },
    /// Only the copy is there: a crash has cut a write or a deletion short, either of which was
    /// never acknowledged. The data is whole, so the object counts, once the block is written anew.
    Torn(&'a Header),
    /// A header of this store that cannot be trusted.
    Damaged {
        /// The copy, where that is whole: it tells the key.
        known: Option<&'a Header>,
        /// What is wrong.
        why: Damage,
    },
}

impl Header {
    /// Of an object in a slot.
    pub fn new(store: StoreId, place: Place, object: &ObjectInfo) -> Self {
        let mut header = Self {
            magic: MAGIC,
            version: (VERSION as u16).into(),
            key_len: (object.key.bytes().len() as u16).into(),
            length: object.length.into(),
            store: store.0,
            sequence: object.sequence.into(),
            data_crc: object.data_crc.into(),
            digest: object.key.digest().0,
            slot: place.slot.into(),
            drive: place.member.into(),
            reserved: [0; 6],
            key: [0; 256],
            reserved_end: [0; 160],
            crc: 0.into(),
        };
        header.key[..object.key.bytes().len()].copy_from_slice(object.key.bytes());
        header.crc = crc(&header.as_bytes()[..CRC_AT]).into();
        header
    }

    /// Writes the slot's first block: header, copy, and zeros.
    pub fn write_block(&self, block: &mut [u8; BLOCK]) {
        block.fill(0);
        block[..HEADER_SIZE].copy_from_slice(self.as_bytes());
        block[COPY_AT..COPY_AT + HEADER_SIZE].copy_from_slice(self.as_bytes());
    }

    /// The header at the start of a slot, checked as far as it goes by itself.
    ///
    /// # Errors
    ///
    /// [`Damage::Missing`] or [`Damage::Header`].
    pub fn first(slot: &[u8]) -> Result<&Self, Damage> {
        let (header, _) = Self::ref_from_prefix(slot).map_err(|_| Damage::Missing)?;
        header.validate()?;
        Ok(header)
    }

    fn copy(block: &[u8; BLOCK]) -> &Self {
        let (header, _) =
            Self::ref_from_prefix(&block[COPY_AT..]).expect("half a block holds a header");
        header
    }

    fn validate(&self) -> Result<(), Damage> {
        if self.magic != MAGIC {
            return Err(Damage::Missing);
        }
        let key_len = usize::from(self.key_len.get());
        let whole = crc(&self.as_bytes()[..CRC_AT]) == self.crc.get()
            && u32::from(self.version.get()) == VERSION
            && (1..=super::MAX_KEY).contains(&key_len)
            && self.length.get() > 0
            && self.key[key_len..].iter().all(|byte| *byte == 0);
        if whole { Ok(()) } else { Err(Damage::Header) }
    }

    /// Whether bytes in the place of a header are one of this store, damaged or not.
    fn is_near(&self, store: StoreId) -> bool {
        let (ours, theirs) = (u128::from_le_bytes(store.0), u128::from_le_bytes(self.store));
        (ours ^ theirs).count_ones() <= NEAR
    }

    /// Sorts out the first block of a slot when a store is opened.
    pub fn classify(block: &[u8; BLOCK], store: StoreId, place: Place) -> Found<'_> {
        let (first, second) =
            (Self::ref_from_prefix(block).expect("a block holds a header").0, Self::copy(block));
        let valid = |header: &Self| header.store == store.0 && header.validate().is_ok();
        let known = valid(second).then_some(second).filter(|copy| copy.is_at(place));
        if valid(first) {
            if !first.is_at(place) {
                return Found::Damaged { known, why: Damage::Place };
            }
            // One that is not near was never written: a crash came between both sectors.
            let damaged = second.is_near(store) && second != first;
            return Found::Object { header: first, copy: damaged.then_some(Damage::Copy) };
        }
        match (first.is_near(store), known) {
            (true, known) => Found::Damaged { known, why: Damage::Header },
            (false, Some(copy)) => Found::Torn(copy),
            (false, None) if valid(second) => Found::Damaged { known: None, why: Damage::Place },
            (false, None) if second.is_near(store) => {
                Found::Damaged { known: None, why: Damage::Header }
            }
            (false, None) => Found::Free,
        }
    }

    /// Compares with what the index says of the slot.
    #[inline]
    pub fn expect(
        &self,
        store: StoreId,
        place: Place,
        digest: &Digest,
        sequence: u64,
        length: u32,
    ) -> Result<(), Damage> {
        if self.store != store.0 {
            Err(Damage::Store)
        } else if !self.is_at(place) {
            Err(Damage::Place)
        } else if self.digest != digest.0 {
            Err(Damage::Key)
        } else if self.sequence.get() != sequence {
            Err(Damage::Sequence)
        } else if self.length.get() != length {
            Err(Damage::Length)
        } else {
            Ok(())
        }
    }

    fn is_at(&self, place: Place) -> bool {
        self.drive.get() == place.member && self.slot.get() == place.slot
    }

    /// The object's key.
    pub fn key(&self) -> KeyName {
        KeyName::new(&self.key[..usize::from(self.key_len.get())]).expect("a header was validated")
    }

    /// Digest of the key as the header has it.
    pub fn digest(&self) -> Digest {
        Digest(self.digest)
    }

    /// Bytes of data.
    pub fn length(&self) -> u32 {
        self.length.get()
    }

    /// CRC-64/NVME of the data.
    pub fn data_crc(&self) -> u64 {
        self.data_crc.get()
    }

    /// Sequence number.
    pub fn sequence(&self) -> u64 {
        self.sequence.get()
    }
}

#[cfg(test)]
mod tests;
