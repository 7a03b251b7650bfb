//! Stores on drives: made, opened, filled, read back. What all of it rests on is in
//! [`object`](crate::object); here it meets the drives, of any backend.
//!
//! ```text
//!   create   superblocks, last of all                                        create.rs, probe.rs
//!   open     superblocks checked, store locked, index rebuilt, crash undone  open.rs, scan.rs
//!   Puts     a pipeline of puts at full depth: fill, ingest                  puts.rs
//!   verify   every object read back                                          verify.rs
//!   list     every key                                                       list.rs
//! ```

mod create;
mod fill;
mod ingest;
mod io;
mod list;
mod open;
mod probe;
mod puts;
mod scan;
mod set;
mod verify;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use create::{CreateOptions, Created, create};
pub use fill::{FillOptions, Sizes, fill};
pub use ingest::{Skipped, WhySkipped, ingest};
pub use io::IoOptions;
pub use list::{Listed, list};
pub use open::{OpenOptions, Store, default_lock_dir, open};
pub use puts::{PutOutcome, PutReport, Puts, Source};
pub use scan::{Finding, ScanReport, What};
pub use set::SetWarning;
pub use verify::{VerifyReport, verify};

/// What a long job has done so far, for who shows it; and the wish that it end.
#[derive(Debug, Default)]
pub struct Progress {
    /// Units done: slots, objects or files.
    pub done: AtomicU64,
    /// Units in all, where that is known; else 0.
    pub total: AtomicU64,
    /// Bytes done.
    pub bytes: AtomicU64,
    /// Set to have the job end early: what was acknowledged stays.
    pub stop: Arc<AtomicBool>,
}

impl Progress {
    fn begin(&self, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    fn add(&self, done: u64, bytes: u64) {
        self.done.fetch_add(done, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
