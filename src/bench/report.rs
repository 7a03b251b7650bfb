//! Results: versioned JSON, and a table for people.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::counters::Counters;
use super::job::RoundStats;
use super::target::Failed;
use crate::client::RemoteServer;
use crate::host::facts::Facts;
use crate::host::finding::Checked;
use crate::stats::LatencySummary;
use crate::units::{format_nanos, format_size};

/// Version of the JSON of a run. docs/RESULTS.md describes it.
pub const SCHEMA: &str = "millrace.run/1";

/// What made a result.
#[derive(Debug, Clone, Serialize)]
pub struct Tool {
    /// Always `millrace`.
    pub name: &'static str,
    /// Version of the package.
    pub version: &'static str,
    /// Git revision that it was built from.
    pub revision: &'static str,
    /// True for a build without optimisation: its figures mean nothing.
    pub debug_build: bool,
}

impl Tool {
    /// This program.
    pub fn this() -> Self {
        Self {
            name: "millrace",
            version: env!("CARGO_PKG_VERSION"),
            revision: env!("MILLRACE_REVISION"),
            debug_build: cfg!(debug_assertions),
        }
    }
}

/// What the checks at the start of a command found.
#[derive(Debug, Clone, Serialize)]
pub struct HostChecks {
    /// Check by check, those that apply.
    pub checks: Vec<Checked>,
    /// Every fact that they looked at.
    pub facts: serde_json::Value,
}

/// The host before and after a run.
#[derive(Debug, Clone, Serialize)]
pub struct HostFacts {
    /// Before the warm-up.
    pub before: Facts,
    /// After the last round.
    pub after: Facts,
    /// What `doctor` says of it.
    #[serde(flatten)]
    pub start: Option<HostChecks>,
}

/// Mean time of a read in each stage, in nanoseconds. They add up to the mean latency.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// In line for a slot of the server.
    pub queued_ns: f64,
    /// On the drive.
    pub drive_ns: f64,
    /// In the check, and waiting for the core to get to it.
    pub check_ns: f64,
    /// The rest: fabric both ways, and the client. 0 without a network.
    pub fabric_client_ns: f64,
}

/// A kind of failure and how often it happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// In words.
    pub what: String,
    /// How often.
    pub count: u64,
}

/// The figures of a round, or of the whole run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Summary {
    /// Seconds measured.
    pub seconds: f64,
    /// Reads that ended well.
    pub ops: u64,
    /// Reads per second.
    pub iops: f64,
    /// Bytes of payload per second.
    pub bytes_per_sec: f64,
    /// From the intended start to the data, in nanoseconds.
    pub latency_ns: LatencySummary,
    /// From the actual submission to the data; `null` in a closed loop, where it is the same.
    pub service_ns: Option<LatencySummary>,
    /// Longest delay behind the schedule in nanoseconds; `null` in a closed loop.
    pub max_slip_ns: Option<u64>,
    /// Mean time by stage.
    pub stages: Stages,
    /// CPU time of this process per read, in nanoseconds, user and system, with the kernel's thread
    /// of an SQPOLL ring. Polling threads use all of their core, whatever the load.
    pub cpu_ns_per_op: f64,
    /// The system part of it.
    pub cpu_system_ns_per_op: f64,
    /// Share of their time during which the load's threads had nothing to do but to look for
    /// completions: what is left of them. Threads that sleep (`--wait block`) are not in it.
    pub idle_share: f64,
    /// Commands that the drives were sent, per read.
    pub commands_per_op: f64,
    /// Reads in flight at the end of the last round: not in the figures above. 0 in a round.
    pub late: u64,
    /// The longest of them: a stall at the end shows here alone.
    pub late_max_ns: u64,
    /// Open loop: reads that were due and could not be started, since all of the depth was in
    /// flight. Not 0: the server did not keep up with the rate. `null` in a closed loop.
    pub unstarted: Option<u64>,
    /// Reads that failed or were wrong; in the summary also those in the warm-up and after the
    /// last round.
    pub errors: u64,
    /// The same, by kind.
    pub failures: Vec<Failure>,
}

/// One round.
pub type Round = Summary;

/// A whole result. `C` is the configuration of the command that made it.
#[derive(Debug, Clone, Serialize)]
pub struct Report<C> {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// What made it.
    pub tool: Tool,
    /// On what host.
    pub host: HostFacts,
    /// With which settings.
    pub config: C,
    /// Round by round.
    pub rounds: Vec<Round>,
    /// All rounds together.
    pub summary: Summary,
    /// Median, least and greatest of the rounds' reads per second.
    pub spread: Spread,
    /// What the machine counted meanwhile; `null` without `--counters`.
    pub counters: Option<Counters>,
    /// By server; empty without a network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerResult>,
}

/// The figures of one group of lanes.
#[derive(Debug, Clone, Serialize)]
pub struct Group {
    /// Its number.
    #[serde(skip)]
    pub number: usize,
    /// All rounds together. CPU time is not told apart by group: 0.
    pub summary: Summary,
    /// Connections that were made again.
    pub reconnects: u64,
    /// Seconds without connection, on the mean of its connections.
    pub away_seconds: f64,
}

/// What one server was, and what it gave.
#[derive(Debug, Clone, Serialize)]
pub struct ServerResult {
    /// What it was.
    #[serde(flatten)]
    pub server: RemoteServer,
    /// Connections to it.
    pub connections: usize,
    /// What it gave.
    #[serde(flatten)]
    pub group: Group,
}

impl ServerResult {
    /// Its line of the table, names padded to `width`.
    fn line(&self, width: usize) -> String {
        let s = &self.group.summary;
        let mut text = format!(
            "{:<width$}  {}/s   {:.0} reads/s   p50 {}   p99 {}   {} errors",
            self.server.address,
            gib(s.bytes_per_sec),
            s.iops,
            format_nanos(s.latency_ns.p50),
            format_nanos(s.latency_ns.p99),
            s.errors
        );
        if self.group.reconnects > 0 || self.group.away_seconds > 0.0 {
            let away = format_nanos((self.group.away_seconds * 1e9) as u64);
            write!(text, "   {} reconnects, away {away}", self.group.reconnects)
                .expect("writing to a String never fails");
        }
        text
    }
}

/// How far the rounds lie apart, in reads per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Middle round.
    pub iops_median: f64,
    /// Slowest round.
    pub iops_min: f64,
    /// Fastest round.
    pub iops_max: f64,
}

impl Summary {
    /// Figures of `stats` that were collected in `seconds`.
    pub fn of(stats: &RoundStats, seconds: f64, open_loop: bool) -> Self {
        let per_op = |sum: u64| sum as f64 / stats.ops.max(1) as f64;
        let stage_sum = stats.queued_ns + stats.drive_ns + stats.check_ns;
        let failure =
            |(why, count): (&Failed, &u64)| Failure { what: why.describe(), count: *count };
        let failures = stats.errors.iter().map(failure).collect();
        Self {
            seconds,
            ops: stats.ops,
            iops: stats.ops as f64 / seconds,
            bytes_per_sec: stats.bytes as f64 / seconds,
            latency_ns: stats.latency.summary(),
            service_ns: open_loop.then(|| stats.service.summary()),
            max_slip_ns: open_loop.then_some(stats.max_slip_ns),
            stages: Stages {
                queued_ns: per_op(stats.queued_ns),
                drive_ns: per_op(stats.drive_ns),
                check_ns: per_op(stats.check_ns),
                fabric_client_ns: per_op(stats.total_ns.saturating_sub(stage_sum)),
            },
            cpu_ns_per_op: per_op(stats.cpu_ns.0 + stats.cpu_ns.1),
            cpu_system_ns_per_op: per_op(stats.cpu_ns.1),
            idle_share: stats.idle_ns as f64 / stats.span_ns.max(1) as f64,
            commands_per_op: per_op(stats.commands),
            late: stats.late,
            late_max_ns: stats.late_max_ns,
            unstarted: open_loop.then_some(stats.unstarted),
            errors: stats.failures(),
            failures,
        }
    }
}

impl Spread {
    /// Of these rounds; there is at least one.
    pub fn of(rounds: &[Round]) -> Self {
        let mut iops: Vec<f64> = rounds.iter().map(|round| round.iops).collect();
        iops.sort_by(f64::total_cmp);
        let middle = iops.len() / 2;
        let iops_median = if iops.len().is_multiple_of(2) {
            (iops[middle - 1] + iops[middle]) / 2.0
        } else {
            iops[middle]
        };
        Self { iops_median, iops_min: iops[0], iops_max: iops[iops.len() - 1] }
    }
}

impl<C> Report<C> {
    /// The table for people; `title` says what was measured.
    pub fn table(&self, title: &str) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            writeln!(text, "  {name:<12} {value}").expect("writing to a String never fails");
        };
        let s = &self.summary;
        line("throughput", format!("{}/s   {:.0} reads/s", gib(s.bytes_per_sec), s.iops));
        if self.rounds.len() > 1 {
            line(
                "rounds",
                format!(
                    "{} of {:.1} s: {:.0} reads/s median, {:.0} to {:.0}",
                    self.rounds.len(),
                    self.rounds[0].seconds,
                    self.spread.iops_median,
                    self.spread.iops_min,
                    self.spread.iops_max
                ),
            );
        }
        line("latency", percentiles(&s.latency_ns));
        if let (Some(service), Some(slip)) = (&s.service_ns, s.max_slip_ns) {
            line("  unqueued", percentiles(service));
            line("  slip", format!("{} at most behind the schedule", format_nanos(slip)));
        }
        if s.late_max_ns > s.latency_ns.max {
            line(
                "late",
                format!("{} ended after it, within {}", s.late, format_nanos(s.late_max_ns)),
            );
        }
        if let Some(unstarted @ 1..) = s.unstarted {
            line(
                "unstarted",
                format!("{unstarted} that were due: it did not keep up with the rate"),
            );
        }
        let stages = &s.stages;
        let total = s.latency_ns.mean.max(1.0);
        let part = |name: &str, ns: f64| {
            format!("{name} {} ({:.0} %)", format_nanos(ns as u64), 100.0 * ns / total)
        };
        line(
            "mean time",
            [
                part("queued", stages.queued_ns),
                part("drive", stages.drive_ns),
                part("check", stages.check_ns),
                part("fabric + client", stages.fabric_client_ns),
            ]
            .join("   "),
        );
        line(
            "this side",
            format!(
                "{} of CPU per read, {} of it in the kernel",
                format_nanos(s.cpu_ns_per_op as u64),
                format_nanos(s.cpu_system_ns_per_op as u64)
            ),
        );
        line("commands", format!("{:.2} per read", s.commands_per_op));
        line("errors", s.errors.to_string());
        for failure in &s.failures {
            line("", format!("{} x {}", failure.count, failure.what));
        }
        if self.servers.len() > 1 {
            let width = self.servers.iter().map(|s| s.server.address.len()).max().unwrap_or(0);
            for (place, server) in self.servers.iter().enumerate() {
                line(if place == 0 { "by server" } else { "" }, server.line(width));
            }
        }
        if self.tool.debug_build {
            line("note", "debug build: these figures mean nothing".into());
        }
        format!("{title}\n{text}")
    }
}

fn gib(bytes: f64) -> String {
    if bytes >= f64::from(1 << 30) {
        format!("{:.2}GiB", bytes / f64::from(1 << 30))
    } else if bytes >= f64::from(1 << 20) {
        format!("{:.1}MiB", bytes / f64::from(1 << 20))
    } else {
        format_size(bytes as u64)
    }
}

fn percentiles(latency: &LatencySummary) -> String {
    format!(
        "mean {}   p50 {}   p90 {}   p99 {}   p99.9 {}   max {}",
        format_nanos(latency.mean as u64),
        format_nanos(latency.p50),
        format_nanos(latency.p90),
        format_nanos(latency.p99),
        format_nanos(latency.p999),
        format_nanos(latency.max)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Status;

    #[test]
    fn stages_add_up_to_the_mean() {
        let mut stats = RoundStats { ops: 2, bytes: 8192, ..RoundStats::default() };
        (stats.queued_ns, stats.drive_ns, stats.check_ns, stats.total_ns) = (20, 100, 40, 200);
        [90, 110].into_iter().for_each(|ns| stats.latency.record(ns));
        let summary = Summary::of(&stats, 2.0, false);
        let stages = summary.stages;
        let sum = stages.queued_ns + stages.drive_ns + stages.check_ns + stages.fabric_client_ns;
        assert_eq!(sum, summary.latency_ns.mean);
        assert_eq!(summary.iops, 1.0);
        assert_eq!(summary.bytes_per_sec, 4096.0);
        assert!(summary.service_ns.is_none());
    }

    #[test]
    fn failures_are_named_and_counted() {
        let mut stats = RoundStats::default();
        stats.errors.insert(Failed::Corrupt, 2);
        stats.errors.insert(Failed::Status(Status::Nvme as u16, 0x281), 3);
        let summary = Summary::of(&stats, 1.0, true);
        assert_eq!(summary.errors, 5);
        assert!(summary.failures[0].what.contains("unrecovered read error"));
        assert_eq!(summary.failures[0].count, 3);
        assert_eq!(summary.max_slip_ns, Some(0));
    }

    #[test]
    fn the_spread_is_of_rounds() {
        let round = |iops: f64| Summary { iops, ..Summary::of(&RoundStats::default(), 1.0, false) };
        let spread = Spread::of(&[round(3.0), round(1.0), round(2.0), round(10.0)]);
        assert_eq!((spread.iops_median, spread.iops_min, spread.iops_max), (2.5, 1.0, 10.0));
    }
}
