//! What precedes the data of a put: the key in full, and the CRC that the data must have.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::message::{Reason, zero};

/// Longest key in bytes; the shortest has 1.
pub const MAX_KEY: usize = 255;

/// Bytes of a [`PutPrefix`]: one block of a drive. A server pulls it to the last 512 bytes before
/// the data's place in the slot, so the data is where it goes to the drive from, whatever the
/// header that is then built before it.
pub const PUT_PREFIX: usize = 512;

/// The first 512 bytes of a put's body; the data follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PutPrefix {
    /// CRC-64/NVME of the data.
    pub crc: U64,
    length: U16,
    reserved0: [u8; 6],
    /// Padded with zeros.
    key: [u8; 256],
    reserved1: [u8; 240],
}

const _: () = assert!(size_of::<PutPrefix>() == PUT_PREFIX);
const _: () = assert!(MAX_KEY < 256);

impl PutPrefix {
    /// The prefix for data with this CRC.
    ///
    /// # Panics
    ///
    /// If the key has not 1 to [`MAX_KEY`] bytes.
    pub fn new(key: &[u8], crc: u64) -> Self {
        assert!((1..=MAX_KEY).contains(&key.len()), "a key of {} bytes", key.len());
        let mut padded = [0; 256];
        padded[..key.len()].copy_from_slice(key);
        let length = (key.len() as u16).into();
        Self { crc: crc.into(), length, reserved0: [0; 6], key: padded, reserved1: [0; 240] }
    }

    /// Reads and validates one: the key has 1 to [`MAX_KEY`] bytes, all else is zero. Whether it is
    /// the key of the request's digest is for the server.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let prefix = Self::read_from_bytes(bytes).map_err(|_| Reason::Size)?;
        let length = usize::from(prefix.length.get());
        if !(1..=MAX_KEY).contains(&length) {
            return Err(Reason::Value);
        }
        zero(&prefix.reserved0)?;
        zero(&prefix.key[length..])?;
        zero(&prefix.reserved1)?;
        Ok(prefix)
    }

    /// The object's key.
    pub fn key(&self) -> &[u8] {
        &self.key[..usize::from(self.length.get()).min(MAX_KEY)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let prefix = PutPrefix::new(b"a/b", 0x0807_0605_0403_0201);
        let mut expected = vec![1, 2, 3, 4, 5, 6, 7, 8, 3, 0, 0, 0, 0, 0, 0, 0, b'a', b'/', b'b'];
        expected.resize(PUT_PREFIX, 0);
        assert_eq!(prefix.as_bytes(), expected);
        assert_eq!(PutPrefix::parse(&expected), Ok(prefix));
        assert_eq!(prefix.key(), b"a/b");
    }

    #[test]
    fn keys_have_1_to_255_bytes() {
        for length in [1, 255] {
            let key = vec![0xFF; length];
            let prefix = PutPrefix::new(&key, 0);
            assert_eq!(PutPrefix::parse(prefix.as_bytes()).unwrap().key(), key);
        }
        for length in [0_u16, 256, 257, u16::MAX] {
            let mut bytes = PutPrefix::new(b"k", 0).as_bytes().to_vec();
            bytes[8..10].copy_from_slice(&length.to_le_bytes());
            assert_eq!(PutPrefix::parse(&bytes), Err(Reason::Value), "{length}");
        }
    }

    #[test]
    fn what_is_not_key_or_crc_is_zero() {
        let good = PutPrefix::new(b"key", 7);
        for at in (10..16).chain(19..PUT_PREFIX) {
            let mut bytes = good.as_bytes().to_vec();
            bytes[at] = 1;
            assert_eq!(PutPrefix::parse(&bytes), Err(Reason::Reserved), "byte {at}");
        }
        assert_eq!(PutPrefix::parse(&good.as_bytes()[1..]), Err(Reason::Size));
    }
}
