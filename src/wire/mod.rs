//! Messages on the wire: fixed 64 bytes, little-endian, every reserved byte zero.
//!
//! No I/O and no unsafe code. docs/PROTOCOL.md has the byte tables. A message is validated once,
//! where it arrives; what is wrong with it is a [`Reason`].

mod handshake;
mod message;
mod request;

pub use handshake::{Challenge, CheckMode, Hello, Proof, Reject, Welcome};
pub use message::{Kind, MAGIC, Reason, VERSION};
pub use request::{Completion, DriveRecord, OpCode, Request, Status};
