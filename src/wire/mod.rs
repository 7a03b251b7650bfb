//! Messages on the wire: fixed 64 bytes, little-endian, every reserved byte zero.
//!
//! No I/O and no unsafe code. docs/PROTOCOL.md has the byte tables. A message is validated once,
//! where it arrives; what is wrong with it is a [`Reason`].

mod handshake;
mod message;
mod put;
mod request;
mod status;

pub use handshake::{ANY_WORKER, Challenge, CheckMode, Hello, Proof, Reject, StoreInfo, Welcome};
pub use message::{Kind, MAGIC, Reason, VERSION};
pub use put::{MAX_KEY, PUT_PREFIX, PutPrefix};
pub use request::{Completion, DIGEST_SIZE, DriveRecord, OpCode, Request};
pub use status::Status;
