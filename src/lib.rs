//! millrace serves reads from NVMe drives to remote clients over RDMA or TCP, on either of two
//! data paths: the kernel's (io_uring) or userspace (SPDK).
//!
//! Imports point downward only:
//!
//! ```text
//! main -> cli -> commands -> compare -> { server, bench, device, doctor }
//!      -> { client, store } -> { storage, fabric } -> { memory, object, check, wire }
//!      -> { host, stats, limits, error, units }
//! ```
//!
//! `storage` and `fabric` never know each other; only `server` joins them.

pub mod bench;
pub mod check;
pub mod cli;
pub mod client;
pub mod commands;
pub mod compare;
pub mod device;
pub mod doctor;
pub mod error;
pub mod fabric;
pub mod host;
pub mod limits;
pub mod memory;
pub mod object;
pub mod server;
pub mod stats;
pub mod storage;
pub mod store;
pub mod units;
pub mod wire;

#[cfg(test)]
#[path = "../tests/support/skip.rs"]
pub(crate) mod skip;

pub use error::{Error, Result};
