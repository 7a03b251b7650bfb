//! The private data of a connection request and of its acceptance: 32 bytes, little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `MILL` |
//! | 4..6 | protocol version |
//! | 6..8 | credits: wanted by the client, granted by the server |
//! | 8..12 | largest payload in bytes, likewise |
//! | 12 | active MTU of the sender's port, in verbs' code |
//! | 13 | zero |
//! | 14..16 | number of the worker: wanted by the client (0xFFFF: any), chosen by the server |
//! | 16..24 | address of the client's probe word, a multiple of 8; zero from the server |
//! | 24..28 | its key; zero from the server |
//! | 28..32 | zero |
//!
//! It sizes queues before the handshake can run on them; nothing in it is trusted further. The
//! probe word is 8 bytes of the client's memory of which nobody reads the contents. The server
//! writes to it where a connection is silent, and not before the handshake is done.

use crate::wire::{MAGIC, Reason, VERSION};

/// Length in bytes. rdma_cm leaves 56 in a request of port space TCP.
pub(super) const LENGTH: usize = 32;

/// Bytes of a probe word. Never none: a message without bytes does not pass every virtual NIC.
pub(super) const PROBE_BYTES: u32 = 8;

/// Where a client lets itself be probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ProbeWord {
    /// Its address; 0 from a server.
    pub addr: u64,
    /// Key of its memory.
    pub rkey: u32,
}

/// Sizes that both sides tell each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Requests in flight.
    pub credits: u16,
    /// Largest payload in bytes.
    pub max_payload: u32,
    /// Active MTU of the sender's port, in verbs' code; the path uses the lesser of both.
    pub mtu: u8,
    /// The client's probe word.
    pub probe: ProbeWord,
    /// Number of the worker, as in [`crate::wire::Hello`].
    pub worker: u16,
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
        bytes[16..24].copy_from_slice(&self.probe.addr.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.probe.rkey.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.worker.to_le_bytes());
        bytes
    }

    /// Reads and validates it; rdma_cm may have padded it with zeros.
    pub fn decode(bytes: &[u8]) -> Result<Self, Reason> {
        let Some((bytes, padding)) = bytes.split_first_chunk::<LENGTH>() else {
            return Err(Reason::Size);
        };
        let (sizes, probe) = bytes.split_at(LENGTH / 2);
        let [m0, m1, m2, m3, v0, v1, c0, c1, p0, p1, p2, p3, mtu, reserved, w0, w1] =
            *sizes.first_chunk::<{ LENGTH / 2 }>().expect("half of it");
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, more @ ..] =
            *probe.first_chunk::<{ LENGTH / 2 }>().expect("the other half");
        if u32::from_le_bytes([m0, m1, m2, m3]) != MAGIC {
            return Err(Reason::Magic);
        }
        if u16::from_le_bytes([v0, v1]) != VERSION {
            return Err(Reason::Version);
        }
        if [reserved].iter().chain(&more).chain(padding).any(|b| *b != 0) {
            return Err(Reason::Reserved);
        }
        let sizes = Self {
            credits: u16::from_le_bytes([c0, c1]),
            max_payload: u32::from_le_bytes([p0, p1, p2, p3]),
            mtu,
            probe: ProbeWord {
                addr: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
                rkey: u32::from_le_bytes([k0, k1, k2, k3]),
            },
            worker: u16::from_le_bytes([w0, w1]),
        };
        let aligned = sizes.probe.addr.is_multiple_of(PROBE_BYTES.into());
        if sizes.credits == 0 || !(1..=5).contains(&mtu) || !aligned {
            return Err(Reason::Value);
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: ProbeWord = ProbeWord { addr: 0x0807_0605_0403_0200, rkey: 0x0D0C_0B0A };
    const SIZES: Sizes =
        Sizes { credits: 64, max_payload: 0x0010_1000, mtu: 3, worker: 0xFF, probe: PROBE };

    #[test]
    fn golden_bytes() {
        let bytes = [
            b'M', b'I', b'L', b'L', 2, 0, 64, 0, 0, 0x10, 0x10, 0, 3, 0, 0xFF, 0, //
            0, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0, 0, 0, 0,
        ];
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
        assert_eq!(flawed(4, 1), Reason::Version);
        assert_eq!(flawed(6, 0), Reason::Value);
        assert_eq!(flawed(12, 6), Reason::Value);
        assert_eq!(flawed(13, 1), Reason::Reserved);
        assert_eq!(flawed(28, 1), Reason::Reserved);
        assert_eq!(flawed(16, 4), Reason::Value);
        assert_eq!(Sizes::decode(&SIZES.encode()[..31]), Err(Reason::Size));
    }
}
