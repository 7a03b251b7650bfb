//! `millrace bench`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::local::{load_options, publish};
use super::options::{LoadArgs, parse, read_token};
use crate::bench::{ObjectLoad, RemoteTarget, run as run_load};
use crate::client::{Client, ClientOptions, RemoteDrive};
use crate::error::{Error, Kind, Result};
use crate::host::affinity;
use crate::limits::SLOT_ALIGN;
use crate::memory::Pages;
use crate::units::format_size;
use crate::wire::{ANY_WORKER, CheckMode};

/// Flags of `millrace bench`.
#[derive(Debug, Clone, Args, Serialize)]
pub struct BenchArgs {
    /// Servers: tcp://host:port or rdma://host:port, with commas between them
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', required = true)]
    connect: Vec<String>,
    /// Read byte ranges of the server's drives
    #[arg(long, conflicts_with = "objects", required_unless_present = "objects")]
    raw: bool,
    /// Get the first so many objects of `millrace store fill`, at random or in sequence
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    objects: Option<u64>,
    /// What the keys of the fill begin with
    #[arg(long, default_value = "object-", requires = "objects")]
    fill_prefix: String,
    /// Seed of the fill, for --verify
    #[arg(long, default_value_t = 1, requires = "objects")]
    fill_seed: u64,
    /// Connections, spread over the servers in turn
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Threads, which share the connections
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// CPUs for the threads, like 0,2-4 [default: not pinned]
    #[arg(long)]
    cores: Option<String>,
    /// Local address of the NIC to use (rdma) [default: as the routing table says]
    #[arg(long, value_name = "ADDR")]
    bind: Option<IpAddr>,
    /// Pages of the landing memory: auto, none, 2m, 1g
    #[arg(long, default_value = "auto", value_parser = parse::<Pages>)]
    hugepages: Pages,
    /// Compare the CRC-64/NVME of what landed with that of what the server read
    #[arg(long)]
    verify: bool,
    /// Process of a server on this machine whose threads and drives --counters is to count
    /// [default: this process]
    #[arg(long, value_name = "PID")]
    observe: Option<u32>,
    /// File with the secret that the server asks for
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    load: LoadArgs,
}

/// The configuration in the result: what was asked for and what the servers said.
#[derive(Debug, Clone, Serialize)]
struct Config<'a> {
    command: &'static str,
    #[serde(flatten)]
    args: &'a BenchArgs,
    server_backend: String,
    server_check: CheckMode,
    drives: Vec<RemoteDrive>,
}

/// Connects, loads, reports.
pub fn run(args: BenchArgs) -> Result<()> {
    if args.threads == 0 || args.connections < args.threads {
        return Err(Error::usage(format!(
            "{} threads for {} connections: each thread needs one at least",
            args.threads, args.connections
        )));
    }
    let depth = u16::try_from(args.load.depth)
        .map_err(|_| Error::usage(format!("a depth of {}", args.load.depth)))?;
    if args.objects.is_some() && args.load.align.is_some() {
        return Err(Error::usage("--align is for ranges of drives, not for --objects"));
    }
    let mut client = ClientOptions {
        depth,
        max_read: (args.load.io_size as usize).next_multiple_of(SLOT_ALIGN),
        token: read_token(args.token_file.as_deref())?,
        pages: args.hugepages,
        local: args.bind,
        worker: ANY_WORKER,
        timeout: Duration::from_secs(10),
    };
    let first = match args.objects {
        Some(_) => Client::connect_to_store(&args.connect[0], &client)?,
        None => Client::connect(&args.connect[0], &client)?,
    };
    client.max_read = first.landing_size();
    let connect =
        |number: usize| Client::connect(&args.connect[number % args.connect.len()], &client);
    if args.raw && args.verify && first.check_mode() != CheckMode::Crc {
        return Err(Error::new(Kind::Unsupported, "the server computes no CRC to verify against")
            .remedy("start it with --check crc, or leave out --verify"));
    }
    if first.credits() < depth {
        return Err(Error::usage(format!(
            "a depth of {depth}; the server grants {} to a connection",
            first.credits()
        ))
        .remedy("lower --depth, open more --connections, or raise the server's --credits"));
    }
    let config = Config {
        command: "bench",
        args: &args,
        server_backend: first.backend(),
        server_check: first.check_mode(),
        drives: first.drives().to_vec(),
    };
    drop(first);

    let cores = args.cores.as_deref().map(affinity::parse_list).transpose()?.unwrap_or_default();
    let mut options = load_options(&args.load, args.threads, cores)?;
    let drives: Vec<String> = config.drives.iter().map(|drive| drive.name.clone()).collect();
    options.observe = args.load.counters.observe(args.observe, &drives);
    let outcome = run_load(&options, |thread| {
        let lanes = (thread..args.connections).step_by(args.threads);
        let lanes = lanes.map(connect).collect::<Result<Vec<_>>>()?;
        let drives = lanes[0].drives().iter().map(|d| (d.capacity, d.block_size)).collect();
        let target = RemoteTarget::new(lanes, args.verify);
        let Some(count) = args.objects else { return Ok((target, drives)) };
        // One drive, on which each object has the place of one read.
        let size = args.load.io_size;
        let (prefix, seed) = (args.fill_prefix.clone(), args.fill_seed);
        let target = target.with_objects(ObjectLoad { prefix, seed });
        Ok((target, vec![(count * u64::from(size), size)]))
    })?;
    let title = format!(
        "{} from {} ({}), {} x depth {}, {}{}",
        match args.objects {
            Some(count) => format!("{count} objects"),
            None => format_size(args.load.io_size.into()),
        },
        args.connect.join(", "),
        config.server_backend,
        args.connections,
        args.load.depth,
        if args.load.sequential { "sequential" } else { "random" },
        if args.verify { ", every payload verified" } else { "" },
    );
    publish(&outcome.report(config), &title, args.load.json.as_deref())
}
