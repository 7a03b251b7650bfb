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

/// In a [`Hello`]: whichever worker.
pub const ANY_WORKER: u16 = 0xFFFF;

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
    /// Number of the worker that it would like to be served by, or [`ANY_WORKER`]. A wish: the
    /// welcome says which worker it is.
    pub worker: U16,
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
    mode: u8,
    writable: u8,
    /// Workers of the server, each with connections of its own.
    pub workers: U16,
    /// Sum of the drives' sizes in bytes.
    pub capacity: U64,
    /// Name of the server's backend, padded with zeros: `uring`, `spdk`, `mem`.
    pub backend: [u8; 8],
    store: [u8; 16],
    object_limit: U32,
    reserved: [u8; 12],
}

/// What a server of objects says of its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreInfo {
    /// UUID of the store.
    pub uuid: [u8; 16],
    /// Most bytes of one object; not 0.
    pub object_limit: u32,
    /// True if puts and deletes are taken.
    pub writable: bool,
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
            worker: ANY_WORKER.into(),
            max_payload: max_payload.into(),
            nonce,
            reserved2: [0; 16],
        }
    }

    /// Asks for worker number `worker`.
    #[must_use]
    pub fn with_worker(mut self, worker: u16) -> Self {
        self.worker = worker.into();
        self
    }

    /// Reads and validates one.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let hello: Self = view(bytes, Kind::Hello)?;
        same_protocol(hello.magic, hello.version)?;
        zero(&[hello.reserved0])?;
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
    /// A welcome to ranges of drives, by the only worker; `backend` is cut to 8 bytes.
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
            mode: 0,
            writable: 0,
            workers: 1.into(),
            capacity: capacity.into(),
            backend: padded(backend),
            store: [0; 16],
            object_limit: 0.into(),
            reserved: [0; 12],
        }
    }

    /// Says how many workers the server has.
    #[must_use]
    pub fn with_workers(mut self, workers: u16) -> Self {
        self.workers = workers.into();
        self
    }

    /// Makes it a welcome to the objects of a store.
    #[must_use]
    pub fn with_store(mut self, store: &StoreInfo) -> Self {
        self.mode = 1;
        self.writable = store.writable.into();
        self.store = store.uuid;
        self.object_limit = store.object_limit.into();
        self
    }

    /// The store, if the server has objects; `None` where it has ranges of drives.
    pub fn store(&self) -> Option<StoreInfo> {
        (self.mode == 1).then(|| StoreInfo {
            uuid: self.store,
            object_limit: self.object_limit.get(),
            writable: self.writable == 1,
        })
    }

    /// Reads and validates one.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let welcome: Self = view(bytes, Kind::Welcome)?;
        zero(&welcome.reserved)?;
        welcome.check_mode()?;
        let valid = match welcome.mode {
            0 => {
                zero(&[welcome.writable])?;
                zero(&welcome.store)?;
                zero(welcome.object_limit.as_bytes())?;
                true
            }
            1 => welcome.writable <= 1 && welcome.object_limit.get() > 0,
            _ => false,
        };
        let counted = welcome.credits.get() > 0 && welcome.workers.get() > 0;
        if valid && counted { Ok(welcome) } else { Err(Reason::Value) }
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
            [1, 0, 2, 0, b'M', b'I', b'L', b'L', 64, 0, 0xFF, 0xFF, 0x00, 0x10, 0x10, 0x00]
        );
        assert_eq!(hello.with_worker(0x0102).as_bytes()[10..12], [2, 1]);
        assert_eq!(bytes[16..48], [7; 32]);
        assert_eq!(bytes[48..], [0; 16]);

        let challenge = Challenge::new(true, [9; 32]);
        assert_eq!(challenge.as_bytes()[..8], [2, 1, 2, 0, b'M', b'I', b'L', b'L']);
        assert_eq!(challenge.as_bytes()[16..48], [9; 32]);

        assert_eq!(Proof::new([5; 32]).as_bytes()[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Proof::new([5; 32]).as_bytes()[8..40], [5; 32]);

        let welcome = Welcome::new("uring", CheckMode::Crc, 8, 1 << 40, 1 << 20, 64, 3);
        assert_eq!(
            welcome.as_bytes()[..32],
            [
                4, 2, 8, 0, 64, 0, 3, 0, 0, 0, 0x10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, b'u',
                b'r', b'i', b'n', b'g', 0, 0, 0
            ]
        );
        assert_eq!(welcome.as_bytes()[32..], [0; 32]);
        let store = StoreInfo { uuid: [6; 16], object_limit: 1 << 20, writable: true };
        let welcome = welcome.with_workers(4).with_store(&store);
        assert_eq!(welcome.as_bytes()[12..16], [1, 1, 4, 0]);
        assert_eq!(welcome.as_bytes()[32..48], [6; 16]);
        assert_eq!(welcome.as_bytes()[48..52], [0, 0, 0x10, 0]);
        assert_eq!(welcome.as_bytes()[52..], [0; 12]);

        let reject = Reject::new(Reason::Version);
        assert_eq!(reject.as_bytes()[..10], [5, 0, 2, 0, b'M', b'I', b'L', b'L', 4, 0]);
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
        assert_eq!(flawed(2, 1), Reason::Version);
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
        assert_eq!(read.store(), None);
        let store = StoreInfo { uuid: [6; 16], object_limit: 5, writable: false };
        let objects = welcome.with_workers(4).with_store(&store);
        let read = Welcome::parse(objects.as_bytes()).unwrap();
        assert_eq!((read.store(), read.workers.get()), (Some(store), 4));
        let flawed = |of: &Welcome, at: usize, value: u8| {
            let mut bytes = of.as_bytes().to_vec();
            bytes[at] = value;
            Welcome::parse(&bytes)
        };
        assert_eq!(flawed(&objects, 12, 2), Err(Reason::Value), "mode");
        assert_eq!(flawed(&objects, 13, 2), Err(Reason::Value), "writable");
        assert_eq!(flawed(&objects, 14, 0), Err(Reason::Value), "workers");
        assert_eq!(flawed(&objects, 48, 0), Err(Reason::Value), "object limit");
        assert_eq!(flawed(&objects, 52, 1), Err(Reason::Reserved));
        for at in [13, 32, 47, 48, 51] {
            assert_eq!(flawed(&welcome, at, 1), Err(Reason::Reserved), "byte {at} without a store");
        }
        let reject = Reject::parse(Reject::new(Reason::Full).as_bytes()).unwrap();
        assert_eq!(reject.reason(), Ok(Reason::Full));
    }
}
