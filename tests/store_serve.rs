//! The built program serves the objects of a store: put, get, delete, bench, damage, locks.

mod support;

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use millrace::client::{Client, ClientOptions, Done, Get};
use millrace::error::Kind;
use millrace::memory::Pages;
use support::{Server, disk_dir, fast_dir, millrace, run};

const LIMIT: u64 = 64 << 10;

fn drives(dir: &Path, count: usize, slots: u64) -> Vec<String> {
    (0..count)
        .flat_map(|n| {
            let path = dir.join(format!("drive{n}"));
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(8192 + slots * (4096 + LIMIT)).unwrap();
            ["--device".to_owned(), path.to_str().unwrap().to_owned()]
        })
        .collect()
}

fn store(command: &[&str], drives: &[String]) -> String {
    let mut args = vec!["store"];
    args.extend(command);
    args.extend(drives.iter().map(String::as_str));
    let (code, stdout, stderr) = run(&args);
    assert_eq!(code, 0, "{args:?}: {stderr}");
    stdout
}

fn serve(flags: &[&str], drives: &[String]) -> Server {
    let mut args = flags.to_vec();
    args.extend(drives.iter().map(String::as_str));
    Server::start_store(&args)
}

fn connect(server: &Server) -> Client {
    let options = ClientOptions { pages: Pages::Base, ..ClientOptions::default() };
    Client::connect_to_store(&server.address, &options).unwrap()
}

/// Runs a command with bytes on its standard input: exit code, standard output, standard error.
fn feed(args: &[&str], input: &[u8]) -> (i32, Vec<u8>, String) {
    let mut child = millrace()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses at once does not read it.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap_or(-1), output.stdout, stderr)
}

#[test]
fn get_put_and_delete_by_the_program() {
    let dir = disk_dir();
    let drives = drives(dir.path(), 2, 8);
    store(&["create", "--object-size", "64KiB"], &drives);
    let data: Vec<u8> = (0..50_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    {
        let server = serve(&["--writable"], &drives);
        let on = ["--connect", &server.address];
        let call = |words: &[&str], input: &[u8]| feed(&[words, &on].concat(), input);
        assert_eq!(call(&["put", "a/b c"], &data).0, 0);
        let (code, got, stderr) = call(&["get", "a/b c"], b"");
        assert!(code == 0 && got == data, "{code} {} bytes {stderr}", got.len());
        assert_eq!(call(&["put", "second"], b"2").0, 0);
        assert_eq!(call(&["delete", "second"], b"").0, 0);
        let (code, got, stderr) = call(&["get", "second"], b"");
        assert!(
            code == 1 && got.is_empty() && stderr.contains("no object of that key"),
            "{stderr}"
        );
        assert_eq!(call(&["delete", "second"], b"").0, 1);
        // Nothing, and too much.
        let (code, _, stderr) = call(&["put", "empty"], b"");
        assert!(code == 2 && stderr.contains("0 bytes"), "{stderr}");
        let (code, _, stderr) = call(&["put", "long"], &vec![0; LIMIT as usize + 1]);
        assert!(code == 2 && stderr.contains("more than 64KiB"), "{stderr}");
        let (code, _, stderr) = call(&["put", ""], b"data");
        assert!(code == 2 && stderr.contains("no bytes"), "{stderr}");
        let (code, _, stderr) = call(&["get", &"k".repeat(256)], b"");
        assert!(code == 2 && stderr.contains("256 bytes"), "{stderr}");
        let (code, log) = server.stop();
        assert_eq!(code, 0, "{log}");
    }
    // Read-only, where it is not told to be otherwise.
    let server = serve(&[], &drives);
    let mut client = connect(&server);
    assert_eq!(client.get(b"a/b c").unwrap(), data);
    let error = client.put(b"k", b"data").unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.report().contains("--writable"));
    // And nobody else has the store meanwhile.
    let names: Vec<&str> = drives.iter().map(String::as_str).collect();
    let (code, _, stderr) = run(&[&["serve", "--listen", "127.0.0.1:0"], &names[..]].concat());
    assert!(code == 1 && stderr.contains(&server.pid().to_string()), "{stderr}");
    drop(client);
    drop(server);
    store(&["verify"], &drives);
}

#[test]
fn what_is_no_store_is_not_served() {
    let dir = disk_dir();
    let drives = drives(dir.path(), 1, 4);
    let names: Vec<&str> = drives.iter().map(String::as_str).collect();
    let (code, _, stderr) = run(&[&["serve", "--listen", "127.0.0.1:0"], &names[..]].concat());
    assert_ne!(code, 0);
    assert!(stderr.contains(names[1]) && stderr.contains("--raw"), "{stderr}");
    let args = [&["serve", "--raw", "--writable", "--listen", "127.0.0.1:0"], &names[..]].concat();
    assert_eq!(run(&args).0, 2);
}

#[test]
fn bench_reads_what_fill_has_put() {
    let dir = disk_dir();
    let drives = drives(dir.path(), 2, 40);
    store(&["create", "--object-size", "64KiB"], &drives);
    store(&["fill", "--count", "50", "--size", "1..64KiB", "--seed", "7"], &drives);
    for check in ["none", "crc"] {
        let server = serve(&["--check", check], &drives);
        let bench = |more: &[&str]| {
            let mut args =
                vec!["bench", "--connect", &server.address, "--json", "-", "--depth", "8"];
            args.extend(["--duration", "1s", "--warmup", "100ms", "--rounds", "2", "--verify"]);
            args.extend(more);
            run(&args)
        };
        let (code, stdout, stderr) = bench(&["--objects", "50", "--fill-seed", "7"]);
        assert_eq!(code, 0, "{stderr}");
        let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert!(json["summary"]["iops"].as_f64().unwrap() > 0.0);
        assert_eq!(json["summary"]["errors"], 0, "{stdout}");
        // Contents of another seed, and more objects than there are.
        assert_eq!(bench(&["--objects", "50", "--fill-seed", "8"]).0, 1);
        assert_eq!(bench(&["--objects", "60", "--fill-seed", "7"]).0, 1);
    }
}

/// Flips a bit of each part of an object on the drive: the object is named as damaged and never
/// sent, all others are served.
#[test]
fn damage_is_answered_by_its_name_and_never_served() {
    let dir = disk_dir();
    let drives = drives(dir.path(), 1, 8);
    store(&["create", "--object-size", "64KiB"], &drives);
    store(&["fill", "--count", "5", "--size", "10000"], &drives);
    let path = &drives[1];
    let clean = std::fs::read(path).unwrap();
    let slot_of = |key: &str| {
        let stride = 4096 + LIMIT as usize;
        (0..8).map(|n| 4096 + n * stride).find(|at| {
            clean[*at..at + 4096].windows(key.len()).any(|bytes| bytes == key.as_bytes())
        })
    };
    let slot = slot_of("object-0000000003").expect("it is on the drive");
    let key_at = clean[slot..].windows(17).position(|b| b == b"object-0000000003").unwrap();
    let server = serve(&["--check", "crc"], &drives);
    let mut client = connect(&server);
    let others = |client: &mut Client| {
        for n in [0, 1, 2, 4] {
            assert_eq!(client.get(format!("object-{n:010}").as_bytes()).unwrap().len(), 10_000);
        }
    };
    let spoil = |at: usize, bit: u8| {
        let mut bytes = clean.clone();
        bytes[at] ^= 1 << bit;
        std::fs::write(path, bytes).unwrap();
    };
    let cases = [
        ("data, first byte", slot + 4096, "CRC"),
        ("data, last byte", slot + 4096 + 9999, "CRC"),
        ("key", slot + key_at, "header"),
        ("magic", slot, "header"),
        ("length", slot + 12, "header"),
    ];
    for (what, at, words) in cases {
        for bit in 0..8 {
            spoil(at, bit);
            let error = client.get(b"object-0000000003").unwrap_err();
            assert_eq!(error.kind(), Kind::Data, "{what}: {}", error.report());
            assert!(error.report().contains(words), "{what}: {}", error.report());
            others(&mut client);
        }
    }
    std::fs::write(path, &clean).unwrap();
    assert_eq!(client.get(b"object-0000000003").unwrap().len(), 10_000);
    assert!(server.log().contains("is damaged"), "{}", server.log());
    // Without a check at the server, a client's own finds it.
    drop(server);
    let server = serve(&["--check", "none"], &drives);
    let mut client = connect(&server);
    spoil(slot + 4096 + 5000, 3);
    let error = client.get(b"object-0000000003").unwrap_err();
    assert_eq!(error.kind(), Kind::Data, "{}", error.report());
}

/// Every file of a tree of 10,000 and more.
fn files(of: &Path, found: &mut Vec<std::path::PathBuf>) {
    let Ok(entries) = std::fs::read_dir(of) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            files(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

#[test]
fn a_file_tree_goes_in_and_comes_back() {
    const NAME: &str = "a_file_tree_goes_in_and_comes_back";
    const WANTED: usize = 10_000;
    let root = Path::new("/usr/share");
    let mut all = Vec::new();
    files(root, &mut all);
    let fits = |path: &&std::path::PathBuf| {
        let key = path.strip_prefix(root).unwrap();
        let size = std::fs::metadata(path).map_or(0, |meta| meta.len());
        (1..=LIMIT).contains(&size) && key.as_os_str().len() <= 255
    };
    all.sort();
    let some: Vec<_> = all.iter().filter(fits).take(WANTED + 500).collect();
    if some.len() < WANTED {
        return support::skip(NAME, "/usr/share has fewer than 10,000 files of 1 B to 64 KiB");
    }
    let dir = fast_dir();
    let tree = dir.path().join("tree");
    let mut copied = Vec::new();
    for path in some {
        let key = path.strip_prefix(root).unwrap();
        let to = tree.join(key);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        // Unreadable ones are left out of both.
        if std::fs::copy(path, &to).is_ok() {
            copied.push((key.to_str().unwrap().as_bytes().to_vec(), to));
        }
    }
    assert!(copied.len() >= WANTED);
    let drives = drives(dir.path(), 2, copied.len() as u64 / 2 + 200);
    store(&["create", "--object-size", "64KiB"], &drives);
    store(&["ingest", tree.to_str().unwrap()], &drives);
    let server = serve(&[], &drives);
    let mut client = connect(&server);
    let mut done: Vec<Done> = Vec::with_capacity(64);
    let (mut next, mut back) = (0, 0);
    while back < copied.len() {
        while next < copied.len() && client.in_flight() < u32::from(client.credits()) {
            client.submit_get(Get { key: &copied[next].0, tag: next as u64 }).unwrap();
            next += 1;
        }
        client.flush().unwrap();
        client.poll(&mut done).unwrap();
        for one in done.drain(..) {
            client.verify(&one).unwrap();
            let (key, path) = &copied[one.tag as usize];
            let same = client.payload(&one).unwrap() == std::fs::read(path).unwrap();
            assert!(same, "{}", String::from_utf8_lossy(key));
            client.recycle(one);
            back += 1;
        }
    }
}
