//! What is done with bytes that were read: a CRC, one load a cache line, or nothing.

use crc_fast::{CrcAlgorithm, checksum};

use crate::wire::CheckMode;

/// Distance in bytes of the loads of [`CheckMode::Touch`]: one cache line.
const LINE: usize = 64;

/// Checks `bytes` as `mode` says; gives the CRC-64/NVME where it was computed.
pub fn check(mode: CheckMode, bytes: &[u8]) -> Option<u64> {
    match mode {
        CheckMode::None => None,
        CheckMode::Touch => {
            touch(bytes);
            None
        }
        CheckMode::Crc => Some(crc(bytes)),
    }
}

/// CRC-64/NVME (NVM Command Set Specification 1.0, section 5.2.1.3.4).
pub fn crc(bytes: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// Loads one word of every cache line: the memory access of a CRC without its arithmetic.
fn touch(bytes: &[u8]) {
    let sum = bytes
        .chunks(LINE)
        .filter_map(|line| line.first_chunk::<8>())
        .fold(0u64, |sum, word| sum ^ u64::from_ne_bytes(*word));
    std::hint::black_box(sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_is_the_one_of_the_specification() {
        // Check value of CRC-64/NVME in the catalogue of parametrised CRC algorithms.
        assert_eq!(check(CheckMode::Crc, b"123456789"), Some(0xAE8B_1486_0A79_9888));
        assert_eq!(check(CheckMode::Touch, &[1; 100]), None);
        assert_eq!(check(CheckMode::None, &[1; 100]), None);
    }
}
