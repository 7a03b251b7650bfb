//! A comparison of data paths and switches on the same drives, fairly, and why they differ.
//!
//! ```text
//! matrix      variants x loads; built-in sets, TOML
//!    |
//! run         trials, rounds A-B-B-A: drives to their driver (drives), a process for each run
//!    |        (child), finished rounds on disk (record)
//! analysis    medians, ratios with intervals (stats)
//!    |
//! fairness    can it be believed        explain     which resource is the wall, which switch
//!    |                                     |        moved it
//! report      JSON, Markdown, HTML
//! ```

mod analysis;
mod builtin;
mod child;
mod drives;
pub mod explain;
mod facts;
mod fairness;
mod matrix;
mod record;
mod report;
mod run;
mod schedule;
mod stats;
mod switches;

pub use analysis::{Comparison, Point};
pub use builtin::{article, paths};
pub use child::choose_cores;
pub use fairness::{Fairness, Reason, Trust};
pub use matrix::{LoadPoint, Matrix, Variant, fabric_name, from_file, loads};
pub use record::{LeftOut, Run};
pub use report::{Report, SCHEMA, Written};
pub use run::{CompareOptions, kept, run};
pub use stats::{Ratio, Verdict};
pub use switches::{Change, Switches};
