//! A request and its completion record.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::message::{Kind, Reason, padded, view, zero};
use crate::error::IoStatus;
use crate::limits::MESSAGE_SIZE;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpCode {
    /// `length` bytes at `offset` of `drive`.
    Read = 1,
    /// What `drive` is: the payload is a [`DriveRecord`].
    Describe = 2,
}

/// How a request ended, on the wire. The completion's `detail` says more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Status {
    /// The payload is there, whole.
    Ok = 0,
    /// The request is not well-formed; `detail` is unused.
    Invalid = 1,
    /// No drive of that number.
    NoDrive = 2,
    /// Offset or length do not suit the drive's block size; `detail` is the block size.
    Misaligned = 3,
    /// The range runs past the end of the drive.
    OutOfRange = 4,
    /// Longer than the server's slots or than was agreed; `detail` is the most in bytes.
    TooLong = 5,
    /// The drive or the kernel answered with an error; `detail` is the errno.
    Errno = 6,
    /// The drive answered with an error; `detail` is SCT << 8 | SC.
    Nvme = 7,
    /// The drive is gone.
    Gone = 8,
    /// The request's deadline passed; `detail` is that deadline in milliseconds.
    TimedOut = 9,
    /// The server is shutting down and took no more.
    Stopping = 10,
    /// The command was aborted before it completed.
    Aborted = 11,
    /// The drive ended the transfer early.
    Short = 12,
}

const STATUSES: [Status; 13] = [
    Status::Ok,
    Status::Invalid,
    Status::NoDrive,
    Status::Misaligned,
    Status::OutOfRange,
    Status::TooLong,
    Status::Errno,
    Status::Nvme,
    Status::Gone,
    Status::TimedOut,
    Status::Stopping,
    Status::Aborted,
    Status::Short,
];

impl Status {
    /// The status with this code.
    pub fn from_code(code: u16) -> Option<Self> {
        STATUSES.get(usize::from(code)).copied()
    }

    /// Status and detail of what a drive answered: the one table from drive to wire.
    pub fn of_io(status: IoStatus) -> (Self, u32) {
        match status {
            IoStatus::Ok => (Status::Ok, 0),
            IoStatus::Errno(errno) => (Status::Errno, errno.into()),
            IoStatus::Nvme { sct, sc } => (Status::Nvme, u32::from(sct) << 8 | u32::from(sc)),
            IoStatus::Short => (Status::Short, 0),
            IoStatus::Gone => (Status::Gone, 0),
            IoStatus::Aborted => (Status::Aborted, 0),
        }
    }

    /// The text for people.
    pub fn describe(self, detail: u32) -> String {
        match self {
            Status::Ok => "ok".into(),
            Status::Invalid => "the request is not well-formed".into(),
            Status::NoDrive => "the server has no drive of that number".into(),
            Status::Misaligned => {
                format!("offset and length must be multiples of the block size, {detail} bytes")
            }
            Status::OutOfRange => "the range runs past the end of the drive".into(),
            Status::TooLong => format!("longer than the server allows, {detail} bytes"),
            Status::Errno => IoStatus::Errno(detail as u16).to_string(),
            Status::Nvme => {
                IoStatus::Nvme { sct: (detail >> 8) as u8, sc: detail as u8 }.to_string()
            }
            Status::Gone => IoStatus::Gone.to_string(),
            Status::TimedOut => format!("not answered within {detail} ms"),
            Status::Stopping => "the server is shutting down".into(),
            Status::Aborted => IoStatus::Aborted.to_string(),
            Status::Short => IoStatus::Short.to_string(),
        }
    }
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    kind: u8,
    op: u8,
    /// Number of the drive.
    pub drive: U16,
    /// Bytes wanted.
    pub length: U32,
    /// The client's own number for it, unique among its requests in flight.
    pub id: U64,
    /// Byte offset on the drive.
    pub offset: U64,
    /// Where the payload goes (RDMA; 0 on TCP).
    pub remote_addr: U64,
    /// Key for that address (RDMA; 0 on TCP).
    pub rkey: U32,
    reserved: [u8; 28],
}

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
            reserved: [0; 28],
        }
    }

    /// Reads and validates the layout of one. Whether it suits the drives is for the server.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let request: Self = view(bytes, Kind::Request)?;
        zero(&request.reserved)?;
        request.op()?;
        Ok(request)
    }

    /// What is asked for.
    pub fn op(&self) -> Result<OpCode, Reason> {
        match self.op {
            1 => Ok(OpCode::Read),
            2 => Ok(OpCode::Describe),
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
    fn statuses_have_their_codes() {
        for (code, status) in STATUSES.into_iter().enumerate() {
            assert_eq!(status as usize, code);
            assert_eq!(Status::from_code(code as u16), Some(status));
        }
        assert_eq!(Status::from_code(STATUSES.len() as u16), None);
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
        assert_eq!(flawed(2, 13), Err(Reason::Value));
        assert_eq!(flawed(4, 1), Err(Reason::Value));
        let mut bytes = Request::read(1, 0, 0, 512).as_bytes().to_vec();
        bytes[1] = 0;
        assert_eq!(Request::parse(&bytes), Err(Reason::Value));
    }
}
