use std::time::Duration;

use super::*;
use crate::client::{Client, ClientOptions};
use crate::fabric::Token;
use crate::fabric::tcp::{TcpListener, TcpOptions};
use crate::host::affinity;
use crate::memory::Pages;
use crate::server::ServeOptions;
use crate::storage::OpenMode;
use crate::storage::mem::MemStorage;
use crate::wire::CheckMode;

fn shard(name: &str, core: usize, drives: &[u64], token: &Token) -> Result<Shard> {
    let listener =
        TcpListener::bind("127.0.0.1:0".parse().unwrap(), TcpOptions::default()).unwrap();
    let options = ServeOptions {
        cores: vec![core],
        depth: 2,
        slot_size: 64 << 10,
        objects: None,
        pages: Pages::Base,
        node: None,
        check: CheckMode::Crc,
        credits: 4,
        max_connections: 4,
        token: token.clone(),
        deadline: Duration::from_secs(10),
        drain: Duration::from_secs(5),
        handshake_timeout: Duration::from_secs(5),
    };
    Shard::new(name, MemStorage::open(drives, OpenMode::Read).unwrap(), listener, options)
}

fn client(server: &Server, shard: usize, secret: Option<&[u8]>) -> Result<Client> {
    let options = ClientOptions {
        depth: 2,
        max_read: 64 << 10,
        pages: Pages::Base,
        token: secret.map(Arc::from),
        ..ClientOptions::default()
    };
    Client::connect(&format!("tcp://{}", server.shards()[shard].address), &options)
}

/// Two shards need two CPUs; where there is one, the second pins to it as well.
fn cores() -> (usize, usize) {
    let all = affinity::allowed().unwrap();
    (all[0], *all.get(1).unwrap_or(&all[0]))
}

#[test]
fn each_shard_serves_its_own_drives_and_counts_alone() {
    let (one, two) = cores();
    if one == two {
        let test = "each_shard_serves_its_own_drives_and_counts_alone";
        return crate::skip::skip(test, "two workers need two CPUs; this process may use one");
    }
    let token = Token::default();
    let shards = vec![
        shard("a", one, &[1 << 20], &token).unwrap(),
        shard("b", two, &[2 << 20, 3 << 20], &token).unwrap(),
    ];
    let server = Server::start(shards).unwrap();
    let mut a = client(&server, 0, None).unwrap();
    let mut b = client(&server, 1, None).unwrap();
    let capacities = |c: &Client| c.drives().iter().map(|d| d.capacity >> 20).collect::<Vec<_>>();
    assert_eq!((capacities(&a), capacities(&b)), (vec![1], vec![2, 3]));
    a.read(0, 0, 4096).unwrap();
    b.read(1, 4096, 8192).unwrap();
    assert!(a.read(1, 0, 4096).is_err(), "the other shard's drive");
    drop((a, b));
    let view = Arc::clone(server.view());
    server.stop().unwrap();
    let (a, b) = (&view.counters[0][0], &view.counters[1][0]);
    assert_eq!(a.drives[0].latency.read().iter().sum::<u64>(), 1);
    assert_eq!(b.drives[0].latency.read().iter().sum::<u64>(), 0);
    assert_eq!(b.drives[1].bytes.load(Ordering::Relaxed), 8192);
    assert_eq!(a.by_status.read(crate::wire::Status::NoDrive as u16), 1);
    assert_eq!(b.snapshot().failed, 0);
    let totals = view.snapshot();
    // Three records of drives, two reads.
    assert_eq!((totals.served, totals.failed), (5, 1));
    assert_eq!(a.opened.load(Ordering::Relaxed), 1);
}

#[test]
fn a_new_token_is_for_new_connections() {
    let token = Token::new(Some(Arc::from(&b"the first secret"[..])));
    let server = Server::start(vec![shard("0", cores().0, &[1 << 20], &token).unwrap()]).unwrap();
    let mut early = client(&server, 0, Some(b"the first secret")).unwrap();
    token.replace(Arc::from(&b"the second secret"[..]));
    assert_eq!(early.read(0, 0, 4096).unwrap().len(), 4096, "an old connection stays");
    let refused = client(&server, 0, Some(b"the first secret")).err().unwrap();
    assert_eq!(refused.kind(), Kind::Denied);
    let mut late = client(&server, 0, Some(b"the second secret")).unwrap();
    assert_eq!(late.read(0, 0, 4096).unwrap().len(), 4096);
}

#[test]
fn shards_that_do_not_go_together_are_refused() {
    let token = Token::default();
    let one = |name: &str, core| shard(name, core, &[1 << 20], &token).unwrap();
    let error = |shards| Server::start(shards).unwrap_err().report();
    assert!(error(vec![]).contains("without a shard"));
    let (core, other) = cores();
    let text = error(vec![one("a", core), one("a", other.max(core + 1))]);
    assert!(text.contains("two shards have the name \"a\""), "{text}");
    let text = error(vec![one("a", core), one("b", core)]);
    assert!(text.contains(&format!("shard b wants CPU {core}")), "{text}");
}
