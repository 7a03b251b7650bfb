//! The first and the last block of each drive: which store it belongs to. Byte table in
//! docs/FORMAT.md.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::BLOCK;
use super::layout::{MAX_OBJECT, stride_of};
use crate::check::crc;
use crate::limits::MAX_DRIVES;

/// First bytes of a superblock.
const MAGIC: [u8; 8] = *b"MILLRACE";

/// Version of the format on the drive: superblock, slots and headers.
pub(super) const VERSION: u32 = 1;

/// The identity of a store: a random UUID (RFC 9562, version 4), in the order it is printed in.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 16]);

impl StoreId {
    /// A new one.
    pub fn random() -> Self {
        Self(*uuid::Uuid::new_v4().as_bytes())
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_bytes(self.0).hyphenated().fmt(f)
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreId({self})")
    }
}

impl std::str::FromStr for StoreId {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uuid = uuid::Uuid::try_parse(text).map_err(|e| {
            crate::Error::usage(format!("\"{text}\" is not the UUID of a store")).caused_by(e)
        })?;
        Ok(Self(*uuid.as_bytes()))
    }
}

/// How far the making of a store has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// `store create` has not come to its end.
    Creating,
    /// All drives have their superblocks.
    Ready,
}

/// What is wrong with the bytes of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadSuperblock {
    /// No superblock of a store: another magic.
    None,
    /// Of a version that this program does not read.
    Version(u32),
    /// Its CRC does not match.
    Crc,
    /// Its CRC matches, but its values contradict each other: written by a faulty program.
    Values,
}

impl fmt::Display for BadSuperblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadSuperblock::None => f.write_str("no superblock"),
            BadSuperblock::Version(version) => {
                write!(f, "a superblock of version {version}; this program reads {VERSION}")
            }
            BadSuperblock::Crc => f.write_str("a damaged superblock: its CRC does not match"),
            BadSuperblock::Values => f.write_str("a superblock whose values contradict each other"),
        }
    }
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    state: U32,
    store: [u8; 16],
    drive: U16,
    drives: U16,
    object_limit: U32,
    stride: U64,
    slots: U64,
    bytes: U64,
    created: U64,
    reserved: [u8; 4016],
    crc: U64,
}

const _: () = assert!(size_of::<Raw>() == BLOCK);

const CRC_AT: usize = BLOCK - 8;

/// A superblock that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// How far `store create` has come.
    pub state: State,
    /// The store.
    pub store: StoreId,
    /// Number of this drive in the store, from 0.
    pub drive: u16,
    /// Drives of the store.
    pub drives: u16,
    /// Longest object in bytes: a multiple of [`BLOCK`].
    pub object_limit: u32,
    /// Slots on this drive.
    pub slots: u64,
    /// Bytes of this drive that the store uses: a multiple of [`BLOCK`].
    pub bytes: u64,
    /// When the store was made: seconds since 1970.
    pub created: u64,
}

impl Superblock {
    /// Distance in bytes from one slot to the next.
    pub fn stride(&self) -> u64 {
        stride_of(self.object_limit)
    }

    /// Its bytes on the drive.
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            state: match self.state {
                State::Creating => 1.into(),
                State::Ready => 2.into(),
            },
            store: self.store.0,
            drive: self.drive.into(),
            drives: self.drives.into(),
            object_limit: self.object_limit.into(),
            stride: self.stride().into(),
            slots: self.slots.into(),
            bytes: self.bytes.into(),
            created: self.created.into(),
            reserved: [0; 4016],
            crc: 0.into(),
        };
        raw.crc = crc(&raw.as_bytes()[..CRC_AT]).into();
        zerocopy::transmute!(raw)
    }

    /// Checks what a drive has in the place of a superblock.
    pub fn decode(bytes: &[u8; BLOCK]) -> Result<Self, BadSuperblock> {
        let raw = Raw::ref_from_bytes(bytes).expect("a block, of no alignment");
        if raw.magic != MAGIC {
            return Err(BadSuperblock::None);
        }
        // A later version may have its CRC elsewhere, so it is told by its number alone; a damaged
        // number is told by the CRC of everything.
        let whole = crc(&bytes[..CRC_AT]) == raw.crc.get();
        match (raw.version.get(), whole) {
            (VERSION, false) => return Err(BadSuperblock::Crc),
            (VERSION, true) => {}
            (version, _) => return Err(BadSuperblock::Version(version)),
        }
        let state = match raw.state.get() {
            1 => State::Creating,
            2 => State::Ready,
            _ => return Err(BadSuperblock::Values),
        };
        let found = Self {
            state,
            store: StoreId(raw.store),
            drive: raw.drive.get(),
            drives: raw.drives.get(),
            object_limit: raw.object_limit.get(),
            slots: raw.slots.get(),
            bytes: raw.bytes.get(),
            created: raw.created.get(),
        };
        let limit = found.object_limit;
        let fits = limit > 0
            && limit <= MAX_OBJECT
            && limit.is_multiple_of(BLOCK as u32)
            && raw.stride.get() == found.stride()
            && found.drive < found.drives
            && usize::from(found.drives) <= MAX_DRIVES
            && found.bytes.is_multiple_of(BLOCK as u64)
            && found.slots > 0
            && found.slots <= found.bytes.saturating_sub(2 * BLOCK as u64) / found.stride().max(1)
            && raw.reserved.iter().all(|byte| *byte == 0);
        if fits { Ok(found) } else { Err(BadSuperblock::Values) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn sample() -> Superblock {
        Superblock {
            state: State::Ready,
            store: StoreId([0x11; 16]),
            drive: 1,
            drives: 4,
            object_limit: 1 << 20,
            slots: 9,
            bytes: 10 << 20,
            created: 0x0102_0304,
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = sample().encode();
        let mut expected = [0; 80];
        expected[..8].copy_from_slice(b"MILLRACE");
        expected[8..16].copy_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
        expected[16..32].fill(0x11);
        expected[32..40].copy_from_slice(&[1, 0, 4, 0, 0, 0, 0x10, 0]);
        expected[40..48].copy_from_slice(&[0, 0x10, 0x10, 0, 0, 0, 0, 0]);
        expected[48] = 9;
        expected[56..64].copy_from_slice(&[0, 0, 0xA0, 0, 0, 0, 0, 0]);
        expected[64..72].copy_from_slice(&[4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(bytes[..80], expected);
        assert!(bytes[80..4088].iter().all(|byte| *byte == 0));
        assert_eq!(bytes[4088..], crc(&bytes[..4088]).to_le_bytes());
        assert_eq!(Superblock::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let bytes = sample().encode();
        for bit in 0..BLOCK * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = Superblock::decode(&flipped).expect_err("flipped");
            let expected = match bit / 8 {
                0..8 => matches!(error, BadSuperblock::None),
                8..12 => matches!(error, BadSuperblock::Version(_)),
                _ => error == BadSuperblock::Crc,
            };
            assert!(expected, "bit {bit}: {error:?}");
        }
    }

    #[test]
    fn contradictions_are_seen_behind_a_right_crc() {
        let edits: [fn(&mut Superblock); 7] = [
            |s| s.object_limit = 0,
            |s| s.object_limit = 4097,
            |s| s.drive = 4,
            |s| s.drives = 257,
            |s| s.slots = 10,
            |s| s.slots = 0,
            |s| s.bytes = 4095 << 12 | 1,
        ];
        for edit in edits {
            let mut superblock = sample();
            edit(&mut superblock);
            assert_eq!(Superblock::decode(&superblock.encode()), Err(BadSuperblock::Values));
        }
    }

    #[test]
    fn ids_print_and_parse() {
        let id = StoreId::random();
        assert_eq!(id.to_string().parse::<StoreId>().unwrap(), id);
        assert_ne!(StoreId::random(), id);
        assert!("x".parse::<StoreId>().is_err());
    }
}
