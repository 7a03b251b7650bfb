//! What `millrace store fill` writes: a function of seed and key, so that whoever reads an object
//! can compute what must come.

use super::Digest;

/// Writes the contents of the object `key` of a fill with `seed` into `to`. The first bytes of a
/// longer object are those of a shorter one. Each 8 bytes are one step of SplitMix64.
pub fn fill(seed: u64, key: &[u8], to: &mut [u8]) {
    let start = seed ^ Digest::of(key).words()[1];
    let mut index = 0_u64;
    let mut word = || {
        index = index.wrapping_add(1);
        let mut z = start.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)).to_le_bytes()
    };
    let mut words = to.chunks_exact_mut(8);
    for to in &mut words {
        to.copy_from_slice(&word());
    }
    let tail = words.into_remainder();
    let last = word();
    tail.copy_from_slice(&last[..tail.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_follow_from_seed_and_key() {
        let make = |seed, key: &[u8], len| {
            let mut bytes = vec![0; len];
            fill(seed, key, &mut bytes);
            bytes
        };
        let long = make(1, b"a", 4096);
        for len in [1, 7, 8, 9, 4095] {
            assert_eq!(make(1, b"a", len), long[..len]);
        }
        for other in [make(2, b"a", 4096), make(1, b"b", 4096)] {
            assert!(other.chunks(8).zip(long.chunks(8)).all(|(x, y)| x != y));
        }
    }
}
