//! What only a client with its insides open can do wrong. Needs a device, as tests/rdma_guest.rs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use zerocopy::IntoBytes as _;

use super::channel::RdmaChannel;
use super::{RdmaConfig, RdmaEndpoint, RdmaListener, device};
use crate::fabric::handshake::Message;
use crate::fabric::{
    Channel, Closed, ConnectConfig, Endpoint, EndpointConfig, Event, Listener, Pull, Response,
};
use crate::host::Root;
use crate::memory::{Arena, ArenaSpec, Pages, SlotPool};
use crate::skip::{skip, this_test};
use crate::wire::{CheckMode, Completion, PUT_PREFIX, Reason, Request, Status, StoreInfo, Welcome};

const GRANTED: u16 = 4;
const SLOT: usize = 4096;

/// Bytes of data of each put.
const BODY: u32 = 3000;

fn arena(slots: usize) -> Arc<Arena> {
    let spec = ArenaSpec { bytes: slots * SLOT, pages: Pages::Base, node: None };
    Arc::new(Arena::map(&spec).unwrap())
}

fn config(credits: u16) -> ConnectConfig {
    let timeout = Duration::from_secs(20);
    let worker = crate::wire::ANY_WORKER;
    ConnectConfig { credits, max_payload: SLOT as u32, worker, token: None, timeout }
}

fn connect(to: SocketAddr, credits: u16, landing: &Arc<Arena>) -> RdmaChannel {
    RdmaChannel::connect(to, &config(credits), RdmaConfig::default(), landing).unwrap()
}

fn message(request: Request) -> Message {
    request.as_bytes().try_into().unwrap()
}

fn await_failure(channel: &mut RdmaChannel) {
    let mut out = Vec::with_capacity(8);
    while channel.poll(&mut out).is_ok() {
        std::thread::yield_now();
    }
}

/// Reads once, well.
fn read(channel: &mut RdmaChannel, slots: &mut SlotPool, id: u64) {
    channel.submit(Request::read(id, 0, 0, 512), slots.acquire().unwrap()).unwrap();
    channel.flush().unwrap();
    let mut out = Vec::with_capacity(1);
    while channel.poll(&mut out).unwrap() == 0 {
        std::thread::yield_now();
    }
    let arrival = out.pop().unwrap();
    assert_eq!(arrival.record.id.get(), id);
    slots.release(arrival.slot.unwrap());
}

/// How the server of a test behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Mute,
    Answers,
    /// Closes each connection as soon as a READ of its memory is posted.
    ClosesWithinPull,
    /// Answers, and probes silent clients all the time.
    Probes,
}

/// Runs `client` against a server and returns the server's events, with at least one end of a
/// connection.
fn serve_until_closed(
    manner: Manner,
    client: impl FnOnce(SocketAddr) + Send,
) -> Option<Vec<Event>> {
    let devices = device::list(&Root::system()).unwrap();
    let ports = devices.iter().flat_map(|device| &device.ports);
    let mut ips = ports.flat_map(|port| &port.gids).map(device::Gid::ip);
    let Some(ip) = ips.find(std::net::IpAddr::is_ipv4) else {
        skip(&this_test(), "no RDMA device here; tests/guest/rdma.sh runs it");
        return None;
    };
    let listener = RdmaListener::bind(SocketAddr::new(ip, 0)).unwrap();
    let config = EndpointConfig {
        worker: 0,
        max_connections: 4,
        credits: GRANTED,
        max_payload: SLOT as u32,
        pulls: 2,
        token: None.into(),
        welcome: Welcome::new("test", CheckMode::None, 1, 1 << 20, SLOT as u32, GRANTED, 0)
            .with_store(&StoreInfo { uuid: [7; 16], object_limit: BODY, writable: true }),
        handshake_timeout: Duration::from_secs(2),
    };
    let mut slots = SlotPool::new(arena(8), SLOT, 8).unwrap();
    let mut endpoint: RdmaEndpoint = listener.endpoint(config, slots.arena()).unwrap();
    if manner == Manner::Probes {
        endpoint.probe_every = Duration::from_millis(20);
    }
    let stop = AtomicBool::new(false);
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| listener.run(&stop).unwrap());
        let client = scope.spawn(|| client(listener.local_addr()));
        let mut events = Vec::with_capacity(16);
        let mut over = false;
        let deadline = Instant::now() + Duration::from_secs(60);
        while (!over || !client.is_finished()) && Instant::now() < deadline {
            endpoint.poll(&mut events);
            for mut event in events.drain(..) {
                match &mut event {
                    Event::Request(conn, request) if request.body() > 0 => {
                        let (remote_addr, rkey) = (request.remote_addr.get(), request.rkey.get());
                        let (id, len) = (request.id.get(), request.body() as u32);
                        let slot = slots.acquire().unwrap();
                        let pull = Pull { slot, start: 64, len, id, remote_addr, rkey, tag: id };
                        endpoint.pull(*conn, pull);
                        if manner == Manner::ClosesWithinPull {
                            endpoint.flush();
                            endpoint.close(*conn);
                        }
                    }
                    Event::Pulled { conn, tag, slot, ok } => {
                        let slot = slot.take().unwrap();
                        if *ok {
                            let len = BODY as usize + PUT_PREFIX;
                            assert!(slot.bytes(64 + len)[64..].iter().all(|b| *b == *tag as u8));
                            let record = Completion::new(*tag, Status::Ok, 0);
                            let (remote_addr, rkey, tag) = (0, 0, *tag);
                            let (slot, start, len) = (Some(slot), 0, 0);
                            let response =
                                Response { slot, start, len, remote_addr, rkey, record, tag };
                            endpoint.respond(*conn, response);
                        } else {
                            slots.release(slot);
                        }
                    }
                    Event::Request(conn, request) if manner != Manner::Mute => {
                        let mut record = Completion::new(request.id.get(), Status::Ok, 0);
                        record.length = request.length;
                        let (remote_addr, rkey) = (request.remote_addr.get(), request.rkey.get());
                        let (slot, len) = (slots.acquire(), request.length.get());
                        let tag = request.id.get();
                        let response =
                            Response { slot, start: 0, len, remote_addr, rkey, record, tag };
                        endpoint.respond(*conn, response);
                    }
                    Event::Sent { slot, .. } => slots.release(slot.take().unwrap()),
                    Event::Closed(..) => over = true,
                    _ => {}
                }
                seen.push(event);
            }
            endpoint.flush();
            std::thread::yield_now();
        }
        while endpoint.in_flight() > 0 && Instant::now() < deadline {
            endpoint.poll(&mut events);
            for event in events.drain(..) {
                if let Event::Sent { slot, .. } | Event::Pulled { slot, .. } = event {
                    slots.release(slot.unwrap());
                }
            }
        }
        drop(endpoint);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(slots.available(), slots.count(), "every slot is back");
    Some(seen)
}

fn ends(events: &[Event]) -> Vec<Closed> {
    let end = |event: &Event| if let Event::Closed(_, why) = event { Some(*why) } else { None };
    events.iter().filter_map(end).collect()
}

#[test]
fn an_id_in_flight_is_no_other_requests() {
    let Some(events) = serve_until_closed(Manner::Mute, |address| {
        let landing = arena(2);
        let mut channel = connect(address, GRANTED, &landing);
        channel.say(&message(Request::read(7, 0, 0, 512))).unwrap();
        channel.say(&message(Request::read(7, 0, 4096, 512))).unwrap();
        await_failure(&mut channel);
    }) else {
        return;
    };
    assert_eq!(ends(&events), [Closed::Protocol(Reason::Replay)]);
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Request(..))).count(), 1);
}

#[test]
fn an_id_is_free_after_its_completion() {
    let Some(events) = serve_until_closed(Manner::Answers, |address| {
        let mut slots = SlotPool::new(arena(1), SLOT, 1).unwrap();
        let mut channel = connect(address, 1, slots.arena());
        (0..200).for_each(|_| read(&mut channel, &mut slots, 7));
    }) else {
        return;
    };
    assert_eq!(ends(&events), [Closed::ByPeer]);
}

#[test]
fn garbage_in_the_handshake_is_refused() {
    let early = message(Request::read(1, 0, 0, 512));
    for (said, reason) in
        [([b'G'; 64], Reason::Kind), ([1; 64], Reason::Magic), (early, Reason::Kind)]
    {
        let Some(events) = serve_until_closed(Manner::Mute, |address| {
            let said = Some(&said);
            RdmaChannel::connect_mute(address, &config(1), &arena(1), said).unwrap_err();
        }) else {
            return;
        };
        assert_eq!(ends(&events), [Closed::Protocol(reason)]);
    }
}

#[test]
fn a_wrong_key_or_address_ends_that_connection_alone() {
    for wrong_key in [true, false] {
        let Some(events) = serve_until_closed(Manner::Answers, |address| {
            let mut slots = SlotPool::new(arena(1), SLOT, 1).unwrap();
            let mut good = connect(address, 1, slots.arena());
            read(&mut good, &mut slots, 1);
            let landing = arena(1);
            let mut bad = connect(address, GRANTED, &landing);
            let mut request = Request::read(2, 0, 0, 512);
            let (base, key) = (landing.base() as u64, bad.key());
            request.remote_addr = if wrong_key { base } else { base + (64 << 20) }.into();
            request.rkey = if wrong_key { key ^ 0x00A5_5A00 } else { key }.into();
            bad.say(&message(request)).unwrap();
            await_failure(&mut bad);
            (3..50).for_each(|id| read(&mut good, &mut slots, id));
        }) else {
            return;
        };
        let undelivered = |event: &&Event| matches!(event, Event::Sent { delivered: false, .. });
        let failed: Vec<_> = events.iter().filter(undelivered).collect();
        assert!(matches!(failed[..], [Event::Sent { tag: 2, .. }]), "{failed:?}");
        assert_eq!(ends(&events)[0], Closed::Transport);
    }
}

/// Puts once, well: a body of bytes that tell the request's number.
fn put(channel: &mut RdmaChannel, slots: &mut SlotPool, id: u64) {
    let mut slot = slots.acquire().unwrap();
    slot.bytes_mut(BODY as usize + PUT_PREFIX).fill(id as u8);
    channel.submit(Request::put(id, [1; 24], BODY), slot).unwrap();
    channel.flush().unwrap();
    let mut out = Vec::with_capacity(1);
    while channel.poll(&mut out).unwrap() == 0 {
        std::thread::yield_now();
    }
    slots.release(out.pop().unwrap().slot.unwrap());
}

#[test]
fn a_body_that_cannot_be_read_ends_that_connection_alone() {
    // The key of the landing memory serves writes alone: a server cannot read by it.
    for flaw in ["key", "address", "write-only key"] {
        let Some(events) = serve_until_closed(Manner::Answers, |address| {
            let mut slots = SlotPool::new(arena(1), SLOT, 1).unwrap();
            let mut good = connect(address, 1, slots.arena());
            put(&mut good, &mut slots, 1);
            let landing = arena(1);
            let mut bad = connect(address, GRANTED, &landing);
            let mut request = Request::put(2, [1; 24], BODY);
            let (base, key) = (landing.base() as u64, bad.body_key());
            request.remote_addr = if flaw == "address" { base + (64 << 20) } else { base }.into();
            request.rkey = match flaw {
                "key" => (key ^ 0x00A5_5A00).into(),
                "write-only key" => bad.key().into(),
                _ => key.into(),
            };
            bad.say(&message(request)).unwrap();
            await_failure(&mut bad);
            (3..50).for_each(|id| put(&mut good, &mut slots, id));
        }) else {
            return;
        };
        let failed = |event: &&Event| matches!(event, Event::Pulled { ok: false, .. });
        let failed: Vec<_> = events.iter().filter(failed).collect();
        assert!(matches!(failed[..], [Event::Pulled { tag: 2, .. }]), "{flaw}: {failed:?}");
        assert_eq!(ends(&events)[0], Closed::Transport);
    }
}

#[test]
fn a_client_that_dies_while_it_is_read_costs_no_slot() {
    let Some(events) = serve_until_closed(Manner::Answers, |address| {
        for n in 0..20 {
            let landing = arena(2);
            let mut pool = SlotPool::new(Arc::clone(&landing), SLOT, 2).unwrap();
            let mut channel = connect(address, GRANTED, &landing);
            for id in 0..2 {
                let mut slot = pool.acquire().unwrap();
                slot.bytes_mut(BODY as usize + PUT_PREFIX).fill(id as u8);
                channel.submit(Request::put(id, [1; 24], BODY), slot).unwrap();
            }
            channel.flush().unwrap();
            if n % 2 == 0 {
                // Without a word; the server's READ is retried until it gives up, or it is told.
                channel.vanish();
            }
            drop(channel);
        }
    }) else {
        return;
    };
    assert!(!ends(&events).is_empty());
}

#[test]
fn a_pull_that_is_under_way_comes_back_when_its_connection_is_closed() {
    let Some(events) = serve_until_closed(Manner::ClosesWithinPull, |address| {
        let landing = arena(4);
        let mut pool = SlotPool::new(Arc::clone(&landing), SLOT, 4).unwrap();
        let mut channel = connect(address, GRANTED, &landing);
        for id in 0..4 {
            let mut slot = pool.acquire().unwrap();
            slot.bytes_mut(BODY as usize + PUT_PREFIX).fill(id as u8);
            channel.submit(Request::put(id, [1; 24], BODY), slot).unwrap();
        }
        channel.flush().unwrap();
        await_failure(&mut channel);
        assert_eq!(channel.abandon().len(), 4);
    }) else {
        return;
    };
    let pulled = events.iter().filter(|event| matches!(event, Event::Pulled { .. })).count();
    let asked = events.iter().filter(|event| matches!(event, Event::Request(..))).count();
    assert_eq!(pulled, asked, "each pull comes back once");
    assert_eq!(ends(&events), [Closed::ByUs]);
}

#[test]
fn a_silent_client_is_probed_and_keeps_its_connection() {
    let Some(events) = serve_until_closed(Manner::Probes, |address| {
        let mut slots = SlotPool::new(arena(1), SLOT, 1).unwrap();
        let mut channel = connect(address, 1, slots.arena());
        std::thread::sleep(Duration::from_secs(2));
        assert!(channel.was_probed(), "by a message that has bytes");
        (1..20).for_each(|id| read(&mut channel, &mut slots, id));
    }) else {
        return;
    };
    assert_eq!(ends(&events), [Closed::ByPeer]);
}

#[test]
fn a_vanished_client_is_found_out() {
    let Some(events) = serve_until_closed(Manner::Probes, |address| {
        let landing = arena(1);
        let channel = connect(address, 1, &landing);
        channel.vanish();
        // Long enough that its own end is not what the server notices.
        std::thread::sleep(Duration::from_secs(25));
    }) else {
        return;
    };
    assert_eq!(ends(&events), [Closed::Transport]);
}

#[test]
fn a_client_that_exceeds_its_credits_is_disconnected() {
    let Some(events) = serve_until_closed(Manner::Mute, |address| {
        let landing = arena(usize::from(2 * GRANTED));
        let mut channel = connect(address, 2 * GRANTED, &landing);
        let mut pool = SlotPool::new(landing, SLOT, usize::from(2 * GRANTED)).unwrap();
        channel.forget_credits();
        for id in 0..=u64::from(GRANTED) {
            let slot = pool.acquire().unwrap();
            channel.submit(Request::read(id, 0, 0, 512), slot).unwrap();
        }
        channel.flush().unwrap();
        await_failure(&mut channel);
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
    let Some(events) = serve_until_closed(Manner::Mute, |address| {
        let silent = RdmaChannel::connect_mute(address, &config(1), &arena(1), None);
        let error = silent.unwrap_err();
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
        return skip(&this_test(), "this machine has an RDMA device");
    }
    let error = RdmaListener::bind("127.0.0.1:0".parse().unwrap()).unwrap_err();
    assert_eq!(error.kind(), crate::error::Kind::Unsupported);
    let report = error.report();
    println!("{report}");
    assert!(report.contains("rdma link add") || report.contains("apt install"), "{report}");
}
