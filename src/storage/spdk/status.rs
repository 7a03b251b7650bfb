//! Completion status of NVMe as SPDK hands it over (NVM Express Base Specification 2.0,
//! section 3.3.3.2.1): bit 0 phase, 1-8 status code, 9-11 status code type.

use crate::error::IoStatus;

/// Phase bit out of the way: what is left is 0 for success.
#[inline]
pub(super) fn significant(raw: u16) -> u16 {
    // Status code and type; retry delay, "more" and "do not retry" do not change what happened.
    raw & 0x0FFE
}

/// What SPDK gives commands that it ends itself when it gives up a queue: "command aborted due to
/// SQ deletion", or "abort requested" before release 25.01. The second is the drive's answer too,
/// but only to an abort command, which the caller knows of. No drive was asked whether it did them.
pub(super) fn is_queue_gone(raw: u16) -> bool {
    matches!(significant(raw) >> 1, 0x07 | 0x08)
}

/// The status in the words of the data path.
pub(super) fn translate(raw: u16) -> IoStatus {
    let (sct, sc) = ((raw >> 9 & 7) as u8, (raw >> 1 & 0xFF) as u8);
    match (sct, sc) {
        (0, 0) => IoStatus::Ok,
        // Abort requested; SQ deletion; aborted by host.
        (0, 0x07 | 0x08) | (3, 0x71) => IoStatus::Aborted,
        _ => IoStatus::Nvme { sct, sc },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(sct: u16, sc: u16) -> u16 {
        // With phase, more and do-not-retry set.
        sct << 9 | sc << 1 | 1 | 0xC000
    }

    #[test]
    fn statuses_are_told_apart() {
        assert_eq!(translate(raw(0, 0)), IoStatus::Ok);
        assert_eq!(significant(raw(0, 0)), 0);
        assert_eq!(translate(raw(2, 0x81)), IoStatus::Nvme { sct: 2, sc: 0x81 });
        assert_eq!(translate(raw(0, 0x07)), IoStatus::Aborted);
        assert_eq!(translate(raw(0, 0x08)), IoStatus::Aborted);
        assert_eq!(translate(raw(3, 0x71)), IoStatus::Aborted);
        assert!(is_queue_gone(raw(0, 8)) && is_queue_gone(raw(0, 7)) && !is_queue_gone(raw(0, 6)));
        assert!(!is_queue_gone(raw(1, 8)));
    }
}
