//! The client's side of one connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::configure;
use super::inbound::{Fault, Inbound, Pending};
use super::outbound::Outbound;
use crate::error::{Context, Error, Kind, Result};
use crate::fabric::handshake::{ClientHandshake, Message};
use crate::fabric::ids::IdTable;
use crate::fabric::{Arrival, Channel, ConnectConfig};
use crate::limits::MESSAGE_SIZE;
use crate::memory::Slot;
use crate::wire::{Request, Welcome};

/// One connection to a server, over TCP.
#[derive(Debug)]
pub struct TcpChannel {
    /// `None` once the connection is dead.
    stream: Option<TcpStream>,
    peer: SocketAddr,
    welcome: Welcome,
    credits: usize,
    pending: IdTable<Pending>,
    inbound: Inbound,
    outbound: Outbound,
}

impl TcpChannel {
    /// Connects and does the handshake; blocks for `config.timeout` at most. Everything that the
    /// channel needs later is allocated here.
    ///
    /// # Errors
    ///
    /// `Network` if the server cannot be reached or says nothing in time, `Denied` if it refuses,
    /// `Protocol` if it is not a millrace server.
    pub fn connect(address: SocketAddr, config: &ConnectConfig) -> Result<Self> {
        let deadline = Instant::now() + config.timeout;
        let reach = || format!("cannot connect to {address}");
        let mut stream = TcpStream::connect_timeout(&address, config.timeout)
            .context(reach)
            .map_err(|e| e.remedy("check that the server runs and listens on this address"))?;
        configure(&stream).context(reach)?;
        let mut handshake = ClientHandshake::of(config)?;
        send(&mut stream, &handshake.hello(), deadline, address)?;
        let welcome = loop {
            let message = receive(&mut stream, deadline, address)?;
            let (reply, welcome) = handshake.receive(&message)?;
            if let Some(reply) = reply {
                send(&mut stream, &reply, deadline, address)?;
            }
            if let Some(welcome) = welcome {
                break welcome;
            }
        };
        stream.set_nonblocking(true).context(reach)?;
        let credits = usize::from(welcome.credits.get());
        Ok(Self {
            stream: Some(stream),
            peer: address,
            welcome,
            credits,
            pending: IdTable::new(credits),
            inbound: Inbound::new(credits),
            outbound: Outbound::new(credits),
        })
    }

    /// Writes what the socket takes of the requests.
    fn write(&mut self) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Err(self.dead()) };
        let written = self.outbound.write(stream, &mut self.pending);
        written.context(|| format!("the connection to {} failed", self.peer)).inspect_err(|_| {
            self.stream = None;
        })
    }

    fn dead(&self) -> Error {
        Error::new(Kind::Network, format!("the connection to {} has ended", self.peer))
    }

    fn describe(&self, fault: Fault) -> Error {
        let peer = self.peer;
        let broken = |what: String| {
            Error::new(Kind::Protocol, format!("{peer} breaks the protocol: {what}"))
        };
        match fault {
            Fault::Ended => Error::new(Kind::Network, format!("{peer} has closed the connection"))
                .remedy("the server's log says why: it was stopped, or it refused a request"),
            Fault::Io(errno) => {
                Error::new(Kind::Network, format!("the connection to {peer} failed"))
                    .caused_by(std::io::Error::from_raw_os_error(errno))
            }
            Fault::Malformed(reason) => broken(reason.text().into()),
            Fault::Unknown(id) => broken(format!("an answer to {id}, which was not asked")),
            Fault::TooLong { id, announced, asked } => {
                broken(format!("{announced} bytes for request {id}, which asked for {asked}"))
            }
        }
    }
}

/// Time until `deadline`, never zero: a socket takes zero for no limit.
fn until(deadline: Instant, peer: SocketAddr) -> Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late(peer)) } else { Ok(left) }
}

fn late(peer: SocketAddr) -> Error {
    Error::new(Kind::Network, format!("{peer} did not finish the handshake in time"))
        .remedy("check that host and port are those of a millrace server, and its load")
}

fn send(
    stream: &mut TcpStream,
    message: &Message,
    deadline: Instant,
    peer: SocketAddr,
) -> Result<()> {
    let what = || format!("the connection to {peer} failed in the handshake");
    stream.set_write_timeout(Some(until(deadline, peer)?)).context(what)?;
    match stream.write_all(message) {
        // The server may have refused and closed already: what it said is still to be read.
        Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(()),
        other => other.context(what),
    }
}

fn receive(stream: &mut TcpStream, deadline: Instant, peer: SocketAddr) -> Result<Message> {
    let what = || format!("the connection to {peer} failed in the handshake");
    let mut message = [0; MESSAGE_SIZE];
    let mut got = 0;
    while got < MESSAGE_SIZE {
        // Anew for each piece: a peer that sends a byte now and then gains no time by it.
        stream.set_read_timeout(Some(until(deadline, peer)?)).context(what)?;
        match stream.read(&mut message[got..]) {
            Ok(0) => {
                let what = format!("{peer} closed the connection during the handshake");
                return Err(Error::new(Kind::Network, what)
                    .remedy("check that host and port are those of a millrace server"));
            }
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(late(peer)),
            Err(e) => return Err(e).context(what),
        }
    }
    Ok(message)
}

impl Channel for TcpChannel {
    /// # Panics
    ///
    /// If the request or its body is longer than its slot, or if its id is in flight.
    fn submit(&mut self, request: Request, slot: Slot) -> std::result::Result<(), Slot> {
        if self.stream.is_none() || self.in_flight() as usize >= self.credits {
            return Err(slot);
        }
        let (length, body) = (request.most(), request.body());
        let most = body.max(length.into());
        assert!(most <= slot.size() as u64, "{most} bytes in a slot of {}", slot.size());
        let pending = Pending { slot, length, unsent: body > 0 };
        let fresh = self.pending.insert(request.id.get(), pending);
        assert!(fresh, "request {} is in flight already", request.id);
        self.outbound.push(&request);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.write()
    }

    fn poll(&mut self, out: &mut Vec<Arrival>) -> Result<usize> {
        // The socket was full at the last flush.
        if self.outbound.full {
            self.write()?;
        }
        let before = out.len();
        let Some(stream) = &mut self.stream else { return Err(self.dead()) };
        match self.inbound.receive(stream, &mut self.pending, out) {
            Ok(()) => Ok(out.len() - before),
            Err(fault) => {
                self.stream = None;
                Err(self.describe(fault))
            }
        }
    }

    fn abandon(&mut self) -> Vec<(u64, Option<Slot>)> {
        // Closing it first is not needed for the slots, which the kernel touches only within a
        // system call; but what the server still sends has nowhere to go.
        self.stream = None;
        self.outbound.clear();
        let landing = self.inbound.abandon().map(|(id, slot)| (id, Some(slot)));
        let pending = self.pending.drain().map(|(id, pending)| (id, Some(pending.slot)));
        landing.into_iter().chain(pending).collect()
    }

    fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    fn in_flight(&self) -> u32 {
        self.pending.len() as u32 + u32::from(self.inbound.is_landing())
    }

    fn is_in_flight(&self, id: u64) -> bool {
        self.pending.contains(id) || self.inbound.landing_id() == Some(id)
    }
}
