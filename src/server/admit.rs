//! Whether a request suits the drives: decided once, before anything is touched.

use crate::storage::DriveInfo;
use crate::wire::{DriveRecord, OpCode, Request, Status};

/// What an admitted request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admitted {
    /// A read from the drive.
    Read,
    /// An answer from what is known of the drive.
    Describe,
}

/// Admits a request, or says with which status and detail it is refused.
///
/// `max_payload` is the slot size in bytes.
pub(super) fn admit(
    request: &Request,
    drives: &[DriveInfo],
    max_payload: u32,
) -> Result<Admitted, (Status, u32)> {
    let op = request.op().map_err(|_| (Status::Invalid, 0))?;
    let length = request.length.get();
    if length > max_payload {
        return Err((Status::TooLong, max_payload));
    }
    let drive = drives.get(usize::from(request.drive.get())).ok_or((Status::NoDrive, 0))?;
    if op == OpCode::Describe {
        let fits = request.offset.get() == 0 && length as usize == size_of::<DriveRecord>();
        return if fits { Ok(Admitted::Describe) } else { Err((Status::Invalid, 0)) };
    }
    let offset = request.offset.get();
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

    #[test]
    fn every_edge_has_its_answer() {
        let drives = [drive()];
        let read = |drive, offset, length| {
            admit(&Request::read(1, drive, offset, length), &drives, 65_536)
        };
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
        let describe = admit(&Request::describe(1, 0), &drives, 65_536);
        assert_eq!(describe, Ok(Admitted::Describe));
        let mut odd = Request::describe(1, 0);
        odd.length = 64.into();
        assert_eq!(admit(&odd, &drives, 65_536), Err((Status::Invalid, 0)));
    }
}
