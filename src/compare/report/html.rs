//! One page with everything in it.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::markdown::{nanos, shown, verdict};
use super::plots::{self, Figure};
use super::style::{STYLE, colours};
use super::svg::COLOURS;
use super::{Report, count, rate};
use crate::compare::analysis::Point;
use crate::compare::explain::PointFinding;

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let title = format!("millrace compare: {}", report.matrix.name);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(colours())) }
            }
            body {
                (top(report, &title))
                @let depths = plots::by_depth(report);
                @if !depths.is_empty() {
                    h2 { "Throughput by depth" }
                    (figures(&depths))
                }
                @for load in report.loads() { (of_load(report, load)) }
                (setup(report))
            }
        }
    }
    .into_string()
}

fn top(report: &Report, title: &str) -> Markup {
    let matrix = &report.matrix;
    let rounds = report.points.iter().map(|point| point.rounds).max().unwrap_or(0);
    let word = verdict(report.fairness.verdict);
    html! {
        h1 { (title) }
        p.soft {
            (matrix.devices.join(", ")) " · "
            @if matrix.fabric == "local" { "no network" } @else { (matrix.fabric) }
            " · " (rounds) " rounds of " (matrix.seconds) " s · seed " (matrix.seed)
            " · kernel " (report.host["kernel"].as_str().unwrap_or("unknown"))
            " · " (report.host["cpu_model"].as_str().unwrap_or("unknown CPU"))
        }
        p { "Can it be believed? " span class={ "verdict " (word) } { (word) } }
        @if report.fairness.reasons.is_empty() {
            p { "Nothing that was looked at speaks against it." }
        } @else {
            ul {
                @for reason in &report.fairness.reasons {
                    li { span class=(verdict(reason.trust)) { (reason.id) } ": " (reason.text) }
                }
            }
        }
    }
}

fn swatch(number: usize) -> String {
    let hollow = if number < COLOURS { "" } else { " h" };
    format!("t{}{hollow}", number % COLOURS)
}

fn figures(all: &[Figure]) -> Markup {
    html! {
        div.plots {
            @for one in all {
                figure {
                    h3 { (one.title) }
                    @if !one.about.is_empty() { p { (one.about) } }
                    @if !one.legend.is_empty() {
                        div.legend {
                            @for (colour, name) in &one.legend {
                                span class=(swatch(*colour)) { b { (name) } }
                            }
                        }
                    }
                    (PreEscaped(&one.svg))
                }
            }
        }
    }
}

fn of_load(report: &Report, load: usize) -> Markup {
    let plots: Vec<Figure> =
        [plots::latency(report, load), plots::stages(report, load), plots::cpu(report, load)]
            .into_iter()
            .flatten()
            .collect();
    let counters = plots::counters(report, load);
    html! {
        h2 { (report.matrix.loads[load].title()) }
        (table(report, load))
        (why(report, load))
        (figures(&plots))
        @if !counters.is_empty() {
            details open[report.loads().len() == 1] {
                summary { "Counters by variant (" (counters.len()) " plots)" }
                (figures(&counters))
            }
        }
    }
}

fn table(report: &Report, load: usize) -> Markup {
    let own = report.points.iter().filter(|point| point.load == load);
    let beside = |point: &Point| {
        let comparisons = &report.comparisons;
        comparisons.iter().find(|c| (c.load, c.variant) == (load, point.variant))
    };
    html! {
        div.scroll { table {
            thead { tr {
                th { "variant" } th.n { "throughput" } th.n { "reads/s" } th.n { "p50" }
                th.n { "p99" } th.n { "p99.9" } th.n { "CPU per read" } th.n { "mean request" }
                th { "throughput beside" }
            } }
            tbody {
                @for point in own {
                    tr {
                        td { (report.name(point.variant)) }
                        td.n { (rate(point.get("bytes_per_sec").unwrap_or(0.0))) }
                        td.n { (count(point.get("iops").unwrap_or(0.0))) }
                        td.n { (nanos(point.get("latency_p50_ns"))) }
                        td.n { (nanos(point.get("latency_p99_ns"))) }
                        td.n { (nanos(point.get("latency_p999_ns"))) }
                        td.n { (nanos(point.get("cpu_ns_per_read"))) }
                        td.n {
                            @match point.get("drive_request_bytes") {
                                Some(bytes) => { (format!("{:.2} KiB", bytes / 1024.0)) }
                                None => { "unknown" }
                            }
                        }
                        td.wide {
                            @if let Some(c) = beside(point) {
                                (report.name(c.from)) ": " (shown(c.get("iops")))
                            } @else { span.soft { "the baseline" } }
                        }
                    }
                }
            }
        } }
    }
}

fn why(report: &Report, load: usize) -> Markup {
    let explanation = &report.explanation;
    let walls: Vec<&PointFinding> =
        explanation.walls.iter().filter(|wall| wall.load == load).collect();
    let switches: Vec<_> = explanation.switches.iter().filter(|e| e.load == load).collect();
    let chain: Vec<_> = explanation.chain.iter().filter(|c| c.load == load).collect();
    html! {
        h3 { "Which resource is the wall" }
        ul.why {
            @for wall in walls {
                li {
                    (report.name(wall.variant)) ": "
                    @match &wall.finding.wall {
                        Some(named) => { span.wall { (named.wall.name()) } ": " (named.text) "." }
                        None => {
                            "the evidence names none. Next: " (wall.finding.next.join("; ")) "."
                        }
                    }
                    @if !wall.finding.not.is_empty() {
                        details {
                            summary { "not these" }
                            ul {
                                @for no in &wall.finding.not {
                                    li { (no.wall.name()) ": " (no.text) "." }
                                }
                            }
                        }
                    }
                }
            }
        }
        @if !switches.is_empty() {
            h3 { "What each switch did" }
            ul.why {
                @for effect in switches {
                    li { b { (effect.variant) } " beside " (effect.from) ": " (effect.text) "." }
                }
            }
        }
        @if !chain.is_empty() {
            h3 { "What they show together" }
            ul.why { @for one in chain { li { (one.shows.text) "." } } }
        }
    }
}

fn setup(report: &Report) -> Markup {
    let missing = report.missing();
    html! {
        h2 { "How it was measured" }
        p {
            "In each round every variant ran once under every load, every second round in the "
            "opposite order, with the same sequence of offsets on the same CPUs. Ratios are taken "
            "within a round; shown are their median and, in brackets, the middle 99 % of "
            "bootstrapped medians. Where they hold 1, no difference was shown."
        }
        div.scroll { table {
            thead { tr { th { "variant" } th { "beside" } th { "what differs" } } }
            tbody {
                @for variant in &report.matrix.variants {
                    tr {
                        td { (variant.name) }
                        td { (variant.from.as_deref().unwrap_or("")) }
                        td.wide {
                            @let changes = report.matrix.changes(variant);
                            @for (n, change) in changes.iter().enumerate() {
                                @if n > 0 { ", " }
                                (change)
                            }
                        }
                    }
                }
                @for left in &report.left_out {
                    tr {
                        td { (left.variant) }
                        td { "left out" }
                        td.wide { (left.why) }
                    }
                }
            }
        } }
        @if !missing.is_empty() {
            details {
                summary { "Not measured here, or limited (" (missing.len()) ")" }
                ul { @for (name, why) in &missing { li { (name) ": " (why) } } }
            }
        }
        p.soft {
            "millrace " (report.tool["version"].as_str().unwrap_or("?")) " "
            (report.tool["revision"].as_str().unwrap_or("?")) " · everything on this page is in "
            "compare.json beside it"
        }
    }
}
