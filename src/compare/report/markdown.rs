//! The summary as Markdown.

use std::fmt::Write as _;

use super::{Report, count, rate};
use crate::compare::explain::ratio_text;
use crate::compare::fairness::Trust;
use crate::compare::stats::{Ratio, Verdict};
use crate::units::format_nanos;

pub(super) fn verdict(trust: Trust) -> &'static str {
    match trust {
        Trust::Valid => "valid",
        Trust::Qualified => "qualified",
        Trust::Invalid => "invalid",
    }
}

/// A ratio in a table.
pub(super) fn shown(ratio: Option<Ratio>) -> String {
    match ratio {
        None => "".into(),
        Some(ratio) => match ratio.verdict {
            Verdict::NoDifferenceShown => format!("{}, no difference shown", ratio_text(&ratio)),
            Verdict::TooFewRounds => format!("{}, too few rounds", ratio_text(&ratio)),
            Verdict::Above | Verdict::Below => ratio_text(&ratio),
        },
    }
}

pub(super) fn nanos(value: Option<f64>) -> String {
    value.map_or("".into(), |value| format_nanos(value.max(0.0) as u64))
}

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let mut text = String::new();
    let matrix = &report.matrix;
    let mut say = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    say(&format!("# millrace compare: {}\n", matrix.name));
    say(&format!(
        "{} by {}, {} rounds of {} s each, seed {}.\n",
        matrix.devices.join(", "),
        matrix.fabric,
        report.points.iter().map(|p| p.rounds).max().unwrap_or(0),
        matrix.seconds,
        matrix.seed
    ));
    say(&format!("Verdict: **{}**\n", verdict(report.fairness.verdict)));
    for reason in &report.fairness.reasons {
        say(&format!("- {} ({}): {}", verdict(reason.trust), reason.id, reason.text));
    }
    for left in &report.left_out {
        say(&format!("- left out, {}: {}", left.variant, left.why.replace('\n', " ")));
    }
    for load in report.loads() {
        say(&format!("\n## {}\n", matrix.loads[load].title()));
        say("| variant | throughput | reads/s | p50 | p99 | p99.9 | CPU per read | to |");
        say("|---|---|---|---|---|---|---|---|");
        for point in report.points.iter().filter(|point| point.load == load) {
            let get = |name: &str| point.get(name);
            let comparison =
                report.comparisons.iter().find(|c| (c.load, c.variant) == (load, point.variant));
            let to = comparison.map_or(String::new(), |c| {
                format!("{}: {}", report.name(c.from), shown(c.get("iops")))
            });
            say(&format!(
                "| {} | {} | {} | {} | {} | {} | {} | {to} |",
                report.name(point.variant),
                rate(get("bytes_per_sec").unwrap_or(0.0)),
                count(get("iops").unwrap_or(0.0)),
                nanos(get("latency_p50_ns")),
                nanos(get("latency_p99_ns")),
                nanos(get("latency_p999_ns")),
                nanos(get("cpu_ns_per_read")),
            ));
        }
        let walls = report.explanation.walls.iter().filter(|wall| wall.load == load);
        say("");
        for wall in walls {
            let name = report.name(wall.variant);
            match &wall.finding.wall {
                Some(named) => {
                    say(&format!("- {name}: the wall is {}: {}.", named.wall.name(), named.text));
                }
                None => say(&format!(
                    "- {name}: the evidence does not name a wall. Next: {}.",
                    wall.finding.next.join("; ")
                )),
            }
        }
        let effects = report.explanation.switches.iter().filter(|effect| effect.load == load);
        for effect in effects {
            say(&format!("- {} beside {}: {}.", effect.variant, effect.from, effect.text));
        }
        for chain in report.explanation.chain.iter().filter(|chain| chain.load == load) {
            say(&format!("- {}.", chain.shows.text));
        }
    }
    let missing = report.missing();
    if !missing.is_empty() {
        say("\n## Not measured, or limited\n");
        for (name, why) in missing {
            say(&format!("- {name}: {why}"));
        }
    }
    writeln!(
        text,
        "\nRatios are medians over rounds, with the middle 99 % of bootstrapped medians in \
         brackets. Figures are medians. Tool: {} {}.",
        report.tool["version"].as_str().unwrap_or("?"),
        report.tool["revision"].as_str().unwrap_or("?")
    )
    .expect("writing to a String never fails");
    text
}
