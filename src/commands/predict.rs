//! `millrace predict`: the model of docs/SCALING.md on the command line.

use std::fmt::Write as _;

use clap::{Args, ValueEnum};

use super::options::size;
use crate::error::{Error, Kind, Result};
use crate::stats::scaling::{
    Access, Costs, GIB, Link, Load, Prediction, Published, Shard, predict, published,
};

/// Flags of `millrace predict`.
#[derive(Debug, Args)]
pub struct PredictArgs {
    /// Show the published figures beside what the model says, and nothing else
    #[arg(long)]
    published: bool,
    /// Shards: NUMA nodes with a NIC and drives, of all servers together
    #[arg(long, default_value_t = 1)]
    shards: u32,
    /// Client NICs, each as fast as a shard's [default: as many as shards]
    #[arg(long)]
    client_nics: Option<u32>,
    /// NIC of a shard in Gbit/s
    #[arg(long, default_value_t = 400.0)]
    nic: f64,
    /// PCIe slot of the NIC as it is wired, in GT/s and lanes: 32x16
    #[arg(long, value_parser = link)]
    nic_link: Option<Link>,
    /// Drives of a shard
    #[arg(long, default_value_t = 8)]
    drives: u32,
    /// Bytes per second of a drive
    #[arg(long, default_value = "7GiB", value_parser = size)]
    drive_speed: u64,
    /// Reads per second of a drive [default: no limit but its bytes]
    #[arg(long)]
    drive_iops: Option<f64>,
    /// Time of a read on an idle drive without its transfer, in microseconds
    #[arg(long, default_value_t = 80.0)]
    drive_latency_us: f64,
    /// Bytes per second of a node's memory [default: not looked at]
    #[arg(long, value_parser = size)]
    memory_speed: Option<u64>,
    /// Workers of a shard
    #[arg(long, default_value_t = 8)]
    workers: u32,
    /// Reads of one worker on its drives at once
    #[arg(long, default_value_t = 64)]
    depth: u32,
    /// Bytes of each read
    #[arg(long, default_value = "1MiB", value_parser = size)]
    io_size: u64,
    /// Objects: 4 KiB more are read from the drive than are sent
    #[arg(long)]
    objects: bool,
    /// Page size of the slots' memory
    #[arg(long, default_value = "1GiB", value_parser = size)]
    page: u64,
    /// The kernel pins pages for each read (--regbufs off)
    #[arg(long)]
    unregistered: bool,
    /// What is done with the bytes that were read
    #[arg(long, value_enum, default_value_t = AccessArg::Crc)]
    check: AccessArg,
    /// CPU time of a request in nanoseconds, as measured here with --check none [default: the
    /// published one]
    #[arg(long)]
    request_ns: Option<f64>,
    /// CPU time of the check per KiB in nanoseconds, as measured here [default: the published one]
    #[arg(long)]
    check_ns_per_kib: Option<f64>,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AccessArg {
    /// Verify or compute a CRC
    Crc,
    /// Load one word every 64 bytes
    Touch,
    /// Nothing
    None,
}

fn link(text: &str) -> Result<Link, String> {
    let parse = || {
        let (speed, lanes) = text.split_once('x')?;
        let link = Link { gigatransfers: speed.parse().ok()?, lanes: lanes.parse().ok()? };
        (link.gigatransfers > 0.0 && link.lanes > 0).then_some(link)
    };
    parse().ok_or_else(|| format!("\"{text}\" is not a link: write it like 32x16"))
}

/// Prints the prediction.
pub fn run(args: &PredictArgs) -> Result<()> {
    if args.published {
        let table = published();
        let text = if args.json { json(&table)? } else { published_table(&table) };
        print!("{text}");
        return Ok(());
    }
    let (shard, load, costs) = model(args)?;
    let prediction = predict(&shard, &load, &costs);
    if args.json {
        let whole = serde_json::json!({
            "schema": "millrace.predict/1",
            "shard": shard,
            "load": load,
            "costs": costs,
            "prediction": prediction,
        });
        print!("{}", json(&whole)?);
    } else {
        print!("{}", table(&prediction));
    }
    Ok(())
}

fn model(args: &PredictArgs) -> Result<(Shard, Load, Costs)> {
    for (name, value) in [
        ("--shards", f64::from(args.shards)),
        ("--client-nics", f64::from(args.client_nics.unwrap_or(1))),
        ("--nic", args.nic),
        ("--drives", f64::from(args.drives)),
        ("--drive-speed", args.drive_speed as f64),
        ("--drive-iops", args.drive_iops.unwrap_or(1.0)),
        ("--drive-latency-us", args.drive_latency_us),
        ("--memory-speed", args.memory_speed.unwrap_or(1) as f64),
        ("--workers", f64::from(args.workers)),
        ("--depth", f64::from(args.depth)),
        ("--io-size", args.io_size as f64),
        ("--page", args.page as f64),
        ("--request-ns", args.request_ns.unwrap_or(1.0)),
        ("--check-ns-per-kib", args.check_ns_per_kib.unwrap_or(1.0)),
    ] {
        if !(value.is_finite() && value > 0.0) {
            return Err(Error::usage(format!("{name} of {value}")).remedy("give a value above 0"));
        }
    }
    let shard = Shard {
        nic_gbit: args.nic,
        nic_link: args.nic_link,
        drives: args.drives,
        drive_bytes_per_sec: args.drive_speed as f64,
        drive_iops: args.drive_iops.unwrap_or(f64::INFINITY),
        drive_latency_ns: args.drive_latency_us * 1e3,
        memory_bytes_per_sec: args.memory_speed.map(|speed| speed as f64),
        workers: args.workers,
        depth: args.depth,
    };
    let payload = args.io_size as f64;
    let load = Load {
        shards: args.shards,
        client_nics: args.client_nics.unwrap_or(args.shards),
        payload,
        on_drive: payload + if args.objects { 4096.0 } else { 0.0 },
        page: args.page as f64,
        pinned_per_read: args.unregistered,
        access: match args.check {
            AccessArg::Crc => Access::Crc,
            AccessArg::Touch => Access::Touch,
            AccessArg::None => Access::None,
        },
    };
    let mut costs = Costs::published();
    costs.request_ns = args.request_ns.unwrap_or(costs.request_ns);
    if let Some(per_kib) = args.check_ns_per_kib {
        costs.crc_ns_per_byte = per_kib / 1024.0;
        costs.touch_ns_per_byte = per_kib / 1024.0;
    }
    Ok((shard, load, costs))
}

fn json<T: serde::Serialize>(value: &T) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n")
        .map_err(|e| Error::new(Kind::Data, "the result cannot be written as JSON").caused_by(e))
}

fn table(prediction: &Prediction) -> String {
    let mut text = format!(
        "{:.1} GiB/s, {:.0} reads/s; the wall is {}\n",
        prediction.bytes_per_sec / GIB,
        prediction.requests_per_sec,
        format!("{:?}", prediction.wall).to_lowercase()
    );
    for (wall, limit) in &prediction.limits {
        let name = format!("{wall:?}").to_lowercase();
        writeln!(text, "  {name:<8} {:>10.1} GiB/s", limit / GIB).expect("a String takes all");
    }
    text
}

fn published_table(rows: &[Published]) -> String {
    let mut text = String::from("| what | published | model | wall | |\n|---|---|---|---|---|\n");
    for row in rows {
        let figure = |value: f64| match value {
            value if value >= 1e6 => format!("{:.1} M", value / 1e6),
            value if value >= 1000.0 || value.fract() == 0.0 => format!("{value:.0}"),
            value => format!("{value:.1}"),
        };
        let (least, most) = row.range;
        let range = match least == most {
            true => figure(least),
            false => format!("{} to {}", figure(least), figure(most)),
        };
        let wall = row.wall.map_or(String::new(), |w| format!("{w:?}").to_lowercase());
        let from = if row.calibrates { "a constant is from it" } else { "" };
        writeln!(
            text,
            "| {} | {range} {} | {} | {wall} | {from} |",
            row.what,
            row.unit,
            figure(row.predicted)
        )
        .expect("a String takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in docs/SCALING.md is the one that the command prints.
    #[test]
    fn the_table_of_the_documentation_is_this_one() {
        let text = include_str!("../../docs/SCALING.md");
        let table = published_table(&published());
        assert!(text.contains(&table), "docs/SCALING.md should have:\n{table}");
    }

    #[test]
    fn links_parse() {
        assert_eq!(link("32x16").unwrap(), Link { gigatransfers: 32.0, lanes: 16 });
        for text in ["", "32", "x16", "0x4", "8x0", "axb"] {
            assert!(link(text).is_err(), "{text}");
        }
    }
}
