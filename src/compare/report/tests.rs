use super::testing::{header, run};
use super::*;
use crate::compare::stats::Verdict;

pub(crate) fn report() -> Report {
    let mut runs = Vec::new();
    for round in 0..8 {
        let drift = 1.0 + round as f64 / 20.0;
        runs.extend([run(round, 0, 1000.0 * drift), run(round, 1, 500.0 * drift)]);
    }
    Report::of((header(), runs)).unwrap()
}

#[test]
fn ratios_and_medians_are_of_paired_rounds() {
    let report = report();
    let ratio = report.comparisons[0].get("iops").unwrap();
    assert!((ratio.ratio - 0.5).abs() < 1e-9, "{ratio:?}");
    assert_eq!((ratio.verdict, ratio.rounds), (Verdict::Below, 8));
    let point = report.point(0, 0).unwrap();
    assert!((point.get("iops").unwrap() - 1175.0).abs() < 1e-6);
    assert!((point.get("in_flight").unwrap() - 16.0).abs() < 1e-6, "Little's law");
    assert_eq!(report.explanation.walls.len(), 2);
}

#[test]
fn the_json_is_what_the_schema_says_and_comes_back() {
    let report = report();
    let text = report.json().unwrap();
    let schema = include_str!("../../../schema/compare.schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(&value).map(|e| format!("{} at {}", e, e.instance_path)).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    // The schema is not so loose that anything passes.
    for (path, broken) in [("schema", Value::from("x")), ("points", Value::Null)] {
        let mut value = value.clone();
        value[path] = broken;
        assert!(!validator.is_valid(&value), "{path}");
    }

    let dir = tempfile::tempdir().unwrap();
    let written = report.write(dir.path()).unwrap();
    assert_eq!(std::fs::read_to_string(&written.json).unwrap(), text);
    let again = Report::read(dir.path()).unwrap();
    assert_eq!(again.json().unwrap(), text);
    std::fs::write(&written.json, "{\"schema\":\"millrace.compare/9\"}").unwrap();
    let error = Report::read(dir.path()).unwrap_err();
    assert!(error.what().contains("millrace.compare/9"), "{error}");
}

#[test]
fn the_page_needs_nothing_else_and_names_everything() {
    let page = html::page(&report());
    for outside in ["http://", "https://", "<script", "<link", "<img", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    for part in [
        "READ_FIXED",
        "prefers-color-scheme: dark",
        "Latency percentiles",
        "Where the time of a read goes",
        "CPU time per read",
        "x0.50",
        "p99.9",
        "no such hardware counter &lt;guest&gt;",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let markdown = report().markdown();
    assert!(markdown.contains("| READ |") && markdown.contains("regbufs on → off"), "{markdown}");
    assert!(markdown.contains("Verdict: **"));
}

#[test]
fn counts_have_their_thousands_apart() {
    assert_eq!(count(1_234_567.2), "1,234,567");
    assert_eq!(count(0.0), "0");
    assert_eq!(count(999.6), "1,000");
    assert_eq!(rate(1.5 * f64::from(1 << 30)), "1.50 GiB/s");
}
