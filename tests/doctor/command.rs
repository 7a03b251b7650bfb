//! The built program on this machine: exit codes, clean output, and that it opens no drive and
//! nothing for writing.

use std::process::{Command, Output};

#[path = "../support/skip.rs"]
mod skip;

fn doctor(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.arg("doctor").args(args).output().expect("the program runs")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("an exit code")
}

#[test]
fn json_is_all_that_goes_to_standard_output() {
    let output = doctor(&["--json", "--for", "uring"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["exit_code"], code(&output), "{json}");
    assert!(matches!(code(&output), 0 | 3 | 4));
    // The kernel of this machine was asked.
    assert!(json["facts"]["machine"]["uring"]["probe"]["outcome"].is_string(), "{json}");
    let crc = json["ceiling"]["parts"].as_array().expect("parts");
    let crc = crc.iter().find(|part| part["part"] == "CRC").expect("the CRC");
    assert!(crc["bytes_per_sec"].as_f64().expect("measured") > 1e6, "{crc}");
}

#[test]
fn wrong_usage_is_told_apart_from_failures() {
    for args in [
        &["--cores", "0,0"][..],
        &["--io-size", "0"],
        &["--for", "nvme"],
        &["--json", "--fix-script"],
        &["--hugepages", "3m"],
    ] {
        assert_eq!(code(&doctor(args)), 2, "{args:?}");
    }
}

#[test]
fn a_drive_that_is_not_there_is_a_failure() {
    let output = doctor(&["--for", "uring", "--device", "/dev/no-such-drive"]);
    assert_eq!(code(&output), 4);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("STOPS"), "{text}");
    assert!(text.contains("there is no drive /dev/no-such-drive"), "{text}");
}

#[test]
fn the_script_is_a_script() {
    let output = doctor(&["--fix-script", "--for", "uring", "--device", "/dev/no-such-drive"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.starts_with("#!/bin/sh\n"), "{text}");
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("fix");
    std::fs::write(&file, &text).expect("it can be written");
    // Parsed, not run.
    let parsed = Command::new("sh").arg("-n").arg(&file).status().expect("there is a shell");
    assert!(parsed.success(), "{text}");
}

#[test]
fn a_watch_ends_with_what_changed() {
    let output = doctor(&["--watch", "0.3"]);
    assert_eq!(code(&output), 0);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("MHz  deep sleep "), "{text}");
    assert!(text.contains("\nwhat changed:\n"), "{text}");
}

#[test]
fn it_writes_nothing_and_opens_no_drive() {
    let name = "doctor::it_writes_nothing_and_opens_no_drive";
    if Command::new("strace").arg("-V").output().is_err() {
        return skip::skip(name, "strace is not installed");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let log = dir.path().join("log");
    let status = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=open,openat,openat2,creat,unlink,unlinkat,mkdir,mkdirat"])
        .arg("-o")
        .arg(&log)
        .arg(env!("CARGO_BIN_EXE_millrace"))
        .args(["doctor", "--json", "--device", "/dev/loop0"])
        .output()
        .expect("strace runs");
    let text = std::fs::read_to_string(&log).expect("the log");
    if text.contains("PTRACE") || text.is_empty() {
        return skip::skip(name, &format!("strace may not trace here: {:?}", status.stderr));
    }
    let calls: Vec<&str> = text.lines().filter(|line| line.contains('(')).collect();
    assert!(calls.len() > 100, "{text}");
    for call in calls {
        let writes = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "creat(", "unlink", "mkdir"];
        // A shared library may open the null device; nothing else is ever opened to be written.
        let wrote = writes.iter().any(|flag| call.contains(flag));
        assert!(!wrote || call.contains("/dev/null"), "{call}");
        let drive = ["\"/dev/loop", "\"/dev/nvme", "\"/dev/vd", "\"/dev/sd", "\"/dev/vfio"];
        assert!(!drive.iter().any(|node| call.contains(node)), "{call}");
    }
}
