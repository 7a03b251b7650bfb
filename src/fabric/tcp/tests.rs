//! How a server's side ends.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::listener::Mailbox;
use super::{TcpChannel, TcpListener, TcpOptions};
use crate::fabric::{
    Arrival, Channel, ConnectConfig, Endpoint, EndpointConfig, Event, Listener, Response,
};
use crate::memory::{ArenaSpec, Pages, SlotPool};
use crate::wire::{ANY_WORKER, CheckMode, Completion, Request, Status, Welcome};

/// More than a socket takes in while its owner reads nothing, less than what ours hold to be sent.
const LEN: usize = 512 << 10;

fn config() -> EndpointConfig {
    EndpointConfig {
        worker: 0,
        max_connections: 4,
        credits: 4,
        pulls: 0,
        max_payload: LEN as u32,
        token: None.into(),
        welcome: Welcome::new("mem", CheckMode::None, 1, 1 << 30, LEN as u32, 4, 0),
        handshake_timeout: Duration::from_secs(10),
    }
}

fn pool(count: usize) -> SlotPool {
    let bytes = SlotPool::bytes_needed(LEN, count);
    let arena = crate::memory::Arena::map(&ArenaSpec { bytes, pages: Pages::Base, node: None });
    SlotPool::new(Arc::new(arena.unwrap()), LEN, count).unwrap()
}

#[test]
fn a_connection_that_meets_a_closed_mailbox_comes_back() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = || {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    };
    let mailbox = Mailbox::new(config(), TcpOptions::default());
    let (_one, near) = stream();
    assert!(mailbox.give(near).unwrap().is_none());
    assert_eq!(mailbox.close().len(), 1, "what was on its way is refused by who closes it");
    // As if the listener had found it open just before.
    let (_other, near) = stream();
    assert!(mailbox.give(near).unwrap().is_some());
    assert!(mailbox.take().is_none());
}

#[test]
fn a_server_that_ends_takes_no_answers_back_for_requests_that_it_has_not_read() {
    let listener =
        TcpListener::bind("127.0.0.1:0".parse().unwrap(), TcpOptions::default()).unwrap();
    let (mut near, mut far) = (pool(4), pool(4));
    let mut endpoint = listener.endpoint(config(), near.arena()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let listening = scope.spawn(|| listener.run(&stop).unwrap());
        let address = listener.local_addr();
        let connecting = scope.spawn(move || {
            let timeout = Duration::from_secs(20);
            let (max_payload, worker) = (LEN as u32, ANY_WORKER);
            let config = ConnectConfig { credits: 4, max_payload, worker, token: None, timeout };
            TcpChannel::connect(address, &config).unwrap()
        });
        let mut events = Vec::with_capacity(8);
        while !connecting.is_finished() {
            endpoint.poll(&mut events);
        }
        let mut channel = connecting.join().unwrap();
        let mut ask = |channel: &mut TcpChannel, id| {
            let request = Request::read(id, 0, 0, LEN as u32);
            channel.submit(request, far.acquire().unwrap()).unwrap();
            assert!(channel.is_in_flight(id));
            channel.flush()
        };
        ask(&mut channel, 1).unwrap();
        let conn = loop {
            endpoint.poll(&mut events);
            if let Some(Event::Request(conn, _)) = events.last() {
                break *conn;
            }
        };
        // In the server's socket, and never read.
        ask(&mut channel, 2).unwrap();
        let mut slot = near.acquire().unwrap();
        slot.bytes_mut(LEN).fill(7);
        let mut record = Completion::new(1, Status::Ok, 0);
        record.length = (LEN as u32).into();
        endpoint.respond(
            conn,
            Response {
                slot: Some(slot),
                start: 0,
                len: LEN as u32,
                remote_addr: 0,
                rkey: 0,
                record,
                tag: 1,
            },
        );
        endpoint.flush();
        let ending = scope.spawn(move || drop(endpoint));
        // One more, which may come when the socket is closed already.
        std::thread::sleep(Duration::from_millis(20));
        assert!(!ending.is_finished(), "the client has not taken its answer");
        let _ = ask(&mut channel, 3);
        let mut arrivals: Vec<Arrival> = Vec::with_capacity(4);
        while arrivals.is_empty() {
            channel.poll(&mut arrivals).expect("the answer, whole, before the end");
        }
        assert!(!channel.is_in_flight(1));
        let arrival = arrivals.pop().unwrap();
        assert_eq!(arrival.record.id.get(), 1);
        assert!(arrival.slot.unwrap().bytes(LEN).iter().all(|byte| *byte == 7));
        // Nothing more is to come, and that is said.
        while channel.poll(&mut arrivals).is_ok() {}
        assert!(arrivals.is_empty());
        ending.join().unwrap();
        stop.store(true, Ordering::Release);
        listening.join().unwrap();
    });
}
