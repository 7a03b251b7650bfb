//! The RDMA fabric on a real RDMA device: soft-RoCE in a guest will do
//! (`tests/guest/rdma.sh`). Without a device the program says that it is skipped.

mod rdma_server;
mod support;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millrace::error::Kind;
use millrace::fabric::rdma::{RdmaChannel, RdmaConfig};
use millrace::fabric::{Arrival, Channel, Closed, ConnectConfig};
use millrace::memory::{Arena, ArenaSpec, Pages, SlotPool, seal};
use millrace::wire::{Reason, Request, Status};
use rdma_server::{Options, Server, device_address, fill, wait_until};
use support::{skip, this_test};
use zerocopy::{FromBytes, IntoBytes};

#[global_allocator]
static ALLOCATOR: seal::CountingAllocator = seal::CountingAllocator;

/// A client with its landing slots.
struct Client {
    channel: RdmaChannel,
    pool: SlotPool,
    next: u64,
}

fn arena(bytes: usize) -> Arc<Arena> {
    Arc::new(Arena::map(&ArenaSpec { bytes, pages: Pages::Base, node: None }).unwrap())
}

fn config(credits: u16, token: Option<&str>) -> ConnectConfig {
    ConnectConfig {
        worker: millrace::wire::ANY_WORKER,
        credits,
        max_payload: 1 << 20,
        token: token.map(|text| Arc::from(text.as_bytes())),
        timeout: Duration::from_secs(20),
    }
}

impl Client {
    fn connect(server: &str, credits: u16, slot: usize) -> millrace::Result<Self> {
        Self::with_token(server, credits, slot, None)
    }

    fn with_token(
        server: &str,
        credits: u16,
        slot: usize,
        token: Option<&str>,
    ) -> millrace::Result<Self> {
        let arena = arena(slot * usize::from(credits));
        let address = server.parse().unwrap();
        let config = config(credits, token);
        let channel = RdmaChannel::connect(address, &config, RdmaConfig::default(), &arena)?;
        let pool = SlotPool::new(arena, slot, credits.into()).unwrap();
        Ok(Self { channel, pool, next: 1 })
    }

    /// Submits reads of `length` until slots or credits are used up.
    fn fill_up(&mut self, length: u32, most: u64) {
        while self.next <= most
            && let Some(mut slot) = self.pool.acquire()
        {
            // What is there before must not be taken for what arrives.
            slot.bytes_mut(length as usize).fill(0xEE);
            let request = Request::read(self.next, 0, self.next * 4096, length);
            if let Err(slot) = self.channel.submit(request, slot) {
                self.pool.release(slot);
                return;
            }
            self.next += 1;
        }
    }

    /// Reads `count` times and checks every byte.
    fn read(&mut self, count: u64, length: u32) -> millrace::Result<()> {
        let mut out = Vec::with_capacity(64);
        let mut expected = vec![0; length as usize];
        let (mut done, last) = (0, self.next + count - 1);
        while done < count {
            self.fill_up(length, last);
            self.channel.flush()?;
            self.channel.poll(&mut out)?;
            for Arrival { slot, record } in out.drain(..) {
                let slot = slot.expect("nothing is leaked while the connection is up");
                assert_eq!((record.status(), record.length.get()), (Status::Ok, length));
                fill(record.id.get() * 4096, &mut expected);
                assert!(slot.bytes(length as usize) == expected, "request {}", record.id);
                self.pool.release(slot);
                done += 1;
            }
        }
        Ok(())
    }

    /// Polls until the connection fails.
    fn await_failure(&mut self) -> millrace::Error {
        let mut out = Vec::with_capacity(64);
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Err(e) = self.channel.poll(&mut out) {
                return e;
            }
            out.drain(..).filter_map(|arrival| arrival.slot).for_each(|s| self.pool.release(s));
            assert!(Instant::now() < deadline, "the connection does not fail");
            std::thread::yield_now();
        }
    }

    fn abandon(&mut self) -> usize {
        let back = self.channel.abandon();
        let count = back.len();
        back.into_iter().for_each(|(_, slot)| self.pool.release(slot.expect("not leaked")));
        count
    }
}

/// Says that the running test needs a device.
fn skip_all() {
    skip(&this_test(), "no RDMA device here; tests/guest/rdma.sh runs it");
}

macro_rules! device_or_skip {
    () => {
        match device_address() {
            Some(address) => address,
            None => return skip_all(),
        }
    };
}

#[test]
fn data_is_whole_at_many_in_flight() {
    let address = device_or_skip!();
    let server = Server::start(address, Options { sealed: true, ..Options::default() });
    let mut small = Client::connect(&server.address, 32, 65_536).unwrap();
    assert_eq!(small.channel.welcome().backend_name(), "test");
    small.read(500, 4096).unwrap();
    small.read(100, 65_536).unwrap();
    small.read(50, 1).unwrap();
    let mut large = Client::connect(&server.address, 8, 1 << 20).unwrap();
    large.read(40, 1 << 20).unwrap();
    drop((small, large));
    let end = server.stop();
    assert_eq!((end.slots_missing, end.leaked), (0, 0));
    assert_eq!(end.sealed_allocations, 0, "the worker allocated");
    assert_eq!(end.closed, [Closed::ByPeer, Closed::ByPeer]);
}

#[test]
fn answers_without_payload_and_of_no_length_arrive() {
    let address = device_or_skip!();
    let server = Server::start(address, Options::default());
    let mut client = Client::connect(&server.address, 4, 4096).unwrap();
    let mut out = Vec::with_capacity(4);
    // Drive 1 has errors without payload, length 0 is a payload of no bytes.
    for (id, drive, length) in [(1, 1, 512), (2, 0, 0)] {
        let slot = client.pool.acquire().unwrap();
        client.channel.submit(Request::read(id, drive, 0, length), slot).unwrap();
        client.channel.flush().unwrap();
        wait_until("the answer", || client.channel.poll(&mut out).unwrap() > 0);
        let arrival = out.pop().unwrap();
        let expected = if drive == 1 { Status::NoDrive } else { Status::Ok };
        assert_eq!((arrival.record.status(), arrival.record.length.get()), (expected, 0));
        client.pool.release(arrival.slot.unwrap());
    }
    drop(client);
    assert_eq!(server.stop().slots_missing, 0);
}

#[test]
fn tokens_are_checked() {
    let address = device_or_skip!();
    let token = Some("right");
    let server = Server::start(address, Options { token, ..Options::default() });
    let wrong = Client::with_token(&server.address, 4, 4096, Some("wrong")).err().unwrap();
    assert_eq!(wrong.kind(), Kind::Denied);
    assert!(wrong.what().contains("tokens of the two sides differ"), "{wrong}");
    let none = Client::connect(&server.address, 4, 4096).err().unwrap();
    assert_eq!(none.kind(), Kind::Denied);
    let mut right = Client::with_token(&server.address, 4, 4096, token).unwrap();
    right.read(20, 4096).unwrap();
    drop(right);
    let end = server.stop();
    assert!(end.closed.contains(&Closed::Unauthenticated), "{:?}", end.closed);
}

#[test]
fn a_full_server_says_so_and_recovers() {
    let address = device_or_skip!();
    let options = Options { connections: 2, ..Options::default() };
    let server = Server::start(address, options);
    let first = Client::connect(&server.address, 4, 4096).unwrap();
    let mut second = Client::connect(&server.address, 4, 4096).unwrap();
    let refused = Client::connect(&server.address, 4, 4096).err().unwrap();
    assert_eq!(refused.kind(), Kind::Denied);
    assert!(refused.what().contains("as many connections as it takes"), "{refused}");
    drop(first);
    let mut third = None;
    wait_until("a place", || {
        third = Client::connect(&server.address, 4, 4096).ok();
        third.is_some()
    });
    third.unwrap().read(20, 4096).unwrap();
    second.read(20, 4096).unwrap();
}

#[test]
fn a_client_that_would_overflow_the_cq_is_refused() {
    let address = device_or_skip!();
    let options = Options { connections: 64, credits: 1024, ..Options::default() };
    let server = Server::start(address, options);
    let mut clients = Vec::new();
    let refused = loop {
        match Client::connect(&server.address, 1024, 4096) {
            Ok(client) => clients.push(client),
            Err(e) => break e,
        }
        if clients.len() == 16 {
            const NAME: &str = "a_client_that_would_overflow_the_cq_is_refused";
            return skip(NAME, "this device's completion queues are too large to be filled");
        }
    };
    assert!(refused.what().contains("as many connections"), "{refused}");
    // One that wants less still fits.
    Client::connect(&server.address, 8, 4096).unwrap().read(20, 4096).unwrap();
    clients.iter_mut().for_each(|client| client.read(20, 4096).unwrap());
}

#[test]
fn a_malformed_request_ends_that_connection_alone() {
    let address = device_or_skip!();
    let server = Server::start(address, Options::default());
    let mut other = Client::connect(&server.address, 4, 4096).unwrap();
    let mut client = Client::connect(&server.address, 4, 4096).unwrap();
    let mut bytes = Request::read(1, 0, 0, 512).as_bytes().to_vec();
    bytes[1] = 99;
    let bad = Request::read_from_bytes(&bytes).unwrap();
    let slot = client.pool.acquire().unwrap();
    client.channel.submit(bad, slot).unwrap();
    client.channel.flush().unwrap();
    let error = client.await_failure();
    assert_eq!(error.kind(), Kind::Network, "{error}");
    assert_eq!(client.abandon(), 1);
    assert_eq!(client.pool.available(), 4);
    other.read(50, 4096).unwrap();
    drop((client, other));
    let end = server.stop();
    assert!(end.closed.contains(&Closed::Protocol(Reason::Value)), "{:?}", end.closed);
}

/// Not a test: the client that [`killed_clients_cost_no_slot`] starts and kills.
#[test]
#[ignore = "started by killed_clients_cost_no_slot"]
fn child_client() {
    let Ok(server) = std::env::var("MILLRACE_TEST_SERVER") else { return };
    let mut client = Client::connect(&server, 8, 1 << 20).unwrap();
    client.read(1, 1 << 20).unwrap();
    println!("reading");
    client.read(u64::MAX / 8192, 1 << 20).unwrap();
}

#[test]
fn killed_clients_cost_no_slot() {
    let address = device_or_skip!();
    let server = Server::start(address, Options { sealed: true, ..Options::default() });
    let mut other = Client::connect(&server.address, 4, 4096).unwrap();
    let rounds = 12;
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_client", "--ignored", "--nocapture"])
            .env("MILLRACE_TEST_SERVER", &server.address)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap());
        let reading = std::io::BufRead::lines(lines).any(|line| line.unwrap().contains("reading"));
        assert!(reading, "the child came to read");
        std::thread::sleep(Duration::from_millis(7 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        other.read(10, 4096).unwrap();
    }
    wait_until("the end of the killed connections", || {
        server.stats.closed.lock().unwrap().len() as u64 == rounds
    });
    drop(other);
    let end = server.stop();
    assert_eq!((end.slots_missing, end.leaked), (0, 0));
    assert_eq!(end.sealed_allocations, 0, "the worker allocated");
    assert_eq!(end.connections, 0);
}

#[test]
fn an_endpoint_dropped_with_answers_in_flight_leaks_nothing() {
    let address = device_or_skip!();
    for _ in 0..3 {
        let server = Server::start(address, Options { drop_after: 8, ..Options::default() });
        let mut client = Client::connect(&server.address, 8, 1 << 20).unwrap();
        client.fill_up(1 << 20, 8);
        client.channel.flush().unwrap();
        client.await_failure();
        client.abandon();
        assert_eq!(client.pool.available(), 8, "every landing slot is back");
        let end = server.stop();
        assert_eq!(end.arena_holders, 1, "a slot or a registration is left");
    }
}

#[test]
fn a_dropped_channel_frees_its_arena() {
    let address = device_or_skip!();
    let server = Server::start(address, Options { mute: true, ..Options::default() });
    let mut client = Client::connect(&server.address, 8, 65_536).unwrap();
    client.fill_up(65_536, 8);
    client.channel.flush().unwrap();
    let arena = Arc::clone(client.pool.arena());
    wait_until("the requests", || server.stats.requests.load(Ordering::Relaxed) == 8);
    assert_eq!(client.channel.in_flight(), 8);
    drop(client);
    assert_eq!(Arc::strong_count(&arena), 1);
    let end = server.stop();
    assert_eq!(end.closed, [Closed::ByPeer]);
}

#[test]
fn nobody_listening_and_no_such_address_are_explained() {
    let address = device_or_skip!();
    let error = Client::connect(&format!("{address}:9"), 4, 4096).err().unwrap();
    assert_eq!(error.kind(), Kind::Network);
    assert!(error.report().contains("millrace server"), "{}", error.report());
    let local = RdmaConfig { local: Some("192.0.2.1".parse().unwrap()) };
    let server = format!("{address}:9").parse().unwrap();
    let error = RdmaChannel::connect(server, &config(1, None), local, &arena(4096)).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.what().contains(&address.to_string()), "{error}");
}

/// Reads for some seconds; prints MiB/s and the median latency.
fn measure(client: &mut Client, length: u32, seconds: u64) {
    let mut out = Vec::with_capacity(64);
    let (mut count, mut latencies) = (0u64, Vec::with_capacity(1 << 20));
    let mut sent = std::collections::HashMap::new();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(seconds) {
        while let Some(slot) = client.pool.acquire() {
            sent.insert(client.next, Instant::now());
            let request = Request::read(client.next, 2, 0, length);
            if let Err(slot) = client.channel.submit(request, slot) {
                client.pool.release(slot);
                break;
            }
            client.next += 1;
        }
        client.channel.flush().unwrap();
        if client.channel.poll(&mut out).unwrap() == 0 {
            // Soft-RoCE works on the CPUs that would otherwise be spun on.
            std::thread::yield_now();
        }
        for arrival in out.drain(..) {
            latencies.push(sent.remove(&arrival.record.id.get()).unwrap().elapsed());
            client.pool.release(arrival.slot.unwrap());
            count += 1;
        }
    }
    let took = started.elapsed().as_secs_f64();
    latencies.sort();
    println!(
        "{length} B, {} in flight: {:.1} MiB/s, median {:?}",
        client.pool.count(),
        (count * u64::from(length)) as f64 / took / 1048576.0,
        latencies[latencies.len() / 2]
    );
}

/// Prints figures to be held against ib_write_bw and ib_write_lat; run it alone, in release.
#[test]
#[ignore = "a measurement"]
fn figures() {
    let address = device_or_skip!();
    let server = Server::start(address, Options::default());
    let mut client = Client::connect(&server.address, 8, 1 << 20).unwrap();
    measure(&mut client, 1 << 20, 10);
    drop(client);
    let mut client = Client::connect(&server.address, 1, 4096).unwrap();
    measure(&mut client, 4096, 5);
}

fn available_kib() -> i64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with("MemAvailable:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Memory of the machine that 256 connections take, both sides of each, beyond the arenas.
#[test]
fn many_connections_are_cheap() {
    let address = device_or_skip!();
    let before = available_kib();
    let options = Options { connections: 256, ..Options::default() };
    let server = Server::start(address, options);
    let started = Instant::now();
    let mut clients: Vec<_> =
        (0..256).map(|_| Client::connect(&server.address, 32, 4096).unwrap()).collect();
    let took = started.elapsed();
    let arenas = (rdma_server::ARENA + 256 * 32 * 4096) as i64 / 1024;
    let used = (before - available_kib() - arenas) / 1024;
    println!("256 connections, both sides: {used} MiB, {took:?} to connect");
    assert!(used < 2 * 64, "{used} MiB");
    clients.iter_mut().step_by(16).for_each(|client| client.read(2, 4096).unwrap());
}
