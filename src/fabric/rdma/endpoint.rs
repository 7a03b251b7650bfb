//! The server's side of one worker: all its connections, on one completion queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdma_sys::ibv_wc_status::{IBV_WC_LOC_LEN_ERR, IBV_WC_WR_FLUSH_ERR};

use super::conn::{Conn, Phase, Pulling, Sending, Work, WorkId};
use super::control::{Ask, Control, Port, ToWorker};
use super::ffi::{Cq, Wc, completions, succeeded};
use super::mr::{Messages, Mr};
use super::qp::Chain;
use crate::fabric::handshake::Step;
use crate::fabric::{Closed, ConnId, Endpoint, EndpointConfig, Event, Pull, Response};
use crate::limits::POLL_BUDGET;
use crate::memory::Slot;
use crate::wire::{Reason, Request};

/// Work requests that go to a QP by one call.
const CHAIN: usize = 128;

/// Time that flushed work has to come back before the QP is destroyed under it, and that a
/// dropped endpoint waits.
const DRAIN: Duration = Duration::from_secs(2);

/// Pause between two looks at the deadlines.
const SCAN: Duration = Duration::from_millis(10);

/// Time between two looks for idle connections. Those that had no completion in between are
/// probed by a write to their probe word: a peer whose machine vanished without a word is found
/// out after 15 to 30 s, and the 4 to 15 s that the hardware takes to give up.
const PROBE: Duration = Duration::from_secs(15);

/// Turns between two looks at the clock where no connection has a deadline.
const TURNS_PER_CLOCK: u32 = 1024;

/// Most events for which room is kept from the start.
const BACKLOG: usize = 16_384;

/// All connections of one worker.
pub struct RdmaEndpoint {
    /// By place; `None` where there is no connection.
    pub(super) conns: Vec<Option<Box<Conn>>>,
    /// Events that are still to be handed over.
    backlog: VecDeque<Event>,
    /// Connections with answers to post.
    pub(super) dirty: Vec<u32>,
    pub(super) chain: Chain,
    wcs: [Wc; POLL_BUDGET],
    pub(super) mr: Mr,
    pub(super) messages: Arc<Messages>,
    cq: Arc<Cq>,
    port: Arc<Port>,
    worker: usize,
    control: Arc<Control>,
    /// Connections with a deadline: those not in the phase Open.
    unsettled: u32,
    open: u32,
    in_flight: u32,
    leaked: u64,
    next_scan: Instant,
    /// Destroyed connections whose last completions may still be in the CQ.
    #[expect(clippy::vec_box, reason = "the boxes are what is handed over")]
    settling: Vec<Box<Conn>>,
    turn: u32,
    /// Time without a word after which a connection is probed.
    pub(super) probe_every: Duration,
    next_probe: Instant,
}

impl std::fmt::Debug for RdmaEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaEndpoint")
            .field("worker", &self.worker)
            .field("open", &self.open)
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}

impl RdmaEndpoint {
    pub(super) fn new(
        config: &EndpointConfig,
        worker: usize,
        port: Arc<Port>,
        cq: Arc<Cq>,
        mr: Mr,
        messages: Arc<Messages>,
        control: Arc<Control>,
    ) -> Self {
        let places = config.max_connections;
        let answers = places * usize::from(config.credits);
        Self {
            conns: (0..places).map(|_| None).collect(),
            backlog: VecDeque::with_capacity(2 * answers.min(BACKLOG) + 2 * POLL_BUDGET),
            dirty: Vec::with_capacity(places),
            chain: Chain::new(CHAIN),
            wcs: completions(),
            mr,
            messages,
            cq,
            port,
            worker,
            control,
            unsettled: 0,
            open: 0,
            in_flight: 0,
            leaked: 0,
            next_scan: Instant::now(),
            settling: Vec::with_capacity(places),
            turn: 0,
            probe_every: PROBE,
            next_probe: Instant::now(),
        }
    }

    fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.index as usize)?.as_deref_mut().filter(|conn| conn.id == id)
    }

    fn of_work(&mut self, id: WorkId) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(id.index as usize)?.as_deref_mut()?;
        (WorkId::of(conn.id, id.work, id.entry) == id).then_some(conn)
    }

    fn sent(&mut self, conn: ConnId, tag: u64, slot: Option<Slot>, delivered: bool) {
        self.backlog.push_back(Event::Sent { conn, tag, slot, delivered });
    }

    fn pulled(&mut self, conn: ConnId, tag: u64, slot: Option<Slot>, ok: bool) {
        self.backlog.push_back(Event::Pulled { conn, tag, slot, ok });
    }

    fn mark_dirty(&mut self, index: u32) {
        if let Some(conn) = &mut self.conns[index as usize]
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push(index);
        }
    }

    fn take_in(&mut self) {
        while let Some(news) = self.port.mailbox.take() {
            match news {
                ToWorker::New(conn) => {
                    self.unsettled += 1;
                    let index = conn.id.index as usize;
                    self.conns[index] = Some(conn);
                }
                ToWorker::Destroyed(mut conn, destroyed) => {
                    self.give_back(&mut conn, destroyed);
                    // One that lives on keeps its claim on the CQ for good.
                    if destroyed {
                        self.settling.push(conn);
                    }
                }
            }
        }
    }

    /// Reports what a retired connection still had.
    fn give_back(&mut self, conn: &mut Conn, destroyed: bool) {
        for sending in &mut conn.sending {
            let Some(Sending { slot, tag }) = sending.take() else { continue };
            let slot = match slot {
                // SAFETY: the QP was destroyed, so the hardware has no work that names the slot.
                Some(lent) if destroyed => Some(unsafe { lent.reclaim() }),
                Some(lent) => {
                    self.leaked += 1;
                    drop(lent);
                    None
                }
                None => None,
            };
            self.backlog.push_back(Event::Sent { conn: conn.id, tag, slot, delivered: false });
        }
        for pulling in &mut conn.pulling {
            let Some(Pulling { slot, tag }) = pulling.take() else { continue };
            let slot = if destroyed {
                // SAFETY: the QP was destroyed, so no READ of it lands any more.
                Some(unsafe { slot.reclaim() })
            } else {
                self.leaked += 1;
                drop(slot);
                None
            };
            self.backlog.push_back(Event::Pulled { conn: conn.id, tag, slot, ok: false });
        }
    }

    /// Starts to end a connection. Harmless where it is ending already.
    pub(super) fn begin_close(&mut self, id: ConnId, why: Closed) {
        let Some(conn) = self.conn(id) else { return };
        let was = conn.phase;
        if was == Phase::Closing {
            return;
        }
        conn.phase = Phase::Closing;
        conn.deadline = Instant::now() + DRAIN;
        let key = conn.cm;
        while let Some(Response { slot, tag, .. }) =
            self.conn(id).and_then(|c| c.pending.pop_front())
        {
            self.sent(id, tag, slot, false);
        }
        while let Some(Pull { slot, tag, .. }) = self.conn(id).and_then(|c| c.pulls.pop_front()) {
            self.pulled(id, tag, Some(slot), false);
        }
        if was == Phase::Open {
            self.open -= 1;
            self.unsettled += 1;
        }
        let why = if let Phase::Refusing(why) = was { why } else { why };
        self.backlog.push_back(Event::Closed(id, why));
        self.control.ask(Ask::Fail(key));
        self.retire_if_drained(id);
    }

    fn retire_if_drained(&mut self, id: ConnId) {
        if self.conn(id).is_some_and(|conn| conn.phase == Phase::Closing && conn.is_drained()) {
            self.retire(id.index);
        }
    }

    fn retire(&mut self, index: u32) {
        if let Some(conn) = self.conns[index as usize].take() {
            if conn.dirty {
                self.dirty.retain(|dirty| *dirty != index);
            }
            self.unsettled -= 1;
            self.control.ask(Ask::Retire(conn));
        }
    }

    /// Ends what has run out of time.
    fn scan(&mut self) {
        let now = Instant::now();
        if now < self.next_scan {
            return;
        }
        self.next_scan = now + SCAN;
        for index in 0..self.conns.len() {
            let Some(conn) = &self.conns[index] else { continue };
            if now < conn.deadline {
                continue;
            }
            let id = conn.id;
            match conn.phase {
                Phase::Handshake => self.begin_close(id, Closed::HandshakeTimeout),
                Phase::Refusing(why) => self.begin_close(id, why),
                Phase::Closing => self.retire(id.index),
                Phase::Open => {}
            }
        }
    }

    /// Sends something to those who have been silent, so that the hardware sees who is gone.
    fn probe(&mut self) {
        let now = Instant::now();
        if now < self.next_probe {
            return;
        }
        self.next_probe = now + self.probe_every;
        for index in 0..self.conns.len() {
            let Some(conn) = &mut self.conns[index] else { continue };
            let silent = !std::mem::take(&mut conn.heard);
            // Where sends are under way already, they will tell.
            if silent && conn.phase == Phase::Open && conn.sends == 0 {
                let id = conn.id;
                self.send_probe(id);
            }
        }
    }

    fn take_completions(&mut self, most: usize) {
        let most = most.min(POLL_BUDGET);
        // Those destroyed before the CQ is seen empty have nothing in it any more.
        let settling = self.settling.len();
        match self.cq.poll(&mut self.wcs[..most]) {
            Ok(got) => {
                if got < most {
                    for conn in self.settling.drain(..settling) {
                        self.control.ask(Ask::Discard(conn));
                    }
                }
                (0..got).for_each(|at| self.on_completion(self.wcs[at]));
            }
            Err(_) => self.close_all(),
        }
    }

    fn on_completion(&mut self, wc: Wc) {
        let Some(work) = WorkId::unpack(wc.wr_id) else { return };
        if self.of_work(work).is_none() {
            // The client may have spoken between the look into the mailbox and the poll. Its
            // connection was put there before it could.
            self.take_in();
        }
        let Some(conn) = self.of_work(work) else { return };
        let id = conn.id;
        conn.heard = true;
        match work.work {
            Work::Receive => {
                conn.receives -= 1;
                if succeeded(&wc) {
                    self.on_message(id, work.entry, wc.byte_len);
                }
            }
            Work::Answer => {
                conn.sends -= 1;
                let has_pending = !conn.pending.is_empty();
                if let Some(Sending { slot, tag }) = conn.sending[usize::from(work.entry)].take() {
                    conn.free.push(work.entry);
                    // SAFETY: the record's completion, good or flushed, comes after the payload's
                    // WRITE has ended: one queue, executed and completed in order.
                    let slot = slot.map(|lent| unsafe { lent.reclaim() });
                    self.sent(id, tag, slot, succeeded(&wc));
                }
                if has_pending {
                    self.mark_dirty(id.index);
                }
            }
            Work::Handshake => {
                conn.sends -= 1;
                if let Phase::Refusing(why) = conn.phase {
                    self.begin_close(id, why);
                }
            }
            Work::Pull => {
                conn.sends -= 1;
                let has_pulls = !conn.pulls.is_empty();
                if let Some(Pulling { slot, tag }) = conn.pulling[usize::from(work.entry)].take() {
                    // SAFETY: the READ's own completion, good or flushed: it lands no more.
                    let slot = unsafe { slot.reclaim() };
                    self.pulled(id, tag, Some(slot), succeeded(&wc));
                }
                if has_pulls {
                    self.mark_dirty(id.index);
                }
            }
            Work::Probe => conn.sends -= 1,
            Work::Payload => {}
        }
        if !succeeded(&wc) {
            let peer_left = self.conn(id).is_some_and(|conn| conn.qp().peer_left());
            let why = match wc.status {
                IBV_WC_LOC_LEN_ERR => Closed::Protocol(Reason::Size),
                IBV_WC_WR_FLUSH_ERR if peer_left => Closed::ByPeer,
                _ => Closed::Transport,
            };
            self.begin_close(id, why);
        }
        self.retire_if_drained(id);
    }

    fn on_message(&mut self, id: ConnId, entry: u16, len: u32) {
        let Some(conn) = self.conn(id) else { return };
        let (at, phase) = (conn.receive_at(entry), conn.phase);
        let message = self.messages.read(at);
        let bytes = message.get(..len as usize).unwrap_or_default();
        let outcome = match phase {
            Phase::Open => match Request::parse(bytes) {
                Ok(request) => self.on_request(id, entry, request),
                Err(reason) => Err(Closed::Protocol(reason)),
            },
            Phase::Handshake => self.on_handshake(id, entry, bytes),
            Phase::Refusing(_) | Phase::Closing => Ok(()),
        };
        if let Err(why) = outcome {
            self.begin_close(id, why);
        }
    }

    fn on_request(&mut self, id: ConnId, entry: u16, request: Request) -> Result<(), Closed> {
        let Some(conn) = self.conn(id) else { return Ok(()) };
        let credits = conn.credits.into();
        conn.ids.admit(request.id.get(), credits).map_err(Closed::Protocol)?;
        conn.post_receive(entry).map_err(|_| Closed::Transport)?;
        self.backlog.push_back(Event::Request(id, request));
        Ok(())
    }

    fn on_handshake(&mut self, id: ConnId, entry: u16, bytes: &[u8]) -> Result<(), Closed> {
        let Some(conn) = self.conn(id) else { return Ok(()) };
        conn.post_receive(entry).map_err(|_| Closed::Transport)?;
        match conn.handshake.receive(bytes) {
            Step::Continue(message) => self.send_handshake(id, 0, &[message]),
            Step::Established { send, .. } => {
                conn.phase = Phase::Open;
                self.unsettled -= 1;
                self.open += 1;
                self.backlog.push_back(Event::Opened(id));
                self.send_handshake(id, 1, &send)
            }
            Step::Refuse(message, reason) => {
                conn.phase = Phase::Refusing(match reason {
                    Reason::Proof => Closed::Unauthenticated,
                    reason => Closed::Protocol(reason),
                });
                self.send_handshake(id, 1, &[message])
            }
        }
    }
}

impl Endpoint for RdmaEndpoint {
    fn poll(&mut self, out: &mut Vec<Event>) {
        self.take_in();
        if self.unsettled > 0 {
            self.scan();
        }
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(TURNS_PER_CLOCK) {
            self.probe();
        }
        let spare = out.capacity() - out.len();
        if self.backlog.len() < spare {
            self.take_completions(spare);
            // What waited for an entry that has become free.
            self.post_dirty();
        }
        for _ in 0..spare.min(self.backlog.len()) {
            let event = self.backlog.pop_front().expect("counted above");
            if matches!(event, Event::Sent { .. } | Event::Pulled { .. }) {
                self.in_flight -= 1;
            }
            out.push(event);
        }
    }

    fn respond(&mut self, conn: ConnId, response: Response) {
        self.in_flight += 1;
        match self.conn(conn) {
            Some(found) if found.phase == Phase::Open => {
                response.check(&found.ids, found.pending.len());
                found.pending.push_back(response);
                self.mark_dirty(conn.index);
            }
            _ => self.sent(conn, response.tag, response.slot, false),
        }
    }

    fn pull(&mut self, conn: ConnId, pull: Pull) {
        pull.check();
        self.in_flight += 1;
        match self.conn(conn) {
            // A client that serves no READs has nothing to be pulled.
            Some(found) if found.phase == Phase::Open && !found.pulling.is_empty() => {
                assert!(found.ids.contains(pull.id), "a pull for no request");
                found.pulls.push_back(pull);
                self.mark_dirty(conn.index);
            }
            _ => self.pulled(conn, pull.tag, Some(pull.slot), false),
        }
    }

    fn flush(&mut self) {
        self.post_dirty();
    }

    fn close(&mut self, conn: ConnId) {
        self.begin_close(conn, Closed::ByUs);
    }

    fn refuse_new(&mut self) {
        self.port.closed.store(true, Ordering::Relaxed);
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn connections(&self) -> u32 {
        self.open
    }

    fn leaked(&self) -> u64 {
        self.leaked
    }
}

impl RdmaEndpoint {
    fn close_all(&mut self) {
        for index in 0..self.conns.len() {
            if let Some(conn) = &self.conns[index] {
                self.begin_close(conn.id, Closed::Transport);
            }
        }
    }
}

impl Drop for RdmaEndpoint {
    fn drop(&mut self) {
        self.control.close(self.worker);
        self.take_in();
        self.close_all();
        // What is drained retires by itself; the rest is destroyed here, which may block.
        let deadline = Instant::now() + DRAIN;
        while self.unsettled > 0 && Instant::now() < deadline {
            self.take_completions(POLL_BUDGET);
            self.backlog.clear();
        }
        for index in 0..self.conns.len() {
            if let Some(mut conn) = self.conns[index].take() {
                let (destroyed, _) = self.control.retire(&mut conn);
                self.give_back(&mut conn, destroyed);
            }
        }
        // Retired connections that are still with the control thread keep what they need.
        self.control.finish(self.worker);
        self.take_in();
        if self.leaked > 0 {
            log::warn!("worker {}: {} slots leaked", self.worker, self.leaked);
        }
    }
}
