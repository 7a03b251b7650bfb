//! Made comparisons for tests.

use crate::bench::{Counters, Stages, Summary};
use crate::compare::facts::RunFacts;
use crate::compare::matrix::{Matrix, Variant, loads};
use crate::compare::record::{Header, RECORD_SCHEMA, Run};
use crate::compare::switches::Switches;
use crate::stats::LatencySummary;

/// Two variants that differ in one switch, under one load.
pub(crate) fn matrix() -> Matrix {
    let base = Switches::default();
    let other = base.with(&[("regbufs", "off")]).unwrap();
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
        loads: loads(&["1MiB".into()], &[16], &None).unwrap(),
        variants: vec![
            Variant { name: "READ_FIXED".into(), from: None, switches: base },
            Variant { name: "READ".into(), from: Some("READ_FIXED".into()), switches: other },
        ],
        may_leave_out: false,
    }
}

pub(crate) fn header() -> Header {
    Header {
        schema: RECORD_SCHEMA.into(),
        revision: "abc".into(),
        kernel: "6.1".into(),
        matrix: matrix(),
        left_out: Vec::new(),
        traced: Vec::new(),
        drives: serde_json::json!({ "mem:8MiB": null }),
        zeros: Some(0),
    }
}

/// A run with this many reads per second.
pub(crate) fn run(round: usize, variant: usize, iops: f64) -> Run {
    let mut counters = Counters { seconds: 1.0, ..Counters::default() };
    for (name, value) in [
        ("reader_run_share", Some(1.0)),
        ("reader_wait_share", Some(0.0)),
        ("others_share", Some(0.0)),
        ("steal_share", Some(0.0)),
        ("drive_request_bytes", Some(350_892.0)),
        ("cycles_per_read", None),
    ] {
        counters.values.insert(name.into(), value);
    }
    let why = "this machine has no such hardware counter <guest>";
    counters.notes.insert("cycles_per_read".into(), why.into());
    let mean = 16e9 / iops;
    let summary = Summary {
        seconds: 1.0,
        ops: iops as u64,
        iops,
        bytes_per_sec: iops * f64::from(1 << 20),
        latency_ns: LatencySummary {
            p50: mean as u64,
            p90: (mean * 1.2) as u64,
            p99: (mean * 1.5) as u64,
            p999: (mean * 3.0) as u64,
            max: (mean * 9.0) as u64,
            mean,
        },
        service_ns: None,
        max_slip_ns: None,
        stages: Stages { drive_ns: mean * 0.9, check_ns: mean * 0.1, ..Stages::default() },
        cpu_ns_per_op: 1e9 / iops,
        cpu_system_ns_per_op: 0.6e9 / iops,
        idle_share: 0.02,
        commands_per_op: 1.0,
        late: 0,
        late_max_ns: 0,
        unstarted: None,
        errors: 0,
        failures: Vec::new(),
    };
    let facts = RunFacts { core_nodes: vec![0], ..RunFacts::default() };
    Run { round, load: 0, variant, summary, counters: Some(counters), arena: None, facts }
}
