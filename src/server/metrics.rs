//! What a server shows of itself, in the text format that Prometheus reads (exposition format
//! 0.0.4, prometheus.io/docs/instrumenting/exposition_formats).
//!
//! Nothing here runs on a worker's core: workers write plain counters of which each is the only
//! writer, and this reads them.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::run::View;
use super::shard::ShardInfo;
use crate::fabric::Closed;
use crate::stats::{BUCKETS, Buckets, Counters, DriveCounters, STATUS_CODES};
use crate::wire::Status;

/// The content type of [`render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Appends all metrics to `out`, which keeps its capacity over calls.
pub fn render(view: &View, out: &mut String) {
    let mut page = Page { view, out };
    page.of_process();
    page.of_workers();
    page.of_connections();
    page.of_drives();
}

struct Page<'a> {
    view: &'a View,
    out: &'a mut String,
}

impl Page<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.put(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.out.write_fmt(text).expect("writing to a String never fails");
    }

    /// A metric with one sample for each worker.
    fn each_worker(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        value: impl Fn(&Counters) -> &AtomicU64,
    ) {
        self.head(name, kind, help);
        for (shard, worker, counters) in workers(self.view) {
            let value = value(counters).load(Ordering::Relaxed);
            self.put(format_args!("{name}{{{}}} {value}\n", labels(shard, worker)));
        }
    }

    fn of_process(&mut self) {
        let name = "millrace_build_info";
        self.head(name, "gauge", "The program that serves; always 1.");
        let (version, revision) = (env!("CARGO_PKG_VERSION"), env!("MILLRACE_REVISION"));
        self.put(format_args!("{name}{{version=\"{version}\",revision=\"{revision}\"}} 1\n"));
        let name = "millrace_shard_info";
        self.head(name, "gauge", "What a shard is; always 1.");
        for shard in &self.view.shards {
            self.put(format_args!(
                "{name}{{shard=\"{}\",backend=\"{}\",fabric=\"{}\",address=\"{}\"}} 1\n",
                escaped(&shard.name),
                shard.backend,
                shard.fabric,
                shard.address
            ));
        }
    }

    fn of_workers(&mut self) {
        let name = "millrace_requests_total";
        self.head(name, "counter", "Requests answered, by status.");
        for (shard, worker, counters) in workers(self.view) {
            for code in 0..STATUS_CODES as u16 {
                let Some(status) = Status::from_code(code) else { continue };
                let (count, labels) = (counters.by_status.read(code), labels(shard, worker));
                self.put(format_args!(
                    "{name}{{{labels},status=\"{}\"}} {count}\n",
                    snake(&format!("{status:?}"))
                ));
            }
        }
        type Sample = (&'static str, &'static str, &'static str, fn(&Counters) -> &AtomicU64);
        const SAMPLES: [Sample; 6] = [
            ("millrace_received_total", "counter", "Requests received.", |c| &c.requests),
            ("millrace_sent_bytes_total", "counter", "Bytes of payload answered.", |c| &c.bytes),
            ("millrace_in_flight", "gauge", "Requests in flight.", |c| &c.active),
            ("millrace_slots", "gauge", "Slots of memory, free or not.", |c| &c.slots),
            ("millrace_slots_free", "gauge", "Slots that no request has.", |c| &c.slots_free),
            ("millrace_slots_leaked", "gauge", "Slots given up for good.", |c| &c.leaked),
        ];
        for (name, kind, help, value) in SAMPLES {
            self.each_worker((name, kind, help), value);
        }
        let name = "millrace_stage_seconds_total";
        self.head(name, "counter", "Time that requests spent in each stage of the server, summed.");
        for (shard, worker, counters) in workers(self.view) {
            let stages = [
                ("queued", &counters.queued_ns),
                ("drive", &counters.drive_ns),
                ("check", &counters.check_ns),
            ];
            for (stage, sum) in stages {
                let (sum, labels) = (seconds(sum), labels(shard, worker));
                self.put(format_args!("{name}{{{labels},stage=\"{stage}\"}} {sum}\n"));
            }
        }
        let name = "millrace_request_seconds";
        self.head(name, "histogram", "From arrival to answer, of requests that went to a drive.");
        for (shard, worker, counters) in workers(self.view) {
            let sums = [&counters.queued_ns, &counters.drive_ns, &counters.check_ns];
            let sum = sums.into_iter().map(seconds).sum();
            self.histogram(name, &labels(shard, worker), &counters.latency.read(), sum);
        }
    }

    fn of_connections(&mut self) {
        let open = ("millrace_connections", "gauge", "Connections that are open.");
        self.each_worker(open, |c| &c.connections);
        let opened = ("millrace_connections_opened_total", "counter", "Handshakes that succeeded.");
        self.each_worker(opened, |c| &c.opened);
        let name = "millrace_connections_closed_total";
        self.head(
            name,
            "counter",
            "Connections that ended, and handshakes that failed, by reason.",
        );
        for (shard, worker, counters) in workers(self.view) {
            for (reason, count) in Closed::WORDS.iter().zip(&counters.closed) {
                let (count, labels) = (count.load(Ordering::Relaxed), labels(shard, worker));
                self.put(format_args!("{name}{{{labels},reason=\"{reason}\"}} {count}\n"));
            }
        }
    }

    fn of_drives(&mut self) {
        let name = "millrace_drive_bytes_total";
        self.head(name, "counter", "Bytes read from a drive and answered.");
        self.each_drive(|page, labels, of| {
            let bytes = sum(of, |c| &c.bytes);
            page.put(format_args!("{name}{{{labels}}} {bytes}\n"));
        });
        let name = "millrace_drive_errors_total";
        self.head(name, "counter", "Reads that a drive ended with an error.");
        self.each_drive(|page, labels, of| {
            let failed = sum(of, |c| &c.failed);
            page.put(format_args!("{name}{{{labels}}} {failed}\n"));
        });
        let name = "millrace_drive_damaged_total";
        self.head(name, "counter", "Objects of a drive that were damaged, and not served.");
        self.each_drive(|page, labels, of| {
            let damaged = sum(of, |c| &c.damaged);
            page.put(format_args!("{name}{{{labels}}} {damaged}\n"));
        });
        let name = "millrace_drive_seconds";
        self.head(name, "histogram", "From submission to a drive to its completion.");
        self.each_drive(|page, labels, of| {
            let mut counts = [0; BUCKETS];
            for one in of {
                counts.iter_mut().zip(one.latency.read()).for_each(|(sum, n)| *sum += n);
            }
            let nanos = sum(of, |c| &c.drive_ns);
            page.histogram(name, labels, &counts, nanos as f64 / 1e9);
        });
    }

    /// Calls `each` with the labels of a drive and its counters of all workers.
    fn each_drive(&mut self, each: impl Fn(&mut Self, &str, &[&DriveCounters])) {
        let view = self.view;
        for (shard, counters) in view.shards.iter().zip(&view.counters) {
            for (number, drive) in shard.drives.iter().enumerate() {
                let of: Vec<&DriveCounters> = counters.iter().map(|c| &c.drives[number]).collect();
                let labels = format!(
                    "shard=\"{}\",drive=\"{number}\",device=\"{}\",serial=\"{}\"",
                    escaped(&shard.name),
                    escaped(&drive.name),
                    escaped(drive.serial.as_deref().unwrap_or(""))
                );
                each(self, &labels, &of);
            }
        }
    }

    /// One histogram: cumulative buckets, and a count that agrees with them.
    fn histogram(&mut self, name: &str, labels: &str, counts: &[u64; BUCKETS], sum: f64) {
        let mut below = 0;
        for (bucket, count) in counts.iter().enumerate() {
            below += count;
            let bound = match Buckets::bound(bucket) {
                Some(bound) => bound.to_string(),
                None => "+Inf".to_owned(),
            };
            self.put(format_args!("{name}_bucket{{{labels},le=\"{bound}\"}} {below}\n"));
        }
        self.put(format_args!("{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {below}\n"));
    }
}

fn workers(view: &View) -> impl Iterator<Item = (&ShardInfo, usize, &Counters)> {
    view.shards.iter().zip(&view.counters).flat_map(|(shard, counters)| {
        counters.iter().enumerate().map(move |(number, counters)| (shard, number, &**counters))
    })
}

fn labels(shard: &ShardInfo, worker: usize) -> String {
    format!("shard=\"{}\",worker=\"{worker}\"", escaped(&shard.name))
}

fn sum(of: &[&DriveCounters], field: impl Fn(&DriveCounters) -> &AtomicU64) -> u64 {
    of.iter().map(|counters| field(counters).load(Ordering::Relaxed)).sum()
}

fn seconds(nanos: &AtomicU64) -> f64 {
    nanos.load(Ordering::Relaxed) as f64 / 1e9
}

/// A label's value as the format has it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// `NoDrive` as `no_drive`.
fn snake(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 4);
    for (place, letter) in name.chars().enumerate() {
        if letter.is_ascii_uppercase() && place > 0 {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests;
