//! Sets, schedules, and mistakes in files.

use super::*;
use crate::compare::builtin::{article, paths};
use crate::compare::schedule;

pub(crate) fn empty() -> Matrix {
    Matrix {
        name: "test".into(),
        fabric: "local".into(),
        rounds: 8,
        seconds: 1.0,
        warmup: 0.0,
        seed: 1,
        cores: vec![1, 2, 3, 4],
        client_cores: Vec::new(),
        connections: 1,
        devices: vec!["mem:8MiB".into()],
        loads: Vec::new(),
        variants: Vec::new(),
        may_leave_out: false,
    }
}

const FILE: &str = r#"
name = "pages"
rounds = 6
[load]
io-size = ["4KiB", "1028KiB"]
depth = [1, 16]
[base]
check = "none"
[[variant]]
name = "base pages"
set = { hugepages = "none" }
[[variant]]
name = "2m"
set = { hugepages = "2m" }
[[variant]]
name = "2m, READ"
from = "2m"
set = { regbufs = false, workers = 2 }
"#;

#[test]
fn a_file_says_what_is_compared() {
    let matrix = from_text(FILE, empty()).unwrap();
    matrix.validate().unwrap();
    assert_eq!((matrix.name.as_str(), matrix.rounds, matrix.loads.len()), ("pages", 6, 4));
    assert_eq!(matrix.loads[3].title(), "1028KiB depth 16");
    let last = &matrix.variants[2];
    assert_eq!(last.switches.get("hugepages"), "2m");
    assert_eq!(last.switches.get("check"), "none");
    let changes: Vec<String> = matrix.changes(last).iter().map(ToString::to_string).collect();
    assert_eq!(changes, ["regbufs on → off", "workers 1 → 2"]);
    assert_eq!(matrix.variants[1].from.as_deref(), Some("base pages"), "the first by itself");
}

#[test]
fn mistakes_in_a_file_are_named() {
    let change = |from: &str, to: &str| FILE.replacen(from, to, 1);
    for (text, says) in [
        (change("rounds = 6", "round = 6"), "unknown field `round`"),
        (change("rounds = 6", "rounds = six"), "line 3"),
        (change("check = \"none\"", "chek = \"none\""), "no switch \"chek\""),
        (change("check = \"none\"", "check = 1.5"), "does not take a float"),
        (change("from = \"2m\"", "from = \"3m\""), "\"3m\", which is not before it"),
        (change("\"4KiB\"", "\"4 apples\""), "not a size"),
        (change("depth = [1, 16]", "depth = [0]"), "a depth of 0"),
        (change("\"2m, READ\"", "\"base pages\""), "two variants are called"),
        (change("workers = 2", "workers = 9"), "9 workers, and there are 4 CPUs"),
        (change("workers = 2", "backend = \"spdk\", wait = \"block\""), "io_uring without"),
        ("rounds = 1".into(), "0 variant"),
    ] {
        let error = from_text(&text, empty()).and_then(|m| m.validate()).unwrap_err();
        assert!(error.report().contains(says), "{says}: {}", error.report());
    }
    let error = from_file(Path::new("/none.toml"), empty()).unwrap_err();
    assert!(error.report().contains("/none.toml"), "{}", error.report());
}

#[test]
fn sets_change_one_switch_at_a_time() {
    let set = article(empty()).unwrap();
    set.validate().unwrap();
    for variant in &set.variants[1..] {
        let changes = set.changes(variant);
        let spdk = variant.name == "spdk";
        assert!(changes.len() == 1 || spdk, "{}: {changes:?}", variant.name);
    }
    let names: Vec<&str> = set.variants.iter().map(|v| v.name.as_str()).collect();
    for name in ["READ", "check touch", "1 GiB pages", "2 workers", "4 workers", "iopoll"] {
        assert!(names.contains(&name), "{name}");
    }
    let behind = article(Matrix { fabric: "tcp".into(), ..empty() }).unwrap();
    behind.validate().unwrap();
    let both = paths(empty()).unwrap();
    both.validate().unwrap();
    assert!(both.changes_driver());
    assert_eq!(both.changes(&both.variants[1]).len(), 1);
}

#[test]
fn what_is_left_out_takes_what_is_compared_to_it_along() {
    let set = article(empty()).unwrap().without(&["2 MiB pages".into(), "spin".into()]);
    let names: Vec<&str> = set.variants.iter().map(|v| v.name.as_str()).collect();
    for gone in ["2 MiB pages", "2 MiB pages, READ", "spin", "iopoll", "spdk"] {
        assert!(!names.contains(&gone), "{gone}");
    }
    assert!(names.contains(&"READ"));
}

#[test]
fn rounds_go_forward_and_backward_and_drives_move_once() {
    let matrix = from_text(FILE, empty()).unwrap();
    let (even, mut odd) = (schedule::round(&matrix, 0), schedule::round(&matrix, 1));
    odd.reverse();
    let key =
        |cells: &[schedule::Cell]| cells.iter().map(|c| (c.load, c.variant)).collect::<Vec<_>>();
    assert_eq!(key(&even), key(&odd));
    assert_eq!(even.len(), 12);
    let both = paths(empty()).unwrap();
    let moves = |cells: &[schedule::Cell]| {
        cells.windows(2).filter(|pair| pair[0].variant != pair[1].variant).count()
    };
    let (first, second) = (schedule::round(&both, 0), schedule::round(&both, 1));
    assert_eq!((moves(&first), moves(&second)), (1, 1));
    assert_eq!(first.last().unwrap().variant, second[0].variant, "A-B-B-A");
}
