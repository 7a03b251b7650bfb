//! kill -9 of a server that takes puts, overwrites and deletes: what was acknowledged is there with
//! the right bytes, what was not is wholly there or wholly absent, and nothing else has changed.
//!
//! `MILLRACE_CRASH_ROUNDS` says how often it is killed; the default keeps the test short.

mod support;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace::client::{Client, ClientOptions, Delete, Done, Put, Submitted};
use millrace::error::Kind;
use millrace::memory::Pages;
use support::{Server, fast_dir, run};

const LIMIT: usize = 16 << 10;
const CLIENTS: u64 = 3;
const KEYS: u64 = 6;

/// What a key may hold: a version, or nothing.
type State = Option<u64>;

/// One client's keys. At most one change of each is in flight.
#[derive(Debug, Default)]
struct Model {
    settled: HashMap<u64, State>,
    in_flight: HashMap<u64, State>,
    acknowledged: u64,
}

/// Numbers that follow from the seed.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn key(of: u64, n: u64) -> Vec<u8> {
    format!("client {of}, key {n}").into_bytes()
}

fn content(of: u64, n: u64, version: u64) -> Vec<u8> {
    let seed = ((of << 48) | (n << 40) | version).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let len = 1 + (seed >> 20) as usize % LIMIT;
    (0..len).map(|at| (seed.rotate_left(at as u32 % 61) >> 8) as u8 ^ at as u8).collect()
}

fn connect(address: &str) -> millrace::Result<Client> {
    let depth = KEYS as u16;
    let options =
        ClientOptions { depth, max_read: 24 << 10, pages: Pages::Base, ..ClientOptions::default() };
    Client::connect(address, &options)
}

/// Changes keys until the connection fails, noting what was acknowledged.
fn torment(
    address: &str,
    of: u64,
    model: &mut Model,
    seed: u64,
    version: &mut u64,
    all: &AtomicU64,
) {
    let Ok(mut client) = connect(address) else { return };
    let mut random = Random(seed | 1);
    let mut done: Vec<Done> = Vec::with_capacity(KEYS as usize);
    loop {
        let n = random.below(KEYS);
        if !model.in_flight.contains_key(&n) {
            let exists = model.settled.get(&n).copied().flatten().is_some();
            let (key, change) = (key(of, n), (exists && random.below(3) == 0));
            let (queued, after) = if change {
                (client.submit_delete(Delete { key: &key, tag: n }), None)
            } else {
                *version += 1;
                let data = content(of, n, *version);
                (client.submit_put(Put { key: &key, data: &data, tag: n }), Some(*version))
            };
            assert_eq!(queued.unwrap(), Submitted::Queued);
            model.in_flight.insert(n, after);
        }
        if client.flush().is_err() || client.poll(&mut done).is_err() {
            // What had arrived before the end counts as well.
            take(&mut client, &mut done, model);
            return;
        }
        all.fetch_add(done.len() as u64, Ordering::Relaxed);
        take(&mut client, &mut done, model);
    }
}

fn take(client: &mut Client, done: &mut Vec<Done>, model: &mut Model) {
    for one in done.drain(..) {
        client.outcome(&one).unwrap();
        let after = model.in_flight.remove(&one.tag).expect("answered once");
        model.settled.insert(one.tag, after);
        model.acknowledged += 1;
        client.recycle(one);
    }
}

/// Compares what a server has with what it may have.
fn check(address: &str, of: u64, model: &mut Model) {
    let mut client = connect(address).unwrap();
    for n in 0..KEYS {
        let before = model.settled.get(&n).copied().flatten();
        let after = model.in_flight.remove(&n);
        let found = match client.get(&key(of, n)) {
            Ok(data) => Some(data),
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => panic!("{}", error.report()),
        };
        let holds = |state: State| found == state.map(|version| content(of, n, version));
        let state = if holds(before) {
            before
        } else if let Some(after) = after.filter(|after| holds(*after)) {
            after
        } else {
            panic!("client {of}, key {n}: neither {before:?} nor {after:?}, but {found:?}");
        };
        model.settled.insert(n, state);
    }
}

fn verify(drives: &[&str], objects: usize) {
    let (code, stdout, stderr) = run(&[&["store", "verify", "--json"], drives].concat());
    assert_eq!(code, 0, "{stdout}{stderr}");
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["objects"], objects, "{stdout}");
}

/// As many slots as all keys need twice, and a few.
fn make(dir: &Path) -> Vec<String> {
    let slots = CLIENTS * KEYS + 3;
    let names = ["a", "b"].map(|name| dir.join(name));
    names
        .into_iter()
        .flat_map(|path| {
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(8192 + slots * (4096 + LIMIT as u64)).unwrap();
            ["--device".to_owned(), path.to_str().unwrap().to_owned()]
        })
        .collect()
}

#[test]
fn a_killed_server_has_lost_nothing_that_it_acknowledged() {
    let rounds = std::env::var("MILLRACE_CRASH_ROUNDS").map_or(60, |n| n.parse().unwrap());
    let dir = fast_dir();
    let drives = make(dir.path());
    let drives: Vec<&str> = drives.iter().map(String::as_str).collect();
    let (code, _, stderr) =
        run(&[&["store", "create", "--object-size", "16KiB"], &drives[..]].concat());
    assert_eq!(code, 0, "{stderr}");
    let serve = [&["--writable", "--depth", "8", "--credits", "8"], &drives[..]].concat();
    let mut models: Vec<Model> = (0..CLIENTS).map(|_| Model::default()).collect();
    let mut versions = vec![0; CLIENTS as usize];
    let begun = Instant::now();
    for round in 0..rounds {
        let server = Server::start_store(&serve);
        let address = server.address.clone();
        for (of, model) in (0..).zip(&mut models) {
            check(&address, of, model);
        }
        let all = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for ((of, model), version) in (0..).zip(&mut models).zip(&mut versions) {
                let (address, all, seed) = (&address, &all, round * 31 + of + 1);
                scope.spawn(move || torment(address, of, model, seed, version, all));
            }
            // Now early, now in full swing; and not always right after an answer.
            let (enough, until) = (round * 7 % 40, Instant::now() + Duration::from_secs(5));
            while all.load(Ordering::Relaxed) < enough && Instant::now() < until {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(round * 97 % 2000));
            // Kills it: SIGKILL.
            drop(server);
        });
        if round % 50 == 49 || round + 1 == rounds {
            let server = Server::start_store(&serve);
            for (of, model) in (0..).zip(&mut models) {
                check(&server.address, of, model);
            }
            drop(server);
            let states = models.iter().flat_map(|model| model.settled.values());
            verify(&drives, states.filter(|state| state.is_some()).count());
        }
    }
    let acknowledged: u64 = models.iter().map(|model| model.acknowledged).sum();
    eprintln!("{rounds} kills, {acknowledged} changes acknowledged, {:?}", begun.elapsed());
    assert!(acknowledged > rounds, "{acknowledged} changes in {rounds} rounds");
}
