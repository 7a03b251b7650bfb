//! Latency histograms: bounded error, fixed memory, no allocation on record.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency that is told apart, in nanoseconds: 1,000 s. Longer ones count as this.
const LONGEST: u64 = 1_000_000_000_000;

/// Latencies in nanoseconds, each kept with at most 0.1 % of error.
#[derive(Debug, Clone)]
pub struct Latency(Histogram<u64>);

/// The figures of a [`Latency`], in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Longest.
    pub max: u64,
    /// Arithmetic mean.
    pub mean: f64,
}

impl Latency {
    /// An empty histogram. Allocates all that it ever will.
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST, 3).expect("constant bounds that are in order"))
    }

    /// Counts one latency in nanoseconds.
    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos.max(1));
    }

    /// Adds another histogram's counts.
    pub fn merge(&mut self, other: &Latency) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.0.reset();
    }

    /// Latencies counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The figures; all 0 where nothing was counted.
    pub fn summary(&self) -> LatencySummary {
        if self.0.is_empty() {
            return LatencySummary::default();
        }
        let at = |quantile| self.0.value_at_quantile(quantile);
        LatencySummary {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: self.0.max(),
            mean: self.0.mean(),
        }
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_within_a_thousandth() {
        let mut latency = Latency::new();
        (1..=1000).for_each(|us| latency.record(us * 1000));
        let summary = latency.summary();
        let near = |value: u64, wanted: u64| value.abs_diff(wanted) <= wanted / 1000 + 1;
        assert!(near(summary.p50, 500_000), "{summary:?}");
        assert!(near(summary.p999, 999_000), "{summary:?}");
        assert!(near(summary.max, 1_000_000), "{summary:?}");
    }

    #[test]
    fn extremes_are_counted_not_lost() {
        let mut latency = Latency::new();
        latency.record(0);
        latency.record(u64::MAX);
        assert_eq!(latency.count(), 2);
        assert_eq!(Latency::new().summary(), LatencySummary::default());
    }
}
