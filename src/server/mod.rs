//! The server: joins storage and fabric, one worker per core.
//!
//! ```text
//!   client          Endpoint            Worker                 Queue            drive
//!     | -- request -> |                   |                      |                |
//!     |               | -- Request -----> | admit, wait for a    |                |
//!     |               |                   | slot -- submit ----> | -- flush ----> |
//!     |               |                   | <-- completion ----- | <-- poll ----- |
//!     |               |                   | check                |                |
//!     |               | <-- respond ----- |                      |                |
//!     | <- payload, - | flush             |                      |                |
//!     |    record     | -- Sent --------> | the slot is free     |                |
//! ```

mod admit;
mod http;
mod metrics;
mod run;
mod shard;
mod worker;

pub use http::MetricsServer;
pub use metrics::render as render_metrics;
pub use run::{Server, View};
pub use shard::{ServeOptions, Shard, ShardInfo};
pub use worker::{Worker, WorkerOptions};
