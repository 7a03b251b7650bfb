//! The habits that can be checked: import direction, where unsafe code is, file and line lengths,
//! leftovers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Parts from top to bottom; a part may use those of lower layers, and of its own layer only
/// itself.
const LAYERS: [&[&str]; 9] = [
    &["main"],
    &["cli"],
    &["commands"],
    &["compare"],
    &["server", "bench", "device", "doctor"],
    &["client", "store"],
    &["storage", "fabric"],
    &["memory", "check", "wire", "object"],
    &["host", "stats", "limits", "error", "units"],
];

/// Where unsafe code may be.
const UNSAFE: [&str; 6] =
    ["memory", "host", "storage/uring", "storage/spdk", "fabric/rdma", "../spdk-sys"];

/// Most lines of a file; and those that were longer when the rule came, which may only shrink.
const MOST_LINES: usize = 520;
const LONGER: [(&str, usize); 0] = [];

fn sources() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = BTreeMap::new();
    let mut folders: Vec<PathBuf> = ["src", "tests", "benches", "spdk-sys"]
        .iter()
        .map(|name| root.join(name))
        .filter(|path| path.exists())
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.insert(name, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    assert!(found.len() > 40, "only {} files found", found.len());
    found
}

/// The part that a source file below src belongs to.
fn part(name: &str) -> Option<&str> {
    let inside = name.strip_prefix("src/")?;
    let first = inside.split('/').next()?;
    Some(first.strip_suffix(".rs").unwrap_or(first))
}

fn layer(part: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&part))
}

/// Code of a file: what is before its unit tests, without comments.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn imports_point_downward() {
    let mut wrong = Vec::new();
    for (name, text) in sources() {
        let Some(from) = part(&name).filter(|part| *part != "lib") else { continue };
        // A module's tests may look up: they join parts as only the program does.
        if name.ends_with("/tests.rs") || name.contains("/tests/") {
            continue;
        }
        let own = layer(from).unwrap_or_else(|| panic!("{name} is of no known part"));
        for used in code(&text).split("crate::").skip(1) {
            let used: String =
                used.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            match layer(&used) {
                Some(theirs) if theirs > own || used == from => {}
                Some(_) if own == LAYERS.len() - 1 => {}
                Some(_) if own == LAYERS.len() - 2 && ["wire", "check"].contains(&&*used) => {}
                Some(_) => wrong.push(format!("{name} uses {used}")),
                // An item of the crate's root, such as crate::Error.
                None => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    for (name, text) in sources() {
        let Some(inside) = name.strip_prefix("src/") else { continue };
        if UNSAFE.iter().any(|place| inside.starts_with(place)) {
            continue;
        }
        for (number, line) in code(&text).lines().enumerate() {
            assert!(!line.contains("unsafe "), "{name}:{number}: {line}");
        }
    }
}

#[test]
fn files_have_one_job_and_lines_fit() {
    for (name, text) in sources() {
        let allowed =
            LONGER.iter().find(|(longer, _)| *longer == name).map_or(MOST_LINES, |(_, n)| *n);
        let lines = text.lines().count();
        assert!(lines <= allowed, "{name} has {lines} lines; {allowed} are the most");
        for (number, line) in text.lines().enumerate() {
            assert!(line.chars().count() <= 100, "{name}:{}: too long", number + 1);
        }
    }
}

#[test]
fn nothing_is_left_over() {
    // Written in two parts, so that this file does not find itself.
    let banned =
        [("TO", "DO"), ("FIX", "ME"), ("dbg", "!("), ("todo", "!("), ("unimplemented", "!(")];
    for (name, text) in sources() {
        for (head, tail) in banned {
            let word = format!("{head}{tail}");
            assert!(!text.contains(&word), "{name} has {word}");
        }
    }
}

#[test]
fn every_module_says_what_it_is() {
    for (name, text) in sources() {
        // A module's own tests need no introduction.
        let documented = text.starts_with("//!") || name.ends_with("/tests.rs");
        assert!(documented, "{name} does not begin with a module comment");
    }
}
