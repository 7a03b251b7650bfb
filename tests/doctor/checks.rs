//! Every check on made hosts: pass, warning, failure, and what could not be read, by the table
//! tests/hosts/checks.table.

use std::collections::{BTreeMap, BTreeSet};

use crate::hosts::{Host, probe_of};
use millrace::doctor::{ALL, Case, Job};
use millrace::host::affinity::parse_list;
use millrace::host::finding::Outcome;

/// A line of the table.
struct Line {
    text: String,
    id: String,
    outcome: Outcome,
    host: String,
    flags: Vec<String>,
    changes: Vec<(String, String)>,
}

fn table() -> Vec<Line> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts/checks.table");
    let text = std::fs::read_to_string(path).expect(path);
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(parse).collect()
}

fn parse(text: &str) -> Line {
    let (head, changes) = text.split_once(" | ").unwrap_or((text, ""));
    let words: Vec<&str> = head.split_whitespace().collect();
    let [id, outcome, host] = words[..] else { panic!("{text}") };
    let outcome = match outcome {
        "pass" => Outcome::Pass,
        "warn" => Outcome::Warn,
        "fail" => Outcome::Fail,
        "unread" => Outcome::Unread,
        "na" => Outcome::NotApplicable,
        other => panic!("{other} in {text}"),
    };
    let mut flags = host.split(',').map(str::to_owned);
    let host = flags.next().expect("a host");
    let changes = changes.split(" ; ").filter(|change| !change.is_empty());
    let changes = changes.map(|change| {
        let (path, value) = change.split_once(" = ").unwrap_or_else(|| panic!("{text}"));
        (path.trim().to_owned(), value.to_owned())
    });
    Line {
        text: text.to_owned(),
        id: id.to_owned(),
        outcome,
        flags: flags.collect(),
        changes: changes.collect(),
        host,
    }
}

/// The job that a line's flags ask for.
pub fn job(flags: &[String]) -> Job {
    let mut job = Job { uring: true, ..Job::server() };
    let mut devices = Vec::new();
    for flag in flags {
        match flag.split_once('=').unwrap_or((flag, "")) {
            ("spdk", _) => (job.uring, job.spdk) = (false, true),
            ("rdma", _) => job.rdma = true,
            ("iopoll", _) => job.iopoll = true,
            ("cores", list) => job.cores = parse_list(&list.replace('+', ",")).expect(list),
            ("dev", name) => devices.push(name.to_owned()),
            ("nic", name) => job.nic = Some(name.to_owned()),
            ("io", size) => job.io_size = millrace::units::parse_size(size).expect(size),
            (other, _) => panic!("no flag is called {other}"),
        }
    }
    job.devices = (!devices.is_empty()).then_some(devices);
    job
}

#[test]
fn every_line_of_the_table_holds() {
    let mut wrong = Vec::new();
    let mut hosts: BTreeMap<String, Host> = BTreeMap::new();
    for line in table() {
        let host = hosts.entry(line.host.clone()).or_insert_with(|| Host::load(&line.host));
        let mut probe = host.probe.clone();
        let mut undos = Vec::new();
        for (path, value) in &line.changes {
            match path.as_str() {
                "@" => probe = probe_of(value),
                path => undos.push(host.change(path, value)),
            }
        }
        let case = Case::read(&host.root(), job(&line.flags), probe);
        undos.into_iter().rev().for_each(|undo| host.undo(undo));

        let check = ALL.iter().find(|check| check.id == line.id);
        let check = check.unwrap_or_else(|| panic!("no check is called {}", line.id));
        let finding = check.run(&case);
        if finding.outcome != line.outcome {
            wrong.push(format!("{}: {finding:?}", line.text));
            continue;
        }
        // A finding gives itself away, says what to do, and names what could not be read.
        match finding.outcome {
            Outcome::Warn | Outcome::Fail => {
                assert!(!finding.what.is_empty() && !finding.evidence.is_empty(), "{finding:?}");
                let none = line.text.contains("nic=mlx5_9");
                assert!(none || !finding.mends.is_empty(), "no mend: {finding:?}");
            }
            Outcome::Pass => assert!(!finding.evidence.is_empty(), "{finding:?}"),
            Outcome::Unread => assert!(!finding.unread.is_empty(), "{finding:?}"),
            Outcome::NotApplicable => assert!(!finding.what.is_empty(), "{finding:?}"),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Checks that have no file that could be unreadable: what they look for is there, or is not.
const NOTHING_TO_READ: [&str; 1] = ["drive-found"];

#[test]
fn every_check_is_shown_well_in_trouble_and_unread() {
    let mut shown: BTreeMap<String, BTreeSet<Outcome>> = BTreeMap::new();
    for line in table() {
        shown.entry(line.id).or_default().insert(line.outcome);
    }
    assert!(ALL.len() >= 45, "{} checks", ALL.len());
    for check in ALL.iter() {
        let shown =
            shown.get(check.id).unwrap_or_else(|| panic!("{} is not in the table", check.id));
        assert!(shown.contains(&Outcome::Pass), "{} never passes", check.id);
        let trouble = shown.contains(&Outcome::Warn) || shown.contains(&Outcome::Fail);
        assert!(trouble, "{} never finds anything", check.id);
        let unread = shown.contains(&Outcome::Unread) || NOTHING_TO_READ.contains(&check.id);
        assert!(unread, "{} is never unread", check.id);
    }
}

#[test]
fn ids_are_unique_and_plain() {
    let mut seen = BTreeSet::new();
    for check in ALL.iter() {
        assert!(seen.insert(check.id), "{} twice", check.id);
        let plain = |c: char| c.is_ascii_lowercase() || c == '-';
        assert!(check.id.chars().all(plain), "{}", check.id);
        assert!(check.why.ends_with('.'), "{}", check.id);
    }
}

/// docs/TUNING.md has a section for each check, in the same order, with its source.
#[test]
fn the_guide_has_every_check_in_order() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/TUNING.md");
    let text = std::fs::read_to_string(path).expect(path);
    let headings = text.lines().filter_map(|line| line.strip_prefix("#### "));
    let told: Vec<&str> = headings.collect();
    let ids: Vec<&str> = ALL.iter().map(|check| check.id).collect();
    assert_eq!(told, ids);
    for part in text.split("\n#### ").skip(1) {
        let part = part.split("\n### ").next().expect("a part");
        assert!(part.contains("Source:"), "no source: {part}");
    }
}
