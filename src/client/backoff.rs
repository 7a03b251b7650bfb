//! How long to wait before the next attempt.

use std::time::Duration;

/// Waits that double with each failure, up to a limit, each cut by chance to between half and all
/// of it: clients that lost the same server together must not come back to it together.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
    state: u64,
}

impl Backoff {
    /// The first wait is at most `first`, none is above `most`. Equal seeds give equal waits.
    pub fn new(first: Duration, most: Duration, seed: u64) -> Self {
        let first = first.min(most);
        Self { first, most, next: first, state: seed }
    }

    /// The next wait.
    pub fn wait(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.most);
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let share = (z ^ (z >> 31)) as f64 / u64::MAX as f64;
        whole.mul_f64(0.5 + share / 2.0)
    }

    /// An attempt succeeded: the next failure begins anew.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_the_limit_and_differ_by_chance() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(50), ms(1000), 7);
        for whole in [50, 100, 200, 400, 800, 1000, 1000, 1000] {
            let wait = backoff.wait();
            assert!(wait >= ms(whole) / 2 && wait <= ms(whole), "{wait:?} of {whole} ms");
        }
        backoff.reset();
        assert!(backoff.wait() <= ms(50));
        let waits = |seed| {
            let mut backoff = Backoff::new(ms(50), ms(1000), seed);
            [backoff.wait(), backoff.wait(), backoff.wait()]
        };
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }
}
