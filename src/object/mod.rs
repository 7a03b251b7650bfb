//! Objects on drives: what is where, and who may change it when. No I/O and no unsafe code.
//!
//! ```text
//!   Superblock   which store a drive belongs to                            superblock.rs
//!   Header       which object a slot holds                                 header.rs
//!   Layout       slot number <-> drive and offset                          layout.rs
//!
//!   Objects      what the workers of a shard share, all of it atomics      objects.rs
//!     Index        digest of the key -> slot, length, sequence number        index.rs
//!     Space        free slots                                                space.rs
//!     Epochs       when a freed slot may be written again                    epoch.rs
//!     KeyLocks     one change of a key at a time                             locks.rs
//!   Member       one worker's hand on them: reads and changes in flight    member.rs
//!     Mutation     a put or a delete as a state machine                      mutation.rs
//! ```
//!
//! The one rule that all rests on: **a free slot has no valid header on the drive**. docs/FORMAT.md
//! has the byte tables and the order of writes.

pub mod content;
mod epoch;
mod header;
mod index;
mod key;
mod layout;
mod locks;
mod member;
mod mutation;
mod objects;
mod space;
mod superblock;

pub use header::{Damage, Found, HEADER_SIZE, Header, ObjectInfo, Place};
pub use index::{Entry, Index, Offer};
pub use key::{BadKey, DIGEST_SIZE, Digest, KeyName, MAX_KEY};
pub use layout::{Layout, MAX_OBJECT, Part};
pub use member::{Member, Recheck, Ticket};
pub use mutation::{Mutation, Refusal, Start, Step, WriteAt};
pub use objects::{Objects, Tally};
pub use superblock::{BadSuperblock, State, StoreId, Superblock};

/// Bytes of a superblock, and of the block that a slot's header has for itself. Every drive's
/// logical block divides it.
pub const BLOCK: usize = 4096;

const _: () = assert!(BLOCK == crate::limits::SLOT_ALIGN);
