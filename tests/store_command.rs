//! `millrace store` as it is used: the built program on files.

mod support;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::{disk_dir, millrace, run, signal};

/// Files that are blank drives.
struct Drives {
    dir: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Drives {
    fn new(sizes: &[u64]) -> Self {
        let dir = disk_dir();
        let path = |(number, size): (usize, &u64)| {
            let path = dir.path().join(format!("drive{number}"));
            std::fs::File::create(&path).unwrap().set_len(*size).unwrap();
            path
        };
        let paths = sizes.iter().enumerate().map(path).collect();
        Self { dir, paths }
    }

    fn name(&self, number: usize) -> &str {
        self.paths[number].to_str().unwrap()
    }

    /// `millrace store WHAT... --device ...` on all drives.
    fn store(&self, what: &[&str]) -> (i32, String, String) {
        let mut args = vec!["store"];
        args.extend(what);
        args.extend(["--hugepages", "none", "--depth", "8"]);
        for path in &self.paths {
            args.extend(["--device", path.to_str().unwrap()]);
        }
        run(&args)
    }

    /// The same, where it must succeed; gives standard output.
    fn well(&self, what: &[&str]) -> String {
        let (code, stdout, stderr) = self.store(what);
        assert_eq!(code, 0, "{what:?}: {stdout}{stderr}");
        stdout
    }

    fn verify(&self) -> (i32, serde_json::Value) {
        let (code, stdout, stderr) = self.store(&["verify", "--json"]);
        (code, serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}{stderr}")))
    }
}

fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

#[test]
fn a_store_is_made_filled_listed_and_verified() {
    let drives = Drives::new(&[1 << 20, 2 << 20]);
    let made = drives.well(&["create", "--object-size", "64KiB"]);
    assert!(made.contains("44 objects of up to 64KiB on 2 drives"), "{made}");
    let filled = drives.well(&["fill", "--count", "20", "--size", "1..64KiB", "--prefix", "f/"]);
    assert!(filled.starts_with("20 objects stored"), "{filled}");
    let list = drives.well(&["ls", "--json"]);
    let keys: std::collections::BTreeSet<String> = list
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!((1..=65536).contains(&line["length"].as_u64().unwrap()), "{line}");
            line["key"].as_str().unwrap().to_owned()
        })
        .collect();
    let expected = (0..20).map(|number| format!("f/{number:010}")).collect();
    assert_eq!(keys, expected);
    assert_eq!(drives.well(&["ls"]).lines().count(), 20);
    let (code, report) = drives.verify();
    assert_eq!((code, report["objects"].as_u64()), (0, Some(20)));

    // To the last slot, and not beyond.
    drives.well(&["fill", "--first", "100"]);
    let (code, _, stderr) = drives.store(&["fill", "--count", "1", "--first", "900"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("the store is full: 44 slots, 44 objects"), "{stderr}");
    assert_eq!(drives.verify().1["objects"].as_u64(), Some(44));

    // Without a key of its own, no object.
    let (code, _, stderr) = drives.store(&["fill", "--prefix", &"x".repeat(250)]);
    assert_eq!(code, 2);
    assert!(stderr.contains("a key of 260 bytes") && stderr.contains("1 to 255"), "{stderr}");
}

#[test]
fn damage_is_reported_by_key_drive_and_offset() {
    let drives = Drives::new(&[1 << 20]);
    drives.well(&["create", "--object-size", "64KiB"]);
    drives.well(&["fill", "--count", "3", "--prefix", "k"]);
    let stride = 68 << 10;
    flip(&drives.paths[0], 4096 + stride + 4096 + 1234);
    let (code, report) = drives.verify();
    assert_eq!((code, report["objects"].as_u64()), (1, Some(2)));
    let damage = &report["damage"][0];
    assert_eq!(damage["key"], "k0000000001");
    assert_eq!(damage["drive"], drives.name(0));
    assert_eq!(damage["offset"], 4096 + stride);
    let (code, stdout, stderr) = drives.store(&["verify"]);
    assert_eq!(code, 1);
    assert!(stdout.contains("k0000000001: data damaged"), "{stdout}");
    assert!(stderr.contains("1 places of store"), "{stderr}");

    // Either superblock.
    flip(&drives.paths[0], 70);
    let (code, report) = drives.verify();
    assert_eq!((code, report["superblocks"][0]["offset"].as_u64()), (1, Some(0)));
    let (code, _, stderr) = drives.store(&["ls"]);
    assert_eq!(code, 0);
    assert!(stderr.contains("a damaged superblock: its CRC does not match"), "{stderr}");
}

#[test]
fn drives_with_something_on_them_are_refused() {
    let drives = Drives::new(&[1 << 20, 1 << 20]);
    drives.well(&["create", "--object-size", "64KiB"]);
    let before: Vec<_> = drives.paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let (code, _, stderr) = drives.store(&["create", "--object-size", "64KiB"]);
    assert_eq!(code, 1);
    let named = format!("{} holds data: millrace store", drives.name(0));
    assert!(stderr.contains(&named) && stderr.contains("--force"), "{stderr}");
    let one = ["create", "--object-size", "64KiB", "--force", drives.name(0)];
    let (code, _, stderr) = drives.store(&one);
    assert_eq!(code, 1);
    assert!(stderr.contains(drives.name(1)), "{stderr}");
    for (path, before) in drives.paths.iter().zip(&before) {
        assert!(std::fs::read(path).unwrap() == *before, "nothing was written");
    }
    drives.well(&[&one[..], &["--force", drives.name(1)]].concat());

    let (code, _, stderr) = drives.store(&["create", "--object-size", "64KiB", "--force", "S123"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("--force S123: no drive"), "{stderr}");
    let (code, _, stderr) =
        drives.store(&["create", "--object-size", "64KiB", "--device", drives.name(0)]);
    assert_eq!(code, 2);
    assert!(stderr.contains("named twice"), "{stderr}");
    // The same file by another name.
    let link = drives.dir.path().join("link");
    std::os::unix::fs::symlink(&drives.paths[0], &link).unwrap();
    let force = ["--force", drives.name(0), "--force", drives.name(1)];
    let link = link.to_str().unwrap();
    let (code, _, stderr) = drives.store(
        &[&["create", "--object-size", "64KiB", "--device", link, "--force", link], &force[..]]
            .concat(),
    );
    assert_eq!(code, 2);
    assert!(stderr.contains("are the same drive"), "{stderr}");
    // That was found out after the first writes: it is a store half made.
    let (code, _, stderr) = drives.store(&["ls"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("was cut short") && stderr.contains("again"), "{stderr}");
    drives.well(&["create", "--object-size", "64KiB"]);
    drives.well(&["verify"]);
}

#[test]
fn sets_of_drives_that_are_no_store_are_refused() {
    let mut drives = Drives::new(&[1 << 20, 1 << 20, 1 << 20]);
    let all = drives.paths.clone();
    let (code, _, stderr) = drives.store(&["ls"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("there is no store on it"), "{stderr}");
    drives.well(&["create", "--object-size", "64KiB"]);
    drives.well(&["fill"]);
    drives.paths.remove(1);
    let (code, _, stderr) = drives.store(&["verify"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("missing: number 1"), "{stderr}");
    drives.paths = vec![all[2].clone(), all[0].clone(), all[1].clone()];
    drives.well(&["verify"]);
    drives.paths.push(all[0].clone());
    let (code, _, stderr) = drives.store(&["verify"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("are both drive 0"), "{stderr}");
}

/// A fill that was interrupted, or killed, leaves whole objects and a store that can be used.
#[test]
fn interrupted_and_killed_fills_harm_nothing() {
    let drives = Drives::new(&[40 << 20]);
    drives.well(&["create", "--object-size", "64KiB"]);
    for (name, stored) in [("INT", true), ("KILL", false), ("KILL", false)] {
        let before = drives.verify().1["objects"].as_u64().unwrap();
        let mut command = millrace();
        // Over and over the same keys: most of them overwritten while it is stopped.
        command.args(["store", "fill", "--size", "1..64KiB"]);
        command.args(["--depth", "4", "--hugepages", "none", "--device", drives.name(0)]);
        command.args(["--prefix", "again", "--count", "500"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // As soon as it has begun to store: its memory and its file say nothing, so by the time.
        std::thread::sleep(Duration::from_millis(400));
        let running = child.try_wait().unwrap().is_none();
        if running {
            signal(child.id(), name);
        }
        let give_up = Instant::now() + Duration::from_secs(60);
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < give_up, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(stdout.contains("objects stored"), stored || !running, "{stdout}");
        let (code, report) = drives.verify();
        assert_eq!(code, 0, "{report}");
        assert!(report["objects"].as_u64().unwrap() >= before, "what was acknowledged stays");
    }
}
