//! Time, latency histograms, and the counters of a worker.

mod clock;
mod counters;
mod latency;

pub use clock::Clock;
pub use counters::{Counters, Snapshot};
pub use latency::{Latency, LatencySummary};
