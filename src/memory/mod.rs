//! Memory that drives and NICs write to and read from.
//!
//! ```text
//!   Arena   one mapping per worker, on one NUMA node, never moved, never unmapped while shared
//!     |     with hardware: whoever registers it (verbs, io_uring, SPDK) holds an Arc of it
//!     v
//!   SlotPool   cuts the arena into equal slots; a plain stack of the free ones
//!     v
//!   Slot    owned and at rest: `bytes()` may be read, hardware does not touch it
//!     |  lend()                          ^ reclaim(), unsafe: the hardware is proven done
//!     v                                  |
//!   Lent    in flight: an address for the hardware, nothing that safe code could read
//! ```
//!
//! A slot moves into a storage or fabric queue by value and comes back by value, so safe code
//! cannot reach memory in flight. Dropping a [`Lent`] leaks the slot, and with it the arena:
//! that is the wanted outcome wherever it cannot be proven that the hardware is done.

mod arena;
pub mod seal;
mod shared;
mod slot;

pub use arena::{Arena, ArenaSpec, Pages};
pub use shared::SharedBytes;
pub use slot::{Lent, Slot, SlotPool};
