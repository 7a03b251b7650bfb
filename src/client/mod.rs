//! The client: [`Client`] is one connection to one worker of a server, pipelined. A [`Lane`] is one
//! that is made again when it fails; a [`Cluster`] is the lanes to all of several servers.
//!
//! A client owns its landing slots. A read takes one, and its [`Done`] gives it back with the
//! data in it; return it by [`Client::recycle`] once the data has been used.
//!
//! ```no_run
//! use millrace::client::{Client, ClientOptions, Read};
//!
//! # fn main() -> millrace::Result<()> {
//! let mut client = Client::connect("tcp://127.0.0.1:4790", &ClientOptions::default())?;
//! println!("{} drives, {} requests at once", client.drives().len(), client.credits());
//!
//! // One read, blocking:
//! let first_block = client.read(0, 0, client.drives()[0].block_size)?;
//! assert_eq!(first_block.len(), client.drives()[0].block_size as usize);
//!
//! // Many reads in flight:
//! for tag in 0..8 {
//!     client.submit(Read { drive: 0, offset: tag << 20, len: 1 << 20, tag })?;
//! }
//! let mut done = Vec::with_capacity(8);
//! while client.in_flight() > 0 {
//!     client.flush()?;
//!     client.poll(&mut done)?;
//!     for read in done.drain(..) {
//!         println!("read {}: {} bytes", read.tag, client.payload(&read)?.len());
//!         client.recycle(read);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod backoff;
mod cluster;
mod connector;
mod lane;
mod objects;
mod placement;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::check::check;
use crate::error::{Error, Kind, Result};
use crate::fabric::address::Address;
use crate::fabric::{self, Arrival, Channel, ConnectConfig};
use crate::limits::{DEFAULT_CREDITS, DEFAULT_SLOT_SIZE};
use crate::memory::{Arena, ArenaSpec, Pages, Slot, SlotPool};
pub use backoff::Backoff;
pub use cluster::{Cluster, ClusterOptions, LanePlan, RemoteServer};
pub use connector::Connector;
use connector::Identity;
pub use lane::{Answer, Lane, LaneOptions, Lost, Sent};
pub use objects::{Delete, Get, Put};
pub use placement::Placement;

use crate::wire::{ANY_WORKER, CheckMode, Completion, DriveRecord, Request};

/// How a client connects.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Requests that it would like to have in flight; the server may grant fewer.
    pub depth: u16,
    /// Largest read in bytes.
    pub max_read: usize,
    /// Shared secret, as the server has it.
    pub token: Option<Arc<[u8]>>,
    /// Pages of the landing memory.
    pub pages: Pages,
    /// Local address of the NIC to use (RDMA); `None` leaves it to the routing table.
    pub local: Option<IpAddr>,
    /// Number of the server's worker to be served by, which RDMA can honour; [`ANY_WORKER`] for
    /// whichever.
    pub worker: u16,
    /// Time for connecting and the handshake, and for each blocking read.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            depth: DEFAULT_CREDITS,
            max_read: DEFAULT_SLOT_SIZE,
            token: None,
            pages: Pages::Auto,
            local: None,
            worker: ANY_WORKER,
            timeout: Duration::from_secs(10),
        }
    }
}

/// What a drive of the server is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RemoteDrive {
    /// Size in bytes.
    pub capacity: u64,
    /// Offsets and lengths of reads are multiples of this many bytes.
    pub block_size: u32,
    /// Serial number; empty where the drive has none.
    pub serial: String,
    /// Name by which the server opened it.
    pub name: String,
}

/// One read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Number of the drive.
    pub drive: u16,
    /// Byte offset, a multiple of the drive's block size.
    pub offset: u64,
    /// Bytes, a multiple of the drive's block size.
    pub len: u32,
    /// The caller's own word.
    pub tag: u64,
}

/// A read that was answered.
#[derive(Debug)]
pub struct Done {
    /// The read's tag.
    pub tag: u64,
    /// The server's record: status, stage times, CRC.
    pub record: Completion,
    slot: Option<Slot>,
}

impl Done {
    /// The data of a read or a get.
    ///
    /// # Errors
    ///
    /// Those of [`Done::outcome`], with the server's words, where it failed.
    pub fn payload(&self) -> Result<&[u8]> {
        self.outcome()?;
        let slot = self.slot.as_ref().expect("an answered read has its slot");
        Ok(slot.bytes(self.record.length.get() as usize))
    }

    /// Compares the CRC-64/NVME of what landed with that of what the server read.
    ///
    /// # Errors
    ///
    /// `Data` where they differ, `Unsupported` where the server computed none.
    pub fn verify(&self) -> Result<()> {
        let payload = self.payload()?;
        let Some(sent) = self.record.payload_crc() else {
            return Err(Error::new(Kind::Unsupported, "the server computes no CRC")
                .remedy("start the server with --check crc, or leave out --verify"));
        };
        let landed = check(CheckMode::Crc, payload).expect("crc mode gives a CRC");
        if landed != sent {
            return Err(Error::new(
                Kind::Data,
                format!(
                    "read {}: {} bytes landed with CRC {landed:016x}, the server read {sent:016x}",
                    self.tag,
                    payload.len()
                ),
            ));
        }
        Ok(())
    }
}

/// The answer to [`Client::submit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// On its way at the next flush.
    Queued,
    /// As many reads are in flight as the server granted: poll, then submit again.
    Busy,
}

/// One connection. One thread owns it.
pub struct Client<C: Channel = Box<dyn Channel + Send>> {
    channel: C,
    slots: SlotPool,
    drives: Vec<RemoteDrive>,
    arrivals: Vec<Arrival>,
    timeout: Duration,
    /// An answer did not come in time, so the connection was given up.
    overdue: bool,
}

impl Client {
    /// Connects to `address` (`tcp://host:port` or `rdma://host:port`), does the handshake, and
    /// asks the server what its drives are. Blocks for the time-out at most.
    ///
    /// # Errors
    ///
    /// `Usage` for an address without a fabric, `Network` where the server cannot be reached,
    /// `Denied` where it refuses, `Resource` where the landing memory is not to be had.
    pub fn connect(address: &str, options: &ClientOptions) -> Result<Self> {
        let name: Address = address.parse()?;
        let Some(fabric) = name.fabric else {
            return Err(Error::usage(format!("\"{address}\" does not say by which fabric"))
                .remedy(format!("write tcp://{address} or rdma://{address}")));
        };
        SlotPool::check_slot_size(options.max_read)?;
        let count = usize::from(options.depth);
        let arena = Arc::new(Arena::map(&ArenaSpec {
            bytes: SlotPool::bytes_needed(options.max_read, count),
            pages: options.pages,
            node: None,
        })?);
        let config = ConnectConfig {
            credits: options.depth,
            max_payload: options.max_read as u32,
            worker: options.worker,
            token: options.token.clone(),
            timeout: options.timeout,
        };
        let channel = fabric::connect(fabric, &name.resolve()?, &config, options.local, &arena)?;
        Self::new(channel, SlotPool::new(arena, options.max_read, count)?, options.timeout)
    }
}

impl<C: Channel> Client<C> {
    /// A client on an established connection whose landing slots are `slots`. Asks the server
    /// what its drives are.
    pub fn new(channel: C, slots: SlotPool, timeout: Duration) -> Result<Self> {
        let arrivals = Vec::with_capacity(slots.count());
        let mut client =
            Self { channel, slots, drives: Vec::new(), arrivals, timeout, overdue: false };
        for drive in 0..client.channel.welcome().drives.get() {
            let request = Request::describe(drive.into(), drive);
            let done = client.round_trip(request)?;
            let record = DriveRecord::parse(client.payload(&done)?).map_err(|reason| {
                Error::new(Kind::Protocol, format!("the record of drive {drive}: {reason}"))
            })?;
            client.recycle(done);
            client.drives.push(RemoteDrive {
                capacity: record.capacity.get(),
                block_size: record.block_size.get(),
                serial: text(&record.serial),
                name: text(&record.name),
            });
        }
        Ok(client)
    }

    /// The server's drives.
    pub fn drives(&self) -> &[RemoteDrive] {
        &self.drives
    }

    /// Number of the worker that serves this connection, and of workers that the server has.
    pub fn worker(&self) -> (u16, u16) {
        let welcome = self.channel.welcome();
        (welcome.worker.get(), welcome.workers.get())
    }

    /// Reads that may be in flight at once.
    pub fn credits(&self) -> u16 {
        self.channel.welcome().credits.get()
    }

    /// Largest read in bytes.
    pub fn max_read(&self) -> u32 {
        self.channel.welcome().max_payload.get().min(self.slots.slot_size() as u32)
    }

    /// Bytes of each landing slot.
    pub fn landing_size(&self) -> usize {
        self.slots.slot_size()
    }

    /// What the server does with the bytes that it reads.
    pub fn check_mode(&self) -> CheckMode {
        self.channel.welcome().check_mode().expect("parse has checked it")
    }

    /// The server's backend: `uring`, `spdk`, `mem`.
    pub fn backend(&self) -> String {
        self.channel.welcome().backend_name()
    }

    /// Reads submitted and not yet answered.
    pub fn in_flight(&self) -> u32 {
        self.channel.in_flight()
    }

    /// Puts a read in the batch. Its tag is the request's id on the wire, so reads in flight have
    /// different ones.
    ///
    /// # Errors
    ///
    /// `Usage` where the read is longer than [`Client::max_read`], or where a read of the same tag
    /// is in flight; `Network` after an answer did not come in time (see [`Client::read`]). What
    /// else is wrong with it, the server says in the record's status.
    pub fn submit(&mut self, read: Read) -> Result<Submitted> {
        if read.len > self.max_read() {
            return Err(Error::usage(format!(
                "a read of {} bytes; this connection carries {} at most",
                read.len,
                self.max_read()
            ))
            .remedy("ask for less at a time, or raise the server's --slot-size"));
        }
        self.check_overdue()?;
        if self.channel.is_in_flight(read.tag) {
            return Err(Error::usage(format!("read {} is in flight already", read.tag))
                .remedy("give each read in flight a tag of its own"));
        }
        Ok(self.send(Request::read(read.tag, read.drive, read.offset, read.len)))
    }

    /// After a time-out an answer may come to a read that nobody waits for: nothing is read over
    /// that connection any more.
    fn check_overdue(&self) -> Result<()> {
        if !self.overdue {
            return Ok(());
        }
        let what = format!("the connection was given up: no answer within {:?}", self.timeout);
        Err(Error::new(Kind::Network, what).remedy("connect again"))
    }

    fn send(&mut self, request: Request) -> Submitted {
        let Some(slot) = self.slots.acquire() else { return Submitted::Busy };
        self.send_slot(request, slot)
    }

    fn send_slot(&mut self, request: Request, slot: Slot) -> Submitted {
        match self.channel.submit(request, slot) {
            Ok(()) => Submitted::Queued,
            Err(slot) => {
                self.slots.release(slot);
                Submitted::Busy
            }
        }
    }

    /// Sends the batch.
    pub fn flush(&mut self) -> Result<()> {
        self.check_overdue()?;
        self.channel.flush()
    }

    /// Appends the reads that were answered, at most `out`'s spare capacity. Returns how many.
    ///
    /// # Errors
    ///
    /// When the connection has failed: reads in flight are lost, the client is of no more use.
    pub fn poll(&mut self, out: &mut Vec<Done>) -> Result<usize> {
        self.check_overdue()?;
        let room = out.capacity() - out.len();
        let mut arrivals = std::mem::take(&mut self.arrivals);
        let outcome = self.channel.poll(&mut arrivals);
        let count = arrivals.len().min(room);
        for arrival in arrivals.drain(..count) {
            out.push(Done {
                tag: arrival.record.id.get(),
                record: arrival.record,
                slot: arrival.slot,
            });
        }
        // What did not fit waits for the next poll, in order.
        self.arrivals = arrivals;
        outcome?;
        Ok(count)
    }

    /// The data of a read or a get: see [`Done::payload`].
    ///
    /// # Errors
    ///
    /// Those of [`Client::outcome`], with the server's words, where it failed.
    pub fn payload<'a>(&self, done: &'a Done) -> Result<&'a [u8]> {
        done.payload()
    }

    /// Compares CRCs: see [`Done::verify`].
    ///
    /// # Errors
    ///
    /// `Data` where they differ, `Unsupported` where the server computed none.
    pub fn verify(&self, done: &Done) -> Result<()> {
        done.verify()
    }

    /// True where the slot of an answer is this client's.
    fn owns(&self, done: &Done) -> bool {
        done.slot.as_ref().is_some_and(|slot| self.slots.owns(slot))
    }

    /// Takes the slot of a read back for the next one.
    pub fn recycle(&mut self, done: Done) {
        if let Some(slot) = done.slot {
            self.slots.release(slot);
        }
    }

    /// Reads `len` bytes and waits for them. For single reads; nothing else may be in flight.
    ///
    /// # Errors
    ///
    /// As [`Client::submit`], [`Client::poll`] and [`Client::payload`]; `Network` where the answer
    /// does not come within the time-out. The connection is given up then: a late answer must not
    /// pass for that of a later read.
    pub fn read(&mut self, drive: u16, offset: u64, len: u32) -> Result<Vec<u8>> {
        if len > self.max_read() {
            // The same words as for a pipelined read.
            self.submit(Read { drive, offset, len, tag: 0 })?;
        }
        let done = self.round_trip(Request::read(0, drive, offset, len))?;
        let data = self.payload(&done).map(<[u8]>::to_vec);
        self.recycle(done);
        check_whole(data.as_ref().map_or(len as usize, Vec::len), len)?;
        data
    }

    fn round_trip(&mut self, request: Request) -> Result<Done> {
        self.check_overdue()?;
        self.only()?;
        if self.send(request) == Submitted::Busy {
            return Err(Error::usage("a blocking request without a slot: recycle what is done"));
        }
        self.wait_for_one()
    }

    /// A blocking request is alone.
    fn only(&self) -> Result<()> {
        if self.in_flight() == 0 && self.slots.available() > 0 {
            return Ok(());
        }
        Err(Error::usage("a blocking request while others are in flight or not recycled"))
    }

    fn wait_for_one(&mut self) -> Result<Done> {
        let give_up = Instant::now() + self.timeout;
        let mut done = Vec::with_capacity(1);
        self.flush()?;
        while self.poll(&mut done)? == 0 {
            if Instant::now() >= give_up {
                self.overdue = true;
                for slot in self.channel.abandon().into_iter().filter_map(|(_, slot)| slot) {
                    self.slots.release(slot);
                }
                return Err(Error::new(
                    Kind::Network,
                    format!("no answer within {:?}", self.timeout),
                ));
            }
            self.flush()?;
            std::hint::spin_loop();
        }
        Ok(done.pop().expect("poll gave one"))
    }
}

/// Checks that an answer which says that all is well is as long as the read.
///
/// # Errors
///
/// `Protocol` where it is not.
pub(crate) fn check_whole(got: usize, asked: u32) -> Result<()> {
    if got == asked as usize {
        return Ok(());
    }
    Err(Error::new(Kind::Protocol, format!("the server sent {got} bytes for a read of {asked}")))
}

fn text(padded: &[u8]) -> String {
    let end = padded.iter().position(|b| *b == 0).unwrap_or(padded.len());
    String::from_utf8_lossy(&padded[..end]).into_owned()
}

#[cfg(test)]
mod tests;
