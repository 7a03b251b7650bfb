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
mod run;
mod worker;

pub use run::{ServeOptions, Server};
pub use worker::{Worker, WorkerOptions};
