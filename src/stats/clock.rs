//! Nanoseconds since a fixed start, for stamps that are compared with each other only.

use std::time::{Duration, Instant};

/// A monotonic clock. Copies of one clock agree with each other, on all threads.
///
/// Reading it is a call into the vDSO (CLOCK_MONOTONIC), not a system call, wherever the clock
/// source is one that userspace can read.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        // 2^64 ns are 584 years.
        self.start.elapsed().as_nanos() as u64
    }
}

/// Nanoseconds of a duration, for sums with stamps.
impl Clock {
    /// `duration` in whole nanoseconds.
    pub fn nanos(duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
    }
}
