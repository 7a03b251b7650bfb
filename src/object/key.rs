//! Names of objects.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// Longest key in bytes.
pub const MAX_KEY: usize = 255;

/// Bytes of a [`Digest`].
pub const DIGEST_SIZE: usize = 24;

/// The first 24 bytes of a key's SHA-256: what the index and the wire know an object by. Two keys
/// of one digest are not to be found by anybody (2^96 tries).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; DIGEST_SIZE]);

impl Digest {
    /// Of a key's bytes.
    pub fn of(key: &[u8]) -> Self {
        let whole: [u8; 32] = Sha256::digest(key).into();
        Self(*whole.first_chunk().expect("32 bytes"))
    }

    /// As three little-endian words, each evenly spread over all keys.
    pub fn words(&self) -> [u64; 3] {
        let word = |at: usize| {
            u64::from_le_bytes(*self.0[at..].first_chunk().expect("24 bytes are three words"))
        };
        [word(0), word(8), word(16)]
    }

    /// The inverse of [`Digest::words`].
    pub fn from_words(words: [u64; 3]) -> Self {
        let mut bytes = [0; DIGEST_SIZE];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Self(bytes)
    }
}

/// What is wrong with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadKey {
    /// It has no bytes.
    Empty,
    /// It has that many bytes, more than [`MAX_KEY`].
    TooLong(usize),
}

impl fmt::Display for BadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadKey::Empty => f.write_str("a key of no bytes"),
            BadKey::TooLong(len) => write!(f, "a key of {len} bytes"),
        }
    }
}

impl std::error::Error for BadKey {}

impl From<BadKey> for crate::Error {
    fn from(bad: BadKey) -> Self {
        crate::Error::usage(bad.to_string()).remedy(format!("use 1 to {MAX_KEY} bytes"))
    }
}

/// A key: 1 to 255 bytes, of any values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyName {
    len: u8,
    bytes: [u8; MAX_KEY],
}

impl KeyName {
    /// Takes a key's bytes.
    pub fn new(key: &[u8]) -> Result<Self, BadKey> {
        let len = match key.len() {
            0 => return Err(BadKey::Empty),
            len => u8::try_from(len).map_err(|_| BadKey::TooLong(len))?,
        };
        let mut bytes = [0; MAX_KEY];
        bytes[..key.len()].copy_from_slice(key);
        Ok(Self { len, bytes })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// What the index knows it by.
    pub fn digest(&self) -> Digest {
        Digest::of(self.bytes())
    }
}

impl fmt::Display for KeyName {
    /// As text where it is text, with escapes for what would upset a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.bytes().utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\\' => f.write_str("\\\\")?,
                    c if c.is_control() => write!(f, "{}", c.escape_default())?,
                    c => write!(f, "{c}")?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyName({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked() {
        assert_eq!(KeyName::new(b""), Err(BadKey::Empty));
        assert_eq!(KeyName::new(&[b'a'; 256]), Err(BadKey::TooLong(256)));
        assert_eq!(KeyName::new(&[b'a'; 255]).unwrap().bytes().len(), 255);
        let error = crate::Error::from(BadKey::TooLong(256));
        assert!(error.report().contains("256 bytes") && error.report().contains("1 to 255"));
    }

    #[test]
    fn the_digest_is_the_start_of_sha_256() {
        // FIPS 180-2, appendix B.1.
        let bytes = Digest::of(b"abc").0;
        assert_eq!(bytes[..8], [0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea]);
        let digest = KeyName::new(b"abc").unwrap().digest();
        assert_eq!(Digest::from_words(digest.words()), digest);
    }

    #[test]
    fn keys_print_without_harm() {
        let print = |key: &[u8]| KeyName::new(key).unwrap().to_string();
        assert_eq!(print("a/ü b".as_bytes()), "a/ü b");
        assert_eq!(print(b"a\n\x1b[2J\\\xff"), "a\\n\\u{1b}[2J\\\\\\xff");
    }
}
