//! A small generator of random numbers, the same on every machine.

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// The generator of stream `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut start = Self(seed ^ stream.wrapping_mul(0xD129_0B3F_5D4A_8E2B));
        start.next();
        start
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from `least` to `most`, both included. The bias is below 2^-32 for the small
    /// ranges that are asked for here.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + ((u128::from(self.next()) * (u128::from(most - least) + 1)) >> 64) as u64
    }

    /// True with this probability. Draws in any case, so that one rate does not shift the others.
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits are what an f64 holds.
        let drawn = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        drawn < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_kept_and_reached() {
        let mut random = Random::new(1, 2);
        let drawn: Vec<u64> = (0..1000).map(|_| random.between(3, 5)).collect();
        assert!(drawn.iter().all(|n| (3..=5).contains(n)));
        assert!((3..=5).all(|n| drawn.contains(&n)));
        assert_eq!(random.between(7, 7), 7);
    }

    #[test]
    fn chances_are_about_right_and_streams_differ() {
        let mut random = Random::new(7, 0);
        let hits = (0..10_000).filter(|_| random.chance(0.25)).count();
        assert!((2200..2800).contains(&hits), "{hits}");
        assert!(!random.chance(0.0) && random.chance(1.0));
        assert_ne!(Random::new(7, 1).next(), Random::new(7, 2).next());
    }
}
