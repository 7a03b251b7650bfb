//! From runs to figures: medians of each variant under each load, and ratios over paired rounds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::matrix::Matrix;
use super::record::{Header, Run};
use super::stats::{Middle, Ratio, middle, ratio};
use super::switches::Change;

/// Figures by name; docs/COMPARE.md has the list.
pub type Figures = BTreeMap<String, f64>;

/// One variant under one load, over all rounds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Number of the load.
    pub load: usize,
    /// Number of the variant.
    pub variant: usize,
    /// Rounds.
    pub rounds: usize,
    /// Median and range of each figure.
    pub figures: BTreeMap<String, Middle>,
    /// Counts of the one traced run; under the first load only.
    pub traced: Figures,
    /// Why a figure is missing, or what limits it.
    pub notes: BTreeMap<String, String>,
}

impl Point {
    /// Median of a figure, or the count of the traced run.
    pub fn get(&self, name: &str) -> Option<f64> {
        let median = self.figures.get(name).map(|middle| middle.median);
        median.or_else(|| self.traced.get(name).copied())
    }
}

/// A variant beside the one that it is compared to, under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Number of the load.
    pub load: usize,
    /// Number of the variant it is compared to.
    pub from: usize,
    /// Number of the variant.
    pub variant: usize,
    /// What differs.
    pub changes: Vec<Change>,
    /// Ratio of each figure: above 1, the variant has more of it.
    pub ratios: BTreeMap<String, Ratio>,
}

impl Comparison {
    /// The ratio of a figure.
    pub fn get(&self, name: &str) -> Option<Ratio> {
        self.ratios.get(name).copied()
    }
}

/// All figures of one run. `cpu_*` are those of the process that reads the drives.
pub fn figures(run: &Run, local: bool) -> Figures {
    let s = &run.summary;
    let latency = &s.latency_ns;
    let mut all: Figures = [
        ("iops", s.iops),
        ("bytes_per_sec", s.bytes_per_sec),
        ("latency_p50_ns", latency.p50 as f64),
        ("latency_p90_ns", latency.p90 as f64),
        ("latency_p99_ns", latency.p99 as f64),
        ("latency_p999_ns", latency.p999 as f64),
        ("latency_max_ns", latency.max as f64),
        ("latency_mean_ns", latency.mean),
        // Little's law: reads in flight are the rate times the time that each is there.
        ("in_flight", s.iops * latency.mean / 1e9),
        ("queued_ns", s.stages.queued_ns),
        ("drive_ns", s.stages.drive_ns),
        ("check_ns", s.stages.check_ns),
        ("fabric_client_ns", s.stages.fabric_client_ns),
        ("commands_per_read", s.commands_per_op),
        ("errors", s.errors as f64),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    if let Some(unstarted) = s.unstarted {
        all.insert("unstarted".into(), unstarted as f64);
    }
    let counted = |name: &str| run.counters.as_ref().and_then(|counters| counters.get(name));
    for (name, value) in run.counters.iter().flat_map(|counters| &counters.values) {
        if let Some(value) = value {
            all.insert(name.clone(), *value);
        }
    }
    if local {
        let (cpu, system) = (s.cpu_ns_per_op, s.cpu_system_ns_per_op);
        all.insert("cpu_ns_per_read".into(), cpu);
        all.insert("cpu_system_ns_per_read".into(), system);
        all.insert("cpu_user_ns_per_read".into(), cpu - system);
        all.insert("idle_share".into(), s.idle_share);
        // Sleeping threads do not run; spinning ones do, and say how much of it was for nothing.
        if let Some(run_share) = counted("reader_run_share") {
            all.insert("busy_share".into(), (run_share - s.idle_share).clamp(0.0, 1.0));
        }
    } else {
        all.insert("client_idle_share".into(), s.idle_share);
        all.insert("client_cpu_ns_per_read".into(), s.cpu_ns_per_op);
        let sum = counted("cpu_user_ns_per_read").zip(counted("cpu_system_ns_per_read"));
        if let Some((user, system)) = sum {
            all.insert("cpu_ns_per_read".into(), user + system);
        }
    }
    all
}

/// Points of all variants under all loads that have any round.
pub fn points(header: &Header, runs: &[Run]) -> Vec<Point> {
    let matrix = &header.matrix;
    let local = matrix.fabric == "local";
    let mut points = Vec::new();
    for load in 0..matrix.loads.len() {
        for variant in 0..matrix.variants.len() {
            let own: Vec<&Run> =
                runs.iter().filter(|run| (run.load, run.variant) == (load, variant)).collect();
            if own.is_empty() {
                continue;
            }
            let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
            let mut point = Point { load, variant, rounds: own.len(), ..Point::default() };
            for run in own {
                for (name, value) in figures(run, local) {
                    values.entry(name).or_default().push(value);
                }
                for (name, why) in run.counters.iter().flat_map(|counters| &counters.notes) {
                    point.notes.entry(name.clone()).or_insert_with(|| why.clone());
                }
            }
            for (name, values) in values {
                if let Some(middle) = middle(&values) {
                    point.figures.insert(name, middle);
                }
            }
            let traced =
                header.traced.iter().find(|run| (run.load, run.variant) == (load, variant));
            if let Some(counters) = traced.and_then(|run| run.counters.as_ref()) {
                for name in TRACED {
                    match counters.get(name) {
                        Some(value) => {
                            point.traced.insert(name.into(), value);
                            point.notes.remove(name);
                        }
                        None => {
                            let why = counters.notes.get(name).cloned();
                            point.notes.insert(name.into(), why.unwrap_or_default());
                        }
                    }
                }
            }
            points.push(point);
        }
    }
    points
}

/// What only a traced run has.
pub const TRACED: [&str; 3] = ["syscalls_per_read", "io_wq_requests_per_read", "fget_per_read"];

/// Each variant beside the one that it is compared to.
pub fn comparisons(matrix: &Matrix, runs: &[Run]) -> Vec<Comparison> {
    let local = matrix.fabric == "local";
    let mut all = Vec::new();
    for load in 0..matrix.loads.len() {
        for (number, variant) in matrix.variants.iter().enumerate() {
            let Some(from) = variant
                .from
                .as_ref()
                .and_then(|name| matrix.variants.iter().position(|other| other.name == *name))
            else {
                continue;
            };
            let of = |wanted: usize| {
                let own = runs.iter().filter(move |r| (r.load, r.variant) == (load, wanted));
                own.map(|run| (run.round, figures(run, local))).collect::<BTreeMap<_, _>>()
            };
            let (before, after) = (of(from), of(number));
            let names: Vec<&String> =
                after.values().next().map(|f| f.keys().collect()).unwrap_or_default();
            let mut ratios = BTreeMap::new();
            for name in names {
                let pairs: Vec<(f64, f64)> = after
                    .iter()
                    .filter_map(|(round, after)| {
                        Some((*before.get(round)?.get(name)?, *after.get(name)?))
                    })
                    .collect();
                if let Some(ratio) = ratio(&pairs, matrix.seed) {
                    ratios.insert(name.clone(), ratio);
                }
            }
            let changes = matrix.changes(variant);
            all.push(Comparison { load, from, variant: number, changes, ratios });
        }
    }
    all
}
