//! The built program comparing: its output, its files, interruptions, and walls planted live.

#[path = "../support/mod.rs"]
mod support;
mod walls;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{disk_dir, millrace, run, run_within, seeded_file, signal};

const QUICK: [&str; 6] = ["--duration", "100ms", "--warmup", "0s", "--rounds", "2"];

/// Held by each test: comparisons beside each other would measure each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `compare --json -` with these arguments: exit code, JSON, log.
fn compare(out: &Path, args: &[&str]) -> (i32, Value, String) {
    compare_by(millrace(), out, args)
}

/// The same, run by a command that takes the program's arguments.
fn compare_by(mut by: Command, out: &Path, args: &[&str]) -> (i32, Value, String) {
    by.args(["compare", "--out", out.to_str().unwrap(), "--json", "-"]).args(args);
    let output = run_within(by, Duration::from_secs(60));
    let code = output.status.code().unwrap_or(-1);
    let json = match code {
        0 => serde_json::from_slice(&output.stdout).expect("nothing but JSON"),
        _ => Value::Null,
    };
    (code, json, String::from_utf8_lossy(&output.stderr).into_owned())
}

fn check_schema(json: &Value) {
    let schema: Value =
        serde_json::from_str(include_str!("../../schema/compare.schema.json")).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let wrong: Vec<String> =
        validator.iter_errors(json).map(|e| format!("{e} at {}", e.instance_path)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A set of one path and itself in memory, and one with another check.
fn set(dir: &Path, extra: &str) -> String {
    let path = dir.join("set.toml");
    let text = format!(
        "name = \"same\"\n{extra}\n[load]\nio-size = [\"64KiB\"]\ndepth = [4]\n\
         [base]\nbackend = \"mem\"\n[[variant]]\nname = \"A\"\n[[variant]]\nname = \"B\"\n\
         [[variant]]\nname = \"touch\"\nset = {{ check = \"touch\" }}\n"
    );
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_set_of_ones_own_is_compared_and_drawn_again() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (set, out) = (set(dir.path(), ""), dir.path().join("out"));
    let args = ["--set", &set, "--device", "mem:8MiB"];
    let (code, json, log) = compare(&out, &[&args[..], &QUICK].concat());
    assert_eq!(code, 0, "{log}");
    check_schema(&json);
    assert_eq!(json["points"].as_array().unwrap().len(), 3);
    assert_eq!(json["runs"].as_array().unwrap().len(), 6);
    assert_eq!(json["comparisons"][0]["changes"].as_array().unwrap().len(), 0);
    assert_eq!(json["comparisons"][1]["changes"][0]["switch"], "check");
    assert_eq!(json["comparisons"][1]["ratios"]["iops"]["verdict"], "too-few-rounds");
    let reasons = json["fairness"]["reasons"].as_array().unwrap();
    assert!(reasons.iter().any(|reason| reason["id"] == "few-rounds"), "{reasons:?}");
    // Each figure that is missing has its reason.
    let counters = &json["runs"][0]["counters"];
    for (name, value) in counters["values"].as_object().unwrap() {
        assert!(!value.is_null() || counters["notes"][name].is_string(), "{name}");
    }
    // A-B-B-A.
    let order: Vec<u64> =
        json["runs"].as_array().unwrap().iter().map(|r| r["variant"].as_u64().unwrap()).collect();
    assert_eq!(order, [0, 1, 2, 2, 1, 0]);

    let file = |name: &str| out.join(name);
    let before = std::fs::read_to_string(file("compare.json")).unwrap();
    for name in ["compare.md", "compare.html"] {
        std::fs::remove_file(file(name)).unwrap();
    }
    let (code, stdout, log) = run(&["compare", "--report", out.to_str().unwrap()]);
    assert_eq!(code, 0, "{log}");
    assert!(stdout.contains("| touch |"), "{stdout}");
    assert_eq!(std::fs::read_to_string(file("compare.json")).unwrap(), before);
    for name in ["compare.md", "compare.html"] {
        assert!(file(name).exists(), "{name}");
    }
}

#[test]
fn an_interrupted_comparison_goes_on_and_another_is_refused() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (set, out) = (set(dir.path(), ""), dir.path().join("out"));
    let args = ["compare", "--set", &set, "--device", "mem:8MiB", "--out", out.to_str().unwrap()];
    let runs = ["--duration", "200ms", "--warmup", "0s"];
    let mut child = millrace()
        .args(args)
        .args(runs)
        .args(["--rounds", "1000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The header and a round at least.
    let rounds = out.join("rounds.jsonl");
    let lines = || std::fs::read_to_string(&rounds).unwrap_or_default().matches('\n').count();
    let give_up = Instant::now() + Duration::from_secs(50);
    while lines() < 2 && Instant::now() < give_up {
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(child.id(), "INT");
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(1), "interrupted");
    let kept = lines();
    assert!((2..900).contains(&kept), "{kept} lines");

    let wanted = (kept + 1).to_string();
    let more = ["--rounds", &wanted, "--json", "-"];
    let (code, stdout, log) = run(&[&args[..], &runs, &more].concat());
    assert_eq!(code, 0, "{log}");
    assert!(log.contains(&format!("going on after {} finished rounds", kept - 1)), "{log}");
    let json: Value = serde_json::from_str(&stdout).unwrap();
    let last = json["runs"].as_array().unwrap().last().unwrap();
    assert_eq!(last["round"], kept as u64);
    assert_eq!(json["runs"].as_array().unwrap().len(), 3 * (kept + 1));

    let (code, _, log) = run(&[&args[..], &runs, &["--seed", "2", "--rounds", "2"]].concat());
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("seed was 1, is 2"), "{log}");
}

#[test]
fn a_fabric_is_behind_a_server_of_its_own() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (set, out) = (set(dir.path(), ""), dir.path().join("out"));
    let args = ["--set", &set, "--device", "mem:8MiB", "--fabric", "tcp"];
    let (code, json, log) = compare(&out, &[&args[..], &QUICK].concat());
    assert_eq!(code, 0, "{log}");
    check_schema(&json);
    let figures = &json["points"][0]["figures"];
    for name in ["fabric_client_ns", "client_cpu_ns_per_read", "reader_run_share"] {
        assert!(figures[name]["median"].as_f64().unwrap() > 0.0, "{name}: {figures}");
    }
}

#[test]
fn what_cannot_run_here_is_left_out_of_a_set_that_comes_along() {
    let _alone = alone();
    let dir = disk_dir();
    let drive = dir.path().join("drive");
    seeded_file(&drive, 16 << 20);
    let out = dir.path().join("out");
    let args = ["--set", "article", "--device", drive.to_str().unwrap(), "--cores", "0"];
    let (code, json, log) = compare(&out, &[&args[..], &QUICK].concat());
    assert_eq!(code, 0, "{log}");
    check_schema(&json);
    // A file has no poll queues, and is no NVMe drive.
    let left: Vec<&str> = json["left_out"]
        .as_array()
        .unwrap()
        .iter()
        .map(|left| left["variant"].as_str().unwrap())
        .collect();
    assert!(left.contains(&"spdk") && left.contains(&"iopoll"), "{left:?}");
    let names = json["matrix"]["variants"].as_array().unwrap();
    assert!(names.iter().any(|v| v["name"] == "READ"), "{names:?}");
    assert!(json["left_out"].as_array().unwrap().iter().all(|l| l["why"] != ""));
}

#[test]
fn a_set_of_ones_own_must_run_and_wrong_usage_is_named() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let device = ["--device", "mem:1MiB"];
    let bad = dir.path().join("bad.toml");
    std::fs::write(&bad, "[[variant]]\nname = \"A\"\nset = { regbufs = \"perhaps\" }\n").unwrap();
    for (args, says) in [
        (vec!["--set", bad.to_str().unwrap()], "does not take \"perhaps\""),
        (vec!["--set", "/none.toml"], "--set takes paths, article"),
        (vec!["--set", "article", "--fabric", "rdma"], "--listen"),
    ] {
        let (code, _, log) = compare(&out, &[&args[..], &device, &QUICK].concat());
        assert_ne!(code, 0);
        assert!(log.contains(says), "{says}: {log}");
    }
    let (code, _, log) = run(&["compare", "--report", dir.path().to_str().unwrap()]);
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("holds no comparison"), "{log}");
    // Drives in memory are not io_uring's.
    let own = set(dir.path(), "").replace("set.toml", "own.toml");
    let text = std::fs::read_to_string(dir.path().join("set.toml")).unwrap();
    std::fs::write(&own, text.replace("check = \"touch\"", "backend = \"uring\"")).unwrap();
    let (code, _, log) = compare(&out, &[&["--set", &own][..], &device, &QUICK].concat());
    assert_ne!(code, 0);
    assert!(log.contains("the variant \"touch\" cannot run here"), "{log}");
}
