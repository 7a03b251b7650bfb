//! The messages before the first request: hello, challenge, proofs, welcome.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::message::{Kind, MAGIC, Reason, VERSION, padded, view, zero};
use crate::limits::MESSAGE_SIZE;

/// What the server's worker does with the bytes that it read, before they leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum CheckMode {
    /// Nothing.
    None = 0,
    /// Loads one word of every 64 bytes.
    Touch = 1,
    /// Computes CRC-64/NVME; completions carry it.
    Crc = 2,
}

impl std::str::FromStr for CheckMode {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        match text {
            "none" => Ok(CheckMode::None),
            "touch" => Ok(CheckMode::Touch),
            "crc" => Ok(CheckMode::Crc),
            _ => Err(crate::Error::usage(format!("\"{text}\" is not a check"))
                .remedy("choose crc, touch or none")),
        }
    }
}

/// Client's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Hello {
    kind: u8,
    reserved0: u8,
    version: U16,
    magic: U32,
    /// Requests that the client would like to have in flight.
    pub credits: U16,
    reserved1: [u8; 2],
    /// Largest payload in bytes that the client will ask for.
    pub max_payload: U32,
    /// The client's random bytes: new for each connection.
    pub nonce: [u8; 32],
    reserved2: [u8; 16],
}

/// Server's answer to [`Hello`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Challenge {
    kind: u8,
    /// 1 if the proofs are checked, 0 if everybody is accepted.
    pub authenticated: u8,
    version: U16,
    magic: U32,
    reserved0: [u8; 8],
    /// The server's random bytes: new for each connection.
    pub nonce: [u8; 32],
    reserved1: [u8; 16],
}

/// HMAC-SHA-256 under the token of what was said so far: first the client's, then the server's.
/// Both are sent on every connection; without authentication they are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Proof {
    kind: u8,
    reserved0: [u8; 7],
    /// The code.
    pub mac: [u8; 32],
    reserved1: [u8; 24],
}

/// Server's last message of the handshake: what the client may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Welcome {
    kind: u8,
    check: u8,
    /// Drives of the server; requests name them 0 to this less one.
    pub drives: U16,
    /// Requests that the client may have in flight.
    pub credits: U16,
    /// Number of the worker that serves this connection.
    pub worker: U16,
    /// Largest payload in bytes of one request.
    pub max_payload: U32,
    reserved0: [u8; 4],
    /// Sum of the drives' sizes in bytes.
    pub capacity: U64,
    /// Name of the server's backend, padded with zeros: `uring`, `spdk`, `mem`.
    pub backend: [u8; 8],
    reserved1: [u8; 32],
}

/// Server's refusal; the connection ends after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reject {
    kind: u8,
    reserved0: u8,
    /// The server's version of the protocol.
    pub version: U16,
    magic: U32,
    reason: U16,
    reserved1: [u8; 54],
}

const _: () = assert!(size_of::<Hello>() == MESSAGE_SIZE);
const _: () = assert!(size_of::<Challenge>() == MESSAGE_SIZE);
const _: () = assert!(size_of::<Proof>() == MESSAGE_SIZE);
const _: () = assert!(size_of::<Welcome>() == MESSAGE_SIZE);
const _: () = assert!(size_of::<Reject>() == MESSAGE_SIZE);

fn same_protocol(magic: U32, version: U16) -> Result<(), Reason> {
    if magic.get() != MAGIC {
        return Err(Reason::Magic);
    }
    if version.get() != VERSION { Err(Reason::Version) } else { Ok(()) }
}

impl Hello {
    /// A hello of this version.
    pub fn new(credits: u16, max_payload: u32, nonce: [u8; 32]) -> Self {
        Self {
            kind: Kind::Hello as u8,
            reserved0: 0,
            version: VERSION.into(),
            magic: MAGIC.into(),
            credits: credits.into(),
            reserved1: [0; 2],
            max_payload: max_payload.into(),
            nonce,
            reserved2: [0; 16],
        }
    }

    /// Reads and validates one.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let hello: Self = view(bytes, Kind::Hello)?;
        same_protocol(hello.magic, hello.version)?;
        zero(&[hello.reserved0])?;
        zero(&hello.reserved1)?;
        zero(&hello.reserved2)?;
        if hello.credits.get() == 0 { Err(Reason::Value) } else { Ok(hello) }
    }
}

impl Challenge {
    /// A challenge of this version.
    pub fn new(authenticated: bool, nonce: [u8; 32]) -> Self {
        Self {
            kind: Kind::Challenge as u8,
            authenticated: authenticated.into(),
            version: VERSION.into(),
            magic: MAGIC.into(),
            reserved0: [0; 8],
            nonce,
            reserved1: [0; 16],
        }
    }

    /// Reads and validates one.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let challenge: Self = view(bytes, Kind::Challenge)?;
        same_protocol(challenge.magic, challenge.version)?;
        zero(&challenge.reserved0)?;
        zero(&challenge.reserved1)?;
        if challenge.authenticated > 1 { Err(Reason::Value) } else { Ok(challenge) }
    }
}

impl Proof {
    /// A proof with this code.
    pub fn new(mac: [u8; 32]) -> Self {
        Self { kind: Kind::Proof as u8, reserved0: [0; 7], mac, reserved1: [0; 24] }
    }

    /// Reads and validates the layout of one; the code is for the handshake to compare.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let proof: Self = view(bytes, Kind::Proof)?;
        zero(&proof.reserved0)?;
        zero(&proof.reserved1)?;
        Ok(proof)
    }
}

impl Welcome {
    /// A welcome; `backend` is cut to 8 bytes.
    pub fn new(
        backend: &str,
        check: CheckMode,
        drives: u16,
        capacity: u64,
        max_payload: u32,
        credits: u16,
        worker: u16,
    ) -> Self {
        Self {
            kind: Kind::Welcome as u8,
            check: check as u8,
            drives: drives.into(),
            credits: credits.into(),
            worker: worker.into(),
            max_payload: max_payload.into(),
            reserved0: [0; 4],
            capacity: capacity.into(),
            backend: padded(backend),
            reserved1: [0; 32],
        }
    }

    /// Reads and validates one.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let welcome: Self = view(bytes, Kind::Welcome)?;
        zero(&welcome.reserved0)?;
        zero(&welcome.reserved1)?;
        welcome.check_mode()?;
        if welcome.credits.get() == 0 { Err(Reason::Value) } else { Ok(welcome) }
    }

    /// What the server does with the bytes that it reads.
    pub fn check_mode(&self) -> Result<CheckMode, Reason> {
        match self.check {
            0 => Ok(CheckMode::None),
            1 => Ok(CheckMode::Touch),
            2 => Ok(CheckMode::Crc),
            _ => Err(Reason::Value),
        }
    }

    /// Name of the server's backend.
    pub fn backend_name(&self) -> String {
        let end = self.backend.iter().position(|b| *b == 0).unwrap_or(self.backend.len());
        String::from_utf8_lossy(&self.backend[..end]).into_owned()
    }
}

impl Reject {
    /// A refusal.
    pub fn new(reason: Reason) -> Self {
        Self {
            kind: Kind::Reject as u8,
            reserved0: 0,
            version: VERSION.into(),
            magic: MAGIC.into(),
            reason: (reason as u16).into(),
            reserved1: [0; 54],
        }
    }

    /// Reads and validates one. Its version is not compared: a refusal must be understood by
    /// every version, since a difference of versions is what it may report.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let reject: Self = view(bytes, Kind::Reject)?;
        if reject.magic.get() != MAGIC {
            return Err(Reason::Magic);
        }
        reject.reason()?;
        Ok(reject)
    }

    /// Why the server refuses.
    pub fn reason(&self) -> Result<Reason, Reason> {
        Reason::from_code(self.reason.get()).ok_or(Reason::Value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let hello = Hello::new(64, 0x0010_1000, [7; 32]);
        let bytes = hello.as_bytes();
        assert_eq!(
            bytes[..16],
            [1, 0, 1, 0, b'M', b'I', b'L', b'L', 64, 0, 0, 0, 0x00, 0x10, 0x10, 0x00]
        );
        assert_eq!(bytes[16..48], [7; 32]);
        assert_eq!(bytes[48..], [0; 16]);

        let challenge = Challenge::new(true, [9; 32]);
        assert_eq!(challenge.as_bytes()[..8], [2, 1, 1, 0, b'M', b'I', b'L', b'L']);
        assert_eq!(challenge.as_bytes()[16..48], [9; 32]);

        assert_eq!(Proof::new([5; 32]).as_bytes()[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Proof::new([5; 32]).as_bytes()[8..40], [5; 32]);

        let welcome = Welcome::new("uring", CheckMode::Crc, 8, 1 << 40, 1 << 20, 64, 3);
        assert_eq!(
            welcome.as_bytes()[..32],
            [
                4, 2, 8, 0, 64, 0, 3, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, b'u',
                b'r', b'i', b'n', b'g', 0, 0, 0
            ]
        );

        let reject = Reject::new(Reason::Version);
        assert_eq!(reject.as_bytes()[..10], [5, 0, 1, 0, b'M', b'I', b'L', b'L', 4, 0]);
    }

    #[test]
    fn each_flaw_has_its_reason() {
        let good = Hello::new(1, 4096, [1; 32]);
        assert_eq!(Hello::parse(good.as_bytes()), Ok(good));
        let flawed = |at: usize, value: u8| {
            let mut bytes = good.as_bytes().to_vec();
            bytes[at] = value;
            Hello::parse(&bytes).unwrap_err()
        };
        assert_eq!(flawed(0, 16), Reason::Kind);
        assert_eq!(flawed(1, 1), Reason::Reserved);
        assert_eq!(flawed(2, 2), Reason::Version);
        assert_eq!(flawed(4, b'm'), Reason::Magic);
        assert_eq!(flawed(8, 0), Reason::Value);
        assert_eq!(flawed(63, 1), Reason::Reserved);
        assert_eq!(Hello::parse(&good.as_bytes()[..63]), Err(Reason::Size));
    }

    #[test]
    fn welcome_and_reject_round_trip() {
        let welcome = Welcome::new("spdk", CheckMode::Touch, 2, 4096, 4096, 1, 0);
        let read = Welcome::parse(welcome.as_bytes()).unwrap();
        assert_eq!(read.check_mode(), Ok(CheckMode::Touch));
        assert_eq!(read.backend_name(), "spdk");
        let reject = Reject::parse(Reject::new(Reason::Full).as_bytes()).unwrap();
        assert_eq!(reject.reason(), Ok(Reason::Full));
    }
}
