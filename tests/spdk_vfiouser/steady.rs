//! What the thread that reads asks of the kernel in steady state: nothing.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::start;
use crate::support::{have, millrace, signal, skip};
use crate::target::Drive;

/// Calls that change the address space, which the other CPUs have to be told of.
const MAPPING: [&str; 6] = ["mmap(", "munmap(", "mprotect(", "madvise(", "mremap(", "brk("];

#[test]
fn reading_makes_no_system_call() {
    let test = "reading_makes_no_system_call";
    if !have("strace") {
        return skip(test, "strace is not installed");
    }
    let Some((_turn, target)) = start(test, &[&[Drive::new(4096)]]) else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let (trace, result) = (dir.path().join("strace"), dir.path().join("result"));
    let mut load = millrace()
        .args(["local", "--backend", "spdk", "--device", &target.id(0), "--io-size", "4KiB"])
        // One round: at the end of each the thread asks for its CPU time.
        .args(["--depth", "8", "--warmup", "1s", "--duration", "18s", "--rounds", "1", "--json"])
        .arg(&result)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    let thread = loop {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", load.id())).expect("it runs");
        let named = tasks.flatten().find(|task| {
            let name = std::fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.trim() == "load-0")
        });
        if let Some(task) = named {
            break task.file_name().into_string().expect("a number");
        }
        assert!(Instant::now() < deadline, "no thread reads");
        std::thread::sleep(Duration::from_millis(10));
    };
    std::thread::sleep(Duration::from_secs(4));
    let mut strace = Command::new("strace")
        .args(["-f", "-qq", "-p", &load.id().to_string(), "-o"])
        .arg(&trace)
        .stderr(Stdio::null())
        .spawn()
        .expect("strace starts");
    std::thread::sleep(Duration::from_secs(10));
    assert!(load.try_wait().expect("it can be waited for").is_none(), "the load ended too early");
    signal(strace.id(), "INT");
    strace.wait().expect("strace ends");
    assert!(load.wait().expect("it ends").success());
    let text = std::fs::read_to_string(&trace).expect("a trace");
    // The housekeeping thread wakes a hundred times a second: strace did see the process.
    assert!(text.lines().count() > 100, "strace saw nothing: {text}");
    let own: Vec<_> = text.lines().filter(|line| line.split(' ').next() == Some(&thread)).collect();
    assert!(own.is_empty(), "{own:?}");
    let maps: Vec<_> =
        text.lines().filter(|line| MAPPING.iter().any(|m| line.contains(m))).collect();
    assert!(maps.is_empty(), "{maps:?}");
    let result = std::fs::read_to_string(&result).expect("a result");
    let result: serde_json::Value = serde_json::from_str(&result).expect("JSON");
    println!("{} calls of the other threads, {}", text.lines().count(), result["summary"]["iops"]);
    assert!(result["summary"]["iops"].as_f64().expect("a rate") > 0.0);
}
