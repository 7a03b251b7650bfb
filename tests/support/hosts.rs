//! Made hosts: trees of /sys and /proc from the texts in tests/hosts, one file for each host.
//!
//! ```text
//! @use NAME             begin with that host
//! @probe given|EPERM    what the kernel says to a ring
//! @for A B = 1 x | 2 y  repeats up to @end with $A and $B (or ${A}); {0-3} stands for each of 0 to
//!                       3, and an underscore in a value for a space
//! /path: text           a file of one line
//! /path <<              a file of the lines up to a line "<<"
//! /path/                a folder
//! /path -> target       a symbolic link, whose target is made a folder
//! ```
//!
//! In text, `[[3*0]]` is `0 0 0` and `[[CPU0-2]]` is `CPU0 CPU1 CPU2`.

#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use millrace::host::Root;
use millrace::host::uring::Probe;

/// A change that can be taken back.
pub struct Undo {
    place: PathBuf,
    made: PathBuf,
    saved: Option<PathBuf>,
}

/// A made host.
pub struct Host {
    dir: tempfile::TempDir,
    aside: tempfile::TempDir,
    saved: std::cell::Cell<u32>,
    /// What its kernel says to a ring.
    pub probe: Probe,
}

impl Host {
    /// The host of this name.
    pub fn load(name: &str) -> Self {
        // In memory where there is a place for it: a tree has thousands of small files.
        let shm = Path::new("/dev/shm");
        let folder = || match shm.is_dir() {
            true => tempfile::tempdir_in(shm).expect("a folder for the tree"),
            false => tempfile::tempdir().expect("a folder for the tree"),
        };
        let mut host = Self {
            dir: folder(),
            aside: folder(),
            saved: std::cell::Cell::new(0),
            probe: Probe::Given { read_fixed: true },
        };
        host.apply(name);
        host
    }

    /// Where it lies.
    pub fn root(&self) -> Root {
        Root::at(self.dir.path())
    }

    fn apply(&mut self, name: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/hosts/{name}.tree"));
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        self.lines(&expand(&lines));
    }

    fn lines(&mut self, lines: &[String]) {
        let mut rest = lines.iter();
        while let Some(line) = rest.next() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix("@use ") {
                self.apply(name);
            } else if let Some(probe) = line.strip_prefix("@probe ") {
                self.probe = probe_of(probe);
            } else if let Some(path) = line.strip_suffix(" <<") {
                let body: Vec<&str> =
                    rest.by_ref().take_while(|line| *line != "<<").map(String::as_str).collect();
                self.set(path, &body.join("\n"));
            } else if let Some((path, target)) = line.split_once(" -> ") {
                self.link(path, target);
            } else if let Some(path) = line.strip_suffix('/') {
                fs::create_dir_all(self.at(path)).expect(line);
            } else if let Some((path, text)) = split_file(line) {
                self.set(path, text);
            } else {
                panic!("what is \"{line}\"?");
            }
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }

    /// Makes or replaces a file.
    pub fn set(&self, path: &str, text: &str) {
        let place = self.at(path);
        fs::create_dir_all(place.parent().expect("below the root")).expect(path);
        fs::write(&place, format!("{}\n", repeats(text))).expect(path);
    }

    /// Changes one thing: `!` makes a file unreadable, for root too, and `!/` a folder; `-` takes
    /// it away; `-> TARGET` makes it a link; anything else is its text, with `\\n` for a new line.
    pub fn change(&self, path: &str, value: &str) -> Undo {
        let place = self.at(path);
        // What is made for it, from the highest folder on, and what was in its place.
        let made = place.ancestors().take_while(|part| part.symlink_metadata().is_err()).last();
        let made = made.unwrap_or(&place).to_owned();
        let saved = place.symlink_metadata().is_ok().then(|| {
            let count = self.saved.get();
            self.saved.set(count + 1);
            let aside = self.aside.path().join(count.to_string());
            fs::rename(&place, &aside).expect(path);
            aside
        });
        match value {
            "!" => fs::create_dir_all(&place).expect(path),
            "!/" => self.set(path, ""),
            "-" => {}
            value => match value.strip_prefix("-> ") {
                Some(target) => self.link(path, target),
                None => self.set(path, &value.replace("\\n", "\n")),
            },
        }
        Undo { place, made, saved }
    }

    /// Takes a change back.
    pub fn undo(&self, undo: Undo) {
        if let Ok(found) = undo.made.symlink_metadata() {
            match found.is_dir() {
                true => fs::remove_dir_all(&undo.made).expect("a made folder"),
                false => fs::remove_file(&undo.made).expect("a made file"),
            }
        }
        if let Some(saved) = undo.saved {
            fs::rename(saved, undo.place).expect("what was saved");
        }
    }

    /// Takes a file, folder or link away.
    pub fn remove(&self, path: &str) {
        let place = self.at(path);
        match place.symlink_metadata() {
            Ok(found) if found.is_dir() => fs::remove_dir_all(&place).expect(path),
            Ok(_) => fs::remove_file(&place).expect(path),
            Err(_) => {}
        }
    }

    /// Makes or replaces a symbolic link.
    pub fn link(&self, path: &str, target: &str) {
        let place = self.at(path);
        self.remove(path);
        let folder = place.parent().expect("below the root");
        fs::create_dir_all(folder).expect(path);
        symlink(target, &place).expect(path);
        // Relative to where the folder really is.
        let real = fs::canonicalize(folder).expect(path);
        let mut real_target = real;
        for part in Path::new(target).components() {
            match part {
                std::path::Component::ParentDir => {
                    real_target.pop();
                }
                part => real_target.push(part),
            }
        }
        fs::create_dir_all(&real_target).expect(path);
    }

    /// Every file with its text, and every link: to see that nothing was changed.
    pub fn contents(&self) -> Vec<(PathBuf, String)> {
        let mut found = Vec::new();
        let mut folders = vec![self.dir.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder of the tree") {
                let path = entry.expect("an entry").path();
                let kind = path.symlink_metadata().expect("it is there").file_type();
                if kind.is_dir() {
                    folders.push(path.clone());
                }
                let text = match (kind.is_symlink(), kind.is_dir()) {
                    (true, _) => format!("{:?}", fs::read_link(&path)),
                    (false, true) => String::new(),
                    (false, false) => fs::read_to_string(&path).expect("a text"),
                };
                found.push((path, text));
            }
        }
        found.sort();
        found
    }
}

/// What `@probe` says.
pub fn probe_of(text: &str) -> Probe {
    match text {
        "given" => Probe::Given { read_fixed: true },
        "old" => Probe::Given { read_fixed: false },
        "unasked" => Probe::Unasked,
        "EPERM" => Probe::Refused { errno: libc::EPERM },
        "ENOSYS" => Probe::Refused { errno: libc::ENOSYS },
        other => panic!("no probe is called {other}"),
    }
}

/// Path and text of `/path: text`. Paths have colons themselves, never one before a space.
fn split_file(line: &str) -> Option<(&str, &str)> {
    line.split_once(": ").or_else(|| Some((line.strip_suffix(':')?, "")))
}

/// Repeats what is between `@for` and `@end`.
fn expand(lines: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = lines.iter();
    while let Some(line) = rest.next() {
        let Some(head) = line.strip_prefix("@for ") else {
            out.push(line.clone());
            continue;
        };
        let (names, rows) = head.split_once(" = ").expect("@for NAMES = VALUES");
        let names: Vec<&str> = names.split_whitespace().collect();
        let body: Vec<String> = rest.by_ref().take_while(|line| *line != "@end").cloned().collect();
        for row in rows.split('|').flat_map(|row| ranges(row.trim())) {
            let values: Vec<String> =
                row.split_whitespace().map(|value| value.replace('_', " ")).collect();
            assert_eq!(names.len(), values.len(), "{line}");
            for line in &body {
                let mut line = line.clone();
                for (name, value) in names.iter().zip(&values) {
                    line = line.replace(&format!("${{{name}}}"), value);
                }
                // Longer names first, so that one may begin like another.
                let mut pairs: Vec<_> = names.iter().zip(&values).collect();
                pairs.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
                for (name, value) in pairs {
                    line = line.replace(&format!("${name}"), value);
                }
                out.push(line);
            }
        }
    }
    out
}

/// The rows that a row with `{0-3}` in it stands for.
fn ranges(row: &str) -> Vec<String> {
    let Some((head, rest)) = row.split_once('{') else { return vec![row.to_owned()] };
    let (range, tail) = rest.split_once('}').expect("a closing brace");
    let (from, to) = range.split_once('-').expect("{from-to}");
    let (from, to): (u32, u32) = (from.parse().expect(range), to.parse().expect(range));
    (from..=to).flat_map(|n| ranges(&format!("{head}{n}{tail}"))).collect()
}

/// Writes `[[3*0]]` and `[[CPU0-2]]` out.
fn repeats(text: &str) -> String {
    let Some((head, rest)) = text.split_once("[[") else { return text.to_owned() };
    let (inner, tail) = rest.split_once("]]").expect("closing brackets");
    let words: Vec<String> = match (inner.split_once('*'), inner.strip_prefix("CPU")) {
        (Some((count, word)), _) => {
            vec![word.to_owned(); count.parse().expect(inner)]
        }
        (None, Some(range)) => {
            let (from, to) = range.split_once('-').expect(inner);
            let (from, to): (u32, u32) = (from.parse().expect(inner), to.parse().expect(inner));
            (from..=to).map(|n| format!("CPU{n}")).collect()
        }
        (None, None) => panic!("what is [[{inner}]]?"),
    };
    format!("{head}{}{}", words.join(" "), repeats(tail))
}
