//! The plots of a comparison.

use std::collections::BTreeMap;

use super::svg::{COLOURS, Plot, Scale, WIDTH};
use super::{Report, count};
use crate::compare::analysis::Point;
use crate::units::{format_nanos, format_size};

/// A plot with its name and what its colours mean.
pub(super) struct Figure {
    pub title: String,
    pub about: &'static str,
    /// Number of the colour, hollow beyond the last, and name.
    pub legend: Vec<(usize, String)>,
    pub svg: String,
}

/// Height of a line plot, and of one bar with its gap.
const INNER: f64 = 230.0;
const BAR: f64 = 18.0;
const GAP: f64 = 10.0;

/// Throughput by depth, a plot for each size that has several depths.
pub(super) fn by_depth(report: &Report) -> Vec<Figure> {
    let matrix = &report.matrix;
    let mut sizes: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for load in report.loads() {
        sizes.entry(matrix.loads[load].io_size).or_default().push(load);
    }
    let mut figures = Vec::new();
    for (size, loads) in sizes {
        let mut depths: Vec<u32> = loads.iter().map(|load| matrix.loads[*load].depth).collect();
        depths.sort_unstable();
        depths.dedup();
        if depths.len() < 2 {
            continue;
        }
        let values = |name| {
            let own = report.points.iter().filter(|p| loads.contains(&p.load));
            own.filter_map(move |p| p.figures.get(name)).map(|m| m.max).fold(0.0, f64::max)
        };
        // Small reads are counted, large ones weighed.
        let counted = size < 64 << 10;
        let name = if counted { "iops" } else { "bytes_per_sec" };
        // Ticks are round in the unit that is shown.
        let (unit, suffix) = match values(name) {
            _ if counted => (1.0, ""),
            most if most >= f64::from(1 << 30) => (f64::from(1 << 30), " GiB/s"),
            _ => (f64::from(1 << 20), " MiB/s"),
        };
        let scale = Scale::linear(values(name) / unit);
        let write = move |value: f64| match value {
            v if suffix.is_empty() || v >= 20.0 => format!("{}{suffix}", count(v)),
            v => format!("{v:.1}{suffix}"),
        };
        let mut plot = Plot::new(INNER);
        plot.y_axis(scale, &write);
        let place = |depth: u32| {
            let at = depths.iter().position(|d| *d == depth).unwrap_or(0) as f64;
            (at + 0.5) / depths.len() as f64
        };
        let labels: Vec<(f64, String)> =
            depths.iter().map(|depth| (place(*depth), depth.to_string())).collect();
        plot.x_labels(&labels, "reads in flight");
        let mut legend = Vec::new();
        for variant in 0..matrix.variants.len() {
            let mut points = Vec::new();
            let mut ranges = Vec::new();
            for load in &loads {
                let Some(point) = report.point(*load, variant) else { continue };
                let Some(middle) = point.figures.get(name) else { continue };
                let depth = matrix.loads[*load].depth;
                // Side by side, so that ranges do not hide each other.
                let shift = (variant as f64 - matrix.variants.len() as f64 / 2.0 + 0.5) * 5.0;
                let x = plot.x(place(depth)) + shift.clamp(-20.0, 20.0);
                let y = |value: f64| plot.y(scale.place(value / unit));
                let title = format!(
                    "{}, depth {depth}: {}",
                    report.name(variant),
                    write(middle.median / unit)
                );
                points.push((x, y(middle.median), title));
                ranges.push((x, y(middle.min), y(middle.max)));
            }
            if points.is_empty() {
                continue;
            }
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            for (x, low, high) in ranges {
                plot.line((x, low), (x, high), &format!("range s{}", variant % COLOURS));
            }
            plot.series(&points, variant);
            legend.push((variant, report.name(variant).to_owned()));
        }
        let title = format!("Throughput by depth, {}", format_size(size.into()));
        figures.push(Figure {
            svg: plot.finish(&title),
            title,
            about: "Medians over rounds; thin lines reach from the slowest to the fastest round.",
            legend,
        });
    }
    figures
}

/// Latency percentiles under one load.
pub(super) fn latency(report: &Report, load: usize) -> Option<Figure> {
    const PERCENTILES: [(&str, &str); 5] = [
        ("latency_p50_ns", "p50"),
        ("latency_p90_ns", "p90"),
        ("latency_p99_ns", "p99"),
        ("latency_p999_ns", "p99.9"),
        ("latency_max_ns", "max"),
    ];
    let own: Vec<&Point> = report.points.iter().filter(|point| point.load == load).collect();
    let values = own.iter().flat_map(|point| PERCENTILES.iter().map(|(name, _)| point.get(name)));
    let values: Vec<f64> = values.flatten().filter(|value| *value > 0.0).collect();
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let most = values.iter().copied().max_by(f64::total_cmp)?;
    let scale = Scale::log(least, most, 10.0);
    let mut plot = Plot::new(INNER);
    plot.y_axis(scale, &|value| format_nanos(value.round() as u64));
    let place = |n: usize| (n as f64 + 0.5) / PERCENTILES.len() as f64;
    let labels: Vec<(f64, String)> =
        PERCENTILES.iter().enumerate().map(|(n, (_, name))| (place(n), (*name).into())).collect();
    plot.x_labels(&labels, "share of reads that are faster");
    let mut legend = Vec::new();
    for point in own {
        let mut marks = Vec::new();
        for (n, (name, called)) in PERCENTILES.iter().enumerate() {
            if let Some(value) = point.get(name) {
                let name = report.name(point.variant);
                let title = format!("{name}, {called}: {}", format_nanos(value as u64));
                marks.push((plot.x(place(n)), plot.y(scale.place(value)), title));
            }
        }
        plot.series(&marks, point.variant);
        legend.push((point.variant, report.name(point.variant).to_owned()));
    }
    Some(Figure {
        title: "Latency percentiles".into(),
        about: "Medians over rounds. The scale is logarithmic.",
        legend,
        svg: plot.finish("Latency percentiles"),
    })
}

/// Parts of a whole for each variant, as bars.
fn stacked(
    report: &Report,
    load: usize,
    (title, about, axis): (&str, &'static str, &str),
    parts: &[(&str, &str)],
) -> Option<Figure> {
    let own: Vec<&Point> = report.points.iter().filter(|point| point.load == load).collect();
    let total = |point: &Point| parts.iter().filter_map(|(name, _)| point.get(name)).sum::<f64>();
    let most = own.iter().map(|point| total(point)).fold(0.0, f64::max);
    if most <= 0.0 {
        return None;
    }
    let scale = Scale::linear(most);
    let inner = own.len() as f64 * (BAR + GAP) + GAP;
    let mut plot = Plot::with_names(inner, names_width(report));
    plot.x_axis(scale, &|value| format_nanos(value as u64), axis);
    for (row, point) in own.iter().enumerate() {
        let top = plot.y(1.0) + GAP + row as f64 * (BAR + GAP);
        let name = report.name(point.variant);
        plot.text((plot.x(0.0) - 8.0, top + BAR * 0.7), "end", "name", name);
        let mut from = 0.0;
        for (colour, (figure, called)) in parts.iter().enumerate() {
            let Some(value) = point.get(figure).filter(|value| *value > 0.0) else { continue };
            let (x0, x1) = (plot.x(scale.place(from)), plot.x(scale.place(from + value)));
            let title = format!("{name}, {called}: {}", format_nanos(value as u64));
            plot.bar((x0, top), (x1 - x0, BAR), &format!("f{colour}"), &title);
            from += value;
        }
        let end = plot.x(scale.place(from));
        let text = format_nanos(from as u64);
        // Where the bar is long, its figure is inside.
        match end > WIDTH - 80.0 {
            true => plot.text((end - 6.0, top + BAR * 0.72), "end", "inside", &text),
            false => plot.text((end + 6.0, top + BAR * 0.72), "start", "tick", &text),
        }
    }
    let used = |name: &str| own.iter().any(|point| point.get(name).is_some_and(|v| v > 0.0));
    let legend = parts.iter().enumerate().filter(|(_, (name, _))| used(name));
    Some(Figure {
        title: title.into(),
        about,
        legend: legend.map(|(colour, (_, called))| (colour, (*called).to_owned())).collect(),
        svg: plot.finish(title),
    })
}

/// Room for the longest name.
fn names_width(report: &Report) -> f64 {
    let longest = report.matrix.variants.iter().map(|v| v.name.chars().count()).max();
    (longest.unwrap_or(0) as f64 * 7.0 + 16.0).clamp(60.0, 220.0)
}

/// Where the time of a read goes.
pub(super) fn stages(report: &Report, load: usize) -> Option<Figure> {
    stacked(
        report,
        load,
        (
            "Where the time of a read goes",
            "Mean time in each stage; they add up to the mean latency.",
            "mean time of a read",
        ),
        &[
            ("drive_ns", "on the drive"),
            ("check_ns", "in the check"),
            ("queued_ns", "in line for a slot"),
            ("fabric_client_ns", "fabric and client"),
        ],
    )
}

/// CPU time of a read by part.
pub(super) fn cpu(report: &Report, load: usize) -> Option<Figure> {
    let local = report.matrix.fabric == "local";
    let client: &[(&str, &str)] = if local { &[] } else { &[("client_cpu_ns_per_read", "client")] };
    let parts: Vec<(&str, &str)> = [
        ("cpu_system_ns_per_read", "in the kernel"),
        ("cpu_user_ns_per_read", "outside of it: checks, polling"),
    ]
    .into_iter()
    .chain(client.iter().copied())
    .collect();
    stacked(
        report,
        load,
        (
            "CPU time per read",
            "A thread that spins uses all of its core at any load, so its time per read is the \
             time between reads.",
            "CPU time per read",
        ),
        &parts,
    )
}

/// Names of counters, and how they are called.
const COUNTERS: [(&str, &str); 11] = [
    ("cycles_per_read", "cycles per read"),
    ("instructions_per_read", "instructions per read"),
    ("dtlb_load_misses_per_read", "dTLB load misses per read"),
    ("l1d_load_misses_per_read", "L1D load misses per read"),
    ("drive_requests_per_read", "requests of the drive per read"),
    ("commands_per_read", "commands per read"),
    ("context_switches_per_read", "context switches per read"),
    ("page_faults_per_read", "page faults per read"),
    ("syscalls_per_read", "system calls per read"),
    ("io_wq_requests_per_read", "requests to io-wq per read"),
    ("fget_per_read", "look-ups of files (fget) per read"),
];

/// Counters by variant: small bars, a plot for each counter that any variant has.
pub(super) fn counters(report: &Report, load: usize) -> Vec<Figure> {
    let own: Vec<&Point> = report.points.iter().filter(|point| point.load == load).collect();
    let mut figures = Vec::new();
    for (name, called) in COUNTERS {
        let most = own.iter().filter_map(|point| point.get(name)).fold(0.0, f64::max);
        if most < 0.005 {
            continue;
        }
        let scale = Scale::linear(most);
        let inner = own.len() as f64 * (BAR + GAP) + GAP;
        let mut plot = Plot::with_names(inner, names_width(report));
        let digits = |value: f64| match most {
            m if m >= 20.0 => count(value),
            m if m >= 2.0 => format!("{value:.1}"),
            _ => format!("{value:.2}"),
        };
        plot.x_axis(scale, &digits, called);
        for (row, point) in own.iter().enumerate() {
            let top = plot.y(1.0) + GAP + row as f64 * (BAR + GAP);
            let variant = report.name(point.variant);
            plot.text((plot.x(0.0) - 8.0, top + BAR * 0.7), "end", "name", variant);
            let start = plot.x(0.0);
            let Some(value) = point.get(name) else {
                plot.text((start + 6.0, top + BAR * 0.72), "start", "tick", "not measured");
                continue;
            };
            let end = plot.x(scale.place(value));
            let title = format!("{variant}, {called}: {value:.3}");
            let colour = format!("f{}", point.variant % COLOURS);
            plot.bar((start, top), (end - start, BAR), &colour, &title);
            match end > WIDTH - 80.0 {
                true => plot.text((end - 6.0, top + BAR * 0.72), "end", "inside", &digits(value)),
                false => plot.text((end + 6.0, top + BAR * 0.72), "start", "tick", &digits(value)),
            }
        }
        let svg = plot.finish(called);
        figures.push(Figure { title: called.into(), about: "", legend: Vec::new(), svg });
    }
    figures
}
