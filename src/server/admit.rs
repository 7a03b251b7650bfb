//! Whether a request suits what is served: decided once, before anything is touched.

use crate::storage::DriveInfo;
use crate::wire::{DriveRecord, OpCode, Request, Status};

/// What an admitted request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admitted {
    /// A read from the drive.
    Read,
    /// An answer from what is known of the drive.
    Describe,
    /// An object, if there is one of the key.
    Get,
    /// The body from the client, then writes.
    Put,
    /// Writes.
    Delete,
}

/// What requests are judged by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Served<'a> {
    /// The drives.
    pub drives: &'a [DriveInfo],
    /// Slot size in bytes.
    pub max_payload: u32,
    /// The store, where objects are served and not ranges.
    pub store: Option<StoreLimits>,
}

/// What a store takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoreLimits {
    /// Longest object in bytes.
    pub object_limit: u32,
    /// Puts and deletes are taken.
    pub writable: bool,
}

/// In the detail of [`Status::WrongMode`]: which of both is served.
const RANGES: u32 = 0;
const OBJECTS: u32 = 1;

/// Admits a request, or says with which status and detail it is refused.
pub(super) fn admit(request: &Request, served: Served<'_>) -> Result<Admitted, (Status, u32)> {
    let op = request.op().map_err(|_| (Status::Invalid, 0))?;
    match (op, served.store) {
        (OpCode::Describe, _) => admit_describe(request, served),
        (OpCode::Read, None) => admit_read(request, served),
        (OpCode::Read, Some(_)) => Err((Status::WrongMode, OBJECTS)),
        (OpCode::Get | OpCode::Put | OpCode::Delete, None) => Err((Status::WrongMode, RANGES)),
        (OpCode::Get, Some(_)) => Ok(Admitted::Get),
        (_, Some(store)) if !store.writable => Err((Status::ReadOnly, 0)),
        (OpCode::Delete, _) => Ok(Admitted::Delete),
        (OpCode::Put, Some(store)) => match request.length.get() {
            0 => Err((Status::Invalid, 0)),
            length if length > store.object_limit => Err((Status::TooLong, store.object_limit)),
            _ => Ok(Admitted::Put),
        },
    }
}

fn drive<'a>(request: &Request, served: Served<'a>) -> Result<&'a DriveInfo, (Status, u32)> {
    served.drives.get(usize::from(request.drive.get())).ok_or((Status::NoDrive, 0))
}

fn admit_describe(request: &Request, served: Served<'_>) -> Result<Admitted, (Status, u32)> {
    drive(request, served)?;
    let length = request.length.get() as usize;
    let fits = request.offset.get() == 0 && length == size_of::<DriveRecord>();
    if fits { Ok(Admitted::Describe) } else { Err((Status::Invalid, 0)) }
}

fn admit_read(request: &Request, served: Served<'_>) -> Result<Admitted, (Status, u32)> {
    let (offset, length) = (request.offset.get(), request.length.get());
    if length > served.max_payload {
        return Err((Status::TooLong, served.max_payload));
    }
    let drive = drive(request, served)?;
    let block = u64::from(drive.block_size);
    if length == 0 {
        return Err((Status::Invalid, 0));
    }
    if !offset.is_multiple_of(block) || !u64::from(length).is_multiple_of(block) {
        return Err((Status::Misaligned, drive.block_size));
    }
    match offset.checked_add(length.into()) {
        Some(end) if end <= drive.capacity => Ok(Admitted::Read),
        _ => Err((Status::OutOfRange, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive() -> DriveInfo {
        DriveInfo {
            name: "mem:1MiB".into(),
            serial: None,
            model: None,
            capacity: 1 << 20,
            block_size: 4096,
            memory_align: 4,
            max_transfer: None,
            start: 0,
            node: None,
        }
    }

    fn judge(request: &Request, store: Option<StoreLimits>) -> Result<Admitted, (Status, u32)> {
        admit(request, Served { drives: &[drive()], max_payload: 65_536, store })
    }

    #[test]
    fn every_edge_has_its_answer() {
        let read = |drive, offset, length| judge(&Request::read(1, drive, offset, length), None);
        assert_eq!(read(0, 0, 4096), Ok(Admitted::Read));
        assert_eq!(read(0, (1 << 20) - 4096, 4096), Ok(Admitted::Read));
        assert_eq!(read(1, 0, 4096), Err((Status::NoDrive, 0)));
        assert_eq!(read(0, 0, 0), Err((Status::Invalid, 0)));
        assert_eq!(read(0, 512, 4096), Err((Status::Misaligned, 4096)));
        assert_eq!(read(0, 0, 512), Err((Status::Misaligned, 4096)));
        assert_eq!(read(0, 1 << 20, 4096), Err((Status::OutOfRange, 0)));
        assert_eq!(read(0, (1 << 20) - 4096, 8192), Err((Status::OutOfRange, 0)));
        assert_eq!(read(0, u64::MAX - 4095, 4096), Err((Status::OutOfRange, 0)));
        assert_eq!(read(0, 0, 65_536 + 4096), Err((Status::TooLong, 65_536)));
        assert_eq!(read(0, 0, u32::MAX), Err((Status::TooLong, 65_536)));
        assert_eq!(judge(&Request::describe(1, 0), None), Ok(Admitted::Describe));
        let mut odd = Request::describe(1, 0);
        odd.length = 64.into();
        assert_eq!(judge(&odd, None), Err((Status::Invalid, 0)));
    }

    #[test]
    fn a_store_takes_requests_by_key_and_no_others() {
        let store = StoreLimits { object_limit: 5000, writable: true };
        let read_only = StoreLimits { writable: false, ..store };
        let (get, delete) = (Request::get(1, [7; 24], 0), Request::delete(1, [7; 24]));
        let put = |length| Request::put(1, [7; 24], length);
        for request in [get, delete, put(5)] {
            assert_eq!(judge(&request, None), Err((Status::WrongMode, 0)));
        }
        assert_eq!(judge(&Request::read(1, 0, 0, 4096), Some(store)), Err((Status::WrongMode, 1)));
        assert_eq!(judge(&Request::describe(1, 0), Some(store)), Ok(Admitted::Describe));
        assert_eq!(judge(&get, Some(read_only)), Ok(Admitted::Get));
        assert_eq!(judge(&delete, Some(read_only)), Err((Status::ReadOnly, 0)));
        assert_eq!(judge(&put(5), Some(read_only)), Err((Status::ReadOnly, 0)));
        assert_eq!(judge(&delete, Some(store)), Ok(Admitted::Delete));
        assert_eq!(judge(&put(0), Some(store)), Err((Status::Invalid, 0)));
        assert_eq!(judge(&put(1), Some(store)), Ok(Admitted::Put));
        assert_eq!(judge(&put(5000), Some(store)), Ok(Admitted::Put));
        assert_eq!(judge(&put(5001), Some(store)), Err((Status::TooLong, 5000)));
        assert_eq!(judge(&put(u32::MAX), Some(store)), Err((Status::TooLong, 5000)));
    }
}
