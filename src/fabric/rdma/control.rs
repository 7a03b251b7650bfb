//! The control side: which connections there are, and everything that may block.
//!
//! The listener's thread runs it. After that thread has ended, workers run it themselves, one at
//! a time, while they wind down.

use std::collections::{HashMap, VecDeque};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zerocopy::IntoBytes as _;

use super::cm::{CmEvent, CmId, EventChannel, What};
use super::conn::{Conn, Phase, messages_per_conn};
use super::ffi::{AsyncEvent, Cq, Pd, mtu_bytes};
use super::mailbox::Mailbox;
use super::mr::Messages;
use super::private::{ProbeWord, Sizes};
use super::qp::{Peer, Qp, QpSpec};
use super::sizing::{receives, server_completions, server_sends};
use crate::error::{Context as _, Error, Kind, Result};
use crate::fabric::handshake::{ServerHandshake, nonce};
use crate::fabric::ids::IdTable;
use crate::fabric::{ConnId, EndpointConfig};
use crate::wire::{Reason, Reject};

/// What the control side tells a worker.
#[derive(Debug)]
pub(super) enum ToWorker {
    /// A connection whose QP is ready.
    New(Box<Conn>),
    /// A retired connection of which slots or completions are still about; true if its QP is
    /// destroyed.
    Destroyed(Box<Conn>, bool),
}

/// What a worker asks of the control side.
#[derive(Debug)]
pub(super) enum Ask {
    /// Move the QP of this rdma_cm id to ERR and tell the peer.
    Fail(usize),
    /// Destroy the QP; give the connection back if slots or completions of it are still about.
    Retire(Box<Conn>),
    /// Drop the connection's memory, and give its entries of the CQ to others.
    Discard(Box<Conn>),
}

/// What a worker and the control side share.
#[derive(Debug)]
pub(super) struct Port {
    pub mailbox: Mailbox<ToWorker>,
    /// True once the worker takes no more connections.
    pub closed: AtomicBool,
}

/// One worker, as the control side sees it.
pub(super) struct WorkerSide {
    pub port: Arc<Port>,
    pub config: EndpointConfig,
    /// RDMA READs of one connection that may be under way at once.
    pub reads: u8,
    pub cq: Arc<Cq>,
    pub messages: Arc<Messages>,
    /// Places of the worker's table that are free.
    pub places: Vec<u32>,
    /// Generation of each place.
    pub generations: Vec<u32>,
    /// Entries of the CQ that no connection has claimed.
    pub budget: u32,
}

struct Entry {
    // Dropped before the id.
    qp: Arc<Qp>,
    id: CmId,
    worker: usize,
}

#[derive(Default)]
struct State {
    workers: Vec<Option<WorkerSide>>,
    /// By the key of the rdma_cm id.
    entries: HashMap<usize, Entry>,
    next: usize,
}

struct Asks {
    running: bool,
    queue: VecDeque<Ask>,
}

/// The control side of one listener. Workers hold an Arc of it.
pub(super) struct Control {
    state: Mutex<State>,
    asks: Mutex<Asks>,
    waker: UnixStream,
    wakee: UnixStream,
    pd: Arc<Pd>,
    mtu: u32,
    pub channel: Arc<EventChannel>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    pub fn new(pd: &Arc<Pd>, channel: &Arc<EventChannel>) -> Result<Arc<Self>> {
        let pair = || {
            let (waker, wakee) = UnixStream::pair()?;
            waker.set_nonblocking(true)?;
            wakee.set_nonblocking(true)?;
            Ok((waker, wakee))
        };
        let (waker, wakee) = pair().context(|| "cannot make a socket pair".into())?;
        Ok(Arc::new(Self {
            state: Mutex::default(),
            asks: Mutex::new(Asks { running: false, queue: VecDeque::new() }),
            waker,
            wakee,
            mtu: pd.limits()?.active_mtu,
            pd: Arc::clone(pd),
            channel: Arc::clone(channel),
        }))
    }

    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Readable when a worker has asked for something.
    pub fn wake_fd(&self) -> RawFd {
        self.wakee.as_raw_fd()
    }

    /// Takes in a worker; returns its number here.
    pub fn attach(&self, side: WorkerSide) -> usize {
        let mut state = lock(&self.state);
        state.workers.push(Some(side));
        // Each connection is failed, retired and discarded at most once; workers put that in
        // without allocating.
        let places: usize = state.workers.iter().flatten().map(|w| w.generations.len()).sum();
        let worker = state.workers.len() - 1;
        drop(state);
        let mut asks = lock(&self.asks);
        let more = (3 * places).saturating_sub(asks.queue.len());
        asks.queue.reserve(more);
        worker
    }

    /// Takes no more connections for a worker. What was on its way is in its mailbox after this.
    pub fn close(&self, worker: usize) {
        if let Some(side) = &lock(&self.state).workers[worker] {
            side.port.closed.store(true, Ordering::Relaxed);
        }
    }

    /// Forgets a worker after its last connection has been destroyed. What it has asked for is
    /// done here, or awaited where the control thread is at it.
    pub fn finish(&self, worker: usize) {
        loop {
            self.serve();
            let mut state = lock(&self.state);
            if state.entries.values().all(|entry| entry.worker != worker) {
                state.workers[worker] = None;
                return;
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Does what a worker asks: at once, or on the control thread while that runs.
    pub fn ask(&self, ask: Ask) {
        let mut asks = lock(&self.asks);
        if !asks.running {
            drop(asks);
            return self.handle(ask);
        }
        asks.queue.push_back(ask);
        drop(asks);
        // A full pipe wakes the other side as well.
        let _ = (&self.waker).write(&[1]);
    }

    /// Marks the control thread as running or ended; what was asked for until then is done.
    pub fn set_running(&self, running: bool) {
        lock(&self.asks).running = running;
        self.serve();
    }

    /// Does what workers have asked for.
    pub fn serve(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.wakee).read(&mut bytes), Ok(64)) {}
        loop {
            let Some(ask) = lock(&self.asks).queue.pop_front() else { return };
            self.handle(ask);
        }
    }

    fn handle(&self, ask: Ask) {
        log::trace!("asked to {ask:?}");
        match ask {
            Ask::Fail(key) => self.fail(key),
            Ask::Retire(mut conn) => {
                let over = conn.is_drained() && !conn.has_slots();
                match self.retire(&mut conn) {
                    (destroyed, Some(port)) if !over => {
                        port.mailbox.put(ToWorker::Destroyed(conn, destroyed));
                    }
                    _ => self.discard(&conn),
                }
            }
            Ask::Discard(conn) => self.discard(&conn),
        }
    }

    /// Frees the entries that a connection had claimed of the CQ: none of its completions is
    /// there any more.
    fn discard(&self, conn: &Conn) {
        if let Some(side) = &mut lock(&self.state).workers[conn.worker] {
            side.budget += server_completions(conn.credits, side.reads);
        }
    }

    /// Moves a connection's QP to ERR; the worker sees its posted work flushed.
    fn fail(&self, key: usize) {
        if let Some(entry) = lock(&self.state).entries.get(&key) {
            if let Err(e) = entry.qp.fail() {
                log::warn!("cannot move a queue pair to ERR: {e}");
            }
            // Fails where the peer has left already.
            let _ = entry.id.disconnect();
        }
    }

    /// Destroys a connection's QP and id. True if the hardware is proven done with its slots.
    pub fn retire(&self, conn: &mut Conn) -> (bool, Option<Arc<Port>>) {
        let mut state = lock(&self.state);
        if let Some(entry) = state.entries.remove(&conn.cm) {
            let _ = entry.id.disconnect();
        }
        // The entry's share of the QP is gone, so this one is the last.
        let destroyed = match conn.qp.take().and_then(Arc::into_inner).map(Qp::destroy) {
            Some(Ok(())) => true,
            Some(Err(e)) => {
                log::warn!("cannot destroy a queue pair, its slots are leaked: {e}");
                false
            }
            None => false,
        };
        let port = state.workers[conn.worker].as_mut().map(|side| {
            // A QP that lives on may still write to the place's messages.
            if destroyed {
                side.places.push(conn.id.index);
            }
            Arc::clone(&side.port)
        });
        (destroyed, port)
    }

    /// Acts on an event of rdma_cm.
    ///
    /// # Errors
    ///
    /// `Device` where the device is removed: no connection can be served any more.
    pub fn on_event(&self, event: CmEvent, listener: usize) -> Result<()> {
        log::trace!("rdma_cm: {:?}, status {}", event.what, event.status);
        match event.what {
            What::ConnectRequest => self.on_request(event),
            What::Disconnected => {
                if let Some(entry) = lock(&self.state).entries.get(&event.key) {
                    entry.qp.note_peer_left();
                }
                self.fail(event.key);
            }
            What::Failed(_) | What::Rejected => {
                log::debug!("{}", event.failure("a client did not finish connecting").report());
                self.fail(event.key);
            }
            What::DeviceRemoval => {
                self.fail(event.key);
                if event.key == listener || event.key == self.pd.id().key() {
                    return Err(self.device_lost("was removed"));
                }
            }
            What::AddrChange => log::warn!("the address of a connection moved to another device"),
            _ => {}
        }
        Ok(())
    }

    /// Acts on what the device reports by itself.
    ///
    /// # Errors
    ///
    /// `Device` where the device has failed.
    pub fn on_async(&self, event: AsyncEvent) -> Result<()> {
        let name = self.pd.id().device_name().unwrap_or_default();
        match event {
            AsyncEvent::QpFatal(qp) => {
                let state = lock(&self.state);
                let key = state.entries.iter().find(|(_, entry)| entry.qp.key() == qp);
                let key = key.map(|(key, _)| *key);
                drop(state);
                key.into_iter().for_each(|key| self.fail(key));
            }
            AsyncEvent::CqError => log::error!("{name}: a completion queue lost completions"),
            AsyncEvent::PortDown(port) => log::warn!("{name} port {port}: the link is down"),
            AsyncEvent::PortUp(port) => log::info!("{name} port {port}: the link is up"),
            AsyncEvent::DeviceFatal => return Err(self.device_lost("failed")),
            AsyncEvent::Other => {}
        }
        Ok(())
    }

    fn device_lost(&self, how: &str) -> Error {
        let keys: Vec<_> = lock(&self.state).entries.keys().copied().collect();
        keys.into_iter().for_each(|key| self.fail(key));
        let name = self.pd.id().device_name().unwrap_or_default();
        Error::new(Kind::Device, format!("the RDMA device {name} {how}"))
            .remedy("see the kernel's log (dmesg); start the server again when it is back")
    }

    fn on_request(&self, event: CmEvent) {
        let sizes = Sizes::decode(event.private());
        let Some(id) = event.new_id.map(|id| id.kept_by(&self.channel)) else { return };
        let peer = id.peer_addr();
        let accepted = match sizes {
            Ok(_) if id.context().ok() != self.pd.id().context().ok() => {
                log::warn!("{peer} came by {}, which is not served", id.label());
                Err((id, Reason::Full))
            }
            Ok(sizes) if sizes.probe.addr == 0 => Err((id, Reason::Value)),
            Ok(sizes) => self.accept(id, sizes),
            Err(reason) => Err((id, reason)),
        };
        if let Err((id, reason)) = accepted {
            log::info!("{peer} is refused: {reason}");
            if let Err(e) = id.reject(Reject::new(reason).as_bytes()) {
                log::debug!("cannot refuse {peer}: {e}");
            }
        }
    }

    /// Makes the QP of a new connection, accepts it, and hands it to the next worker with room.
    fn accept(&self, id: CmId, asked: Sizes) -> Result<(), (CmId, Reason)> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let count = state.workers.len();
        let (mut chosen, mut open) = (None, false);
        // The one that it asks for, if that has room; else the next.
        let wanted = state.workers.iter().position(|side| {
            side.as_ref().is_some_and(|side| side.config.worker == usize::from(asked.worker))
        });
        for at in wanted.into_iter().chain((0..count).map(|k| (state.next + k) % count)) {
            let Some(side) = &state.workers[at] else { continue };
            if side.port.closed.load(Ordering::Relaxed) {
                continue;
            }
            open = true;
            let credits = asked.credits.min(side.config.credits);
            if !side.places.is_empty() && side.budget >= server_completions(credits, side.reads) {
                chosen = Some((at, credits));
                break;
            }
        }
        let Some((worker, credits)) = chosen else {
            return Err((id, if open { Reason::Full } else { Reason::Stopping }));
        };
        if wanted != Some(worker) {
            state.next = worker + 1;
        }
        let side = state.workers[worker].as_mut().expect("chosen above");
        let index = *side.places.last().expect("has a place, seen above");
        side.generations[index as usize] = side.generations[index as usize].wrapping_add(1);
        let conn_id = ConnId { index, generation: side.generations[index as usize] };
        let (conn, mtu) = match self.build(&id, side, (worker, conn_id), credits, asked) {
            Ok(built) => built,
            Err(e) => {
                log::warn!("{} cannot be served: {}", id.peer_addr(), e.report());
                return Err((id, Reason::Full));
            }
        };
        side.places.pop();
        side.budget -= server_completions(credits, side.reads);
        let reads = conn.pulling.len() as u8;
        let qp = Arc::clone(conn.qp.as_ref().expect("just made"));
        let max_payload = asked.max_payload.min(side.config.max_payload);
        let (probe, number) = (ProbeWord::default(), side.config.worker as u16);
        let granted = Sizes { credits, max_payload, mtu: mtu as u8, worker: number, probe };
        log::debug!(
            "{} connects to worker {}: {credits} credits, path MTU {}",
            id.peer_addr(),
            side.config.worker,
            mtu_bytes(mtu)
        );
        // The worker must have it before the client can speak.
        side.port.mailbox.put(ToWorker::New(Box::new(conn)));
        if let Err(e) = id.accept(qp.number(), &granted.encode(), reads) {
            log::warn!("cannot accept {}: {e}", id.peer_addr());
            // The worker sees the flush, and retires the connection.
            let _ = qp.fail();
        }
        state.entries.insert(id.key(), Entry { id, qp, worker });
        Ok(())
    }

    /// A connection whose QP is ready, and its path MTU.
    fn build(
        &self,
        id: &CmId,
        side: &WorkerSide,
        (worker, conn_id): (usize, ConnId),
        credits: u16,
        asked: Sizes,
    ) -> Result<(Conn, u32)> {
        let config = &side.config;
        let spec = QpSpec {
            sends: server_sends(credits, side.reads),
            receives: receives(credits),
            peer: Peer::Client,
            reads: side.reads,
        };
        let qp = Qp::new(&self.pd, &side.cq, &side.messages, spec)?;
        let doing = || format!("cannot set up a queue pair for {}", id.peer_addr());
        qp.initialise(id).context(doing)?;
        let mut welcome = config.welcome;
        welcome.credits = credits.into();
        welcome.max_payload = welcome.max_payload.get().min(config.max_payload).into();
        let mut conn = Conn {
            id: conn_id,
            worker,
            cm: id.key(),
            qp: Some(Arc::new(qp)),
            credits,
            phase: Phase::Handshake,
            handshake: ServerHandshake::new(config.token.current(), nonce()?, welcome),
            deadline: Instant::now() + config.handshake_timeout,
            messages: conn_id.index as usize * messages_per_conn(config.credits),
            receives: 0,
            sends: 0,
            ids: IdTable::new(credits.into()),
            sending: (0..credits).map(|_| None).collect(),
            free: (0..credits).rev().collect(),
            pending: VecDeque::with_capacity(credits.into()),
            probe: asked.probe,
            pulling: Vec::new(),
            pulls: VecDeque::with_capacity(if side.reads > 0 { credits.into() } else { 0 }),
            heard: false,
            dirty: false,
        };
        for entry in 0..receives(credits) as u16 {
            conn.post_receive(entry).context(doing)?;
        }
        let mtu = self.mtu.min(asked.mtu.into());
        let (mtu, reads) = conn.qp().make_ready(id, mtu).context(doing)?;
        conn.pulling = (0..reads).map(|_| None).collect();
        Ok((conn, mtu))
    }
}
