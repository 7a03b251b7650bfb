//! A server and a client of any fabric, for the tests of both.

// Each test program uses its own part of this.
#![allow(dead_code)]

mod client;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use client::Client;
use millrace::Result;
use millrace::fabric::rdma::{RdmaChannel, RdmaConfig, RdmaListener, device};
use millrace::fabric::tcp::{TcpChannel, TcpListener, TcpOptions};
use millrace::fabric::{
    Channel, Closed, ConnId, ConnectConfig, Endpoint, EndpointConfig, Event, Listener, Pull,
    Response,
};
use millrace::host::Root;
use millrace::memory::{Arena, ArenaSpec, Pages, Slot, SlotPool, seal};
use millrace::wire::{
    ANY_WORKER, CheckMode, Completion, PUT_PREFIX, Request, Status, StoreInfo, Welcome,
};

/// How one fabric is reached.
pub trait Fabric: Send + Sync + 'static {
    type Listener: Listener<Endpoint: 'static> + Sync + 'static;
    type Channel: Channel;

    fn listen() -> Result<Self::Listener>;
    fn connect(to: SocketAddr, config: &ConnectConfig, pool: &SlotPool) -> Result<Self::Channel>;
}

/// TCP over loopback.
pub struct Tcp;

impl Fabric for Tcp {
    type Listener = TcpListener;
    type Channel = TcpChannel;

    fn listen() -> Result<TcpListener> {
        TcpListener::bind("127.0.0.1:0".parse().unwrap(), TcpOptions::default())
    }

    fn connect(to: SocketAddr, config: &ConnectConfig, _: &SlotPool) -> Result<TcpChannel> {
        TcpChannel::connect(to, config)
    }
}

/// RDMA on the first device, from an address to the same.
pub struct Rdma;

impl Fabric for Rdma {
    type Listener = RdmaListener;
    type Channel = RdmaChannel;

    fn listen() -> Result<RdmaListener> {
        RdmaListener::bind(SocketAddr::new(rdma_address().expect("an RDMA device"), 0))
    }

    fn connect(to: SocketAddr, config: &ConnectConfig, pool: &SlotPool) -> Result<RdmaChannel> {
        RdmaChannel::connect(to, config, RdmaConfig::default(), pool.arena())
    }
}

/// An IPv4 address of the first RDMA device that has one.
pub fn rdma_address() -> Option<IpAddr> {
    let devices = device::list(&Root::system()).unwrap();
    let gids = devices.iter().flat_map(|d| &d.ports).flat_map(|port| &port.gids);
    gids.map(device::Gid::ip).find(IpAddr::is_ipv4)
}

pub const SLOT: usize = 64 << 10;
pub const SLOTS: usize = 64;
pub const CREDITS: u16 = 16;

/// Longest data of a put, and where the server pulls the body to.
pub const BODY: u32 = SLOT as u32 - 4096;
const BODY_START: u32 = 4096 - PUT_PREFIX as u32;

/// A wait that ends in a failure instead of a hang.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn pool(count: usize) -> SlotPool {
    let bytes = SlotPool::bytes_needed(SLOT, count);
    let arena = Arena::map(&ArenaSpec { bytes, pages: Pages::Base, node: None }).unwrap();
    SlotPool::new(Arc::new(arena), SLOT, count).unwrap()
}

pub fn endpoint_config() -> EndpointConfig {
    let store = StoreInfo { uuid: [7; 16], object_limit: BODY, writable: true };
    EndpointConfig {
        worker: 0,
        max_connections: 64,
        credits: CREDITS,
        max_payload: SLOT as u32,
        // Fewer than the credits, so that pulls wait for each other.
        pulls: 4,
        token: None.into(),
        welcome: Welcome::new("mem", CheckMode::None, 1, 1 << 30, SLOT as u32, CREDITS, 0)
            .with_store(&store),
        // Longer than soft-RoCE in a slow guest takes to repeat a lost packet a few times.
        handshake_timeout: Duration::from_secs(10),
    }
}

pub fn connect_config() -> ConnectConfig {
    ConnectConfig {
        credits: CREDITS,
        max_payload: SLOT as u32,
        worker: ANY_WORKER,
        token: None,
        timeout: Duration::from_secs(20),
    }
}

/// The bytes at `offset` of the served drive, 8 at a time.
pub fn fill(offset: u64, bytes: &mut [u8]) {
    for (n, chunk) in bytes.chunks_mut(8).enumerate() {
        let word = (offset + n as u64 * 8).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

pub fn assert_filled(offset: u64, bytes: &[u8]) {
    let mut expected = [0; 4096];
    for (n, part) in bytes.chunks(4096).enumerate() {
        fill(offset + n as u64 * 4096, &mut expected[..part.len()]);
        assert!(part == &expected[..part.len()], "wrong bytes at {offset} + {}", n * 4096);
    }
}

/// How the server treats requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Answers at once, in order.
    Prompt,
    /// Answers what came in one poll in reverse.
    Reverse,
    /// Answers nothing.
    Mute,
    /// Answers every third request with an error record, and if it has a body without pulling it.
    Faulty,
    /// Closes the connection of a request with a body, and only then pulls.
    Late,
    /// Pulls, and then closes the connection of every fourth body.
    Cutting,
}

/// What a server has seen.
#[derive(Debug, Default)]
pub struct Log {
    pub opened: Vec<ConnId>,
    pub closed: Vec<(ConnId, Closed)>,
    pub sent: u64,
    pub undelivered: u64,
    pub requests: u64,
    pub pulled: u64,
    pub cut_off: u64,
    pub slots_left: usize,
}

enum Order {
    Close(ConnId),
    Seal(bool),
    Refuse,
}

pub struct Server {
    pub addr: SocketAddr,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<Log>>,
    listener: Option<JoinHandle<()>>,
    orders: mpsc::Sender<Order>,
    done: mpsc::Receiver<()>,
    pub events: mpsc::Receiver<(ConnId, Option<Closed>)>,
}

impl Server {
    pub fn start<F: Fabric>(config: EndpointConfig, manner: Manner) -> Self {
        Self::serve(F::listen().unwrap(), config, manner)
    }

    pub fn serve<L>(listener: L, config: EndpointConfig, manner: Manner) -> Self
    where
        L: Listener<Endpoint: 'static> + Sync + 'static,
    {
        let listener = Arc::new(listener);
        let addr = listener.local_addr();
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = mpsc::channel();
        let (orders, inbox) = mpsc::channel();
        let (report, events) = mpsc::channel();
        let (did, done) = mpsc::channel();
        let worker = {
            let (listener, stop) = (Arc::clone(&listener), Arc::clone(&stop));
            std::thread::spawn(move || {
                let pool = pool(SLOTS);
                let endpoint = listener.endpoint(config, pool.arena()).unwrap();
                ready.send(()).unwrap();
                work(endpoint, pool, manner, &stop, &Lines { orders: inbox, done: did, report })
            })
        };
        is_ready.recv_timeout(PATIENCE).unwrap();
        let listener = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || listener.run(&stop).unwrap())
        };
        Self { addr, stop, worker: Some(worker), listener: Some(listener), orders, done, events }
    }

    /// The next opening (`None`) or end of a connection.
    pub fn event(&self) -> (ConnId, Option<Closed>) {
        self.events.recv_timeout(PATIENCE).expect("the server reports a connection")
    }

    pub fn opened(&self) -> ConnId {
        let (conn, end) = self.event();
        assert_eq!(end, None);
        conn
    }

    pub fn ended(&self) -> Closed {
        loop {
            if let (_, Some(why)) = self.event() {
                return why;
            }
        }
    }

    pub fn close(&self, conn: ConnId) {
        self.orders.send(Order::Close(conn)).unwrap();
    }

    /// Seals the worker or takes that back, and waits until it has happened.
    pub fn seal(&self, on: bool) {
        self.orders.send(Order::Seal(on)).unwrap();
        self.done.recv_timeout(PATIENCE).unwrap();
    }

    pub fn refuse_new(&self) {
        self.orders.send(Order::Refuse).unwrap();
    }

    pub fn stop(mut self) -> Log {
        self.halt().expect("stopped once")
    }

    fn halt(&mut self) -> Option<Log> {
        self.stop.store(true, Ordering::Release);
        let log = self.worker.take()?.join().unwrap();
        self.listener.take()?.join().unwrap();
        Some(log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.halt();
        }
    }
}

fn fails(n: u64, manner: Manner) -> bool {
    manner == Manner::Faulty && n.is_multiple_of(3)
}

fn pull(request: &Request, tag: u64, slot: Slot) -> Pull {
    let (id, len) = (request.id.get(), request.body() as u32);
    let (remote_addr, rkey) = (request.remote_addr.get(), request.rkey.get());
    Pull { slot, start: BODY_START, len, id, remote_addr, rkey, tag }
}

fn answer(request: &Request, n: u64, manner: Manner, slot: Slot) -> Response {
    let id = request.id.get();
    let fails = fails(n, manner);
    let status = if fails { Status::OutOfRange } else { Status::Ok };
    let mut record = Completion::new(id, status, if fails { 7 } else { 0 });
    let len = if fails { 0 } else { request.most() };
    record.length = len.into();
    // As far into the slot as it goes, up to the place of an object's data.
    let mut slot = slot;
    let start = (SLOT - len as usize).min(4096);
    fill(request.offset.get(), &mut slot.bytes_mut(start + len as usize)[start..]);
    let (remote_addr, rkey) = (request.remote_addr.get(), request.rkey.get());
    Response { slot: Some(slot), start: start as u32, len, remote_addr, rkey, record, tag: n }
}

/// The worker's ends of what joins it to the test.
struct Lines {
    orders: mpsc::Receiver<Order>,
    done: mpsc::Sender<()>,
    report: mpsc::Sender<(ConnId, Option<Closed>)>,
}

fn work<E: Endpoint>(
    mut endpoint: E,
    mut pool: SlotPool,
    manner: Manner,
    stop: &AtomicBool,
    lines: &Lines,
) -> Log {
    let Lines { orders, done, report } = lines;
    let mut log = Log::default();
    let mut events = Vec::with_capacity(16);
    let mut waiting: VecDeque<(ConnId, Request)> = VecDeque::with_capacity(4096);
    let mut outstanding: HashMap<u64, ConnId> = HashMap::with_capacity(4096);
    let mut pulling: HashMap<u64, (ConnId, Request)> = HashMap::with_capacity(4096);
    let mut batch = Vec::with_capacity(64);
    let mut next_tag = 0;
    let mut turn = 0u32;
    while !stop.load(Ordering::Acquire) {
        turn = turn.wrapping_add(1);
        if turn.is_multiple_of(64) {
            match orders.try_recv() {
                Ok(Order::Close(conn)) => endpoint.close(conn),
                Ok(Order::Refuse) => endpoint.refuse_new(),
                Ok(Order::Seal(sealed)) => {
                    if sealed {
                        seal::seal()
                    } else {
                        seal::unseal()
                    }
                    done.send(()).expect("the test waits for it");
                }
                Err(_) => std::thread::yield_now(),
            }
        }
        endpoint.poll(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Opened(conn) => {
                    log.opened.push(conn);
                    let _ = report.send((conn, None));
                }
                Event::Request(conn, request) => {
                    log.requests += 1;
                    waiting.push_back((conn, request));
                }
                Event::Sent { conn, tag, slot, delivered } => {
                    assert_eq!(outstanding.remove(&tag), Some(conn), "each Sent comes once");
                    log.sent += 1;
                    log.undelivered += u64::from(!delivered);
                    pool.release(slot.expect("no slot is leaked"));
                }
                Event::Pulled { conn, tag, slot, ok } => {
                    let (of, request) = pulling.remove(&tag).expect("each Pulled comes once");
                    assert_eq!(of, conn);
                    let slot = slot.expect("no slot is leaked");
                    if ok {
                        log.pulled += 1;
                        let (start, end) = (BODY_START, BODY_START + request.body() as u32);
                        let body = &slot.bytes(end as usize)[start as usize..];
                        assert_filled(request.id.get() * 4096, body);
                        outstanding.insert(tag, conn);
                        endpoint.respond(conn, answer(&request, tag, Manner::Prompt, slot));
                    } else {
                        log.cut_off += 1;
                        pool.release(slot);
                    }
                }
                Event::Closed(conn, why) => {
                    log.closed.push((conn, why));
                    let _ = report.send((conn, Some(why)));
                }
            }
        }
        endpoint.flush();
        if manner != Manner::Mute {
            while batch.len() < batch.capacity() && !waiting.is_empty() {
                let Some(slot) = pool.acquire() else { break };
                let (conn, request) = waiting.pop_front().expect("looked");
                if request.body() > 0 && !fails(next_tag, manner) {
                    if manner == Manner::Late {
                        endpoint.close(conn);
                    }
                    pulling.insert(next_tag, (conn, request));
                    endpoint.pull(conn, pull(&request, next_tag, slot));
                    if manner == Manner::Cutting && next_tag % 4 == 3 {
                        endpoint.flush();
                        endpoint.close(conn);
                    }
                    next_tag += 1;
                    continue;
                }
                outstanding.insert(next_tag, conn);
                batch.push((conn, answer(&request, next_tag, manner, slot)));
                next_tag += 1;
            }
            if manner == Manner::Reverse {
                batch.reverse();
            }
            batch.drain(..).for_each(|(conn, response)| endpoint.respond(conn, response));
            endpoint.flush();
        }
    }
    seal::unseal();
    // What is in flight comes back when its connection is closed.
    let open = log.opened.clone();
    open.into_iter().for_each(|conn| endpoint.close(conn));
    let until = Instant::now() + PATIENCE;
    while endpoint.in_flight() > 0 || endpoint.connections() > 0 {
        assert!(Instant::now() < until, "{} responses never came back", endpoint.in_flight());
        endpoint.poll(&mut events);
        for event in events.drain(..) {
            if let Event::Sent { conn, tag, slot, delivered } = event {
                assert_eq!(outstanding.remove(&tag), Some(conn), "each Sent comes once");
                log.sent += 1;
                log.undelivered += u64::from(!delivered);
                pool.release(slot.expect("no slot is leaked"));
            } else if let Event::Pulled { tag, slot, .. } = event {
                assert!(pulling.remove(&tag).is_some(), "each Pulled comes once");
                pool.release(slot.expect("no slot is leaked"));
            }
        }
    }
    assert!(outstanding.is_empty() && pulling.is_empty());
    assert_eq!(endpoint.leaked(), 0);
    log.slots_left = pool.available();
    log
}
