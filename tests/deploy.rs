//! The built program as it is deployed: several shards by a file, readiness, reload, metrics, the
//! unit.

#[path = "support/prometheus.rs"]
mod prometheus;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use millrace::client::{Client, ClientOptions};
use millrace::memory::Pages;
use prometheus::{parse, total};
use support::{have, millrace, run, run_within, signal, skip, this_test};

/// CPUs for two workers, or a reason to skip.
fn two_cpus() -> Option<(usize, usize)> {
    match millrace::host::affinity::allowed().unwrap()[..] {
        [a, b, ..] => Some((a, b)),
        _ => {
            skip(&this_test(), "two workers need two CPUs; this process may use one");
            None
        }
    }
}

/// A file for two shards in memory, with a token.
fn two_shards(dir: &Path, (a, b): (usize, usize)) -> String {
    let token = dir.join("token");
    std::fs::write(&token, "the first secret\n").unwrap();
    let text = format!(
        "raw = true\ntoken_file = {token:?}\nmetrics = \"127.0.0.1:0\"\n\
         [defaults]\nbackend = \"mem\"\ndepth = 4\nslot_size = \"64KiB\"\ncredits = 4\n\
         listen = \"127.0.0.1:0\"\nhugepages = \"none\"\n\
         [[shard]]\nname = \"left\"\ndrives = [\"mem:1MiB\"]\ncores = \"{a}\"\n\
         [[shard]]\nname = \"right\"\ndrives = [\"mem:2MiB\", \"mem:3MiB\"]\ncores = \"{b}\"\n"
    );
    let file = dir.join("millrace.toml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// A running server; killed when it is dropped.
struct Server {
    child: Child,
    addresses: Vec<String>,
    log: std::path::PathBuf,
}

impl Server {
    fn start(dir: &Path, args: &[&str], shards: usize, notify: Option<&Path>) -> Self {
        let log = dir.join("log");
        let mut command = millrace();
        command.arg("serve").args(args).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(&log).unwrap());
        if let Some(socket) = notify {
            command.env("NOTIFY_SOCKET", socket);
        }
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let lines = stdout.lines().take(shards).map(Result::unwrap);
        let address = |line: String| line.strip_prefix("listening on ").unwrap().to_owned();
        let addresses: Vec<String> = lines.map(address).collect();
        let server = Self { child, addresses, log };
        assert_eq!(server.addresses.len(), shards, "{}", server.log());
        server
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until the log has `text`.
    fn says(&self, text: &str) -> String {
        for _ in 0..500 {
            if let Some(line) = self.log().lines().find(|line| line.contains(text)) {
                return line.to_owned();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("no \"{text}\" in: {}", self.log());
    }

    fn client(&self, shard: usize, secret: &str) -> millrace::Result<Client> {
        let options = ClientOptions {
            depth: 4,
            max_read: 64 << 10,
            pages: Pages::Base,
            token: Some(Arc::from(secret.as_bytes())),
            ..ClientOptions::default()
        };
        Client::connect(&self.addresses[shard], &options)
    }

    fn scrape(&self) -> std::collections::BTreeMap<String, prometheus::Family> {
        let line = self.says("metrics at http://");
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        parse(answer.split_once("\r\n\r\n").unwrap().1)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn two_shards_serve_each_their_own_and_the_metrics_tell_them_apart() {
    let Some(cpus) = two_cpus() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = two_shards(dir.path(), cpus);
    let server = Server::start(dir.path(), &["--config", &file], 2, None);
    let mut left = server.client(0, "the first secret").unwrap();
    let mut right = server.client(1, "the first secret").unwrap();
    assert_eq!((left.drives().len(), right.drives().len()), (1, 2));
    for n in 0..5 {
        left.read(0, n * 4096, 4096).unwrap();
        right.read(1, n * 8192, 8192).unwrap();
    }
    assert!(left.read(0, 1 << 20, 4096).is_err(), "past the end");
    let families = server.scrape();
    let of = |name: &str, labels: &[(&str, &str)]| total(&families[name], labels);
    let bytes =
        |shard, drive| of("millrace_drive_bytes_total", &[("shard", shard), ("drive", drive)]);
    assert_eq!(
        (bytes("left", "0"), bytes("right", "0"), bytes("right", "1")),
        (20480.0, 0.0, 40960.0)
    );
    let requests =
        |shard, status| of("millrace_requests_total", &[("shard", shard), ("status", status)]);
    // A record of each drive, and five reads.
    assert_eq!((requests("left", "ok"), requests("right", "ok")), (6.0, 7.0));
    assert_eq!((requests("left", "out_of_range"), requests("right", "out_of_range")), (1.0, 0.0));
    let inf = [("shard", "right"), ("le", "+Inf")];
    assert_eq!(of("millrace_request_seconds", &inf), 5.0);
    assert_eq!(of("millrace_slots", &[]), 16.0);
    assert_eq!(of("millrace_connections_opened_total", &[]), 2.0);
    drop((left, right));
    signal(server.child.id(), "TERM");
    server.says("stopped: 13 requests served, 1 failed, 0 slots leaked");
}

#[test]
fn readiness_reload_and_the_end_are_told_and_the_token_changes_alone() {
    let Some(cpus) = two_cpus() else { return };
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let heard = || {
        let mut bytes = [0; 256];
        let len = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    };
    let file = two_shards(dir.path(), cpus);
    let server = Server::start(dir.path(), &["--config", &file], 2, Some(&socket));
    assert!(heard().starts_with("READY=1\nSTATUS=2 shard(s)"));
    let mut early = server.client(1, "the first secret").unwrap();

    let token = dir.path().join("token");
    let reload = |secret: &str| {
        std::fs::write(&token, secret).unwrap();
        signal(server.child.id(), "HUP");
        assert!(heard().starts_with("RELOADING=1\nMONOTONIC_USEC="));
        assert!(heard().starts_with("READY=1"));
    };
    reload("the second secret\n");
    early.read(0, 0, 4096).expect("the open connection stays");
    for shard in [0, 1] {
        let error = server.client(shard, "the first secret").err().unwrap();
        assert_eq!(error.kind(), millrace::error::Kind::Denied);
        server.client(shard, "the second secret").unwrap().read(0, 0, 4096).unwrap();
    }
    // A file that will not do changes nothing.
    reload("short");
    server.says("the old token stays in force");
    assert!(server.log().contains("has 5 bytes"), "{}", server.log());
    server.client(0, "the second secret").unwrap().read(0, 0, 4096).unwrap();
    assert!(server.client(0, "short").is_err());
    early.read(1, 0, 4096).expect("the open connection stays");
    let families = server.scrape();
    let refused =
        total(&families["millrace_connections_closed_total"], &[("reason", "unauthenticated")]);
    assert_eq!(refused, 3.0);
    drop(early);
    signal(server.child.id(), "TERM");
    assert!(heard().starts_with("STOPPING=1"));
}

#[test]
fn a_dry_run_shows_the_plan_and_opens_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.toml");
    let text = "raw = true\n[[shard]]\nname = \"a\"\nlisten = \"127.0.0.1:4790\"\n\
                drives = [\"/nonexistent/drive\"]\ncores = \"0\"\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let (code, stdout, stderr) = run(&["serve", "--config", file, "--dry-run"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("shard a  (") && stdout.contains("/nonexistent/drive"), "{stdout}");
    let (code, stdout, stderr) = run(&["serve", "--config", file]);
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains("/nonexistent/drive"), "{stderr}");
    std::fs::write(file, text.replace("cores", "corse")).unwrap();
    let (code, _, stderr) = run(&["serve", "--config", file, "--dry-run"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("f.toml:6") && stderr.contains("corse"), "{stderr}");
    let (code, _, stderr) = run(&["serve", "--config", file, "--device", "mem:1MiB"]);
    assert_eq!(code, 2, "{stderr}");
    let (code, _, stderr) = run(&["serve", "--raw"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("--device"), "{stderr}");
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    if !have("systemd-analyze") {
        return skip(&this_test(), "no systemd-analyze here");
    }
    let dir = tempfile::tempdir().unwrap();
    let unit = include_str!("../deploy/millrace.service");
    let program = env!("CARGO_BIN_EXE_millrace");
    // Where it will be installed is no place on this machine.
    let unit = unit.replace("/usr/local/bin/millrace", program);
    let path = dir.path().join("millrace.service");
    std::fs::write(&path, unit).unwrap();
    let mut command = std::process::Command::new("systemd-analyze");
    command.arg("verify").arg(&path);
    let output = run_within(command, Duration::from_secs(60));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("millrace.service:"), "{text}");
}
