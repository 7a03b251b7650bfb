//! How a request ended: the one word of every answer, and what it means.

use crate::error::IoStatus;

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
    /// Longer than the server's slots or than was agreed, or a put longer than the store's
    /// objects; `detail` is the most in bytes. For a get: the object is longer than the client
    /// takes; `detail` is its length.
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
    /// The store has no object of that key.
    NotFound = 13,
    /// The object on the drive is damaged, and was not sent; `detail` is what is wrong,
    /// the number of an `object::Damage`.
    Damaged = 14,
    /// The store is full.
    NoSpace = 15,
    /// The server takes no puts and no deletes.
    ReadOnly = 16,
    /// The data of a put does not have the CRC that its prefix says. Nothing was stored.
    BodyCrc = 17,
    /// The prefix of a put is malformed, or its key does not have the request's digest. Nothing
    /// was stored. `detail` is 1 for the prefix, 2 for the digest.
    BadKey = 18,
    /// A request by key to a server of ranges (`detail` 0), or by range to one of objects (1).
    WrongMode = 19,
    /// An old header of the key could not be cleared from its drive: the key takes no change until
    /// the store is opened anew.
    Stuck = 20,
}

/// What [`Status::Damaged`] says by its detail, from 1 on: the numbers of `object::Damage`.
const DAMAGE: [&str; 9] = [
    "header missing: nothing like one is in the slot",
    "header damaged: its CRC does not match",
    "header of another store",
    "header of another slot: a write went to the wrong place",
    "header of another key",
    "header of another version of the object: a write was lost",
    "header of another length",
    "data damaged: its CRC does not match",
    "copy of the header damaged; the object itself can be read",
];

const STATUSES: [Status; 21] = [
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
    Status::NotFound,
    Status::Damaged,
    Status::NoSpace,
    Status::ReadOnly,
    Status::BodyCrc,
    Status::BadKey,
    Status::WrongMode,
    Status::Stuck,
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
            Status::TooLong => {
                format!("too long: {detail} bytes are the limit, or the object's length")
            }
            Status::Errno => IoStatus::Errno(detail as u16).to_string(),
            Status::Nvme => {
                IoStatus::Nvme { sct: (detail >> 8) as u8, sc: detail as u8 }.to_string()
            }
            Status::Gone => IoStatus::Gone.to_string(),
            Status::TimedOut => format!("not answered within {detail} ms"),
            Status::Stopping => "the server is shutting down".into(),
            Status::Aborted => IoStatus::Aborted.to_string(),
            Status::Short => IoStatus::Short.to_string(),
            Status::NotFound => "the store has no object of that key".into(),
            Status::Damaged => {
                let what = DAMAGE.get((detail as usize).wrapping_sub(1));
                let what = what.copied().unwrap_or("in a way that this release does not know");
                format!("the object is damaged on the drive: {what}")
            }
            Status::NoSpace => "the store is full".into(),
            Status::ReadOnly => "the server takes no puts and no deletes".into(),
            Status::BodyCrc => "the data arrived with another CRC than it was sent with".into(),
            Status::BadKey if detail == 2 => {
                "the key does not have the digest of the request".into()
            }
            Status::BadKey => "the prefix of the put is malformed".into(),
            Status::WrongMode if detail == 0 => {
                "the server has ranges of drives, no objects".into()
            }
            Status::WrongMode => "the server has objects, no ranges of drives".into(),
            Status::Stuck => {
                "an earlier version of the object could not be cleared from its drive; \
                 the key takes no change until the server is started anew"
                    .into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_their_codes() {
        for (code, status) in STATUSES.into_iter().enumerate() {
            assert_eq!(status as usize, code);
            assert_eq!(Status::from_code(code as u16), Some(status));
        }
        assert_eq!(Status::from_code(STATUSES.len() as u16), None);
    }

    #[test]
    fn damage_is_named() {
        assert!(Status::Damaged.describe(8).ends_with("data damaged: its CRC does not match"));
        for unknown in [0, 10, u32::MAX] {
            assert!(Status::Damaged.describe(unknown).contains("does not know"));
        }
    }
}
