//! Is this host fit for the job, what stands in its way, and what is its ceiling?
//!
//! ```text
//! host::machine, drive, nic ─► Case ─► checks::ALL ─► findings, by what they cost ─► table, JSON,
//!   (facts of /sys, /proc)      │                                                   script
//!                               ├─► Ceiling (what each part can carry)
//!                               └─► preflight of serve, bench, local: what stops, stops
//! ```
//!
//! A check is a pure function from facts to a [`Ruling`]; it reads nothing itself, so every one
//! runs on made hosts. Nothing here writes, opens a drive, or wakes one.

mod case;
mod ceiling;
mod check;
mod checks;
mod measure;
mod report;
mod ruling;
mod script;
mod watch;

pub use case::{Case, Job, Nics};
pub use ceiling::{Ceiling, Part, Rates, ceiling};
pub use check::{Check, examine, log_findings, preflight};
pub use checks::{ALL, Family};
pub use measure::measure;
pub use report::{SCHEMA, exit_code, json, table};
pub use ruling::{Ruling, Weight};
pub use script::script;
pub use watch::{Peaks, changes, line};
