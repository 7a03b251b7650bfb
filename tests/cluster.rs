//! Several servers and one client: each server's own figures, and what the loss of one costs.

mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use millrace::client::{ClientOptions, Cluster, ClusterOptions};
use millrace::memory::Pages;
use millrace::stats::Clock;
use support::{Server, bench, disk_dir, millrace, run, seeded_file, signal};

const MEM: [&str; 4] = ["--backend", "mem", "--device", "mem:8MiB"];

#[test]
fn each_server_has_its_own_line() {
    let dir = disk_dir();
    let path = dir.path().join("drive");
    seeded_file(&path, 4 << 20);
    let a = Server::start(&["--device", path.to_str().unwrap()]);
    let b = Server::start(&[&MEM[..], &["--device", "mem:2MiB"]].concat());
    let both = format!("{},{}", a.address, b.address);
    let args = ["--io-size", "16KiB", "--depth", "4", "--connections", "4", "--threads", "2"];
    let quick = ["--duration", "1s", "--warmup", "100ms", "--rounds", "2", "--verify"];
    let (code, json, log) = bench(&both, &[&args[..], &quick].concat());
    assert_eq!(code, 0, "{log}");
    let [first, second] = &json["servers"].as_array().unwrap()[..] else { panic!("{json}") };
    assert_eq!((&first["backend"], &second["backend"]), (&"uring".into(), &"mem".into()));
    assert_eq!(first["drives"].as_array().unwrap().len(), 1);
    assert_eq!(second["drives"].as_array().unwrap().len(), 2);
    let mut ops = 0;
    for server in [first, second] {
        assert_eq!(server["connections"], 2);
        assert_eq!((&server["reconnects"], &server["summary"]["errors"]), (&0.into(), &0.into()));
        assert!(server["summary"]["ops"].as_u64().unwrap() > 0, "{server}");
        ops += server["summary"]["ops"].as_u64().unwrap();
    }
    assert_eq!(json["summary"]["ops"].as_u64().unwrap(), ops, "the lines add up to the total");
    // And for people.
    let args = ["bench", "--raw", "--connect", &both, "--io-size", "4KiB", "--duration", "200ms"];
    let (code, stdout, log) = run(&args);
    assert_eq!(code, 0, "{log}");
    for server in [&a, &b] {
        assert!(stdout.lines().any(|line| line.contains(&*server.address)), "{stdout}");
    }
}

#[test]
fn a_server_that_dies_and_comes_back_costs_its_own_requests_only() {
    let a = Server::start(&MEM);
    let b = Server::start(&MEM);
    let address = b.address.clone();
    let listen = address.strip_prefix("tcp://").unwrap().to_owned();
    let both = format!("{},{address}", a.address);
    let dir = tempfile::tempdir().unwrap();
    let result = dir.path().join("result.json");
    let mut load = millrace()
        .args(["bench", "--raw", "--connect", &both, "--io-size", "4KiB", "--depth", "4"])
        .args(["--rate", "1000", "--duration", "8s", "--warmup", "0s", "--rounds", "1"])
        .arg("--json")
        .arg(&result)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(2));
    signal(b.pid(), "KILL");
    drop(b);
    std::thread::sleep(Duration::from_secs(1));
    let again = Server::start(&[&MEM[..], &["--listen", &listen]].concat());
    assert_eq!(again.address, address);
    let status = load.wait().unwrap();
    assert_eq!(status.code(), Some(1), "what was lost is a failure");
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&result).unwrap()).unwrap();
    let of = |n: usize, field: &str| json["servers"][n]["summary"][field].as_u64().unwrap();
    assert_eq!((of(0, "errors"), &json["servers"][0]["reconnects"]), (0, &0.into()), "{json}");
    assert_eq!(json["servers"][1]["reconnects"], 1, "{json}");
    assert!(json["servers"][1]["away_seconds"].as_f64().unwrap() > 0.5, "{json}");
    // 500 a second were due of it for a second at least, and each has failed.
    assert!(of(1, "errors") >= 300, "{json}");
    assert!(of(1, "ops") > 0, "it serves again");
    let failures = json["servers"][1]["summary"]["failures"].to_string();
    assert!(failures.contains("due while the server was away"), "{failures}");
    // The other had all of its own: nothing was refused, nothing unstarted that was due.
    let (ops, unstarted) = (of(0, "ops"), of(0, "unstarted"));
    assert!(ops + unstarted + of(0, "late") >= 3_990, "{ops} and {unstarted}");
}

#[test]
fn a_server_that_hangs_fails_its_requests_at_the_deadline() {
    let a = Server::start(&MEM);
    let b = Server::start(&MEM);
    let options = ClusterOptions {
        servers: vec![a.address.clone(), b.address.clone()],
        locals: vec![],
        workers: vec![],
        client: ClientOptions {
            depth: 4,
            max_read: 4096,
            pages: Pages::Base,
            timeout: Duration::from_secs(3),
            ..ClientOptions::default()
        },
        deadline: Duration::from_millis(500),
    };
    let mut cluster = Cluster::connect(&options, &[0, 1, 2, 3], Clock::start()).unwrap();
    for server in [0, 1] {
        assert_eq!(cluster.read(server, 0, 4096, 4096).unwrap().len(), 4096);
    }
    signal(b.pid(), "STOP");
    // One lane after the other is given up, within the deadline each.
    for _ in 0..2 {
        let begun = Instant::now();
        let error = cluster.read(1, 0, 0, 4096).unwrap_err();
        assert!(error.what().contains("was lost before it answered"), "{error}");
        assert!(begun.elapsed() >= Duration::from_millis(500));
    }
    let error = cluster.read(1, 0, 0, 4096).unwrap_err();
    assert!(error.what().contains("is away"), "{error}");
    assert_eq!(cluster.read(0, 0, 0, 4096).unwrap().len(), 4096, "the other serves");
    signal(b.pid(), "CONT");
    let give_up = Instant::now() + Duration::from_secs(30);
    while cluster.read(1, 0, 0, 4096).is_err() {
        assert!(Instant::now() < give_up, "it is connected to again");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(cluster.outages(1, 0).0 >= 1);
    assert_eq!(cluster.outages(0, 0), (0, 0));
}

#[test]
fn another_server_at_the_same_address_is_not_taken_for_it() {
    let server = Server::start(&MEM);
    let address = server.address.clone();
    let listen = address.strip_prefix("tcp://").unwrap().to_owned();
    let mut load = millrace()
        .args(["bench", "--raw", "--connect", &address, "--io-size", "4KiB", "--duration", "60s"])
        .args(["--patience", "3s"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    signal(server.pid(), "KILL");
    drop(server);
    let _other = Server::start(&["--backend", "mem", "--device", "mem:4MiB", "--listen", &listen]);
    let status = load.wait().unwrap();
    assert_eq!(status.code(), Some(1));
    let mut log = String::new();
    std::io::Read::read_to_string(&mut load.stderr.take().unwrap(), &mut log).unwrap();
    assert!(log.contains("another server answers there"), "{log}");
    assert!(log.contains("no server is left"), "{log}");
}

#[test]
fn what_does_not_go_together_is_refused() {
    let server = Server::start(&MEM);
    let both = format!("{0},{0}", server.address);
    for (args, text) in [
        (&["--connections", "1"][..], "1 connections for 2 servers"),
        (&["--threads", "3", "--connections", "2"], "3 threads for 2 connections"),
        (&["--depth", "128"], "grants 64 to a connection"),
    ] {
        let (code, _, log) = bench(&both, &[&["--io-size", "4KiB"], args].concat());
        assert_eq!(code, 2, "{log}");
        assert!(log.contains(text), "{log}");
    }
}

/// Connections that others make meanwhile shift the turns in which a server hands its out.
#[test]
fn every_worker_is_met_also_where_others_connect() {
    let cpus = millrace::host::affinity::allowed().unwrap();
    let [a, b, ..] = cpus[..] else {
        return support::skip(&support::this_test(), "two workers need two CPUs");
    };
    let cores = format!("{a},{b}");
    let server = Server::start(&[&MEM[..], &["--cores", &cores]].concat());
    let options = |workers| ClusterOptions {
        servers: vec![server.address.clone()],
        locals: vec![],
        workers,
        client: ClientOptions {
            depth: 1,
            max_read: 4096,
            pages: Pages::Base,
            ..ClientOptions::default()
        },
        deadline: Duration::from_secs(30),
    };
    for others in 0..3 {
        let known = options(vec![2]);
        assert_eq!(known.full_mesh(), 2);
        // Two at a time leave the turn where it was, one does not.
        let other = Cluster::connect(&options(vec![]), &vec![0; others + 1], Clock::start());
        let cluster = Cluster::connect(&known, &[0, 1], Clock::start()).unwrap();
        let mut met = cluster.workers(0);
        met.sort_unstable();
        assert_eq!(met, [0, 1], "beside {others} others");
        drop(other);
    }
}
