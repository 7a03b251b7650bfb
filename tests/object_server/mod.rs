//! A server of objects in this process, for the tests that need one.

#![allow(dead_code, reason = "each test program uses a part")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millrace::client::{Client, ClientOptions};
use millrace::fabric::tcp::{TcpListener, TcpOptions};
use millrace::memory::Pages;
use millrace::object::{Layout, Objects, State, StoreId, Superblock};
use millrace::server::{ServeOptions, Server, Shard};
use millrace::storage::Storage;
use millrace::wire::CheckMode;

/// A wait that ends in a failure instead of a hang.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The objects of an empty store on these drives, which nobody has written to.
pub fn empty(storage: &impl Storage, object_limit: u32, workers: usize) -> Arc<Objects> {
    open(storage, object_limit, workers, true)
}

/// As [`empty`], for reading only if it is not `writable`.
pub fn open(
    storage: &impl Storage,
    object_limit: u32,
    workers: usize,
    writable: bool,
) -> Arc<Objects> {
    let drives = storage.drives();
    let superblocks: Vec<_> = (0u16..)
        .zip(drives)
        .map(|(drive, info)| Superblock {
            state: State::Ready,
            store: StoreId([9; 16]),
            drive,
            drives: drives.len() as u16,
            object_limit,
            slots: Layout::slots_of(info.capacity, object_limit),
            bytes: info.capacity,
            created: 0,
        })
        .collect();
    let block = drives.iter().map(|drive| drive.block_size).max().expect("a drive");
    let layout = Layout::new(&superblocks, block).expect("few slots");
    let slots = layout.slots();
    let objects = Arc::new(Objects::new(StoreId([9; 16]), layout, workers, writable));
    (0..slots).rev().for_each(|slot| objects.give(slot));
    objects
}

/// How the tests serve.
pub fn options(check: CheckMode, objects: Option<Arc<Objects>>) -> ServeOptions {
    ServeOptions {
        cores: millrace::host::affinity::choose(1).unwrap(),
        depth: 16,
        slot_size: objects.as_ref().map_or(64 << 10, |objects| {
            (objects.layout().slot_size() as usize).next_multiple_of(4096)
        }),
        objects,
        pages: Pages::Base,
        node: None,
        check,
        credits: 16,
        max_connections: 64,
        token: None.into(),
        deadline: Duration::from_secs(30),
        drain: Duration::from_secs(5),
        handshake_timeout: Duration::from_secs(5),
    }
}

/// Serves on loopback.
pub fn serve<S: Storage + 'static>(storage: S, options: ServeOptions) -> Server {
    let listener =
        TcpListener::bind("127.0.0.1:0".parse().unwrap(), TcpOptions::default()).unwrap();
    Server::start(vec![Shard::new("0", storage, listener, options).unwrap()]).unwrap()
}

pub fn address(server: &Server) -> String {
    format!("tcp://{}", server.shards()[0].address)
}

pub fn connect(server: &Server) -> Client {
    let options = ClientOptions { depth: 16, pages: Pages::Base, ..ClientOptions::default() };
    Client::connect_to_store(&address(server), &options).unwrap()
}

/// Waits until the server has all its slots back, and no slot of the drives is on its way.
pub fn settle(server: &Server, objects: &Objects) {
    let until = Instant::now() + PATIENCE;
    let counters = &server.view().counters[0][0];
    loop {
        let (slots, free) = (&counters.slots, &counters.slots_free);
        let back = slots.load(Ordering::Relaxed) == free.load(Ordering::Relaxed);
        let tally = objects.tally();
        if back && tally.retired == 0 && tally.objects + tally.free == tally.slots {
            return;
        }
        let free = free.load(Ordering::Relaxed);
        assert!(Instant::now() < until, "{free} slots are free; {tally:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that tell key, version and place.
pub fn content(key: u64, version: u64, len: usize) -> Vec<u8> {
    let seed =
        key.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version.wrapping_mul(0xD1B5_4A32_D192_ED03);
    (0..len as u64).map(|at| (seed.rotate_left((at % 61) as u32) ^ at) as u8).collect()
}
