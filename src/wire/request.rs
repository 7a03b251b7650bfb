//! A request and its completion record.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::message::{Kind, Reason, padded, view, zero};
use super::put::PUT_PREFIX;
use super::status::Status;
use crate::limits::MESSAGE_SIZE;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpCode {
    /// `length` bytes at `offset` of `drive`.
    Read = 1,
    /// What `drive` is: the payload is a [`DriveRecord`].
    Describe = 2,
    /// The object of `digest`; `length` is the most that the client takes.
    Get = 3,
    /// Stores an object of `length` bytes: the body is a [`super::PutPrefix`] and the data.
    Put = 4,
    /// Deletes the object of `digest`.
    Delete = 5,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    kind: u8,
    op: u8,
    /// Number of the drive.
    pub drive: U16,
    /// Bytes wanted; the object's for a put.
    pub length: U32,
    /// The client's own number for it, unique among its requests in flight.
    pub id: U64,
    /// Byte offset on the drive.
    pub offset: U64,
    /// Where the payload goes, or where the body is (RDMA; 0 on TCP).
    pub remote_addr: U64,
    /// Key for that address (RDMA; 0 on TCP).
    pub rkey: U32,
    reserved: [u8; 4],
    /// The start of SHA-256 of the object's key; zeros in a request that names a drive.
    pub digest: [u8; DIGEST_SIZE],
}

/// Bytes of a key's digest in a request.
pub const DIGEST_SIZE: usize = 24;

/// The answer to one request. On RDMA it follows the payload's WRITE on the same QP; on TCP the
/// payload's `length` bytes follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Completion {
    kind: u8,
    flags: u8,
    status: U16,
    /// Bytes of payload; 0 unless the status is [`Status::Ok`].
    pub length: U32,
    /// The request's number.
    pub id: U64,
    /// CRC-64/NVME of the payload as the server read it, where flag 1 is set.
    pub crc: U64,
    /// More about the status.
    pub detail: U32,
    /// Commands that the drive was sent for it.
    pub commands: U32,
    /// Nanoseconds from the request's arrival to its submission to the drive.
    pub queued_ns: U64,
    /// Nanoseconds from submission to the drive's completion.
    pub drive_ns: U64,
    /// Nanoseconds that the check of the bytes took.
    pub check_ns: U64,
    reserved: [u8; 8],
}

/// What a drive is: the payload of the answer to [`OpCode::Describe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DriveRecord {
    /// Size in bytes.
    pub capacity: U64,
    /// Logical block size in bytes.
    pub block_size: U32,
    reserved: [u8; 4],
    /// Serial number, padded with zeros; all zeros where the drive has none.
    pub serial: [u8; 48],
    /// The name that the server was given, cut to fit and padded with zeros.
    pub name: [u8; 64],
}

const _: () = assert!(size_of::<Request>() == MESSAGE_SIZE);
const _: () = assert!(size_of::<Completion>() == MESSAGE_SIZE);
const _: () = assert!(size_of::<DriveRecord>() == 128);

/// Flag in a completion: its `crc` is of the payload.
const HAS_CRC: u8 = 1;

impl Request {
    /// A read of `length` bytes at `offset` of `drive`.
    pub fn read(id: u64, drive: u16, offset: u64, length: u32) -> Self {
        Self::of(OpCode::Read, id, drive, offset, length)
    }

    /// A question for what `drive` is.
    pub fn describe(id: u64, drive: u16) -> Self {
        Self::of(OpCode::Describe, id, drive, 0, size_of::<DriveRecord>() as u32)
    }

    /// The object of `digest`, if it has at most `most` bytes.
    pub fn get(id: u64, digest: [u8; DIGEST_SIZE], most: u32) -> Self {
        Self { digest, ..Self::of(OpCode::Get, id, 0, 0, most) }
    }

    /// An object of `length` bytes, whose body follows.
    pub fn put(id: u64, digest: [u8; DIGEST_SIZE], length: u32) -> Self {
        Self { digest, ..Self::of(OpCode::Put, id, 0, 0, length) }
    }

    /// Deletes the object of `digest`.
    pub fn delete(id: u64, digest: [u8; DIGEST_SIZE]) -> Self {
        Self { digest, ..Self::of(OpCode::Delete, id, 0, 0, 0) }
    }

    fn of(op: OpCode, id: u64, drive: u16, offset: u64, length: u32) -> Self {
        Self {
            kind: Kind::Request as u8,
            op: op as u8,
            drive: drive.into(),
            length: length.into(),
            id: id.into(),
            offset: offset.into(),
            remote_addr: 0.into(),
            rkey: 0.into(),
            reserved: [0; 4],
            digest: [0; DIGEST_SIZE],
        }
    }

    /// Reads and validates the layout of one. Whether it suits the drives is for the server.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let request: Self = view(bytes, Kind::Request)?;
        zero(&request.reserved)?;
        match request.op()? {
            OpCode::Read | OpCode::Describe => zero(&request.digest)?,
            OpCode::Get | OpCode::Put => zero(request.place())?,
            OpCode::Delete => {
                zero(request.place())?;
                zero(request.length.as_bytes())?;
            }
        }
        Ok(request)
    }

    /// The fields that say where on a drive, of which a request by key has no need.
    fn place(&self) -> &[u8] {
        if self.drive.get() == 0 { self.offset.as_bytes() } else { self.drive.as_bytes() }
    }

    /// Bytes of the body that the client has for it: 0 but for a put.
    pub fn body(&self) -> u64 {
        match self.op() {
            Ok(OpCode::Put) => PUT_PREFIX as u64 + u64::from(self.length.get()),
            _ => 0,
        }
    }

    /// Most bytes of payload that its answer may have.
    pub fn most(&self) -> u32 {
        match self.op() {
            Ok(OpCode::Put | OpCode::Delete) => 0,
            _ => self.length.get(),
        }
    }

    /// What is asked for.
    pub fn op(&self) -> Result<OpCode, Reason> {
        match self.op {
            1 => Ok(OpCode::Read),
            2 => Ok(OpCode::Describe),
            3 => Ok(OpCode::Get),
            4 => Ok(OpCode::Put),
            5 => Ok(OpCode::Delete),
            _ => Err(Reason::Value),
        }
    }
}

impl Completion {
    /// An answer to request `id`, without payload.
    pub fn new(id: u64, status: Status, detail: u32) -> Self {
        Self {
            kind: Kind::Completion as u8,
            flags: 0,
            status: (status as u16).into(),
            length: 0.into(),
            id: id.into(),
            crc: 0.into(),
            detail: detail.into(),
            commands: 0.into(),
            queued_ns: 0.into(),
            drive_ns: 0.into(),
            check_ns: 0.into(),
            reserved: [0; 8],
        }
    }

    /// Sets the payload's CRC-64/NVME.
    #[must_use]
    pub fn with_crc(mut self, crc: u64) -> Self {
        self.flags |= HAS_CRC;
        self.crc = crc.into();
        self
    }

    /// The payload's CRC, if the server computed it.
    pub fn payload_crc(&self) -> Option<u64> {
        (self.flags & HAS_CRC != 0).then(|| self.crc.get())
    }

    /// How the request ended.
    pub fn status(&self) -> Status {
        Status::from_code(self.status.get()).expect("parse has checked it")
    }

    /// Reads and validates one.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let record: Self = view(bytes, Kind::Completion)?;
        zero(&record.reserved)?;
        if record.flags & !HAS_CRC != 0 {
            return Err(Reason::Reserved);
        }
        let status = Status::from_code(record.status.get()).ok_or(Reason::Value)?;
        if status != Status::Ok && record.length.get() != 0 {
            return Err(Reason::Value);
        }
        Ok(record)
    }
}

impl DriveRecord {
    /// A record; `serial` and `name` are cut to fit.
    pub fn new(capacity: u64, block_size: u32, serial: &str, name: &str) -> Self {
        Self {
            capacity: capacity.into(),
            block_size: block_size.into(),
            reserved: [0; 4],
            serial: padded(serial),
            name: padded(name),
        }
    }

    /// Reads and validates one: the block size is a power of two and divides the size.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let record = Self::read_from_bytes(bytes).map_err(|_| Reason::Size)?;
        zero(&record.reserved)?;
        let block = record.block_size.get();
        if !block.is_power_of_two() || !record.capacity.get().is_multiple_of(block.into()) {
            return Err(Reason::Value);
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mut request = Request::read(0x0102_0304_0506_0708, 3, 1 << 20, 0x0010_1000);
        request.remote_addr = 0x1122_3344_5566_7788.into();
        request.rkey = 0xAABB_CCDD.into();
        let mut expected = vec![16, 1, 3, 0, 0, 0x10, 0x10, 0];
        expected.extend([8, 7, 6, 5, 4, 3, 2, 1]);
        expected.extend([0, 0, 0x10, 0, 0, 0, 0, 0]);
        expected.extend([0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        expected.extend([0xDD, 0xCC, 0xBB, 0xAA]);
        expected.resize(64, 0);
        assert_eq!(request.as_bytes(), expected);

        let mut record = Completion::new(9, Status::Ok, 0).with_crc(0x0807_0605_0403_0201);
        record.length = 4096.into();
        record.commands = 3.into();
        record.queued_ns = 1.into();
        record.drive_ns = 2.into();
        record.check_ns = 4.into();
        let mut expected = vec![17, 1, 0, 0, 0, 0x10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        expected.extend([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 3, 0, 0, 0]);
        expected.extend([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([4]);
        expected.resize(64, 0);
        assert_eq!(record.as_bytes(), expected);

        let drive = DriveRecord::new(1 << 40, 4096, "S1", "/dev/nvme0n1");
        let bytes = drive.as_bytes();
        assert_eq!(bytes[..16], [0, 0, 0, 0, 0, 1, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..20], [b'S', b'1', 0, 0]);
        assert_eq!(bytes[64..76], *b"/dev/nvme0n1");
        assert_eq!(DriveRecord::parse(bytes), Ok(drive));
        assert_eq!(DriveRecord::parse(&bytes[1..]), Err(Reason::Size));
    }

    #[test]
    fn requests_by_key_have_their_bytes() {
        let digest = std::array::from_fn(|at| at as u8 + 1);
        let put = Request::put(5, digest, 3);
        let mut expected = vec![16, 4, 0, 0, 3, 0, 0, 0, 5];
        expected.resize(40, 0);
        expected.extend(digest);
        assert_eq!(put.as_bytes(), expected);
        assert_eq!((put.body(), put.most()), (515, 0));
        let get = Request::get(5, digest, 1 << 20);
        assert_eq!(get.as_bytes()[..8], [16, 3, 0, 0, 0, 0, 0x10, 0]);
        assert_eq!((get.body(), get.most()), (0, 1 << 20));
        let delete = Request::delete(5, digest);
        assert_eq!(delete.as_bytes()[..9], [16, 5, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(delete.as_bytes()[40..], digest);
        for good in [put, get, delete] {
            assert_eq!(Request::parse(good.as_bytes()), Ok(good));
            let flawed = |at: usize| {
                let mut bytes = good.as_bytes().to_vec();
                bytes[at] = 1;
                Request::parse(&bytes)
            };
            // Drive and offset are for reads; what follows the key for the address is reserved.
            for at in [2, 3, 16, 23, 36, 39] {
                assert_eq!(flawed(at), Err(Reason::Reserved), "byte {at}");
            }
        }
        let mut long = delete;
        long.length = 1.into();
        assert_eq!(Request::parse(long.as_bytes()), Err(Reason::Reserved));
        let mut keyed = Request::read(1, 0, 0, 512);
        keyed.digest = digest;
        assert_eq!(Request::parse(keyed.as_bytes()), Err(Reason::Reserved));
    }

    #[test]
    fn flaws_are_refused() {
        let good = Completion::new(1, Status::Errno, 5);
        assert_eq!(Completion::parse(good.as_bytes()), Ok(good));
        let flawed = |at: usize, value: u8| {
            let mut bytes = good.as_bytes().to_vec();
            bytes[at] = value;
            Completion::parse(&bytes)
        };
        assert_eq!(flawed(1, 2), Err(Reason::Reserved));
        assert_eq!(flawed(2, 21), Err(Reason::Value));
        assert_eq!(flawed(4, 1), Err(Reason::Value));
        let mut bytes = Request::read(1, 0, 0, 512).as_bytes().to_vec();
        bytes[1] = 0;
        assert_eq!(Request::parse(&bytes), Err(Reason::Value));
    }
}
