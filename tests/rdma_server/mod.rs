//! A server for the tests: one worker that answers from RAM with a pattern.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace::fabric::rdma::{RdmaListener, device};
use millrace::fabric::{Closed, Endpoint, EndpointConfig, Event, Listener, Response};
use millrace::host::Root;
use millrace::memory::{Arena, ArenaSpec, Pages, SlotPool, seal};
use millrace::wire::{CheckMode, Completion, Status, Welcome};

const SLOT: usize = 1 << 20;
const SLOTS: usize = 24;

/// Size in bytes of the server's arena.
pub const ARENA: usize = SLOT * SLOTS;

/// How the server behaves.
#[derive(Clone, Copy)]
pub struct Options {
    pub connections: usize,
    pub credits: u16,
    pub token: Option<&'static str>,
    /// The worker promises to allocate nothing.
    pub sealed: bool,
    /// Requests are never answered.
    pub mute: bool,
    /// Drops the endpoint after this many answers were handed to the hardware; 0 for never.
    pub drop_after: u64,
}

impl Default for Options {
    fn default() -> Self {
        let (connections, credits) = (16, 32);
        Self { connections, credits, token: None, sealed: false, mute: false, drop_after: 0 }
    }
}

/// What is seen from outside while it runs.
#[derive(Default)]
pub struct Stats {
    pub requests: AtomicU64,
    pub closed: Mutex<Vec<Closed>>,
}

/// What is left at the end.
#[derive(Debug, Default)]
pub struct End {
    pub slots_missing: usize,
    pub leaked: u64,
    pub connections: u32,
    pub sealed_allocations: u64,
    pub closed: Vec<Closed>,
    pub arena_holders: usize,
}

pub struct Server {
    pub address: String,
    pub stats: Arc<Stats>,
    stop: Arc<AtomicBool>,
    stop_worker: Arc<AtomicBool>,
    threads: Option<(JoinHandle<()>, JoinHandle<End>)>,
}

/// The IPv4 address of the first RDMA device.
pub fn device_address() -> Option<IpAddr> {
    let devices = device::list(&Root::system()).unwrap();
    let gids = devices.iter().flat_map(|d| &d.ports).flat_map(|port| &port.gids);
    gids.map(device::Gid::ip).find(IpAddr::is_ipv4)
}

/// The bytes at `offset` of every drive.
pub fn fill(offset: u64, into: &mut [u8]) {
    for (at, chunk) in into.chunks_mut(8).enumerate() {
        let word = (offset + 8 * at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "no {what} within 30 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Server {
    pub fn start(address: IpAddr, options: Options) -> Self {
        let _ = env_logger::builder().format_timestamp_millis().try_init();
        let stats = Arc::new(Stats::default());
        stats.closed.lock().unwrap().reserve(64);
        let (stop, stop_worker) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let listener = Arc::new(RdmaListener::bind(SocketAddr::new(address, 0)).unwrap());
        let local = listener.local_addr().to_string();
        let (ready, is_ready) = mpsc::channel();
        let worker = {
            let (listener, stats) = (Arc::clone(&listener), Arc::clone(&stats));
            let stop = Arc::clone(&stop_worker);
            std::thread::spawn(move || work(&listener, options, &stats, &stop, &ready))
        };
        is_ready.recv().unwrap();
        let control = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || listener.run(&stop).unwrap())
        };
        Self { address: local, stats, stop, stop_worker, threads: Some((control, worker)) }
    }

    pub fn stop(mut self) -> End {
        // Lets the worker see the connections that the clients have just closed.
        std::thread::sleep(Duration::from_millis(300));
        let (control, worker) = self.threads.take().unwrap();
        self.stop_worker.store(true, Ordering::Relaxed);
        let end = worker.join().unwrap();
        self.stop.store(true, Ordering::Relaxed);
        control.join().unwrap();
        End { closed: self.stats.closed.lock().unwrap().clone(), ..end }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_worker.store(true, Ordering::Relaxed);
        self.stop.store(true, Ordering::Relaxed);
        if let Some((control, worker)) = self.threads.take() {
            let _ = (control.join(), worker.join());
        }
    }
}

fn work(
    listener: &RdmaListener,
    options: Options,
    stats: &Stats,
    stop: &AtomicBool,
    ready: &mpsc::Sender<()>,
) -> End {
    let spec = ArenaSpec { bytes: ARENA, pages: Pages::Base, node: None };
    let arena = Arc::new(Arena::map(&spec).unwrap());
    let mut pool = SlotPool::new(Arc::clone(&arena), SLOT, SLOTS).unwrap();
    let config = EndpointConfig {
        worker: 0,
        max_connections: options.connections,
        credits: options.credits,
        max_payload: SLOT as u32,
        pulls: 0,
        token: options.token.map(|text| Arc::from(text.as_bytes())).into(),
        welcome: Welcome::new("test", CheckMode::None, 1, 1 << 40, SLOT as u32, 1024, 0),
        handshake_timeout: Duration::from_secs(10),
    };
    let mut endpoint = listener.endpoint(config, &arena).unwrap();
    ready.send(()).unwrap();
    let mut events = Vec::with_capacity(64);
    let mut waiting = std::collections::VecDeque::with_capacity(65_536);
    let mut answered = 0;
    if options.sealed {
        seal::seal();
    }
    let before = seal::sealed_allocations();
    while !stop.load(Ordering::Relaxed) {
        endpoint.poll(&mut events);
        if events.is_empty() {
            std::thread::yield_now();
        }
        for event in events.drain(..) {
            match event {
                Event::Request(conn, request) => {
                    stats.requests.fetch_add(1, Ordering::Relaxed);
                    if !options.mute {
                        waiting.push_back((conn, request));
                    }
                }
                Event::Sent { slot, .. } => slot.into_iter().for_each(|slot| pool.release(slot)),
                Event::Closed(_, why) => stats.closed.lock().unwrap().push(why),
                Event::Opened(_) => {}
                Event::Pulled { .. } => unreachable!("nothing is pulled here"),
            }
        }
        while let Some((conn, request)) = waiting.front() {
            let mut record = Completion::new(request.id.get(), Status::Ok, 0);
            let slot = match request.drive.get() {
                1 => {
                    record = Completion::new(request.id.get(), Status::NoDrive, 0);
                    None
                }
                drive => {
                    let Some(mut slot) = pool.acquire() else { break };
                    if drive == 0 {
                        let bytes = slot.bytes_mut(request.length.get() as usize);
                        fill(request.offset.get(), bytes);
                    }
                    record.length = request.length;
                    Some(slot)
                }
            };
            let response = Response {
                slot,
                start: 0,
                len: record.length.get(),
                remote_addr: request.remote_addr.get(),
                rkey: request.rkey.get(),
                record,
                tag: request.id.get(),
            };
            endpoint.respond(*conn, response);
            waiting.pop_front();
            answered += 1;
        }
        endpoint.flush();
        if options.drop_after > 0 && answered >= options.drop_after {
            break;
        }
    }
    seal::unseal();
    let end = End {
        slots_missing: pool.count() - pool.available(),
        leaked: endpoint.leaked(),
        connections: endpoint.connections(),
        sealed_allocations: seal::sealed_allocations() - before,
        ..End::default()
    };
    drop((endpoint, pool));
    End { arena_holders: Arc::strong_count(&arena), ..end }
}
