//! The private data of a connection request and of its acceptance: 16 bytes, little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `MILL` |
//! | 4..6 | protocol version |
//! | 6..8 | credits: wanted by the client, granted by the server |
//! | 8..12 | largest payload in bytes, likewise |
//! | 12 | active MTU of the sender's port, in verbs' code |
//! | 13..16 | zero |
//!
//! It sizes queues before the handshake can run on them; nothing in it is trusted further.

use crate::wire::{MAGIC, Reason, VERSION};

/// Length in bytes. rdma_cm leaves 56 in a request of port space TCP.
pub(super) const LENGTH: usize = 16;

/// Sizes that both sides tell each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Requests in flight.
    pub credits: u16,
    /// Largest payload in bytes.
    pub max_payload: u32,
    /// Active MTU of the sender's port, in verbs' code; the path uses the lesser of both.
    pub mtu: u8,
}

impl Sizes {
    /// As it goes over the wire.
    pub fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.credits.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.max_payload.to_le_bytes());
        bytes[12] = self.mtu;
        bytes
    }

    /// Reads and validates it; rdma_cm may have padded it with zeros.
    pub fn decode(bytes: &[u8]) -> Result<Self, Reason> {
        let Some((bytes, padding)) = bytes.split_first_chunk::<LENGTH>() else {
            return Err(Reason::Size);
        };
        let [m0, m1, m2, m3, v0, v1, c0, c1, p0, p1, p2, p3, mtu, reserved @ ..] = *bytes;
        if u32::from_le_bytes([m0, m1, m2, m3]) != MAGIC {
            return Err(Reason::Magic);
        }
        if u16::from_le_bytes([v0, v1]) != VERSION {
            return Err(Reason::Version);
        }
        if reserved.iter().chain(padding).any(|b| *b != 0) {
            return Err(Reason::Reserved);
        }
        let sizes = Self {
            credits: u16::from_le_bytes([c0, c1]),
            max_payload: u32::from_le_bytes([p0, p1, p2, p3]),
            mtu,
        };
        if sizes.credits == 0 || !(1..=5).contains(&mtu) { Err(Reason::Value) } else { Ok(sizes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { credits: 64, max_payload: 0x0010_1000, mtu: 3 };

    #[test]
    fn golden_bytes() {
        let bytes = [b'M', b'I', b'L', b'L', 1, 0, 64, 0, 0, 0x10, 0x10, 0, 3, 0, 0, 0];
        assert_eq!(SIZES.encode(), bytes);
        let mut padded = bytes.to_vec();
        padded.resize(56, 0);
        assert_eq!(Sizes::decode(&padded), Ok(SIZES));
    }

    #[test]
    fn flaws_have_their_reasons() {
        let flawed = |at: usize, value: u8| {
            let mut bytes = SIZES.encode();
            bytes[at] = value;
            Sizes::decode(&bytes).unwrap_err()
        };
        assert_eq!(flawed(0, 0), Reason::Magic);
        assert_eq!(flawed(4, 2), Reason::Version);
        assert_eq!(flawed(6, 0), Reason::Value);
        assert_eq!(flawed(12, 6), Reason::Value);
        assert_eq!(flawed(15, 1), Reason::Reserved);
        assert_eq!(Sizes::decode(&SIZES.encode()[..15]), Err(Reason::Size));
    }
}
