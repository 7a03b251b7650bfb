//! Every size and bound that more than one part relies on, and the relations between them.

use std::time::Duration;

/// Alignment of slots, and the unit in which an arena is cut. It is the largest logical block
/// size that drives in the field use, so a slot start suits every O_DIRECT read.
pub const SLOT_ALIGN: usize = 4096;

/// Default size of a slot in bytes: 4 KiB of object metadata and 1 MiB of data.
pub const DEFAULT_SLOT_SIZE: usize = 1028 * 1024;

/// Largest slot in bytes; a request never exceeds one slot, so this bounds a request too.
pub const MAX_SLOT_SIZE: usize = 64 << 20;

/// Default storage depth of one worker: requests on its drives at once.
pub const DEFAULT_DEPTH: u32 = 64;

/// Largest storage depth of one worker.
pub const MAX_DEPTH: u32 = 4096;

/// Slots that a worker has beyond its storage depth, as a multiple of it: while one set of slots
/// is on the drives the other is on its way to the clients.
pub const SLOTS_PER_DEPTH: usize = 2;

/// Most slots of one worker, term by term: storage in flight, sends in flight, and one to spare.
/// Deadlock cannot arise: a slot is only ever waited for by a request that holds none.
pub const MAX_SLOTS: usize = MAX_DEPTH as usize * SLOTS_PER_DEPTH + 1;

/// Most drives that one server opens.
pub const MAX_DRIVES: usize = 256;

/// Most workers of one server.
pub const MAX_WORKERS: usize = 256;

/// Most connections of one worker.
pub const MAX_CONNECTIONS: usize = 4096;

/// Default most connections of one worker.
pub const DEFAULT_CONNECTIONS: usize = 1024;

/// Most requests of one connection in flight, granted to the client in the handshake.
pub const MAX_CREDITS: u16 = 1024;

/// Default credits that a server grants a connection.
pub const DEFAULT_CREDITS: u16 = 64;

/// Most requests that can wait for a slot in one worker: connections times credits.
pub const MAX_PENDING: usize = 1 << 20;

/// Size in bytes of every message on the wire except payload.
pub const MESSAGE_SIZE: usize = 64;

/// Completions taken from a storage or fabric queue in one poll: bounds the time between two
/// looks at the other side.
pub const POLL_BUDGET: usize = 64;

/// Largest registered io_uring buffer: the kernel refuses more than 1 GiB per buffer
/// (io_uring/rsrc.c, `io_buffer_validate`).
pub const MAX_FIXED_BUFFER: usize = 1 << 30;

/// How often in a row one short transfer that made no progress is sent again.
pub const MAX_RETRIES: u8 = 64;

/// How long the kernel may answer a command "not now" (EAGAIN, EINTR) before it has failed. It is
/// sent again with each flush meanwhile. Above what a queue of a busy drive needs to have room.
pub const RETRY_TIME: Duration = Duration::from_secs(1);

/// How long a queue that is dropped waits for its commands in flight before it leaks them. Above
/// the time that a healthy drive needs, below what a person waits for a program to end.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Time that a TCP client has to take one answer once it is the next to be sent to it. Until then
/// a client that does not read holds the slots of its answers, at most as many as its credits.
/// 64 MiB in this time are 18 Mbit/s: slower than any line that the largest slot makes sense on.
pub const TCP_STALL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

const _: () = assert!(SLOT_ALIGN.is_power_of_two());
const _: () = assert!(DEFAULT_SLOT_SIZE.is_multiple_of(SLOT_ALIGN));
const _: () = assert!(DEFAULT_SLOT_SIZE <= MAX_SLOT_SIZE);
const _: () = assert!(MAX_SLOT_SIZE <= MAX_FIXED_BUFFER);
const _: () = assert!(MAX_SLOT_SIZE <= u32::MAX as usize);
const _: () = assert!(DEFAULT_DEPTH <= MAX_DEPTH);
const _: () = assert!(DEFAULT_CREDITS <= MAX_CREDITS);
const _: () = assert!(DEFAULT_CONNECTIONS <= MAX_CONNECTIONS);
const _: () = assert!(DEFAULT_CONNECTIONS * DEFAULT_CREDITS as usize <= MAX_PENDING);
const _: () = assert!(MAX_DRIVES <= u16::MAX as usize);
