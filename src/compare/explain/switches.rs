//! What each switch moved, and what the chain of them shows.

use serde::{Deserialize, Serialize};

use super::walls::{Named, Wall, percent};
use crate::compare::analysis::{Comparison, Point};
use crate::compare::matrix::Matrix;
use crate::compare::stats::{Ratio, Verdict};
use crate::units::{format_nanos, format_size};

/// What one switch did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Number of the load.
    pub load: usize,
    /// The variant's name, and that of the one it is compared to.
    pub variant: String,
    /// See [`Effect::variant`].
    pub from: String,
    /// The switches, in words.
    pub switch: String,
    /// True where throughput differs.
    pub moved: bool,
    /// One sentence, with its figures.
    pub text: String,
}

/// How a figure is written.
type Write = fn(f64) -> String;

/// Figures that a switch may move, how they are called, and how they are written.
const MECHANISMS: [(&str, &str, Write); 11] = [
    ("cpu_system_ns_per_read", "kernel CPU per read", nanos),
    ("cpu_user_ns_per_read", "other CPU per read", nanos),
    ("drive_request_bytes", "mean request", bytes),
    ("drive_requests_per_read", "requests per read", plain),
    ("commands_per_read", "commands per read", plain),
    ("dtlb_load_misses_per_read", "dTLB misses per read", plain),
    ("l1d_load_misses_per_read", "L1D misses per read", plain),
    ("io_wq_requests_per_read", "requests to io-wq per read", plain),
    ("fget_per_read", "fget per read", plain),
    ("syscalls_per_read", "system calls per read", plain),
    ("context_switches_per_read", "context switches per read", plain),
];

fn nanos(value: f64) -> String {
    format_nanos(value.max(0.0) as u64)
}

fn bytes(value: f64) -> String {
    if value >= 1024.0 { format!("{:.2} KiB", value / 1024.0) } else { format_size(value as u64) }
}

fn plain(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// A ratio with its interval, in words.
pub fn ratio_text(ratio: &Ratio) -> String {
    format!("x{:.2} ({:.2} to {:.2})", ratio.ratio, ratio.low, ratio.high)
}

/// What the switches of one comparison did.
pub fn effect(
    matrix: &Matrix,
    comparison: &Comparison,
    before: &Point,
    after: &Point,
    walls: (Option<Wall>, Option<Wall>),
) -> Option<Effect> {
    let throughput = comparison.get("iops")?;
    let changes: Vec<String> = comparison.changes.iter().map(ToString::to_string).collect();
    let switch = if changes.is_empty() { "nothing".to_owned() } else { changes.join(", ") };
    let moved = throughput.verdict.differs();
    let mut text = match throughput.verdict {
        Verdict::Above | Verdict::Below => {
            format!("{switch}: throughput {}", ratio_text(&throughput))
        }
        Verdict::NoDifferenceShown => {
            format!("{switch}: no difference in throughput shown, {}", ratio_text(&throughput))
        }
        Verdict::TooFewRounds => format!(
            "{switch}: throughput {} in {} rounds, too few to show a difference",
            ratio_text(&throughput),
            throughput.rounds
        ),
    };
    let mechanisms = mechanisms(comparison, before, after);
    if !mechanisms.is_empty() {
        text += if moved { "; with it " } else { ", although " };
        text += &mechanisms.join(", ");
    }
    match (throughput.verdict, walls) {
        (Verdict::NoDifferenceShown, _) if !throughput.rules_out() => {
            text += " (the interval is wide: more rounds would say more)";
        }
        (Verdict::NoDifferenceShown, _) if !mechanisms.is_empty() => {
            text += ": what this switch changes is not the wall";
        }
        (Verdict::Above | Verdict::Below, (Some(old), Some(new))) if old != new => {
            text += &format!("; the wall was {}, and is {}", old.name(), new.name());
        }
        (Verdict::Above | Verdict::Below, (Some(wall), Some(_))) => {
            text += &format!("; the wall is {} in both", wall.name());
        }
        _ => {}
    }
    if comparison.changes.len() > 1 {
        text += " (more than one switch: which of them did it, this does not show)";
    }
    Some(Effect {
        load: comparison.load,
        variant: matrix.variants[comparison.variant].name.clone(),
        from: matrix.variants[comparison.from].name.clone(),
        switch,
        moved,
        text,
    })
}

/// What besides throughput has changed by a tenth or more, beyond doubt.
fn mechanisms(comparison: &Comparison, before: &Point, after: &Point) -> Vec<String> {
    let mut found = Vec::new();
    for (name, called, write) in MECHANISMS {
        let (Some(old), Some(new)) = (before.get(name), after.get(name)) else { continue };
        let shown = match comparison.get(name) {
            Some(ratio) => ratio.verdict.differs() && (ratio.ratio - 1.0).abs() >= 0.1,
            // A count of the traced run, or a figure that is 0 on one side: no ratio, so it has
            // to be plain.
            None => (old - new).abs() > 0.2 * old.max(new) && old.max(new) > 0.05,
        };
        if shown {
            found.push(format!("{called} went from {} to {}", write(old), write(new)));
        }
    }
    found
}

/// What several experiments show together: whether checks cost arithmetic or access, and whether
/// access costs translation. `none`, `touch` and `crc` are variants that differ in `check` alone.
pub fn chain(matrix: &Matrix, load: usize, comparisons: &[Comparison]) -> Vec<Named> {
    let mut said = Vec::new();
    let with = |switch: &str, from: &str, to: &str| {
        comparisons.iter().find(|c| {
            c.load == load
                && c.changes.len() == 1
                && c.changes[0].switch == switch
                && c.changes[0].from == from
                && c.changes[0].to == to
        })
    };
    let throughput = |c: &Comparison| c.get("iops");
    let none = with("check", "crc", "none");
    let touch = with("check", "crc", "touch").and_then(throughput);
    let none_ratio = none.and_then(throughput);
    if let Some(none) = none_ratio
        && none.rules_out()
    {
        let text =
            format!("without a check throughput is {}: checks are not it", ratio_text(&none));
        said.push(Named { wall: Wall::CheckCpu, text });
    }
    let pages = comparisons.iter().find(|c| {
        c.load == load
            && c.changes.len() == 1
            && c.changes[0].switch == "hugepages"
            && c.changes[0].from == "none"
            && c.get("iops").is_some_and(|r| r.verdict == Verdict::Above)
    });
    if let (Some(none), Some(touch)) = (none_ratio, touch)
        && none.verdict == Verdict::Above
    {
        let access = touch.ratio < 1.0 + (none.ratio - 1.0) / 2.0;
        let figures = format!(
            "without the check throughput is {}; with one load for every 64 bytes in its place it \
             is {}",
            ratio_text(&none),
            ratio_text(&touch)
        );
        let text = match access {
            true => format!("{figures}: not the arithmetic of the CRC, but the access to the data"),
            false => format!("{figures}: the arithmetic of the CRC"),
        };
        said.push(Named { wall: Wall::CheckCpu, text });
    }
    if let Some(pages) = pages {
        let ratio = pages.get("iops").expect("it was asked for above");
        let to = &pages.changes[0].to;
        let mut text =
            format!("pages of {to} in place of 4 KiB: throughput {}", ratio_text(&ratio));
        match pages.get("dtlb_load_misses_per_read") {
            Some(misses) if misses.verdict == Verdict::Below => {
                text += &format!(", dTLB misses per read {}", ratio_text(&misses));
                if let Some(l1d) = pages.get("l1d_load_misses_per_read")
                    && l1d.rules_out()
                {
                    text += &format!(", L1D misses unchanged ({})", ratio_text(&l1d));
                }
                text += ": address translation was the wall";
                said.push(Named { wall: Wall::AddressTranslation, text });
            }
            Some(misses) => {
                text += &format!(
                    ", with dTLB misses per read {}: not by address translation, but by what else \
                     larger pages change (requests to the drive: {})",
                    ratio_text(&misses),
                    pages
                        .get("drive_requests_per_read")
                        .map_or("unknown".into(), |r| ratio_text(&r))
                );
                said.push(Named { wall: Wall::KernelCpu, text });
            }
            None => {
                text += "; this machine counts no dTLB misses, so whether by translation or by \
                         fewer pages to handle in the kernel, it does not show";
                said.push(Named { wall: Wall::AddressTranslation, text });
            }
        }
    }
    said.extend(splitting(matrix, load, comparisons));
    said
}

/// Whether reads that the kernel splits are slower for it.
fn splitting(matrix: &Matrix, load: usize, comparisons: &[Comparison]) -> Option<Named> {
    let size = f64::from(matrix.loads[load].io_size);
    let split = comparisons.iter().find(|c| {
        c.load == load
            && c.get("drive_request_bytes").is_some_and(|r| r.verdict.differs() && r.ratio > 1.1)
            && c.get("iops").is_some_and(|r| r.rules_out())
    })?;
    let (requests, throughput) = (split.get("drive_request_bytes")?, split.get("iops")?);
    let text = format!(
        "requests that are {} as large at {} per read give throughput {}: splitting is not the \
         wall ({} a read)",
        ratio_text(&requests),
        bytes(size),
        ratio_text(&throughput),
        percent(throughput.ratio - 1.0)
    );
    Some(Named { wall: Wall::Drive, text })
}
