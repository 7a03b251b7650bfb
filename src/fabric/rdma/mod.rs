//! The RDMA fabric: verbs and rdma_cm, on RoCE, InfiniBand and soft-RoCE alike.
//!
//! ```text
//!   control thread                        worker thread (one Endpoint each)
//!   RdmaListener::run                     poll / respond / flush
//!     rdma_cm events, QPs made and          one CQ for all its QPs; posts sends and receives,
//!     destroyed, all that may block         nothing that blocks, nothing that allocates
//!              |        Mailbox: New, Destroyed        ^
//!              +----------------------->---------------+
//!              ^        Mailbox: Fail, Retire          |
//!              +-----------------------<---------------+
//! ```
//!
//! An answer is an RDMA WRITE of the payload, unsignalled, and an inline SEND of the completion
//! record, signalled, in one chain: one doorbell, one completion. RC executes a queue in order, so
//! the record's completion proves that the hardware is done with the payload, and the record's
//! arrival proves that the payload is there. The server registers its memory for its own
//! hardware only; a peer can name none of it.
//!
//! A connection that fails is moved to the error state; the hardware then completes everything
//! that was posted to it ("flush"), into the shared CQ. Slots come back as those completions
//! come in. Where they do not come in time, the QP is destroyed first, on the control thread.
//!
//! `ibv_fork_init` is not called: it marks registered pages so that a forked child cannot take
//! them by copy-on-write, which makes registration of large arenas slow. millrace forks nothing
//! after its start.
//!
//! With the provider of a real NIC, posting and polling are loads and stores to mapped memory.
//! Soft-RoCE has no doorbell: there every `ibv_post_send` is one system call.

pub use crate::host::rdma as device;

mod channel;
mod cm;
mod conn;
mod control;
mod dial;
mod endpoint;
mod ffi;
mod listener;
mod mailbox;
mod mr;
mod posting;
mod private;
mod qp;
mod sends;
mod sizing;
#[cfg(test)]
mod tests;

pub use channel::RdmaChannel;
pub use dial::RdmaConfig;
pub use endpoint::RdmaEndpoint;
pub use ffi::available;
pub use listener::RdmaListener;
