use std::sync::Arc;

use super::*;
use crate::fabric::address::FabricKind;
use crate::storage::DriveInfo;

#[path = "../../../tests/support/prometheus.rs"]
mod prometheus;

use prometheus::{parse, total};

fn drive(name: &str) -> DriveInfo {
    DriveInfo {
        name: name.into(),
        serial: Some("S \"1\"".into()),
        model: None,
        capacity: 1 << 20,
        block_size: 4096,
        memory_align: 4,
        max_transfer: None,
        start: 0,
        node: None,
    }
}

/// Two shards of two workers, on two drives and one.
fn view() -> View {
    let shard = |name: &str, drives: &[&str]| ShardInfo {
        name: name.into(),
        fabric: FabricKind::Tcp,
        address: "127.0.0.1:4790".parse().unwrap(),
        backend: "mem",
        cores: vec![0, 1],
        drives: drives.iter().map(|name| drive(name)).collect(),
    };
    let shards = vec![shard("a\\b\n", &["/dev/x", "trtype:X traddr:\"y\""]), shard("b", &["m"])];
    let of = |s: &ShardInfo| (0..2).map(|_| Arc::new(Counters::new(s.drives.len()))).collect();
    View { counters: shards.iter().map(of).collect(), shards }
}

#[test]
fn the_page_is_well_formed_also_with_odd_names_and_without_load() {
    let mut page = String::new();
    render(&view(), &mut page);
    let families = parse(&page);
    assert_eq!(total(&families["millrace_shard_info"], &[("shard", "a\\b\n")]), 1.0);
    assert_eq!(families["millrace_drive_bytes_total"].samples.len(), 3);
    let odd = [("device", "trtype:X traddr:\"y\""), ("serial", "S \"1\"")];
    assert_eq!(total(&families["millrace_drive_bytes_total"], &odd), 0.0);
    assert_eq!(families["millrace_slots"].samples.len(), 4);
}

#[test]
fn what_was_counted_is_shown_where_it_belongs() {
    let view = view();
    let worker = &view.counters[0][1];
    worker.by_status.count(Status::Ok as u16);
    worker.by_status.count(Status::NoDrive as u16);
    worker.latency.record(3_000);
    Counters::add(&worker.drive_ns, 2_000_000_000);
    Counters::add(&worker.closed[Closed::HandshakeTimeout.number()], 5);
    for counters in &view.counters[0] {
        counters.drives[1].latency.record(1_500);
        Counters::add(&counters.drives[1].bytes, 10);
        Counters::add(&counters.drives[1].damaged, 1);
    }
    let mut page = String::new();
    render(&view, &mut page);
    let families = parse(&page);
    let requests = &families["millrace_requests_total"];
    let here = [("shard", "a\\b\n"), ("worker", "1")];
    assert_eq!(total(requests, &[here[0], here[1], ("status", "no_drive")]), 1.0);
    assert_eq!(total(requests, &here), 2.0);
    assert_eq!(total(requests, &[("shard", "b")]), 0.0);
    let latency = &families["millrace_request_seconds"];
    let at_most = |le| total(latency, &[here[0], here[1], ("le", le)]);
    assert_eq!((at_most("0.000002"), at_most("0.000004")), (0.0, 1.0));
    let sum = latency.samples.iter().find(|s| s.name.ends_with("_sum") && s.value > 0.0).unwrap();
    assert_eq!(sum.value, 2.0);
    let closed = &families["millrace_connections_closed_total"];
    assert_eq!(total(closed, &[("reason", "handshake_timeout")]), 5.0);
    // A drive's figures are those of all workers.
    let second = [("shard", "a\\b\n"), ("drive", "1")];
    assert_eq!(total(&families["millrace_drive_bytes_total"], &second), 20.0);
    assert_eq!(total(&families["millrace_drive_damaged_total"], &second), 2.0);
    let drive_time = &families["millrace_drive_seconds"];
    assert_eq!(total(drive_time, &[second[0], second[1], ("le", "+Inf")]), 2.0);
}

#[test]
fn a_page_made_again_needs_no_more_memory() {
    let view = view();
    let mut page = String::new();
    render(&view, &mut page);
    let capacity = page.capacity();
    for _ in 0..3 {
        page.clear();
        render(&view, &mut page);
    }
    assert_eq!(page.capacity(), capacity);
}

/// Every metric that an expression of the dashboard names is one that is shown.
#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let mut page = String::new();
    render(&view(), &mut page);
    let families = parse(&page);
    let text = include_str!("../../../deploy/grafana.json");
    let board: serde_json::Value = serde_json::from_str(text).unwrap();
    let mut expressions = Vec::new();
    collect(&board, &mut expressions);
    assert!(expressions.len() >= 12, "{} expressions", expressions.len());
    for expression in expressions {
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let mut named = 0;
        for word in words.filter(|word| word.starts_with("millrace_")) {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|e| word.strip_suffix(e));
            let is_histogram =
                |name: &str| families.get(name).is_some_and(|f| f.kind == "histogram");
            let known = base.is_some_and(is_histogram)
                || families.get(word).is_some_and(|f| f.kind != "histogram");
            assert!(known, "{word} in {expression}");
            named += 1;
        }
        assert!(named > 0, "no metric in {expression}");
        let brackets =
            |open, close| expression.matches(open).count() == expression.matches(close).count();
        assert!(brackets('(', ')') && brackets('{', '}') && brackets('[', ']'), "{expression}");
        // Labels that are summed over or matched are those that the metrics have.
        for by in expression.split("by (").skip(1) {
            for label in by.split(')').next().unwrap().split(',').map(str::trim) {
                let known = label == "le"
                    || label == "instance"
                    || families.values().any(|f| f.samples[0].labels.contains_key(label));
                assert!(known, "label {label} in {expression}");
            }
        }
    }
}

fn collect(value: &serde_json::Value, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            if let Some(text) = fields.get("expr").and_then(|e| e.as_str()) {
                found.push(text.to_owned());
            }
            fields.values().for_each(|value| collect(value, found));
        }
        serde_json::Value::Array(values) => values.iter().for_each(|v| collect(v, found)),
        _ => {}
    }
}
