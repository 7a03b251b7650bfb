//! Walls planted live: the built program must name each, and no other.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{alone, compare, compare_by, set, support};
use support::{have, millrace, seeded_file, skip, this_test};

fn wall(json: &Value, variant: usize) -> &Value {
    let walls = json["explanation"]["walls"].as_array().unwrap();
    walls.iter().find(|wall| wall["variant"] == variant).unwrap()
}

/// Sees that a finding names this wall. On a machine where others had so much of the CPUs that
/// rates are not what was planted, which hides the rest, it says so.
fn expect_wall(finding: &Value, name: &str) {
    let found = &finding["wall"];
    if found["wall"] == name {
        return;
    }
    let not = finding["not"].as_array().unwrap();
    let others = std::iter::once(found).chain(not).find(|it| it["wall"] == "other-load");
    let shares = others.map_or("", |it| it["text"].as_str().unwrap()).split(' ');
    let worst = shares.filter_map(|word| word.parse::<f64>().ok()).fold(0.0, f64::max);
    assert!(worst >= 5.0, "{name} was planted: {finding}");
    skip(&this_test(), &format!("others had {worst} % of the CPUs"));
}

#[test]
fn a_hog_on_the_workers_core_is_named_and_spoils_the_comparison() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (set, out) = (set(dir.path(), ""), dir.path().join("out"));
    if !have("taskset") {
        return skip(&this_test(), "no taskset");
    }
    let hog = Command::new("taskset")
        .args(["-c", "0", "sh", "-c", "while :; do :; done"])
        .spawn()
        .unwrap();
    struct Killed(std::process::Child);
    impl Drop for Killed {
        fn drop(&mut self) {
            self.0.kill().expect("it runs");
            self.0.wait().expect("it ends");
        }
    }
    let _hog = Killed(hog);
    let args = ["--set", &set, "--device", "mem:8MiB", "--cores", "0", "--traced", "off"];
    let longer = ["--duration", "1s", "--warmup", "0s", "--rounds", "2"];
    let (code, json, log) = compare(&out, &[&args[..], &longer].concat());
    assert_eq!(code, 0, "{log}");
    for variant in 0..3 {
        assert_eq!(wall(&json, variant)["wall"]["wall"], "other-load", "{}", wall(&json, variant));
    }
    assert_eq!(json["fairness"]["verdict"], "invalid", "{}", json["fairness"]);
}

#[test]
fn an_open_loop_below_capacity_is_the_offered_load() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (set, out) = (set(dir.path(), ""), dir.path().join("out"));
    let args = ["--set", &set, "--device", "mem:8MiB", "--rate", "200", "--traced", "off"];
    let longer = ["--duration", "1s", "--warmup", "0s", "--rounds", "2"];
    let (code, json, log) = compare(&out, &[&args[..], &longer].concat());
    assert_eq!(code, 0, "{log}");
    for variant in 0..3 {
        expect_wall(wall(&json, variant), "offered-load");
    }
}

/// `millrace` behind a shell command, with what the shell knows as $1 and so on.
fn behind(prelude: &str, words: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    let taken = words.len();
    shell.args(["-c", &format!("{prelude} && shift {taken} && exec \"$@\""), "sh"]);
    shell.args(words).arg(millrace().get_program()).env("RUST_LOG", "info");
    shell
}

#[test]
fn a_rate_limit_of_the_network_is_named() {
    let _alone = alone();
    const LIMITED: &str = "ip link set lo up && tc qdisc add dev lo root tbf rate 100mbit \
                           burst 256kb latency 100ms";
    let tried = Command::new("unshare").args(["--net", "sh", "-c", LIMITED]).output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        return skip(&this_test(), &format!("no rate limit in a network namespace: {tried:?}"));
    }
    let dir = tempfile::tempdir().unwrap();
    let (set, out) = (set(dir.path(), ""), dir.path().join("out"));
    let mut limited = Command::new("unshare");
    let inside = behind(LIMITED, &[]);
    limited.arg("--net").arg(inside.get_program()).args(inside.get_args()).env("RUST_LOG", "info");
    let args = ["--set", &set, "--device", "mem:8MiB", "--fabric", "tcp", "--traced", "off"];
    let longer = ["--duration", "1s", "--warmup", "300ms", "--rounds", "2"];
    let (code, json, log) = compare_by(limited, &out, &[&args[..], &longer].concat());
    assert_eq!(code, 0, "{log}");
    for variant in 0..3 {
        let finding = wall(&json, variant);
        expect_wall(finding, "nic");
        assert!(
            json["points"][variant]["figures"]["bytes_per_sec"]["median"].as_f64() < Some(13e6)
        );
    }
}

/// A loop device on a file in memory, and a cgroup that may read it at a bounded rate.
struct Throttled {
    device: String,
    group: PathBuf,
    _dir: tempfile::TempDir,
}

impl Throttled {
    /// `Err` says why there is none here.
    fn new(bytes_per_second: u32) -> Result<Self, String> {
        let dir = support::fast_dir();
        let backing = dir.path().join("backing");
        seeded_file(&backing, 16 << 20);
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&backing).output();
        let made = made.map_err(|e| format!("losetup: {e}"))?;
        let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        if !made.status.success() {
            return Err(format!("losetup: {}", String::from_utf8_lossy(&made.stderr).trim()));
        }
        let name = format!("millrace-test-{}", std::process::id());
        let first = Path::new("/sys/fs/cgroup/blkio");
        let group = if first.exists() { first } else { Path::new("/sys/fs/cgroup") }.join(name);
        let throttled = Self { device, group, _dir: dir };
        let number = throttled.device.trim_start_matches("/dev/loop");
        let limit = |file: &str, text: String| {
            let path = throttled.group.join(file);
            std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
        };
        std::fs::create_dir(&throttled.group).map_err(|e| format!("no cgroup: {e}"))?;
        if first.exists() {
            limit("blkio.throttle.read_bps_device", format!("7:{number} {bytes_per_second}"))?;
        } else {
            let control = "/sys/fs/cgroup/cgroup.subtree_control";
            std::fs::write(control, "+io").map_err(|e| format!("{control}: {e}"))?;
            limit("io.max", format!("7:{number} rbps={bytes_per_second}"))?;
        }
        Ok(throttled)
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        if self.group.exists() {
            std::fs::remove_dir(&self.group).expect("nobody is in the cgroup any more");
        }
        let done = Command::new("losetup").arg("--detach").arg(&self.device).status();
        assert!(done.is_ok_and(|done| done.success()), "{} stays", self.device);
    }
}

#[test]
fn a_throttled_drive_is_named() {
    let _alone = alone();
    let drive = match Throttled::new(20 << 20) {
        Ok(drive) => drive,
        Err(why) => return skip(&this_test(), &why),
    };
    let dir = tempfile::tempdir().unwrap();
    let (set, out) = (dir.path().join("set.toml"), dir.path().join("out"));
    let text = "name = \"slow\"\n[load]\nio-size = [\"64KiB\"]\ndepth = [4, 8]\n\
                [[variant]]\nname = \"fixed\"\n\
                [[variant]]\nname = \"READ\"\nset = { regbufs = \"off\" }\n";
    std::fs::write(&set, text).unwrap();
    let procs = drive.group.join("cgroup.procs");
    let inside = behind("echo $$ >\"$1\"", &[procs.to_str().unwrap()]);
    let args = ["--set", set.to_str().unwrap(), "--device", &drive.device, "--traced", "off"];
    let longer = ["--duration", "1s", "--warmup", "300ms", "--rounds", "2"];
    let (code, json, log) = compare_by(inside, &out, &[&args[..], &longer].concat());
    assert_eq!(code, 0, "{log}");
    let walls = json["explanation"]["walls"].as_array().unwrap();
    assert_eq!(walls.len(), 4);
    for finding in walls {
        expect_wall(finding, "drive");
    }
    // The switch that was turned is not what holds it up.
    for comparison in json["comparisons"].as_array().unwrap() {
        assert_ne!(comparison["ratios"]["iops"]["verdict"], "above", "{comparison}");
    }
}
