//! Load generation: one loop for a server behind connections and for drives beneath a queue.
//!
//! ```text
//!   run       threads, warm-up, rounds, progress
//!    |
//!   job       the loop of one thread: closed by depth, or open by rate
//!    |  Op                     ^ Finished
//!   Target    remote: lanes of a Cluster           local: a storage Queue
//! ```

mod counters;
mod job;
mod local;
mod objects;
mod pattern;
mod remote;
mod report;
mod run;
mod target;

pub use counters::{Counters, CpuReading, LinkReading, Observe};
pub use job::{Load, RoundStats};
pub use local::LocalTarget;
pub use objects::{ObjectLoad, Shares};
pub use pattern::{Order, Pattern, PatternOptions};
pub use remote::RemoteTarget;
pub use report::{Group, HostChecks, Report, Round, ServerResult, Stages, Summary, Tool};
pub use run::{Outcome, RunOptions, Sizes, run};
pub use target::{Failed, Finished, Op, Outages, Polled, Taken, Target};
