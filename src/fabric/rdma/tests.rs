//! What only a client with its insides open can do wrong. Needs a device, as tests/rdma_guest.rs.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::channel::RdmaChannel;
use super::{RdmaConfig, RdmaEndpoint, RdmaListener, device};
use crate::fabric::{Channel, Closed, ConnectConfig, Endpoint, EndpointConfig, Event, Listener};
use crate::host::Root;
use crate::memory::{Arena, ArenaSpec, Pages, SlotPool};
use crate::wire::{CheckMode, Reason, Request, Welcome};

const GRANTED: u16 = 4;
const SLOT: usize = 4096;

fn arena(slots: usize) -> Arc<Arena> {
    let spec = ArenaSpec { bytes: slots * SLOT, pages: Pages::Base, node: None };
    Arc::new(Arena::map(&spec).unwrap())
}

/// Says so on standard error, uncaptured, and in the list that `scripts/test` shows.
fn skip(why: &str) {
    let line = format!("fabric::rdma::tests: {why}\n");
    std::io::stderr().write_all(format!("skipped: {line}").as_bytes()).unwrap();
    if let Some(path) = std::env::var_os("MILLRACE_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// Runs `client` against a server that answers nothing, and returns the server's events up to
/// the first end of a connection.
fn serve_until_closed(client: impl FnOnce(SocketAddr) + Send) -> Option<Vec<Event>> {
    let devices = device::list(&Root::system()).unwrap();
    let Ok(ip) = devices
        .iter()
        .flat_map(|device| &device.ports)
        .flat_map(|port| &port.gids)
        .map(device::Gid::ip)
        .find(std::net::IpAddr::is_ipv4)
        .ok_or(())
    else {
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| skip("no RDMA device here; tests/guest/rdma.sh runs them"));
        return None;
    };
    let listener = RdmaListener::bind(SocketAddr::new(ip, 0)).unwrap();
    let config = EndpointConfig {
        worker: 0,
        max_connections: 4,
        credits: GRANTED,
        max_payload: SLOT as u32,
        token: None,
        welcome: Welcome::new("test", CheckMode::None, 1, 1 << 20, SLOT as u32, GRANTED, 0),
        handshake_timeout: Duration::from_secs(2),
    };
    let mut endpoint: RdmaEndpoint = listener.endpoint(config, &arena(1)).unwrap();
    let stop = AtomicBool::new(false);
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| listener.run(&stop).unwrap());
        scope.spawn(|| client(listener.local_addr()));
        let mut events = Vec::with_capacity(16);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !matches!(seen.last(), Some(Event::Closed(..))) && Instant::now() < deadline {
            endpoint.poll(&mut events);
            seen.append(&mut events);
            std::thread::yield_now();
        }
        drop(endpoint);
        stop.store(true, Ordering::Relaxed);
    });
    Some(seen)
}

#[test]
fn a_client_that_exceeds_its_credits_is_disconnected() {
    let Some(events) = serve_until_closed(|address| {
        let config = ConnectConfig {
            credits: 2 * GRANTED,
            max_payload: SLOT as u32,
            token: None,
            timeout: Duration::from_secs(20),
        };
        let landing = arena(usize::from(2 * GRANTED));
        let mut channel =
            RdmaChannel::connect(address, &config, RdmaConfig::default(), &landing).unwrap();
        let mut pool = SlotPool::new(landing, SLOT, usize::from(2 * GRANTED)).unwrap();
        channel.forget_credits();
        for id in 0..=u64::from(GRANTED) {
            let slot = pool.acquire().unwrap();
            channel.submit(Request::read(id, 0, 0, 512), slot).unwrap();
        }
        channel.flush().unwrap();
        let mut out = Vec::with_capacity(8);
        while channel.poll(&mut out).is_ok() {
            std::thread::yield_now();
        }
        let back = channel.abandon();
        assert_eq!(back.len(), usize::from(GRANTED) + 1);
        assert!(back.iter().all(|(_, slot)| slot.is_some()), "a landing slot is leaked");
    }) else {
        return;
    };
    let requests = events.iter().filter(|event| matches!(event, Event::Request(..))).count();
    assert_eq!(requests, usize::from(GRANTED), "what was granted is served");
    assert!(
        matches!(events.last(), Some(Event::Closed(_, Closed::Protocol(Reason::Credits)))),
        "{events:?}"
    );
}

#[test]
fn a_client_that_says_nothing_runs_out_of_time() {
    let Some(events) = serve_until_closed(|address| {
        let config = ConnectConfig {
            credits: 1,
            max_payload: SLOT as u32,
            token: None,
            timeout: Duration::from_secs(20),
        };
        let error = RdmaChannel::connect_mute(address, &config, &arena(1)).unwrap_err();
        assert!(error.what().contains("has closed the connection"), "{error}");
    }) else {
        return;
    };
    assert!(
        matches!(events.last(), Some(Event::Closed(_, Closed::HandshakeTimeout))),
        "{events:?}"
    );
}

#[test]
fn without_a_device_the_error_says_how_to_get_one() {
    let root = Root::system();
    if !device::list(&root).unwrap().is_empty() {
        return skip("one test is for machines without an RDMA device");
    }
    let error = RdmaListener::bind("127.0.0.1:0".parse().unwrap()).unwrap_err();
    assert_eq!(error.kind(), crate::error::Kind::Unsupported);
    let report = error.report();
    println!("{report}");
    assert!(report.contains("rdma link add") || report.contains("apt install"), "{report}");
}
