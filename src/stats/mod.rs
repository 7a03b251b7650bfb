//! Time, latency histograms, and the counters of a worker.

mod buckets;
mod clock;
mod counters;
mod latency;
pub mod scaling;

pub use buckets::{BUCKETS, Buckets};
pub use clock::Clock;
pub use counters::{CLOSE_REASONS, Counters, DriveCounters, STATUS_CODES, Snapshot, Statuses};
pub use latency::{Latency, LatencySummary};
