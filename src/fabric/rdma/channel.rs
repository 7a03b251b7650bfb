//! The client's side of one connection.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes as _;

use super::cm::{CmId, EventChannel, What};
use super::conn::{Work, WorkId};
use super::dial::{Dialled, RdmaConfig, SELF, SPARE_RECEIVES};
use super::ffi::{Cq, Pd, Wc, completions, status_text, succeeded};
use super::mr::{Access, Messages, Mr, Probed};
use super::qp::{Chain, Qp};
use super::sends::Sends;
use crate::error::{Context as _, Error, Kind, Result};
use crate::fabric::handshake::{ClientHandshake, Message};
use crate::fabric::ids::IdTable;
use crate::fabric::{Arrival, Channel, ConnectConfig};
use crate::limits::{MESSAGE_SIZE, POLL_BUDGET};
use crate::memory::{Arena, Lent, Slot};
use crate::wire::{Completion, Request, Welcome};

/// Pause between two looks for events of rdma_cm while nothing arrives: a server that dies
/// between two messages is noticed by them alone.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug)]
struct Pending {
    entry: u16,
    slot: Lent,
    length: u32,
}

/// A connection to a server. The landing arena is registered for it alone: its key is worth
/// nothing on any other connection, since each has a protection domain of its own.
///
/// The server is trusted to write nothing into a landing slot, and to read nothing from it, after
/// it has answered; the keys that it was given stay valid until the connection ends.
pub struct RdmaChannel {
    peer: SocketAddr,
    welcome: Welcome,
    credits: u16,
    /// `None` once it is destroyed.
    qp: Option<Qp>,
    dead: bool,
    chain: Chain,
    wcs: [Wc; POLL_BUDGET],
    /// Requests in flight, by id.
    pending: IdTable<Pending>,
    /// Places of request messages that are free.
    free: Vec<u16>,
    sends: Sends,
    /// Answers that have arrived before the send queue has room for what they allow to be sent.
    held: VecDeque<Arrival>,
    next_look: Instant,
    // Dropped in this order, after `qp`.
    mr: Mr,
    #[cfg_attr(not(test), expect(dead_code, reason = "held for the server, which writes to it"))]
    probed: Probed,
    /// The arena once more, for the server to read bodies from; only where it takes puts.
    bodies: Option<Mr>,
    messages: Arc<Messages>,
    cq: Arc<Cq>,
    pd: Arc<Pd>,
    id: Arc<CmId>,
    events: Arc<EventChannel>,
}

impl std::fmt::Debug for RdmaChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaChannel")
            .field("peer", &self.peer)
            .field("credits", &self.credits)
            .field("in_flight", &self.pending.len())
            .finish_non_exhaustive()
    }
}

fn late(peer: SocketAddr, what: &str) -> Error {
    Error::new(Kind::Network, format!("{peer} did not {what} in time"))
        .remedy("check that host and port are those of a millrace server, and its load")
}

impl RdmaChannel {
    /// Connects to the server at `address` and runs the handshake. Payloads will land in slots
    /// of `arena`. Blocks until done, at most for the configured time (plus, where the server's
    /// host is gone, what the kernel needs to give up).
    ///
    /// # Errors
    ///
    /// `Unsupported` where RDMA is not there; `NotFound` or `Network` where the local address
    /// has no RDMA device, or the server cannot be reached; `Denied` where it refuses;
    /// `Resource` where the arena cannot be registered.
    pub fn connect(
        address: SocketAddr,
        config: &ConnectConfig,
        rdma: RdmaConfig,
        arena: &Arc<Arena>,
    ) -> Result<Self> {
        let deadline = Instant::now() + config.timeout;
        let dialled = Dialled::dial(address, config, rdma, arena, deadline)?;
        let mut channel = Self::over(address, dialled);
        channel.shake_hands(config, deadline)?;
        if channel.welcome.store().is_some_and(|store| store.writable) {
            channel.bodies = Some(Mr::register(&channel.pd, arena, Access::RemoteRead)?);
        }
        Ok(channel)
    }

    /// A channel before its handshake.
    fn over(address: SocketAddr, dialled: Dialled) -> Self {
        let Dialled { credits, qp, mr, probed, pd, messages, cq, id, events } = dialled;
        Self {
            peer: address,
            welcome: Welcome::new("", crate::wire::CheckMode::None, 0, 0, 0, 0, 0),
            credits,
            qp: Some(qp),
            dead: false,
            chain: Chain::new(usize::from(credits) + 1),
            wcs: completions(),
            pending: IdTable::new(credits.into()),
            free: (0..credits).rev().collect(),
            sends: Sends::new(credits),
            held: VecDeque::with_capacity(credits.into()),
            next_look: Instant::now(),
            mr,
            probed,
            bodies: None,
            messages,
            cq,
            pd,
            id,
            events,
        }
    }

    fn receives(&self) -> usize {
        usize::from(self.credits) + usize::from(SPARE_RECEIVES)
    }

    fn shake_hands(&mut self, config: &ConnectConfig, deadline: Instant) -> Result<()> {
        let mut handshake = ClientHandshake::of(config)?;
        self.send_message(&handshake.hello())?;
        loop {
            let got = self.cq.poll(&mut self.wcs)?;
            for at in 0..got {
                let wc = self.wcs[at];
                let Some(message) = self.on_completion(&wc)? else { continue };
                let (send, welcome) = handshake.receive(&message)?;
                if let Some(send) = send {
                    self.send_message(&send)?;
                }
                if let Some(welcome) = welcome {
                    // The queues are sized for what was asked; the server grants no more.
                    let granted = welcome.credits.get().min(self.credits);
                    self.free.retain(|entry| *entry < granted);
                    self.welcome = welcome;
                    return Ok(());
                }
            }
            if got == 0 {
                self.look_for_events()?;
                if Instant::now() >= deadline {
                    return Err(late(self.peer, "finish the handshake"));
                }
                std::thread::yield_now();
            }
        }
    }

    /// Sends a message of the handshake.
    fn send_message(&mut self, message: &Message) -> Result<()> {
        let at = self.receives() + usize::from(self.credits);
        self.messages.write(at, message);
        let Some(qp) = &self.qp else { return Err(self.ended()) };
        // The entry says how many sends the completion stands for.
        self.chain.push_send(qp, WorkId::of(SELF, Work::Handshake, 1).pack(), at, true);
        self.sends.push_alone();
        self.post()
    }

    fn post(&mut self) -> Result<()> {
        let Some(qp) = &self.qp else { return Err(self.ended()) };
        // SAFETY: the chain has no WRITE and no READ.
        let done = unsafe { self.chain.post(qp, |_| {}) };
        done.context(|| format!("cannot send to {}", self.peer)).inspect_err(|_| self.dead = true)
    }

    fn ended(&self) -> Error {
        Error::new(Kind::Network, format!("the connection to {} has ended", self.peer))
    }

    fn broken(&mut self, what: String) -> Error {
        self.dead = true;
        Error::new(Kind::Protocol, format!("{} breaks the protocol: {what}", self.peer))
    }

    /// Takes one completion; returns the message of a receive, which is posted again.
    fn on_completion(&mut self, wc: &Wc) -> Result<Option<Message>> {
        if !succeeded(wc) {
            self.dead = true;
            // Why the server left is for rdma_cm to say, if it knows.
            self.next_look = Instant::now();
            self.look_for_events()?;
            let text = status_text(wc.status);
            return Err(Error::new(
                Kind::Network,
                format!("the connection to {} failed: {text}", self.peer),
            )
            .remedy("see the server's log, and whether its host can be reached"));
        }
        let Some(work) = WorkId::unpack(wc.wr_id) else { return Ok(None) };
        if work.work != Work::Receive {
            self.sends.complete(work.entry);
            return Ok(None);
        }
        if wc.byte_len as usize != MESSAGE_SIZE {
            return Err(self.broken(format!("a message of {} bytes", wc.byte_len)));
        }
        let message = self.messages.read(work.entry.into());
        let Some(qp) = &self.qp else { return Ok(None) };
        qp.post_receive(work.entry.into(), wc.wr_id)
            .context(|| format!("cannot receive from {}", self.peer))?;
        Ok(Some(message))
    }

    fn arrival(&mut self, message: &Message) -> Result<Arrival> {
        let record =
            Completion::parse(message).map_err(|reason| self.broken(reason.to_string()))?;
        let id = record.id.get();
        let Some(asked) = self.pending.get(id).map(|pending| pending.length) else {
            return Err(self.broken(format!("an answer to {id}, which was not asked")));
        };
        let announced = record.length.get();
        if announced > asked {
            let what = format!("{announced} bytes for request {id}, which asked for {asked}");
            return Err(self.broken(what));
        }
        let slot = self.pending.remove(id).map(|pending| {
            self.free.push(pending.entry);
            // SAFETY: the record has arrived, and the payload's WRITE was before it on the same
            // connection, which delivers in order: nothing writes to the slot any more. A body's
            // READ had ended before the server answered; a late one would read and not write.
            unsafe { pending.slot.reclaim() }
        });
        Ok(Arrival { slot, record })
    }

    /// Takes what the CQ has, at most [`POLL_BUDGET`].
    fn take_completions(&mut self) -> Result<()> {
        let got = self.cq.poll(&mut self.wcs)?;
        for at in 0..got {
            let wc = self.wcs[at];
            if let Some(message) = self.on_completion(&wc)? {
                let arrival = self.arrival(&message)?;
                self.held.push_back(arrival);
            }
        }
        if got == 0 { self.look_for_events() } else { Ok(()) }
    }

    /// Sees whether the server has left; at most every [`LOOK`].
    fn look_for_events(&mut self) -> Result<()> {
        let now = Instant::now();
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + LOOK;
        while let Some(event) = self.events.next()? {
            let how = match event.what {
                What::Disconnected => "has closed the connection".to_owned(),
                What::DeviceRemoval => "is out of reach: the RDMA device was removed".to_owned(),
                _ => continue,
            };
            self.dead = true;
            return Err(Error::new(Kind::Network, format!("{} {how}", self.peer))
                .remedy("the server's log says why: it was stopped, or it refused a request"));
        }
        Ok(())
    }
}

impl Channel for RdmaChannel {
    /// # Panics
    ///
    /// If the request or its body is longer than its slot, if the slot is of another arena, or if
    /// its id is in flight.
    fn submit(&mut self, mut request: Request, slot: Slot) -> std::result::Result<(), Slot> {
        let full = self.free.is_empty() || self.sends.is_full();
        let Some(qp) = self.qp.as_ref().filter(|_| !full && !self.dead) else { return Err(slot) };
        let (id, length, body) = (request.id.get(), request.most(), request.body());
        let most = body.max(length.into());
        assert!(most <= slot.size() as u64, "{most} bytes in a slot of {}", slot.size());
        assert!(!self.pending.contains(id), "request {id} is in flight already");
        let slot = slot.lend();
        assert!(self.mr.contains(slot.addr(), slot.size()), "a slot of another arena");
        // To a server that takes no puts, no key is given to read from: it refuses anyway.
        let key = if body > 0 { self.bodies.as_ref().map(Mr::rkey) } else { Some(self.mr.rkey()) };
        if let Some(key) = key {
            request.remote_addr = (slot.addr() as u64).into();
            request.rkey = key.into();
        }

        let entry = self.free.pop().expect("not empty, seen above");
        let at = self.receives() + usize::from(entry);
        self.messages.write(at, request.as_bytes().try_into().expect("asserted in wire"));
        let (stands_for, signalled) = self.sends.push();
        let work = WorkId::of(SELF, Work::Answer, stands_for).pack();
        self.chain.push_send(qp, work, at, signalled);
        self.pending.insert(id, Pending { entry, slot, length });
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.dead { Err(self.ended()) } else { self.post() }
    }

    fn poll(&mut self, out: &mut Vec<Arrival>) -> Result<usize> {
        if self.dead {
            return Err(self.ended());
        }
        let outcome = self.take_completions();
        let mut count = 0;
        // What came before a failure counts.
        if outcome.is_err() || self.sends.have_room_for(self.free.len()) {
            count = self.held.len().min(out.capacity() - out.len());
            out.extend(self.held.drain(..count));
        }
        outcome.map(|()| count)
    }

    fn abandon(&mut self) -> Vec<(u64, Option<Slot>)> {
        self.dead = true;
        let mut gone = self.qp.is_none();
        if let Some(qp) = self.qp.take() {
            // First the hardware stops, then the peer is told.
            if let Err(e) = qp.fail() {
                log::debug!("cannot move the queue pair to {} to ERR: {e}", self.peer);
            }
            let _ = self.id.disconnect();
            match qp.destroy() {
                Ok(()) => gone = true,
                Err(e) => log::warn!("cannot destroy a queue pair, its slots are leaked: {e}"),
            }
        }
        let give_back = |(id, Pending { slot, .. }): (u64, Pending)| {
            // SAFETY: the QP is destroyed, and no other QP is in the key's protection domain:
            // nothing can write to the slot any more.
            (id, gone.then(|| unsafe { slot.reclaim() }))
        };
        let held = self.held.drain(..).map(|arrival| (arrival.record.id.get(), arrival.slot));
        held.chain(self.pending.drain().map(give_back)).collect()
    }

    fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    fn in_flight(&self) -> u32 {
        (self.pending.len() + self.held.len()) as u32
    }

    fn is_in_flight(&self, id: u64) -> bool {
        self.pending.contains(id) || self.held.iter().any(|held| held.record.id.get() == id)
    }
}

impl Drop for RdmaChannel {
    fn drop(&mut self) {
        // The slots that come back are dropped: their pool is not known here.
        self.abandon().into_iter().for_each(drop);
    }
}

/// Ways to break the protocol, for tests of the server.
#[cfg(test)]
impl RdmaChannel {
    /// Lets it send as many requests as it asked for, instead of as many as were granted.
    pub(super) fn forget_credits(&mut self) {
        self.free = (0..self.credits).rev().collect();
    }

    /// Sends any message.
    pub(super) fn say(&mut self, message: &Message) -> Result<()> {
        self.send_message(message)
    }

    /// Key of the landing arena.
    pub(super) fn key(&self) -> u32 {
        self.mr.rkey()
    }

    /// True once the server has probed it.
    pub(super) fn was_probed(&self) -> bool {
        self.probed.was_written()
    }

    /// Key of the same memory for reading bodies.
    pub(super) fn body_key(&self) -> u32 {
        self.bodies.as_ref().expect("the server takes puts").rkey()
    }

    /// Stops answering the server's hardware, without a word, as a machine without power does.
    pub(super) fn vanish(&self) {
        self.qp.as_ref().expect("a live channel").fail().expect("a QP can be failed");
    }

    /// Connects, says `first` if there is one, and waits for the server to end it.
    pub(super) fn connect_mute(
        address: SocketAddr,
        config: &ConnectConfig,
        arena: &Arc<Arena>,
        first: Option<&Message>,
    ) -> Result<()> {
        let deadline = Instant::now() + config.timeout;
        let dialled = Dialled::dial(address, config, RdmaConfig::default(), arena, deadline)?;
        let mut channel = Self::over(address, dialled);
        if let Some(first) = first {
            channel.say(first)?;
        }
        let mut out = Vec::with_capacity(1);
        while Instant::now() < deadline {
            channel.poll(&mut out)?;
            std::thread::yield_now();
        }
        Ok(())
    }
}
