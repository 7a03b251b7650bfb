//! A server and a client of any fabric, for the tests of both.

// Each test program uses its own part of this.
#![allow(dead_code)]

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace::Result;
use millrace::fabric::rdma::{RdmaChannel, RdmaConfig, RdmaListener, device};
use millrace::fabric::tcp::{TcpChannel, TcpListener, TcpOptions};
use millrace::fabric::{
    Arrival, Channel, Closed, ConnId, ConnectConfig, Endpoint, EndpointConfig, Event, Listener,
    Response,
};
use millrace::host::Root;
use millrace::memory::{Arena, ArenaSpec, Pages, Slot, SlotPool, seal};
use millrace::wire::{CheckMode, Completion, OpCode, Request, Status, Welcome};

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

/// A wait that ends in a failure instead of a hang.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn pool(count: usize) -> SlotPool {
    let bytes = SlotPool::bytes_needed(SLOT, count);
    let arena = Arena::map(&ArenaSpec { bytes, pages: Pages::Base, node: None }).unwrap();
    SlotPool::new(Arc::new(arena), SLOT, count).unwrap()
}

pub fn endpoint_config() -> EndpointConfig {
    EndpointConfig {
        worker: 0,
        max_connections: 64,
        credits: CREDITS,
        max_payload: SLOT as u32,
        token: None.into(),
        welcome: Welcome::new("mem", CheckMode::None, 1, 1 << 30, SLOT as u32, CREDITS, 0),
        // Longer than soft-RoCE in a slow guest takes to repeat a lost packet a few times.
        handshake_timeout: Duration::from_secs(10),
    }
}

pub fn connect_config() -> ConnectConfig {
    ConnectConfig {
        credits: CREDITS,
        max_payload: SLOT as u32,
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
    /// Answers every third request with an error record.
    Faulty,
}

/// What a server has seen.
#[derive(Debug, Default)]
pub struct Log {
    pub opened: Vec<ConnId>,
    pub closed: Vec<(ConnId, Closed)>,
    pub sent: u64,
    pub undelivered: u64,
    pub requests: u64,
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

fn answer(request: &Request, n: u64, manner: Manner, slot: Slot) -> Response {
    let id = request.id.get();
    let fails = manner == Manner::Faulty && n.is_multiple_of(3);
    let status = if fails { Status::OutOfRange } else { Status::Ok };
    let mut record = Completion::new(id, status, if fails { 7 } else { 0 });
    let len = if fails { 0 } else { request.length.get() };
    record.length = len.into();
    let mut slot = slot;
    fill(request.offset.get(), slot.bytes_mut(len as usize));
    let (remote_addr, rkey) = (request.remote_addr.get(), request.rkey.get());
    Response { slot: Some(slot), len, remote_addr, rkey, record, tag: n }
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
                    assert!(request.op().is_ok_and(|op| op == OpCode::Read));
                    waiting.push_back((conn, request));
                }
                Event::Sent { conn, tag, slot, delivered } => {
                    assert_eq!(outstanding.remove(&tag), Some(conn), "each Sent comes once");
                    log.sent += 1;
                    log.undelivered += u64::from(!delivered);
                    pool.release(slot.expect("no slot is leaked"));
                }
                Event::Closed(conn, why) => {
                    log.closed.push((conn, why));
                    let _ = report.send((conn, Some(why)));
                }
            }
        }
        if manner != Manner::Mute {
            while batch.len() < batch.capacity() && !waiting.is_empty() {
                let Some(slot) = pool.acquire() else { break };
                let (conn, request) = waiting.pop_front().expect("looked");
                outstanding.insert(next_tag, conn);
                batch.push((conn, answer(&request, next_tag, manner, slot)));
                next_tag += 1;
            }
            if manner == Manner::Reverse {
                batch.reverse();
            }
            if !batch.is_empty() {
                batch.drain(..).for_each(|(conn, response)| endpoint.respond(conn, response));
                endpoint.flush();
            }
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
            }
        }
    }
    assert!(outstanding.is_empty());
    assert_eq!(endpoint.leaked(), 0);
    log.slots_left = pool.available();
    log
}

/// A channel with its slots.
pub struct Client<C> {
    pub channel: C,
    pub pool: SlotPool,
    offsets: HashMap<u64, (u64, u32)>,
    next: u64,
    out: Vec<Arrival>,
    pub errors: u64,
}

impl<C: Channel> Client<C> {
    pub fn connect<F: Fabric<Channel = C>>(to: SocketAddr) -> Self {
        let pool = pool(CREDITS as usize + 1);
        let channel = F::connect(to, &connect_config(), &pool).unwrap();
        let offsets = HashMap::with_capacity(64);
        Self { channel, pool, offsets, next: 1, out: Vec::with_capacity(4), errors: 0 }
    }

    /// Submits one read; false if the credits are used up.
    pub fn submit(&mut self, length: u32) -> bool {
        let Some(slot) = self.pool.acquire() else { return false };
        let offset = self.next * 4096;
        match self.channel.submit(Request::read(self.next, 0, offset, length), slot) {
            Ok(()) => {
                self.offsets.insert(self.next, (offset, length));
                self.next += 1;
                true
            }
            Err(slot) => {
                self.pool.release(slot);
                false
            }
        }
    }

    /// Takes in what has arrived, and verifies it.
    pub fn poll(&mut self) -> Result<usize> {
        let n = self.channel.poll(&mut self.out)?;
        for arrival in self.out.drain(..) {
            let id = arrival.record.id.get();
            let (offset, length) = self.offsets.remove(&id).expect("answered once");
            let slot = arrival.slot.expect("nothing is leaked");
            if arrival.record.status() == Status::Ok {
                assert_eq!(arrival.record.length.get(), length);
                assert_filled(offset, slot.bytes(length as usize));
            } else {
                assert_eq!(arrival.record.length.get(), 0);
                self.errors += 1;
            }
            self.pool.release(slot);
        }
        Ok(n)
    }

    /// Reads `count` times with the credits used to the full; `length` of the n-th read.
    pub fn run(&mut self, count: u64, length: impl Fn(u64) -> u32) {
        let until = Instant::now() + PATIENCE;
        let (mut asked, mut got) = (0, 0);
        while got < count {
            assert!(Instant::now() < until, "{got} of {count} answers came");
            while asked < count && self.submit(length(asked)) {
                asked += 1;
            }
            self.channel.flush().unwrap();
            let n = self.poll().unwrap();
            got += n as u64;
            if n == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!(self.channel.in_flight(), 0);
    }

    /// Ends it and counts the slots, all of which must be there.
    pub fn abandon(mut self) -> usize {
        let ids: Vec<_> = self.channel.abandon();
        let given = ids.len();
        for (id, slot) in ids {
            self.offsets.remove(&id).expect("a request in flight");
            self.pool.release(slot.expect("nothing is leaked"));
        }
        assert_eq!(self.pool.available(), self.pool.count(), "every landing slot is back");
        given
    }
}
