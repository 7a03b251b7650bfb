//! Objects over TCP: what is put comes back, whatever happens between.

mod object_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace::client::{Client, ClientOptions, Delete, Done, Get, Put, Submitted};
use millrace::error::Kind;
use millrace::fabric::{self, Arrival, Channel, ConnectConfig};
use millrace::memory::{Arena, ArenaSpec, Pages, SlotPool};
use millrace::object::{Damage, Digest, Objects};
use millrace::server::Server;
use millrace::storage::OpenMode;
use millrace::storage::mem::MemStorage;
use millrace::wire::{ANY_WORKER, CheckMode, Completion, PutPrefix, Request, Status};
use object_server::{PATIENCE, address, connect, content, empty, open, options, serve, settle};
use zerocopy::IntoBytes;

const LIMIT: u32 = 64 << 10;

/// An empty store in memory, with room for about `slots` objects on each of two drives.
fn start(check: CheckMode, slots: u64) -> (Server, Arc<Objects>) {
    let bytes = 8192 + slots * (4096 + u64::from(LIMIT));
    let storage = MemStorage::open(&[bytes, bytes], OpenMode::ReadWrite).unwrap();
    let objects = empty(&storage, LIMIT, 1);
    (serve(storage, options(check, Some(Arc::clone(&objects)))), objects)
}

fn failure<T: std::fmt::Debug>(outcome: millrace::Result<T>, kind: Kind) -> String {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), kind, "{}", error.report());
    error.report()
}

#[test]
fn what_is_put_comes_back_until_it_is_deleted() {
    for check in [CheckMode::Crc, CheckMode::None, CheckMode::Touch] {
        let (server, objects) = start(check, 20);
        let mut client = connect(&server);
        assert_eq!(client.max_object(), LIMIT);
        let sizes = [1, 2, 511, 512, 513, 4095, 4096, 4097, 50_000, LIMIT as usize];
        for (version, round) in (0..3).zip([sizes, sizes, sizes]) {
            for (n, len) in (0u64..).zip(round) {
                let len = if version == 1 { LIMIT as usize + 1 - len } else { len };
                client.put(format!("key {n}").as_bytes(), &content(n, version, len)).unwrap();
            }
            for (n, len) in (0u64..).zip(round) {
                let len = if version == 1 { LIMIT as usize + 1 - len } else { len };
                let got = client.get(format!("key {n}").as_bytes()).unwrap();
                assert!(got == content(n, version, len), "key {n}, version {version}");
            }
        }
        settle(&server, &objects);
        assert_eq!(objects.tally().objects, sizes.len() as u64);
        for n in 0..sizes.len() {
            let key = format!("key {n}");
            client.delete(key.as_bytes()).unwrap();
            failure(client.get(key.as_bytes()), Kind::NotFound);
            failure(client.delete(key.as_bytes()), Kind::NotFound);
        }
        settle(&server, &objects);
        assert_eq!(objects.tally().objects, 0);
        server.stop().unwrap();
    }
}

#[test]
fn many_in_flight_of_every_kind() {
    let (server, objects) = start(CheckMode::Crc, 100);
    let mut client = connect(&server);
    let mut done: Vec<Done> = Vec::with_capacity(16);
    let keys: Vec<_> = (0..60u64).map(|n| format!("{n}").into_bytes()).collect();
    let len = |n: u64| (n * 1009 % u64::from(LIMIT) + 1) as usize;
    let mut run = |client: &mut Client, submit: &mut dyn FnMut(&mut Client, u64) -> Submitted| {
        let (mut next, mut count) = (0, 0);
        while count < keys.len() {
            while next < keys.len() as u64 && submit(client, next) == Submitted::Queued {
                next += 1;
            }
            client.flush().unwrap();
            client.poll(&mut done).unwrap();
            for one in done.drain(..) {
                client.outcome(&one).unwrap();
                if !client.payload(&one).unwrap().is_empty() {
                    client.verify(&one).unwrap();
                    let expected = content(one.tag, 1, len(one.tag));
                    assert!(client.payload(&one).unwrap() == expected, "object {}", one.tag);
                }
                client.recycle(one);
                count += 1;
            }
        }
    };
    for _ in 0..3 {
        run(&mut client, &mut |client, n| {
            let data = content(n, 1, len(n));
            let key = &keys[n as usize];
            client.submit_put(Put { key, data: &data, tag: n }).unwrap()
        });
        run(&mut client, &mut |client, n| {
            client.submit_get(Get { key: &keys[n as usize], tag: n }).unwrap()
        });
    }
    run(&mut client, &mut |client, n| {
        client.submit_delete(Delete { key: &keys[n as usize], tag: n }).unwrap()
    });
    settle(&server, &objects);
    assert_eq!(objects.tally().objects, 0);
}

/// Several clients replace a few keys all the time, others read them: each get is one version,
/// whole.
fn never_mixed(check: CheckMode) {
    // So few slots that each is used again at once.
    let (server, objects) = start(check, 6);
    let (stop, gets, puts) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let keys: [&[u8]; 3] = [b"a", b"b", b"c"];
    let mut first = connect(&server);
    keys.iter().for_each(|key| first.put(key, &[1; 1000]).unwrap());
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let (server, stop, puts) = (&server, &stop, &puts);
            scope.spawn(move || {
                let mut client = connect(server);
                let mut version = writer;
                while !stop.load(Ordering::Relaxed) {
                    version += 2;
                    let len = (version * 7919 % u64::from(LIMIT) + 1) as usize;
                    let key = keys[version as usize / 2 % keys.len()];
                    client.put(key, &vec![version as u8; len]).unwrap();
                    puts.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..2 {
            let (server, stop, gets) = (&server, &stop, &gets);
            scope.spawn(move || {
                let mut client = connect(server);
                let mut done: Vec<Done> = Vec::with_capacity(16);
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    while client.in_flight() < 8 {
                        let get = Get { key: keys[n as usize % keys.len()], tag: n };
                        client.submit_get(get).unwrap();
                        n += 1;
                    }
                    client.flush().unwrap();
                    client.poll(&mut done).unwrap();
                    for get in done.drain(..) {
                        client.verify(&get).unwrap();
                        let bytes = client.payload(&get).unwrap();
                        assert!(bytes.iter().all(|b| *b == bytes[0]), "two versions in one");
                        client.recycle(get);
                        gets.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let until = Instant::now() + 4 * PATIENCE;
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        while count(&gets) < 400 || count(&puts) < 100 {
            if Instant::now() > until {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let (gets, puts) = (gets.into_inner(), puts.into_inner());
    assert!(gets >= 400 && puts >= 100, "{gets} gets, {puts} puts");
    settle(&server, &objects);
    assert_eq!(objects.tally().set_aside, 0);
    server.stop().unwrap();
}

#[test]
fn a_get_beside_puts_is_never_a_mixture() {
    never_mixed(CheckMode::None);
}

#[test]
fn a_get_beside_puts_is_never_a_mixture_with_crc() {
    never_mixed(CheckMode::Crc);
}

#[test]
fn changes_of_one_key_take_turns() {
    let (server, objects) = start(CheckMode::Crc, 12);
    let mut client = connect(&server);
    let mut done: Vec<Done> = Vec::with_capacity(16);
    for round in 0..40u64 {
        for tag in 0..14 {
            let data = vec![tag as u8; 1 + (tag * round) as usize];
            let queued = if tag % 5 == 4 {
                client.submit_delete(Delete { key: b"one", tag })
            } else {
                client.submit_put(Put { key: b"one", data: &data, tag })
            };
            assert_eq!(queued.unwrap(), Submitted::Queued);
        }
        while client.in_flight() > 0 {
            client.flush().unwrap();
            client.poll(&mut done).unwrap();
            for one in done.drain(..) {
                let status = one.record.status();
                let deleted_nothing = status == Status::NotFound && one.tag % 5 == 4;
                assert!(status == Status::Ok || deleted_nothing, "{:?}", client.outcome(&one));
                client.recycle(one);
            }
        }
        match client.get(b"one") {
            Ok(data) => {
                let tag = u64::from(data[0]);
                assert!(data == vec![tag as u8; 1 + (tag * round) as usize]);
            }
            Err(error) => assert_eq!(error.kind(), Kind::NotFound),
        }
    }
    settle(&server, &objects);
    assert!(objects.tally().objects <= 1);
}

#[test]
fn a_full_store_says_so_and_loses_nothing() {
    let (server, objects) = start(CheckMode::Crc, 3);
    let slots = objects.tally().slots;
    let mut client = connect(&server);
    let key = |n: u64| format!("key {n}").into_bytes();
    (0..slots).for_each(|n| client.put(&key(n), &content(n, 1, 5000)).unwrap());
    for _ in 0..3 {
        let report = failure(client.put(b"one more", b"data"), Kind::Resource);
        assert!(report.contains("the store is full"), "{report}");
        // To replace an object takes a free slot as well: the old one is kept until the new one
        // is whole.
        failure(client.put(&key(0), b"new"), Kind::Resource);
    }
    for n in 0..slots {
        assert!(client.get(&key(n)).unwrap() == content(n, 1, 5000));
    }
    client.delete(&key(0)).unwrap();
    client.put(b"one more", b"data").unwrap();
    assert_eq!(client.get(b"one more").unwrap(), b"data");
    settle(&server, &objects);
    assert_eq!(objects.tally().free, 0);
}

/// A channel without the client's own checks.
struct Rude {
    channel: Box<dyn Channel>,
    pool: SlotPool,
    out: Vec<Arrival>,
}

impl Rude {
    fn connect(server: &Server) -> Self {
        let size = 128 << 10;
        let spec = ArenaSpec { bytes: 16 * size, pages: Pages::Base, node: None };
        let pool = SlotPool::new(Arc::new(Arena::map(&spec).unwrap()), size, 16).unwrap();
        let config = ConnectConfig {
            credits: 16,
            max_payload: size as u32,
            worker: ANY_WORKER,
            token: None,
            timeout: PATIENCE,
        };
        let address = server.shards()[0].address;
        let kind = fabric::address::FabricKind::Tcp;
        let channel = fabric::connect(kind, &[address], &config, None, pool.arena()).unwrap();
        Self { channel, pool, out: Vec::with_capacity(16) }
    }

    /// Sends a request whose slot `fill` has filled, and waits for the answer.
    fn ask(&mut self, request: Request, fill: impl FnOnce(&mut [u8])) -> Completion {
        let mut slot = self.pool.acquire().unwrap();
        let size = slot.size();
        fill(slot.bytes_mut(size));
        self.channel.submit(request, slot).unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < until, "no answer");
            self.channel.flush().unwrap();
            if self.channel.poll(&mut self.out).unwrap() > 0 {
                let arrival = self.out.pop().unwrap();
                self.pool.release(arrival.slot.unwrap());
                return arrival.record;
            }
        }
    }
}

fn verdict(record: Completion) -> (Status, u32) {
    (record.status(), record.detail.get())
}

#[test]
fn bad_requests_are_told_what_is_wrong_and_change_nothing() {
    let (server, objects) = start(CheckMode::Crc, 4);
    let mut good = connect(&server);
    good.put(b"kept", b"as it was").unwrap();
    let mut rude = Rude::connect(&server);
    let data = [7u8; 100];
    let crc = millrace::check::crc(&data);
    let digest = Digest::of(b"kept").0;
    let body = |prefix: &PutPrefix, slot: &mut [u8]| {
        slot[..512].copy_from_slice(prefix.as_bytes());
        slot[512..612].copy_from_slice(&data);
    };
    let mut id = 0;
    let mut put = |digest, length, fill: &mut dyn FnMut(&mut [u8])| {
        id += 1;
        verdict(rude.ask(Request::put(id, digest, length), fill))
    };
    let prefix = PutPrefix::new(b"kept", crc);
    // The CRC is not that of the data.
    let wrong = PutPrefix::new(b"kept", crc ^ 1);
    assert_eq!(put(digest, 100, &mut |slot| body(&wrong, slot)), (Status::BodyCrc, 0));
    assert_eq!(put(digest, 99, &mut |slot| body(&prefix, slot)), (Status::BodyCrc, 0));
    // The key is not that of the digest.
    let other = Digest::of(b"other").0;
    assert_eq!(put(other, 100, &mut |slot| body(&prefix, slot)), (Status::BadKey, 2));
    // The prefix is none: no key, one too long, what has to be zero is not.
    for (at, value) in [(8, 0), (9, 1), (10, 1), (16 + 5, 1), (511, 1)] {
        let flawed = &mut |slot: &mut [u8]| {
            body(&prefix, slot);
            slot[at] = value;
        };
        assert_eq!(put(digest, 100, flawed), (Status::BadKey, 1), "byte {at}");
    }
    // Length.
    assert_eq!(put(digest, 0, &mut |slot| body(&prefix, slot)), (Status::Invalid, 0));
    assert_eq!(put(digest, LIMIT + 1, &mut |slot| body(&prefix, slot)), (Status::TooLong, LIMIT));
    // A get with too little room, and requests for ranges.
    let record = rude.ask(Request::get(100, digest, 8), |_| ());
    assert_eq!(verdict(record), (Status::TooLong, 9));
    let record = rude.ask(Request::read(101, 0, 0, 4096), |_| ());
    assert_eq!(verdict(record), (Status::WrongMode, 1));
    let record = rude.ask(Request::get(102, Digest::of(b"").0, 4096), |_| ());
    assert_eq!(verdict(record), (Status::NotFound, 0));
    assert_eq!(good.get(b"kept").unwrap(), b"as it was");
    settle(&server, &objects);
    assert_eq!(objects.tally().objects, 1);
}

#[test]
fn a_client_refuses_what_no_server_would_take() {
    let (server, _) = start(CheckMode::Crc, 4);
    let mut client = connect(&server);
    for key in [&b""[..], &[b'k'; 256]] {
        let report = failure(client.put(key, b"data"), Kind::Usage);
        assert!(report.contains("1 to 255"), "{report}");
        failure(client.get(key), Kind::Usage);
        failure(client.delete(key), Kind::Usage);
    }
    failure(client.put(b"k", b""), Kind::Usage);
    let report = failure(client.put(b"k", &vec![0; LIMIT as usize + 1]), Kind::Usage);
    assert!(report.contains("1 to 65536"), "{report}");
    client.put(&[0xFF; 255], b"data").unwrap();
    assert_eq!(client.get(&[0xFF; 255]).unwrap(), b"data");
}

#[test]
fn a_server_takes_changes_only_where_it_may() {
    let storage = MemStorage::open(&[1 << 20], OpenMode::Read).unwrap();
    let objects = open(&storage, LIMIT, 1, false);
    let server = serve(storage, options(CheckMode::Crc, Some(objects)));
    let mut client = connect(&server);
    assert!(!client.store().unwrap().writable);
    for report in [
        failure(client.put(b"k", b"data"), Kind::Denied),
        failure(client.delete(b"k"), Kind::Denied),
    ] {
        assert!(report.contains("--writable"), "{report}");
    }
    failure(client.get(b"k"), Kind::NotFound);
    // Ranges of drives are not objects.
    let storage = MemStorage::open(&[1 << 20], OpenMode::Read).unwrap();
    let raw = serve(storage, options(CheckMode::Crc, None));
    let plain = ClientOptions { pages: Pages::Base, ..ClientOptions::default() };
    let mut client = Client::connect(&address(&raw), &plain).unwrap();
    assert_eq!(client.store(), None);
    assert!(failure(client.get(b"k"), Kind::Usage).contains("no objects"));
    failure(client.put(b"k", b"data"), Kind::Usage);
    assert_eq!(client.read(0, 0, 4096).unwrap().len(), 4096);
    let mut rude = Rude::connect(&raw);
    for request in [
        Request::get(1, [1; 24], 4096),
        Request::put(2, [1; 24], 4096),
        Request::delete(3, [1; 24]),
    ] {
        assert_eq!(verdict(rude.ask(request, |_| ())), (Status::WrongMode, 0));
    }
}

#[test]
fn clients_that_die_in_a_put_leave_old_or_new() {
    let (server, objects) = start(CheckMode::Crc, 20);
    let mut steady = connect(&server);
    let key = |n: u64| format!("key {n}").into_bytes();
    (0..8).for_each(|n| steady.put(&key(n), &content(n, 0, 40_000)).unwrap());
    for round in 1..60u64 {
        let mut victim = connect(&server);
        let mut done = Vec::with_capacity(16);
        for n in 0..8 {
            let data = content(n, round, 40_000);
            victim.submit_put(Put { key: &key(n), data: &data, tag: n }).unwrap();
        }
        victim.flush().unwrap();
        for _ in 0..round % 5 {
            victim.poll(&mut done).unwrap();
        }
        drop(victim);
        let n = round % 8;
        let got = steady.get(&key(n)).unwrap();
        assert!((0..=round).any(|version| got == content(n, version, 40_000)), "round {round}");
    }
    settle(&server, &objects);
    assert_eq!(objects.tally().objects, 8);
    assert_eq!(objects.tally().set_aside, 0);
}

#[test]
fn damage_has_one_name_on_both_sides() {
    for damage in Damage::ALL {
        let said = Status::Damaged.describe(damage.code());
        assert!(said.ends_with(&damage.to_string()), "{said}, {damage}");
    }
}
