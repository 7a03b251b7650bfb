//! The built program: serve on one end, bench on the other, real drives' stand-ins between them.

mod support;

use std::process::{Command, Stdio};
use std::time::Duration;

use millrace::client::{Client, ClientOptions};
use support::{Server, bench, disk_dir, millrace, run, seeded_file, signal};

const QUICK: [&str; 6] = ["--duration", "1s", "--warmup", "200ms", "--rounds", "2"];

fn quick<'a>(args: &[&'a str]) -> Vec<&'a str> {
    args.iter().copied().chain(QUICK).collect()
}

#[test]
fn a_file_is_served_and_verified() {
    let dir = disk_dir();
    let path = dir.path().join("drive");
    let bytes = seeded_file(&path, 16 << 20);
    let server = Server::start(&["--device", path.to_str().unwrap()]);

    for (size, depth) in [("1MiB", "8"), ("4KiB", "32"), ("12KiB", "1")] {
        let args = quick(&["--io-size", size, "--depth", depth, "--verify"]);
        let (code, json, log) = bench(&server.address, &args);
        assert_eq!(code, 0, "{log}");
        assert!(json["summary"]["iops"].as_f64().unwrap() > 0.0);
        assert_eq!(json["summary"]["errors"], 0);
        assert_eq!(json["rounds"].as_array().unwrap().len(), 2);
    }

    let mut client = Client::connect(&server.address, &ClientOptions::default()).unwrap();
    for (offset, len) in [(0u64, 4096u32), (4096 * 7, 8192), ((16 << 20) - (1 << 20), 1 << 20)] {
        let data = client.read(0, offset, len).unwrap();
        assert!(data == bytes[offset as usize..][..len as usize], "bytes at {offset}");
    }
    drop(client);
    let (code, log) = server.stop();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("0 failed, 0 slots leaked"), "{log}");
}

#[test]
fn two_drives_two_connections_two_threads_memory() {
    let server =
        Server::start(&["--backend", "mem", "--device", "mem:8MiB", "--device", "mem:4MiB"]);
    let args = ["--connections", "4", "--threads", "2", "--depth", "4", "--io-size", "64KiB"];
    let (code, json, log) = bench(&server.address, &quick(&[&args[..], &["--verify"]].concat()));
    assert_eq!(code, 0, "{log}");
    assert_eq!(json["servers"][0]["drives"].as_array().unwrap().len(), 2);
    assert_eq!(json["servers"][0]["backend"], "mem");
}

#[test]
fn an_open_loop_counts_from_the_intended_start() {
    let server = Server::start(&["--backend", "mem", "--device", "mem:8MiB"]);
    let args = quick(&["--rate", "2000", "--io-size", "4KiB", "--depth", "8"]);
    let (code, json, log) = bench(&server.address, &args);
    assert_eq!(code, 0, "{log}");
    // Never above the rate, but for what was late when the measurement began: at most the slip,
    // and the depth that was in flight. Below the rate only where the machine is too busy to keep
    // the schedule, which the slip then shows.
    let slip = json["summary"]["max_slip_ns"].as_u64().unwrap() as f64 / 1e9;
    // QUICK measures for one second.
    let reads = json["summary"]["iops"].as_f64().unwrap();
    let most = 2000.0 * (1.0 + slip) + 8.0 + 1.0;
    assert!(reads > 0.0 && reads <= most, "{reads} of at most {most}");
    let (whole, service) = (&json["summary"]["latency_ns"], &json["summary"]["service_ns"]);
    assert!(whole["mean"].as_f64().unwrap() >= service["mean"].as_f64().unwrap());
}

#[test]
fn requests_that_do_not_fit_are_refused_one_by_one() {
    let server =
        Server::start(&["--backend", "mem", "--device", "mem:1MiB", "--slot-size", "64KiB"]);
    let options = ClientOptions { max_read: 64 << 10, ..ClientOptions::default() };
    let mut client = Client::connect(&server.address, &options).unwrap();
    let block = u64::from(client.drives()[0].block_size);
    let mut expect = |drive, offset, len, text: &str| {
        let error = client.read(drive, offset, len).unwrap_err();
        assert!(error.report().contains(text), "{}", error.report());
    };
    expect(1, 0, 4096, "no drive of that number");
    expect(0, 1 << 20, 4096, "past the end");
    expect(0, (1 << 20) - block, 2 * block as u32, "past the end");
    expect(0, 1, 4096, "multiples of the block size");
    expect(0, 0, 4097, "multiples of the block size");
    expect(0, 0, 0, "not well-formed");
    expect(0, 0, 128 << 10, "carries 65536 at most");
    assert_eq!(client.read(0, 0, 64 << 10).unwrap().len(), 64 << 10, "and still serves");
}

#[test]
fn a_token_is_asked_for_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (right, wrong) = (write("a", "0123456789abcdef\n"), write("b", "fedcba9876543210\n"));
    let server =
        Server::start(&["--backend", "mem", "--device", "mem:1MiB", "--token-file", &right]);
    let try_with = |extra: &[&str]| {
        let io = ["--io-size", "4KiB", "--depth", "1"];
        bench(&server.address, &quick(&[&io[..], extra].concat()))
    };
    assert_eq!(try_with(&["--token-file", &right]).0, 0);
    let (code, _, log) = try_with(&["--token-file", &wrong]);
    assert_eq!(code, 1);
    assert!(log.contains("tokens of the two sides differ"), "{log}");
    let (code, _, log) = try_with(&[]);
    assert_eq!(code, 1);
    assert!(log.contains("--token-file"), "{log}");
}

#[test]
fn a_client_killed_mid_transfer_hurts_nobody() {
    let server = Server::start(&["--backend", "mem", "--device", "mem:64MiB", "--depth", "16"]);
    let address = server.address.clone();
    let other = std::thread::spawn(move || {
        let args = ["--io-size", "256KiB", "--depth", "4", "--verify", "--duration", "8s"];
        bench(&address, &args)
    });
    for _ in 0..200 {
        let mut victim = millrace()
            .args(["bench", "--raw", "--connect", &server.address, "--io-size", "1MiB"])
            .args(["--depth", "16", "--duration", "60s"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(20));
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    let (code, json, log) = other.join().unwrap();
    assert_eq!(code, 0, "{log}");
    assert_eq!(json["summary"]["errors"], 0);
    // All slots are there: a connection that needs them all gets them.
    let args = quick(&["--io-size", "1MiB", "--depth", "32", "--verify"]);
    assert_eq!(bench(&server.address, &args).0, 0);
    let (code, log) = server.stop();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("0 slots leaked"), "{log}");
}

#[test]
fn a_server_that_stops_drains_first() {
    let server = Server::start(&["--backend", "mem", "--device", "mem:8MiB"]);
    let mut client = millrace()
        .args(["bench", "--raw", "--connect", &server.address, "--io-size", "64KiB"])
        .args(["--duration", "30s"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let (code, log) = server.stop();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("0 slots leaked"), "{log}");
    let status = client.wait().unwrap();
    assert_eq!(status.code(), Some(1), "the client says that its server is gone");
}

#[test]
fn statistics_are_printed_when_asked_for() {
    let server = Server::start(&["--backend", "mem", "--device", "mem:8MiB", "--stats", "200ms"]);
    assert_eq!(bench(&server.address, &quick(&["--io-size", "4KiB"])).0, 0);
    let log = server.log();
    assert!(log.lines().any(|line| line.contains(" reads/s ") && !line.starts_with("0 reads")));
}

#[test]
fn sigint_stops_too() {
    let server = Server::start(&["--backend", "mem", "--device", "mem:1MiB"]);
    signal(server.pid(), "INT");
    let (code, _) = server.stop();
    assert_eq!(code, 0);
}

#[test]
fn local_reads_a_file() {
    let dir = disk_dir();
    let path = dir.path().join("drive");
    seeded_file(&path, 8 << 20);
    let device = path.to_str().unwrap();
    for check in ["crc", "touch", "none"] {
        let args = quick(&["local", "--device", device, "--io-size", "64KiB", "--check", check]);
        let (code, stdout, log) = run(&[&args[..], &["--json", "-"]].concat());
        assert_eq!(code, 0, "{log}");
        let json: serde_json::Value = serde_json::from_str(&stdout).expect("nothing but JSON");
        assert_eq!(json["schema"], "millrace.run/1");
        assert_eq!(json["summary"]["errors"], 0);
        for field in ["iops", "bytes_per_sec", "cpu_ns_per_op"] {
            assert!(json["summary"][field].as_f64().unwrap() > 0.0, "{field}");
        }
        for field in ["p50", "p90", "p99", "p999", "max", "mean"] {
            assert!(json["summary"]["latency_ns"][field].as_f64().unwrap() > 0.0, "{field}");
        }
        let checked = json["summary"]["stages"]["check_ns"].as_f64().unwrap();
        assert_eq!(checked > 0.0, check != "none");
    }
    let args = quick(&["local", "--device", device, "--io-size", "64KiB", "--sequential"]);
    assert_eq!(run(&args).0, 0);
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let cases: [&[&str]; 7] = [
        &["serve", "--raw", "--backend", "mem", "--device", "mem:0"],
        &["serve", "--raw", "--backend", "mem", "--device", "mem:1MiB", "--slot-size", "5000"],
        &["serve", "--raw", "--backend", "mem", "--device", "mem:1MiB", "--listen", "0.0.0.0:0"],
        &["serve", "--raw", "--backend", "mem", "--device", "mem:1MiB", "--cores", "1,1"],
        &["serve", "--raw", "--backend", "mem", "--device", "mem:1MiB", "--depth", "0"],
        &["local", "--backend", "mem", "--device", "mem:1MiB", "--io-size", "2MiB"],
        &["local", "--backend", "mem", "--device", "mem:1MiB", "--io-size", "1000"],
    ];
    for args in cases {
        let (code, stdout, stderr) = run(args);
        assert_eq!(code, 2, "{args:?}: {stderr}");
        assert!(stdout.is_empty(), "{args:?}: {stdout}");
        assert!(stderr.contains("to mend it") || stderr.contains("possible"), "{args:?}: {stderr}");
    }
}

#[test]
fn drives_without_a_store_are_not_served_as_one() {
    let (code, stdout, stderr) = run(&["serve", "--backend", "mem", "--device", "mem:1MiB"]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stdout.is_empty(), "{stdout}");
    assert!(stderr.contains("there is no store on it"), "{stderr}");
    assert!(stderr.contains("millrace store create") && stderr.contains("--raw"), "{stderr}");
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let args = ["serve", "--raw", "--backend", "mem", "--device", "mem:1MiB", "--listen", &address];
    let (code, _, stderr) = run(&args);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains(&address), "{stderr}");
}

#[test]
fn a_device_that_is_none_is_named() {
    let dir = disk_dir();
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let missing = dir.path().join("missing");
    for (path, text) in [
        (missing.as_path(), "No such file"),
        (dir.path(), "is a directory"),
        (empty.as_path(), "empty"),
        (std::path::Path::new("/dev/null"), "/dev/null"),
    ] {
        let (code, _, stderr) = run(&["serve", "--raw", "--device", path.to_str().unwrap()]);
        assert_ne!(code, 0);
        assert!(stderr.contains(path.to_str().unwrap()), "{stderr}");
        assert!(stderr.contains(text), "{text}: {stderr}");
    }
}

#[test]
fn too_little_memlock_is_explained() {
    // Root is above the limit, so the server runs as nobody.
    if !support::have("setpriv") || !support::have("prlimit") {
        return support::skip("too_little_memlock_is_explained", "no setpriv or prlimit");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let path = dir.path().join("drive");
    seeded_file(&path, 8 << 20);
    let program = dir.path().join("millrace");
    std::fs::copy(env!("CARGO_BIN_EXE_millrace"), &program).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    command.args(["prlimit", "--memlock=65536:65536"]).arg(program);
    command.args(["serve", "--raw", "--hugepages", "none", "--device"]).arg(path);
    let output = support::run_within(command, Duration::from_secs(20));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("limit on locked memory of this process is 64KiB"), "{stderr}");
}

#[test]
fn a_client_that_does_not_read_costs_the_others_nothing() {
    let server = Server::start(&[
        "--backend",
        "mem",
        "--device",
        "mem:64MiB",
        "--depth",
        "2",
        "--slot-size",
        "1MiB",
        "--deadline",
        "2s",
    ]);
    let options = ClientOptions { depth: 32, max_read: 1 << 20, ..ClientOptions::default() };
    let mut lazy = Client::connect(&server.address, &options).unwrap();
    for tag in 0..32 {
        let read = millrace::client::Read { drive: 0, offset: tag << 20, len: 1 << 20, tag };
        lazy.submit(read).unwrap();
    }
    lazy.flush().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let mut client = Client::connect(&server.address, &options).unwrap();
    for _ in 0..10 {
        client.read(0, 0, 4096).unwrap();
    }
}

#[test]
fn the_thread_of_sqpoll_is_no_free_lunch() {
    let dir = disk_dir();
    let path = dir.path().join("drive");
    seeded_file(&path, 1 << 20);
    let device = ["local", "--device", path.to_str().unwrap(), "--io-size", "4KiB", "--depth", "1"];
    let args = [&device[..], &["--sqpoll", "on", "--json", "-"], &QUICK].concat();
    let (code, json, log) = run(&args);
    assert_eq!(code, 0, "{log}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let summary = &json["summary"];
    let figure = |name: &str| summary[name].as_f64().unwrap();
    // Two threads poll without a pause: the one of this program in user space, the kernel's in
    // the kernel. Without the second, hardly any system time would be counted.
    let system = figure("cpu_system_ns_per_op") / figure("cpu_ns_per_op");
    assert!(system > 0.25, "{system:.2} of the CPU time is the kernel's");
}
