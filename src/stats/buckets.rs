//! A latency histogram that one thread writes and others read while it does: for metrics, whose
//! reader is on another core.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Counters;

/// Buckets of a [`Buckets`], the last one without an upper bound.
pub const BUCKETS: usize = 27;

/// Counts by powers of two of a microsecond: bucket `i` has what took at most 2^i us and more than
/// the bucket before it; 2^25 us are 33.6 s, above the default deadline.
#[derive(Debug, Default)]
pub struct Buckets([AtomicU64; BUCKETS]);

impl Buckets {
    /// Counts one time in nanoseconds. The calling thread is the only writer.
    #[inline]
    pub fn record(&self, nanos: u64) {
        Counters::add(&self.0[place(nanos)], 1);
    }

    /// The counts, each bucket's alone (not cumulative).
    pub fn read(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }

    /// The upper bound of a bucket in seconds; `None` for the last.
    pub fn bound(bucket: usize) -> Option<f64> {
        (bucket + 1 < BUCKETS).then(|| (1u64 << bucket) as f64 / 1e6)
    }
}

/// The bucket of a time: the number of bits of the microseconds, begun ones included, less one.
fn place(nanos: u64) -> usize {
    let us = nanos.div_ceil(1000);
    let bits = u64::BITS - us.saturating_sub(1).leading_zeros();
    (bits as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_first_bucket_that_holds_it() {
        let mut times: Vec<u64> = (0..40).flat_map(|i| [(1u64 << i) * 1000, 1 << i]).collect();
        times.extend([0, 1001, 999, 3_000, 1_000_000_000, u64::MAX]);
        for nanos in times.into_iter().flat_map(|n| [n.saturating_sub(1), n, n.saturating_add(1)]) {
            let found = place(nanos);
            let fits = |bucket: usize| {
                Buckets::bound(bucket).is_none_or(|bound| nanos as f64 <= (bound * 1e9).round())
            };
            assert!(fits(found), "{nanos} ns in bucket {found}");
            assert!(found == 0 || !fits(found - 1), "{nanos} ns also fits below {found}");
        }
    }

    #[test]
    fn counts_are_read_as_they_were_made() {
        let buckets = Buckets::default();
        [1, 1_000, 1_001, u64::MAX].into_iter().for_each(|nanos| buckets.record(nanos));
        let read = buckets.read();
        assert_eq!((read[0], read[1], read[BUCKETS - 1]), (2, 1, 1));
        assert_eq!(read.iter().sum::<u64>(), 4);
    }
}
