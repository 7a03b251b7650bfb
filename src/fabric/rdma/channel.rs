//! The client's side of one connection.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes as _;

use super::cm::{CmEvent, CmId, EventChannel, What, as_place};
use super::conn::{Work, WorkId};
use super::device;
use super::ffi::{
    Cq, Pd, Wc, available, completions, mtu_bytes, status_text, succeeded, wait_readable,
};
use super::mr::{Access, Messages, Mr};
use super::private::Sizes;
use super::qp::{Chain, Qp, QpSpec};
use super::sizing::client_sends;
use crate::error::{Context as _, Error, Kind, Result};
use crate::fabric::handshake::{ClientHandshake, Message};
use crate::fabric::{Arrival, Channel, ConnId, ConnectConfig};
use crate::host::Root;
use crate::limits::{MAX_CREDITS, MESSAGE_SIZE, POLL_BUDGET};
use crate::memory::{Arena, Lent, Slot};
use crate::wire::{Completion, Request, Welcome};

/// Pause between two looks for events of rdma_cm while nothing arrives: a server that dies
/// between two messages is noticed by them alone.
const LOOK: Duration = Duration::from_millis(10);

/// Receives beyond the credits: the handshake's welcome and proof come at once.
const SPARE_RECEIVES: u16 = 2;

/// The client's work requests need no connection's number.
const SELF: ConnId = ConnId { index: 0, generation: 0 };

/// What an RDMA client needs beyond a [`ConnectConfig`].
#[derive(Debug, Clone, Copy, Default)]
pub struct RdmaConfig {
    /// Local address, which chooses the NIC; `None` leaves it to the routing table.
    pub local: Option<IpAddr>,
}

#[derive(Debug)]
struct Pending {
    id: u64,
    slot: Lent,
    length: u32,
}

/// A connection to a server. The landing arena is registered for it alone: its key is worth
/// nothing on any other connection, since each has a protection domain of its own.
///
/// The server is trusted to write nothing into a landing slot after it has answered; the key
/// that it was given stays valid until the connection ends.
pub struct RdmaChannel {
    peer: SocketAddr,
    welcome: Welcome,
    credits: u16,
    /// `None` once it is destroyed.
    qp: Option<Qp>,
    dead: bool,
    chain: Chain,
    wcs: [Wc; POLL_BUDGET],
    /// Requests in flight, by entry, and where to find them by id.
    pending: Vec<Option<Pending>>,
    free: Vec<u16>,
    by_id: HashMap<u64, u16>,
    /// Sends since the last signalled one, and those not known to be completed.
    unsignalled: u16,
    unfinished: u32,
    next_look: Instant,
    // Dropped in this order, after `qp`.
    mr: Mr,
    messages: Arc<Messages>,
    cq: Arc<Cq>,
    id: Arc<CmId>,
    events: Arc<EventChannel>,
}

impl std::fmt::Debug for RdmaChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaChannel")
            .field("peer", &self.peer)
            .field("credits", &self.credits)
            .field("in_flight", &self.by_id.len())
            .finish_non_exhaustive()
    }
}

fn time_left(deadline: Instant) -> i32 {
    let left = deadline.saturating_duration_since(Instant::now());
    left.as_millis().clamp(1, i32::MAX as u128) as i32
}

fn late(peer: SocketAddr, what: &str) -> Error {
    Error::new(Kind::Network, format!("{peer} did not {what} in time"))
        .remedy("check that host and port are those of a millrace server, and its load")
}

/// Waits for the event `what`; any other is a failure.
fn await_event(
    events: &EventChannel,
    what: What,
    deadline: Instant,
    doing: &str,
) -> Result<CmEvent> {
    loop {
        match events.next()? {
            Some(event) if event.what == what => return Ok(event),
            Some(event) if event.what == What::Other => {}
            Some(event) if event.what == What::Rejected => {
                // A server of ours says why, in the private data.
                let mut handshake = ClientHandshake::new(None, 1, 0)?;
                let said = event.private().get(..MESSAGE_SIZE).unwrap_or_default();
                return match handshake.receive(said) {
                    Err(refusal) if refusal.kind() == Kind::Denied => Err(refusal),
                    _ => Err(event.failure(doing)),
                };
            }
            Some(event) => return Err(event.failure(doing)),
            None if Instant::now() >= deadline => {
                return Err(Error::new(Kind::Network, format!("{doing}: no answer in time"))
                    .remedy("check that the server runs, and that UDP port 4791 is not filtered"));
            }
            None => wait_readable([events.fd()], time_left(deadline).min(50)),
        }
    }
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
        let mut channel = Self::establish(address, config, rdma, arena, deadline)?;
        channel.shake_hands(config, deadline)?;
        Ok(channel)
    }

    /// A connection before its handshake.
    fn establish(
        address: SocketAddr,
        config: &ConnectConfig,
        rdma: RdmaConfig,
        arena: &Arc<Arena>,
        deadline: Instant,
    ) -> Result<Self> {
        if config.credits == 0 || config.credits > MAX_CREDITS {
            return Err(Error::usage(format!(
                "{} requests in flight; 1 to {MAX_CREDITS} are possible",
                config.credits
            )));
        }
        let devices = available(&Root::system())?;
        if let Some(local) = rdma.local {
            let probe = CmId::new(&EventChannel::new()?)?;
            let bound = probe.bind(SocketAddr::new(local, 0));
            device::choose_bound(&devices, local, probe.place().as_ref().map(as_place))?;
            bound.context(|| format!("rdma_cm cannot use the address {local}"))?;
        }
        let events = EventChannel::new()?;
        let id = CmId::new(&events)?;
        let doing = format!("cannot connect to {address} by rdma_cm");
        let unreachable = |e: Error| {
            e.remedy(format!(
                "check the route to {address}; RDMA devices here:{}",
                device::table(&devices)
            ))
        };
        id.resolve_addr(rdma.local, address, time_left(deadline))
            .context(|| doing.clone())
            .map_err(unreachable)?;
        await_event(&events, What::AddrResolved, deadline, &doing)?;
        id.resolve_route(time_left(deadline)).context(|| doing.clone())?;
        await_event(&events, What::RouteResolved, deadline, &doing)?;
        let (local, place) = (id.local_addr().ip(), id.place());
        let choice = device::choose_bound(&devices, local, place.as_ref().map(as_place))?;
        let id = Arc::new(id);
        let pd = Pd::new(&id)?;
        let limits = pd.limits()?;

        let credits = config.credits;
        let receives = u32::from(credits) + u32::from(SPARE_RECEIVES);
        let sends = client_sends(credits);
        if receives + sends > limits.max_cqe || sends > limits.max_qp_wr {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "{credits} requests in flight need {} completion queue entries and {sends} \
                     sends; {} has {} and {}",
                    receives + sends,
                    choice.device,
                    limits.max_cqe,
                    limits.max_qp_wr
                ),
            )
            .remedy("use a smaller --depth"));
        }
        let cq = Cq::new(&pd, receives + sends)?;
        let mr = Mr::register(&pd, arena, Access::RemoteWrite)?;
        // Receives first, then one record per request, then the handshake's.
        let count = receives as usize + usize::from(credits) + 1;
        let messages = Messages::new(&pd, count, arena.node())?;
        let spec = QpSpec { sends, receives, access: Access::RemoteWrite };
        let qp = Qp::new(&pd, &cq, &messages, spec)?;
        qp.initialise(&id).context(|| doing.clone())?;
        for entry in 0..receives {
            let work = WorkId::of(SELF, Work::Receive, entry as u16).pack();
            qp.post_receive(entry as usize, work).context(|| doing.clone())?;
        }
        let (max_payload, mtu) = (config.max_payload, limits.active_mtu as u8);
        let asked = Sizes { credits, max_payload, mtu };
        id.connect(qp.number(), &asked.encode()).context(|| doing.clone())?;
        let response = await_event(&events, What::ConnectResponse, deadline, &doing)?;
        let granted = Sizes::decode(response.private()).map_err(|reason| {
            Error::new(Kind::Protocol, format!("{doing}: {reason}"))
                .remedy("check that host and port are those of a millrace server")
        })?;
        let mtu = limits.active_mtu.min(granted.mtu.into());
        let mtu = qp.make_ready(&id, mtu).context(|| doing.clone())?;
        id.establish().context(|| doing.clone())?;
        log::debug!("connected to {address} by {choice}, path MTU {}", mtu_bytes(mtu));

        Ok(Self {
            peer: address,
            welcome: Welcome::new("", crate::wire::CheckMode::None, 0, 0, 0, 0, 0),
            credits,
            qp: Some(qp),
            dead: false,
            chain: Chain::new(usize::from(credits) + 1),
            wcs: completions(),
            pending: (0..credits).map(|_| None).collect(),
            free: (0..credits).rev().collect(),
            by_id: HashMap::with_capacity(2 * usize::from(credits)),
            unsignalled: 0,
            unfinished: 0,
            next_look: Instant::now(),
            mr,
            messages,
            cq,
            id,
            events,
        })
    }

    fn receives(&self) -> usize {
        usize::from(self.credits) + usize::from(SPARE_RECEIVES)
    }

    fn shake_hands(&mut self, config: &ConnectConfig, deadline: Instant) -> Result<()> {
        let (asked, most) = (config.credits, config.max_payload);
        let mut handshake = ClientHandshake::new(config.token.clone(), asked, most)?;
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
        self.unfinished += 1;
        self.post()
    }

    fn post(&mut self) -> Result<()> {
        let Some(qp) = &self.qp else { return Err(self.ended()) };
        // SAFETY: the chain has no WRITE.
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
            self.unfinished = self.unfinished.saturating_sub(work.entry.into());
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
        let Some(entry) = self.by_id.get(&id).copied() else {
            return Err(self.broken(format!("an answer to {id}, which was not asked")));
        };
        let asked = self.pending[usize::from(entry)].as_ref().map_or(0, |p| p.length);
        let announced = record.length.get();
        if announced > asked {
            let what = format!("{announced} bytes for request {id}, which asked for {asked}");
            return Err(self.broken(what));
        }
        self.by_id.remove(&id);
        self.free.push(entry);
        let pending = self.pending[usize::from(entry)].take();
        // SAFETY: the record has arrived, and the payload's WRITE was before it on the same
        // connection, which delivers in order: nothing writes to the slot any more.
        let slot = pending.map(|pending| unsafe { pending.slot.reclaim() });
        Ok(Arrival { slot, record })
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
    /// If the request is longer than its slot, if the slot is of another arena, or if its id is
    /// in flight.
    fn submit(&mut self, mut request: Request, slot: Slot) -> std::result::Result<(), Slot> {
        let full = self.free.is_empty() || self.unfinished >= client_sends(self.credits);
        let Some(qp) = self.qp.as_ref().filter(|_| !full && !self.dead) else { return Err(slot) };
        let (id, length) = (request.id.get(), request.length.get());
        assert!(length as usize <= slot.size(), "{length} bytes into a slot of {}", slot.size());
        assert!(!self.by_id.contains_key(&id), "request {id} is in flight already");
        let slot = slot.lend();
        assert!(self.mr.contains(slot.addr(), slot.size()), "a slot of another arena");
        request.remote_addr = (slot.addr() as u64).into();
        request.rkey = self.mr.rkey().into();

        let entry = self.free.pop().expect("not empty, seen above");
        let at = self.receives() + usize::from(entry);
        self.messages.write(at, request.as_bytes().try_into().expect("asserted in wire"));
        // Some sends must be signalled for their places to come back; not each has to be.
        self.unsignalled += 1;
        let signalled = self.unsignalled >= self.credits.div_ceil(2);
        let work = WorkId::of(SELF, Work::Answer, self.unsignalled).pack();
        self.chain.push_send(qp, work, at, signalled);
        if signalled {
            self.unsignalled = 0;
        }
        self.unfinished += 1;
        self.by_id.insert(id, entry);
        self.pending[usize::from(entry)] = Some(Pending { id, slot, length });
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.dead { Err(self.ended()) } else { self.post() }
    }

    fn poll(&mut self, out: &mut Vec<Arrival>) -> Result<usize> {
        if self.dead {
            return Err(self.ended());
        }
        let before = out.len();
        let most = (out.capacity() - before).min(POLL_BUDGET);
        let got = self.cq.poll(&mut self.wcs[..most])?;
        for at in 0..got {
            let wc = self.wcs[at];
            if let Some(message) = self.on_completion(&wc)? {
                let arrival = self.arrival(&message)?;
                out.push(arrival);
            }
        }
        if got == 0 {
            self.look_for_events()?;
        }
        Ok(out.len() - before)
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
        self.by_id.clear();
        let give_back = |Pending { id, slot, .. }: Pending| {
            // SAFETY: the QP is destroyed, and no other QP is in the key's protection domain:
            // nothing can write to the slot any more.
            (id, gone.then(|| unsafe { slot.reclaim() }))
        };
        self.pending.iter_mut().filter_map(Option::take).map(give_back).collect()
    }

    fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    fn in_flight(&self) -> u32 {
        self.by_id.len() as u32
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

    /// Connects, then waits in silence for the server to end it.
    pub(super) fn connect_mute(
        address: SocketAddr,
        config: &ConnectConfig,
        arena: &Arc<Arena>,
    ) -> Result<()> {
        let deadline = Instant::now() + config.timeout;
        let mut channel = Self::establish(address, config, RdmaConfig::default(), arena, deadline)?;
        let mut out = Vec::with_capacity(1);
        while Instant::now() < deadline {
            channel.poll(&mut out)?;
            std::thread::yield_now();
        }
        Ok(())
    }
}
