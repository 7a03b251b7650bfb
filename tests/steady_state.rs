//! In steady state a worker allocates nothing, makes no system call beyond its fabric's and
//! `io_uring_enter`, and sends no TLB shootdown.

mod object_server;
mod support;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace::client::{Client, ClientOptions, Done, Get, Put, Read, Submitted};
use millrace::fabric::tcp::{TcpListener, TcpOptions};
use millrace::memory::{Pages, seal};
use millrace::server::{ServeOptions, Server, Shard};
use millrace::storage::mem::MemStorage;
use millrace::storage::name::DriveName;
use millrace::storage::uring::{UringOptions, UringStorage};
use millrace::storage::{OpenMode, Storage};
use millrace::wire::CheckMode;
use support::{bench, disk_dir, have, seeded_file, skip};

#[global_allocator]
static ALLOCATOR: seal::CountingAllocator = seal::CountingAllocator;

/// Length of the load, as the project's rules ask for.
const LOAD: Duration = Duration::from_secs(10);

fn start<S: Storage + 'static>(storage: S) -> Server {
    let listener =
        TcpListener::bind("127.0.0.1:0".parse().unwrap(), TcpOptions::default()).unwrap();
    let options = ServeOptions {
        cores: millrace::host::affinity::choose(1).unwrap(),
        depth: 16,
        slot_size: 1 << 20,
        objects: None,
        pages: Pages::Base,
        node: None,
        check: CheckMode::Crc,
        credits: 16,
        max_connections: 8,
        token: Some(Arc::from(&b"0123456789abcdef"[..])).into(),
        deadline: Duration::from_secs(30),
        drain: Duration::from_secs(5),
        handshake_timeout: Duration::from_secs(5),
    };
    Server::start(vec![Shard::new("0", storage, listener, options).unwrap()]).unwrap()
}

/// Loads the server for as long, and gives the number of reads.
fn load(server: &Server, time: Duration) -> u64 {
    let address = format!("tcp://{}", server.shards()[0].address);
    let options = ClientOptions {
        depth: 16,
        max_read: 1 << 20,
        token: Some(Arc::from(&b"0123456789abcdef"[..])),
        ..ClientOptions::default()
    };
    let mut client = Client::connect(&address, &options).unwrap();
    let mut done: Vec<Done> = Vec::with_capacity(16);
    let (end, mut count, mut tag) = (Instant::now() + time, 0, 0u64);
    while Instant::now() < end {
        let len = if tag.is_multiple_of(2) { 1 << 20 } else { 4096 };
        let read = Read { drive: 0, offset: (tag % 7) << 20, len, tag };
        if client.submit(read).unwrap() == Submitted::Queued {
            tag += 1;
        }
        client.flush().unwrap();
        client.poll(&mut done).unwrap();
        for read in done.drain(..) {
            client.verify(&read).unwrap();
            client.recycle(read);
            count += 1;
        }
    }
    count
}

/// Puts and gets for as long, and gives their number.
fn load_objects(server: &Server, time: Duration) -> u64 {
    let mut client = object_server::connect(server);
    let mut done: Vec<Done> = Vec::with_capacity(16);
    let data = object_server::content(1, 1, 64 << 10);
    let keys: Vec<_> = (0..20).map(|n| format!("key {n}").into_bytes()).collect();
    keys.iter().for_each(|key| client.put(key, &data).unwrap());
    let (end, mut count, mut tag) = (Instant::now() + time, 0, 0u64);
    while Instant::now() < end {
        let key = &keys[tag as usize % keys.len()];
        let queued = match tag % 4 {
            0 => client.submit_put(Put { key, data: &data[..1 + tag as usize % 65_536], tag }),
            _ => client.submit_get(Get { key, tag }),
        };
        tag += u64::from(queued.unwrap() == Submitted::Queued);
        client.flush().unwrap();
        client.poll(&mut done).unwrap();
        for one in done.drain(..) {
            client.outcome(&one).unwrap();
            client.recycle(one);
            count += 1;
        }
    }
    count
}

/// One test for all backends, and for the counter itself, since it is the whole program's.
#[test]
fn workers_allocate_nothing() {
    assert!(a_sealed_allocation_is_counted(), "the counter sees nothing, so it proves nothing");
    let dir = disk_dir();
    let path = dir.path().join("drive");
    seeded_file(&path, 8 << 20);
    let names = [DriveName::Path(path)];
    let uring = UringStorage::open(&names, OpenMode::Read, UringOptions::default()).unwrap();
    let servers: [(&str, Server); 2] = [
        ("uring", start(uring)),
        ("mem", start(MemStorage::open(&[8 << 20], OpenMode::Read).unwrap())),
    ];
    for (name, server) in servers {
        assert!(load(&server, Duration::from_millis(500)) > 0, "warm-up of {name}");
        let before = seal::sealed_allocations();
        let reads = load(&server, LOAD);
        let during = seal::sealed_allocations() - before;
        assert!(reads > 100, "{name}: {reads} reads in {LOAD:?}");
        assert_eq!(during, 0, "{name}: allocations by its worker during {reads} reads");
        server.stop().unwrap();
    }
    objects_are_served_without_allocation();
}

fn objects_are_served_without_allocation() {
    let dir = disk_dir();
    let path = dir.path().join("store");
    seeded_file(&path, 8 << 20);
    let names = [DriveName::Path(path)];
    let mode = OpenMode::ReadWrite;
    let uring = UringStorage::open(&names, mode, UringOptions::default()).unwrap();
    let mem = MemStorage::open(&[8 << 20], mode).unwrap();
    let options = |objects| object_server::options(CheckMode::Crc, Some(objects));
    let (in_file, in_memory) =
        (object_server::empty(&uring, 64 << 10, 1), object_server::empty(&mem, 64 << 10, 1));
    let servers: [(&str, Server); 2] = [
        ("objects on uring", object_server::serve(uring, options(in_file))),
        ("objects in mem", object_server::serve(mem, options(in_memory))),
    ];
    for (name, server) in servers {
        assert!(load_objects(&server, Duration::from_millis(500)) > 0, "warm-up of {name}");
        let before = seal::sealed_allocations();
        let count = load_objects(&server, LOAD);
        let during = seal::sealed_allocations() - before;
        assert!(count > 100, "{name}: {count} requests in {LOAD:?}");
        assert_eq!(during, 0, "{name}: allocations by its worker during {count} requests");
        server.stop().unwrap();
    }
}

fn a_sealed_allocation_is_counted() -> bool {
    let allocate = || {
        let before = seal::sealed_allocations();
        seal::seal();
        std::hint::black_box(Box::new(1u8));
        seal::unseal();
        seal::sealed_allocations() > before
    };
    std::thread::spawn(allocate).join().unwrap()
}

/// Calls that a worker may make, by design.md's second principle: its ring's, and its sockets'.
const ALLOWED: [&str; 8] =
    ["io_uring_enter", "epoll_wait", "recvfrom", "recvmsg", "readv", "sendto", "sendmsg", "writev"];

#[test]
fn workers_make_no_other_system_call() {
    const NAME: &str = "workers_make_no_other_system_call";
    if !have("strace") {
        return skip(NAME, "strace is not installed");
    }
    let dir = disk_dir();
    let path = dir.path().join("drive");
    seeded_file(&path, 64 << 20);
    let server = support::Server::start(&["--device", path.to_str().unwrap()]);
    let [worker] = server.worker_tids()[..] else { panic!("one worker") };

    let address = server.address.clone();
    let load = std::thread::spawn(move || {
        bench(&address, &["--io-size", "64KiB", "--depth", "8", "--duration", "14s"])
    });
    std::thread::sleep(Duration::from_secs(2));
    let shootdowns = tlb_shootdowns();
    let summary = dir.path().join("strace");
    let mut strace = Command::new("strace")
        .args(["-c", "-U", "calls,name", "-p", &worker.to_string(), "-o"])
        .arg(&summary)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(LOAD);
    support::signal(strace.id(), "INT");
    strace.wait().unwrap();
    let (code, _, log) = load.join().unwrap();
    assert_eq!(code, 0, "{log}");
    eprintln!("TLB shootdowns on all CPUs meanwhile: {}", tlb_shootdowns() - shootdowns);

    let text = std::fs::read_to_string(&summary).unwrap();
    let calls: BTreeMap<&str, u64> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let count = words.next()?.parse().ok()?;
            Some((words.last()?, count))
        })
        .filter(|(name, _)| *name != "total")
        .collect();
    assert!(calls.get("io_uring_enter").is_some_and(|n| *n > 0), "no load was seen: {text}");
    let other: Vec<_> = calls.keys().filter(|name| !ALLOWED.contains(name)).collect();
    assert!(other.is_empty(), "{other:?} in {text}");
}

fn tlb_shootdowns() -> u64 {
    millrace::host::facts::Facts::read(&millrace::host::Root::system())
        .tlb_shootdowns
        .unwrap_or_default()
}

/// 256 connections to one worker cost at most 64 MiB beyond the arena.
#[test]
fn connections_cost_little_memory() {
    const CONNECTIONS: usize = 256;
    let server = support::Server::start(&[
        "--backend",
        "mem",
        "--device",
        "mem:8MiB",
        "--depth",
        "16",
        "--slot-size",
        "64KiB",
    ]);
    let options =
        ClientOptions { depth: 16, max_read: 4096, pages: Pages::Base, ..ClientOptions::default() };
    let mut clients = vec![Client::connect(&server.address, &options).unwrap()];
    clients[0].read(0, 0, 4096).unwrap();
    let before = server.resident();
    while clients.len() < CONNECTIONS {
        clients.push(Client::connect(&server.address, &options).unwrap());
    }
    for client in &mut clients {
        client.read(0, 0, 4096).unwrap();
    }
    let cost = server.resident().saturating_sub(before);
    assert!(cost <= 64 << 20, "{CONNECTIONS} connections cost {cost} bytes");
}
