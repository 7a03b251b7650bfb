//! Peers that break the protocol over TCP: each is ended with its reason, nobody else notices.

mod fabric;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use fabric::{
    CREDITS, Client, Fabric, Manner, PATIENCE, SLOT, SLOTS, Server, Tcp, connect_config,
    endpoint_config,
};
use millrace::Error;
use millrace::error::Kind;
use millrace::fabric::handshake::ClientHandshake;
use millrace::fabric::tcp::{TcpChannel, TcpListener, TcpOptions};
use millrace::fabric::{Channel, Closed, ConnectConfig, EndpointConfig, Listener};
use millrace::wire::{Completion, Reason, Reject, Request, Status};
use zerocopy::IntoBytes;

fn raw(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A raw socket that has done the handshake.
fn established(to: SocketAddr) -> TcpStream {
    let mut stream = raw(to);
    let mut handshake = ClientHandshake::new(None, CREDITS, SLOT as u32).unwrap();
    stream.write_all(&handshake.hello()).unwrap();
    loop {
        let mut message = [0; 64];
        stream.read_exact(&mut message).unwrap();
        match handshake.receive(&message).unwrap() {
            (_, Some(_)) => return stream,
            (Some(reply), None) => stream.write_all(&reply).unwrap(),
            (None, None) => {}
        }
    }
}

/// What the server makes of `bytes` on an established connection, while another client is served.
fn verdict(bytes: &[u8], hang_up: bool) -> Closed {
    let server = Server::start::<Tcp>(endpoint_config(), Manner::Mute);
    let mut stream = established(server.addr);
    stream.write_all(bytes).unwrap();
    if hang_up {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let why = server.ended();
    let mut rest = [0; 64];
    assert!(matches!(stream.read(&mut rest), Ok(0) | Err(_)), "the server hangs up");
    established(server.addr);
    assert_eq!(server.stop().slots_left, SLOTS);
    why
}

fn requests(ids: impl IntoIterator<Item = u64>) -> Vec<u8> {
    ids.into_iter().flat_map(|id| Request::read(id, 0, 0, 512).as_bytes().to_vec()).collect()
}

#[test]
fn breaches_end_the_connection_with_their_reason() {
    use Closed::Protocol;
    let with = |at: usize, value: u8| {
        let mut bytes = requests([1]);
        bytes[at] = value;
        bytes
    };
    assert_eq!(verdict(&with(0, 99), false), Protocol(Reason::Kind));
    assert_eq!(verdict(&with(1, 77), false), Protocol(Reason::Value));
    assert_eq!(verdict(&with(60, 1), false), Protocol(Reason::Reserved));
    assert_eq!(verdict(&[0xFF; 100_000], false), Protocol(Reason::Kind));
    assert_eq!(verdict(&requests([1])[..63], true), Protocol(Reason::Size));
    assert_eq!(verdict(&requests([5, 6, 5]), false), Protocol(Reason::Replay));
    assert_eq!(verdict(&requests(0..u64::from(CREDITS) + 1), false), Protocol(Reason::Credits));
    assert_eq!(verdict(&requests(0..u64::from(CREDITS)), true), Closed::ByPeer);
    let hello = ClientHandshake::new(None, 1, 4096).unwrap().hello();
    assert_eq!(verdict(&hello, false), Protocol(Reason::Kind));
}

fn put(id: u64, length: u32, sent: usize) -> Vec<u8> {
    let mut bytes = Request::put(id, [3; 24], length).as_bytes().to_vec();
    let mut body = vec![0; length as usize + 512];
    fabric::fill(id * 4096, &mut body);
    bytes.extend(&body[..sent]);
    bytes
}

#[test]
fn a_client_that_hangs_up_within_a_body_costs_no_slot() {
    let server = Server::start::<Tcp>(endpoint_config(), Manner::Prompt);
    for sent in [0, 1, 511, 512, 4000, 4096, 30_511] {
        let mut stream = established(server.addr);
        stream.write_all(&put(1, 30_000, sent)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(server.ended(), Closed::ByPeer);
    }
    let log = server.stop();
    assert_eq!((log.requests, log.pulled, log.slots_left), (7, 0, SLOTS));
    assert_eq!(log.cut_off, 7);
}

#[test]
fn bodies_in_pieces_are_bodies_all_the_same() {
    let server = Server::start::<Tcp>(endpoint_config(), Manner::Prompt);
    let mut stream = established(server.addr);
    stream.set_nodelay(true).unwrap();
    let mut next = 0;
    for size in [63, 64, 65, 500, 513, 4096, 5000, 100_000] {
        let ids = next..next + 4;
        next = ids.end;
        let bytes: Vec<_> = ids
            .clone()
            .flat_map(|id| {
                let length = 3000 * (id as u32 % 4) + 1;
                let mut bytes = put(id, length, length as usize + 512);
                bytes.extend(requests([1000 + id]));
                bytes
            })
            .collect();
        for piece in bytes.chunks(size) {
            stream.write_all(piece).unwrap();
            std::thread::yield_now();
        }
        for id in ids.flat_map(|id| [id, 1000 + id]) {
            let mut record = [0; 64];
            stream.read_exact(&mut record).unwrap();
            let record = Completion::parse(&record).unwrap();
            assert_eq!(record.id.get(), id);
            stream.read_exact(&mut vec![0; record.length.get() as usize]).unwrap();
        }
    }
    drop(stream);
    assert_eq!(server.stop().pulled, 8 * 4);
}

#[test]
fn a_body_without_end_is_refused_at_once_and_never_stored() {
    let server = Server::start::<Tcp>(endpoint_config(), Manner::Faulty);
    let mut stream = established(server.addr);
    // The first request of this server is refused.
    stream.write_all(&put(1, 1000, 0)[..64]).unwrap();
    let mut record = [0; 64];
    stream.read_exact(&mut record).unwrap();
    assert_eq!(Completion::parse(&record).unwrap().status(), Status::OutOfRange);
    let longest = Request::put(9, [3; 24], u32::MAX);
    stream.write_all(&vec![0; 1512]).unwrap();
    for id in [2, 3] {
        stream.write_all(&put(id, 100, 612)).unwrap();
        stream.read_exact(&mut record).unwrap();
    }
    // The fourth is refused too: 4 GiB of body are no reason to wait for them.
    stream.write_all(longest.as_bytes()).unwrap();
    stream.read_exact(&mut record).unwrap();
    assert_eq!(Completion::parse(&record).unwrap().id.get(), 9);
    (0..100).for_each(|_| stream.write_all(&[0xAA; 65_536]).unwrap());
    let mut other = Client::connect::<Tcp>(server.addr);
    other.run(20, |_| 4096);
    drop(stream);
    assert_eq!(server.stop().slots_left, SLOTS);
}

#[test]
fn a_body_that_does_not_go_on_is_given_up() {
    let options = TcpOptions { stall_timeout: Duration::from_millis(300), ..TcpOptions::default() };
    let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let server = Server::serve(listener, endpoint_config(), Manner::Prompt);
    let mut stream = established(server.addr);
    stream.write_all(&put(1, 30_000, 5000)).unwrap();
    assert_eq!(server.ended(), Closed::Transport);
    let log = server.stop();
    assert_eq!((log.cut_off, log.slots_left), (1, SLOTS));
}

#[test]
fn requests_in_pieces_are_requests_all_the_same() {
    let server = Server::start::<Tcp>(endpoint_config(), Manner::Prompt);
    let mut stream = established(server.addr);
    stream.set_nodelay(true).unwrap();
    let mut next = 0;
    for size in [1, 7, 63, 64, 65, 100, 127, 500, 1000] {
        let ids = next..next + u64::from(CREDITS);
        next = ids.end;
        for piece in requests(ids.clone()).chunks(size) {
            stream.write_all(piece).unwrap();
            std::thread::yield_now();
        }
        for id in ids {
            let mut answer = [0; 64 + 512];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(Completion::parse(&answer[..64]).unwrap().id.get(), id);
            fabric::assert_filled(0, &answer[64..]);
        }
    }
}

#[test]
fn a_slow_handshake_is_ended() {
    let brief = Duration::from_millis(400);
    let config = EndpointConfig { handshake_timeout: brief, ..endpoint_config() };
    let server = Server::start::<Tcp>(config, Manner::Prompt);
    let mut client = Client::connect::<Tcp>(server.addr);
    server.opened();
    let began = Instant::now();
    let mut silent = raw(server.addr);
    let mut dripping = raw(server.addr);
    let hello = ClientHandshake::new(None, 1, 4096).unwrap().hello();
    for byte in &hello[..10] {
        // Until the server has had enough of it.
        if dripping.write_all(&[*byte]).is_err() {
            break;
        }
        client.run(20, |_| 4096);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.ended(), Closed::HandshakeTimeout);
    assert_eq!(server.ended(), Closed::HandshakeTimeout);
    assert!(began.elapsed() >= brief);
    let mut message = [0; 64];
    silent.read_exact(&mut message).unwrap();
    assert_eq!(Reject::parse(&message).unwrap().reason(), Ok(Reason::Timeout));
    assert_eq!(silent.read(&mut message).unwrap(), 0);
    client.run(20, |_| 4096);
}

#[test]
fn garbage_in_the_handshake_is_refused_with_the_reason() {
    let server = Server::start::<Tcp>(endpoint_config(), Manner::Prompt);
    let mut hello = ClientHandshake::new(None, 1, 4096).unwrap().hello();
    hello[2] = 9;
    for (bytes, reason) in
        [(hello, Reason::Version), ([b'G'; 64], Reason::Kind), ([1; 64], Reason::Magic)]
    {
        let mut stream = raw(server.addr);
        stream.write_all(&bytes).unwrap();
        let mut message = [0; 64];
        stream.read_exact(&mut message).unwrap();
        assert_eq!(Reject::parse(&message).unwrap().reason(), Ok(reason));
        assert_eq!(server.ended(), Closed::Protocol(reason));
    }
}

#[test]
fn a_client_that_does_not_read_is_ended_and_its_slots_come_back() {
    let options =
        TcpOptions { send_buffer: Some(16 << 10), stall_timeout: Duration::from_millis(300) };
    let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let server = Server::serve(listener, endpoint_config(), Manner::Prompt);
    let mut deaf = Vec::new();
    for _ in 0..3 {
        let mut stream = established(server.addr);
        socket2::SockRef::from(&stream).set_recv_buffer_size(4096).unwrap();
        let wanted: Vec<u8> = (0..u64::from(CREDITS))
            .flat_map(|id| Request::read(id, 0, 0, SLOT as u32).as_bytes().to_vec())
            .collect();
        stream.write_all(&wanted).unwrap();
        deaf.push(stream);
    }
    let mut client = Client::connect::<Tcp>(server.addr);
    client.run(50, |_| SLOT as u32);
    for _ in 0..3 {
        assert_eq!(server.ended(), Closed::Transport);
    }
    client.run(50, |_| SLOT as u32);
    let log = server.stop();
    assert!(log.undelivered > 0);
    assert_eq!(log.slots_left, SLOTS);
}

#[test]
fn a_port_in_use_is_named_with_a_remedy() {
    let first = Tcp::listen().unwrap();
    let error = TcpListener::bind(first.local_addr(), TcpOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::Resource);
    assert!(error.what().contains(&first.local_addr().to_string()));
    assert!(error.remedy_text().is_some_and(|text| text.contains("ss -ltnp")));
    let error = TcpListener::bind("192.0.2.1:0".parse().unwrap(), TcpOptions::default());
    assert!(error.unwrap_err().remedy_text().is_some_and(|text| text.contains("ip address")));
}

/// What a client makes of a server that answers one request of 4096 bytes, id 1, with `answer`.
fn clients_view(answer: Vec<u8>) -> (Error, usize) {
    use millrace::fabric::handshake::{ServerHandshake, Step, nonce};
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = socket.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = socket.accept().unwrap();
        let welcome = endpoint_config().welcome;
        let mut handshake = ServerHandshake::new(None, nonce().unwrap(), welcome);
        let mut message = [0; 64];
        loop {
            stream.read_exact(&mut message).unwrap();
            match handshake.receive(&message) {
                Step::Continue(reply) => stream.write_all(&reply).unwrap(),
                Step::Established { send, .. } => {
                    stream.write_all(send.as_flattened()).unwrap();
                    break;
                }
                Step::Refuse(..) => panic!("a good client"),
            }
        }
        stream.read_exact(&mut message).unwrap();
        let _ = stream.write_all(&answer);
    });
    let mut pool = fabric::pool(2);
    let mut channel = TcpChannel::connect(to, &connect_config()).unwrap();
    channel.submit(Request::read(1, 0, 0, 4096), pool.acquire().unwrap()).unwrap();
    channel.flush().unwrap();
    let mut out = Vec::with_capacity(4);
    let until = Instant::now() + PATIENCE;
    let error = loop {
        assert!(Instant::now() < until);
        if let Err(error) = channel.poll(&mut out) {
            break error;
        }
    };
    server.join().unwrap();
    assert_eq!(channel.abandon().len() + out.len(), 1, "the slot is found in one place");
    (error, out.len())
}

#[test]
fn a_client_trusts_no_server() {
    let record = |id: u64, length: u32| {
        let mut record = Completion::new(id, Status::Ok, 0);
        record.length = length.into();
        let mut bytes = record.as_bytes().to_vec();
        bytes.resize(64 + length as usize, 7);
        bytes
    };
    let (error, _) = clients_view(record(2, 4096));
    assert!(error.what().contains("an answer to 2, which was not asked"), "{error}");
    let (error, _) = clients_view(record(1, 4097));
    assert!(error.what().contains("4097 bytes for request 1, which asked for 4096"), "{error}");
    let mut wrong = record(1, 4096);
    wrong[0] = 16;
    let (error, _) = clients_view(wrong);
    assert_eq!(error.kind(), Kind::Protocol);
    let (error, _) = clients_view(record(1, 4096)[..1000].to_vec());
    assert!(error.what().contains("has closed the connection"), "{error}");
    let (error, arrived) = clients_view([record(1, 4096), record(1, 4096)].concat());
    assert!(error.what().contains("an answer to 1, which was not asked"), "{error}");
    assert_eq!(arrived, 1);
}

#[test]
fn a_server_that_is_none_is_told_apart() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = socket.local_addr().unwrap();
    let brief = ConnectConfig { timeout: Duration::from_millis(200), ..connect_config() };
    let error = TcpChannel::connect(to, &brief).unwrap_err();
    assert!(error.what().contains("did not finish the handshake in time"), "{error}");
    let babbler = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = socket.accept().unwrap();
            let _ = stream.write_all(&[b'x'; 64]);
            let _ = stream.read(&mut [0; 64]);
        }
    });
    let error = loop {
        let error = TcpChannel::connect(to, &connect_config()).unwrap_err();
        if error.kind() == Kind::Protocol || babbler.is_finished() {
            break error;
        }
    };
    assert_eq!(error.kind(), Kind::Protocol, "{}", error.report());
    babbler.join().unwrap();
    let error = TcpChannel::connect(to, &brief).unwrap_err();
    assert_eq!(error.kind(), Kind::Network);
    assert!(error.remedy_text().is_some_and(|text| text.contains("server runs")));
}
