//! Connections: the server's side of one worker, and the client's side of one connection.
//!
//! ```text
//!   server                                     client
//!   Listener (control thread)                  Channel (one connection, one thread)
//!     hands each new connection to a worker      submit(Request, landing Slot)
//!   Endpoint (one per worker, all its            flush(), poll() -> Arrival gives the Slot back
//!     connections)
//!     poll()    -> Event
//!     respond() -> the Slot moves in, and comes back in Event::Sent
//!     pull()    -> the Slot moves in, and comes back in Event::Pulled with a request's body
//! ```
//!
//! Both fabrics carry the messages of [`crate::wire`] and run the same [`handshake`].

pub mod address;
pub mod handshake;
mod ids;
pub mod rdma;
pub mod tcp;
mod token;

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::{Arena, Slot};
use crate::wire;

pub use token::Token;

/// A connection of one worker: a place in its table and how often that place was reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnId {
    /// Place in the worker's table, below [`EndpointConfig::max_connections`].
    pub index: u32,
    /// Generation of the place: an id that outlived its connection is recognised by it.
    pub generation: u32,
}

/// What a worker's endpoint needs to know at start.
#[derive(Debug, Clone)]
pub struct EndpointConfig {
    /// Number of the worker.
    pub worker: usize,
    /// Connections at most; one more is refused with a message.
    pub max_connections: usize,
    /// Requests that one connection may have in flight.
    pub credits: u16,
    /// Largest payload in bytes (the slot size).
    pub max_payload: u32,
    /// Bodies of one connection's requests that may be on their way at once (RDMA): room in its
    /// queues is set aside for them. 0 where no request with a body is ever pulled.
    pub pulls: u16,
    /// The secret that clients must know.
    pub token: Token,
    /// What the server tells a client once it is accepted.
    pub welcome: wire::Welcome,
    /// Time that a peer has for the handshake.
    pub handshake_timeout: Duration,
}

/// What a client needs to connect, on either fabric.
#[derive(Debug, Clone)]
pub struct ConnectConfig {
    /// Requests that it would like to have in flight; the server grants as many or fewer.
    pub credits: u16,
    /// Largest payload in bytes that it will ask for.
    pub max_payload: u32,
    /// The worker of the server that it would like to be served by, or [`wire::ANY_WORKER`]. Only
    /// RDMA can honour it; the welcome says which worker it is.
    pub worker: u16,
    /// Shared secret; `None` if the server accepts everybody.
    pub token: Option<Arc<[u8]>>,
    /// Time for connecting and for the handshake, together.
    pub timeout: Duration,
}

/// An answer to one request.
#[derive(Debug)]
pub struct Response {
    /// The payload's slot, `None` for an answer without payload. It comes back in
    /// [`Event::Sent`], exactly once.
    pub slot: Option<Slot>,
    /// Where in the slot the payload starts, in bytes.
    pub start: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Where the payload goes, from the request (RDMA; 0 on TCP).
    pub remote_addr: u64,
    /// Key for that address, from the request (RDMA; 0 on TCP).
    pub rkey: u32,
    /// The record that announces it.
    pub record: wire::Completion,
    /// The caller's own word; it comes back in [`Event::Sent`].
    pub tag: u64,
}

impl Response {
    /// # Panics
    ///
    /// If its parts disagree, or if it answers none of the requests in flight: either would make
    /// nonsense of everything that follows on its connection. `queued` answers wait already.
    fn check(&self, ids: &ids::IdTable<()>, queued: usize) {
        assert_eq!(self.len, self.record.length.get(), "the record announces the payload");
        let room = self.slot.as_ref().map_or(0, Slot::size);
        let (start, len) = (self.start as usize, self.len as usize);
        assert!(len <= room && start <= room - len, "{start}+{len} bytes of a slot of {room}");
        assert!(ids.contains(self.record.id.get()), "an answer to no request");
        assert!(queued < ids.len(), "a second answer to one request");
    }
}

/// Where the body of a request shall go.
#[derive(Debug)]
pub struct Pull {
    /// The slot; it comes back in [`Event::Pulled`], exactly once.
    pub slot: Slot,
    /// Where in the slot the body starts, in bytes.
    pub start: u32,
    /// Bytes of the body: all of it.
    pub len: u32,
    /// Number of the request.
    pub id: u64,
    /// Where the body is, from the request (RDMA; 0 on TCP).
    pub remote_addr: u64,
    /// Key for that address, from the request (RDMA; 0 on TCP).
    pub rkey: u32,
    /// The caller's own word; it comes back in [`Event::Pulled`].
    pub tag: u64,
}

impl Pull {
    /// # Panics
    ///
    /// If the slot has no room for it.
    fn check(&self) {
        let (room, start, len) = (self.slot.size(), self.start as usize, self.len as usize);
        assert!(len <= room && start <= room - len, "{start}+{len} bytes of a slot of {room}");
    }
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Closed {
    /// The peer closed it.
    ByPeer,
    /// The transport failed: a reset, a QP in error, retries exhausted.
    Transport,
    /// The peer broke the protocol.
    Protocol(wire::Reason),
    /// The handshake was not finished in time.
    HandshakeTimeout,
    /// The peer does not know the token.
    Unauthenticated,
    /// This side closed it.
    ByUs,
}

impl Closed {
    /// One word for each reason, by [`Closed::number`].
    pub const WORDS: [&str; 6] =
        ["by_peer", "transport", "protocol", "handshake_timeout", "unauthenticated", "by_us"];

    /// Its place in [`Closed::WORDS`].
    pub fn number(self) -> usize {
        match self {
            Closed::ByPeer => 0,
            Closed::Transport => 1,
            Closed::Protocol(_) => 2,
            Closed::HandshakeTimeout => 3,
            Closed::Unauthenticated => 4,
            Closed::ByUs => 5,
        }
    }
}

/// What an endpoint reports to its worker.
#[derive(Debug)]
pub enum Event {
    /// A connection finished its handshake.
    Opened(ConnId),
    /// A request: its layout is valid, its contents are not judged yet.
    Request(ConnId, wire::Request),
    /// A response is done with: sent, or its connection is gone. The slot is at rest. The slot
    /// is `None` if the response had none, or if it had to be leaked.
    Sent {
        /// Connection of the response.
        conn: ConnId,
        /// The response's tag.
        tag: u64,
        /// The response's slot.
        slot: Option<Slot>,
        /// False if the connection failed before the payload was wholly handed over.
        delivered: bool,
    },
    /// A pull is over. The slot is at rest; it is `None` if it had to be leaked.
    Pulled {
        /// Connection of the pull.
        conn: ConnId,
        /// The pull's tag.
        tag: u64,
        /// The pull's slot.
        slot: Option<Slot>,
        /// True if the whole body is in the slot; false if the connection failed before.
        ok: bool,
    },
    /// A connection ended. Every response given to it has been reported by `Sent` before, or
    /// will be, and every pull by `Pulled`; no further request of it comes.
    Closed(ConnId, Closed),
}

/// The fabric side of one worker: all its connections. One thread owns it.
///
/// Dropping it with sends in flight tears the connections down, waits for the hardware with a
/// bound, and leaks the slots of which it cannot be proven that the hardware is done.
pub trait Endpoint {
    /// Appends what has happened, at most `out`'s spare capacity. Also progresses handshakes and
    /// takes in new connections from the listener.
    fn poll(&mut self, out: &mut Vec<Event>);

    /// Takes a response; it may stay in a batch until [`Endpoint::flush`]. Never busy: a client
    /// has no more requests in flight than its credits, and each has one response.
    /// A response to a connection that is gone is reported by [`Event::Sent`] at the next poll.
    fn respond(&mut self, conn: ConnId, response: Response);

    /// Fetches the body of a request that has one ([`wire::Request::body`]); like a response it may
    /// stay in a batch until [`Endpoint::flush`]. One pull at most for each request, and no answer
    /// to it before [`Event::Pulled`]: until then the client's memory is being read. On TCP the
    /// body is the next on the stream, so nothing else of that connection is read until it is
    /// pulled, or until the request is answered, whereupon the body is read and thrown away.
    /// A pull on a connection that is gone is reported, as failed, at the next poll.
    fn pull(&mut self, conn: ConnId, pull: Pull);

    /// Hands the batch to the NIC or the sockets.
    fn flush(&mut self);

    /// Ends a connection: what was handed to the hardware is waited for or leaked.
    fn close(&mut self, conn: ConnId);

    /// The worker is out of slots: ends the connection that has longest not taken its answers or
    /// not gone on with a body, if that is longer than `patience`. Nothing to do where neither
    /// needs help of the peer.
    fn shed(&mut self, patience: Duration) {
        let _ = patience;
    }

    /// Stops taking in new connections (for the drain at the end).
    fn refuse_new(&mut self);

    /// Responses and pulls accepted and not yet reported by [`Event::Sent`] or
    /// [`Event::Pulled`].
    fn in_flight(&self) -> u32;

    /// Connections that are open.
    fn connections(&self) -> u32;

    /// Slots given up because the hardware could not be proven done.
    fn leaked(&self) -> u64 {
        0
    }
}

/// Accepts connections and spreads them over the workers, round-robin. Its own thread runs it.
pub trait Listener: Send + Sync {
    /// The workers' side.
    type Endpoint: Endpoint;

    /// The endpoint of one worker; its slots are all of `arena`. Called once per worker on that
    /// worker's thread, before [`Listener::run`].
    fn endpoint(&self, config: EndpointConfig, arena: &Arc<Arena>) -> Result<Self::Endpoint>;

    /// By what it carries the messages.
    fn fabric(&self) -> address::FabricKind;

    /// The address that is listened on, with the real port.
    fn local_addr(&self) -> std::net::SocketAddr;

    /// Accepts until `stop` becomes true; looks at it at least every 100 ms.
    fn run(&self, stop: &std::sync::atomic::AtomicBool) -> Result<()>;
}

/// What arrived for one request of a client.
#[derive(Debug)]
pub struct Arrival {
    /// The landing slot, at rest; the payload's `record.length` bytes are in it. `None` only if
    /// the connection failed in a way that leaves the remote side able to write to it: leaked.
    pub slot: Option<Slot>,
    /// The server's record; `record.id` is the request's id.
    pub record: wire::Completion,
}

/// The client's side of one connection. One thread owns it.
///
/// Dropping it with requests in flight destroys the connection before the landing slots can be
/// reused; what cannot be proven unreachable is leaked.
pub trait Channel {
    /// Sends a request whose payload lands in `slot`, or whose body is the first
    /// [`wire::Request::body`] bytes of it; for RDMA it fills in address and key. The slot comes
    /// back with the answer, once the body is no longer needed either.
    /// Gives the slot back if the credits are used up: poll, then try again.
    ///
    /// # Panics
    ///
    /// If the request is longer than its slot, if the slot is of another arena than the channel's,
    /// or if its id is in flight.
    fn submit(&mut self, request: wire::Request, slot: Slot) -> std::result::Result<(), Slot>;

    /// Hands the batch to the NIC or the socket.
    fn flush(&mut self) -> Result<(), Error>;

    /// Appends what has arrived, at most `out`'s spare capacity, and goes on with what the last
    /// flush could not send. After an error the connection is
    /// dead; requests in flight are then given back by [`Channel::abandon`].
    fn poll(&mut self, out: &mut Vec<Arrival>) -> Result<usize, Error>;

    /// Ends the connection and gives back the landing slots of requests that will not be
    /// answered, with their request ids; what cannot be proven unreachable is leaked.
    fn abandon(&mut self) -> Vec<(u64, Option<Slot>)>;

    /// What the server said in the handshake.
    fn welcome(&self) -> &wire::Welcome;

    /// Requests sent and not yet answered.
    fn in_flight(&self) -> u32;

    /// True if a request of this id is one of them.
    fn is_in_flight(&self, id: u64) -> bool;
}

/// Connects over `fabric` to the first of `addresses` that answers. Landing slots of the channel
/// must all be of `arena`. `local` chooses the NIC of an RDMA connection; `None` leaves it to the
/// routing table.
///
/// # Errors
///
/// `Usage` for a local address on TCP. Otherwise the failure of the last address, of the kinds
/// that the fabric's own `connect` has.
pub fn connect(
    fabric: address::FabricKind,
    addresses: &[std::net::SocketAddr],
    config: &ConnectConfig,
    local: Option<std::net::IpAddr>,
    arena: &Arc<Arena>,
) -> Result<Box<dyn Channel + Send>> {
    let one = |address: &std::net::SocketAddr| -> Result<Box<dyn Channel + Send>> {
        match fabric {
            address::FabricKind::Tcp if local.is_some() => {
                Err(Error::usage("a local address chooses the NIC of RDMA, not of TCP")
                    .remedy("leave it out: the routing table decides for TCP"))
            }
            address::FabricKind::Tcp => Ok(Box::new(tcp::TcpChannel::connect(*address, config)?)),
            address::FabricKind::Rdma => {
                let rdma = rdma::RdmaConfig { local };
                Ok(Box::new(rdma::RdmaChannel::connect(*address, config, rdma, arena)?))
            }
        }
    };
    let mut last = Error::usage("no address to connect to");
    for address in addresses {
        match one(address) {
            Ok(channel) => return Ok(channel),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl<C: Channel + ?Sized> Channel for Box<C> {
    fn submit(&mut self, request: wire::Request, slot: Slot) -> std::result::Result<(), Slot> {
        (**self).submit(request, slot)
    }

    fn flush(&mut self) -> Result<(), Error> {
        (**self).flush()
    }

    fn poll(&mut self, out: &mut Vec<Arrival>) -> Result<usize, Error> {
        (**self).poll(out)
    }

    fn abandon(&mut self) -> Vec<(u64, Option<Slot>)> {
        (**self).abandon()
    }

    fn welcome(&self) -> &wire::Welcome {
        (**self).welcome()
    }

    fn in_flight(&self) -> u32 {
        (**self).in_flight()
    }

    fn is_in_flight(&self, id: u64) -> bool {
        (**self).is_in_flight(id)
    }
}
