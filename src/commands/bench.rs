//! `millrace bench`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::local::{load_options, publish};
use super::options::{LoadArgs, duration, parse, read_token, seconds};
use super::preflight::{Start, check};
use crate::bench::{ObjectLoad, RemoteTarget, ServerResult, Shares, run as run_load};
use crate::client::{Client, ClientOptions, Cluster, ClusterOptions, LanePlan, RemoteServer};
use crate::error::{Error, Kind, Result};
use crate::host::affinity;
use crate::limits::SLOT_ALIGN;
use crate::memory::Pages;
use crate::stats::Clock;
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
    /// Get the first so many objects of `millrace store fill`, at random or in sequence; of several
    /// servers each is asked for those that are placed on it
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    objects: Option<u64>,
    /// What the keys of the fill begin with
    #[arg(long, default_value = "object-", requires = "objects")]
    fill_prefix: String,
    /// Seed of the fill, for --verify
    #[arg(long, default_value_t = 1, requires = "objects")]
    fill_seed: u64,
    /// Connections, spread over the servers in turn, and over the local NICs [default: as
    /// many as it takes to reach each worker of each server by each NIC]
    #[arg(long)]
    connections: Option<usize>,
    /// Threads, which share the connections
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// CPUs for the threads, like 0,2-4 [default: not pinned]
    #[arg(long)]
    cores: Option<String>,
    /// Local address of a NIC to use (rdma); repeat it, or put commas, for several [default: as the
    /// routing table says]
    #[arg(long, value_name = "ADDR", value_delimiter = ',', alias = "bind")]
    local: Vec<IpAddr>,
    /// Time within which every read is answered, else its connection is given up and made again
    #[arg(long, default_value = "35s", value_parser = duration)]
    #[serde(serialize_with = "seconds")]
    deadline: Duration,
    /// Time after which a run ends whose servers are all away
    #[arg(long, default_value = "10s", value_parser = duration)]
    #[serde(serialize_with = "seconds")]
    patience: Duration,
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

/// The configuration in the result.
#[derive(Debug, Clone, Serialize)]
struct Config<'a> {
    command: &'static str,
    #[serde(flatten)]
    args: &'a BenchArgs,
    connections_used: usize,
}

/// Connects, loads, reports.
pub fn run(args: BenchArgs) -> Result<()> {
    let depth = u16::try_from(args.load.depth)
        .map_err(|_| Error::usage(format!("a depth of {}", args.load.depth)))?;
    if args.objects.is_some() && args.load.align.is_some() {
        return Err(Error::usage("--align is for ranges of drives, not for --objects"));
    }
    let mut cluster = ClusterOptions {
        servers: args.connect.clone(),
        locals: args.local.clone(),
        workers: Vec::new(),
        client: ClientOptions {
            depth,
            max_read: (args.load.io_size as usize).next_multiple_of(SLOT_ALIGN),
            token: read_token(args.token_file.as_deref())?,
            pages: args.hugepages,
            local: None,
            worker: ANY_WORKER,
            timeout: Duration::from_secs(10),
        },
        deadline: args.deadline,
    };
    let cores = args.cores.as_deref().map(affinity::parse_list).transpose()?.unwrap_or_default();
    let lanes = args.connections.unwrap_or(1).div_ceil(args.threads.max(1)) as u64;
    let checks = check(&[Start {
        rdma: args.connect.iter().any(|address| address.starts_with("rdma://")),
        cores: cores.clone(),
        io_size: cluster.client.max_read as u64,
        slots: u64::from(depth) * lanes,
        files: args.connections.unwrap_or(args.connect.len()) as u64,
        ..Start::default()
    }])?;
    let mut servers = Vec::new();
    for number in 0..args.connect.len() {
        let (server, landing) = meet(&cluster, number, depth, &args)?;
        cluster.client.max_read = cluster.client.max_read.max(landing);
        servers.push(server);
    }
    cluster.workers = servers.iter().map(|server| server.workers).collect();
    let connections = args.connections.unwrap_or(cluster.full_mesh().max(args.threads));
    if args.threads == 0 || connections < args.threads {
        return Err(Error::usage(format!(
            "{} threads for {connections} connections: each thread needs one at least",
            args.threads
        ))
        .remedy("raise --connections, or lower --threads"));
    }
    if connections < args.connect.len() {
        return Err(Error::usage(format!(
            "{connections} connections for {} servers: each needs one at least",
            args.connect.len()
        ))
        .remedy("raise --connections, or leave it out"));
    }
    let objects = args.objects.map(|count| shares(&args, count, &servers)).transpose()?;

    let mut options = load_options(&args.load, args.threads, cores)?;
    let names = servers.iter().flat_map(|server| &server.drives);
    let drives: Vec<String> = names.map(|drive| drive.name.clone()).collect();
    options.observe = args.load.counters.observe(args.observe, &drives);
    let patience = Clock::nanos(args.patience);
    let outcome = run_load(&options, |thread, clock| {
        let numbers: Vec<usize> = (thread..connections).step_by(args.threads).collect();
        let lanes = Cluster::connect(&cluster, &numbers, clock)?;
        // Objects: one drive for each server, on which each has the place of one read.
        let size = args.load.io_size;
        let sizes = |number: usize, server: &RemoteServer| match &objects {
            Some((_, shares)) => vec![(shares[&number].len() as u64 * u64::from(size), size)],
            None => server.drives.iter().map(|d| (d.capacity, d.block_size)).collect(),
        };
        let known = lanes.servers().iter().enumerate();
        let drives: BTreeMap<usize, _> =
            known.filter_map(|(number, s)| Some((number, sizes(number, s.as_ref()?)))).collect();
        let target = RemoteTarget::new(lanes, args.verify, patience);
        Ok(match &objects {
            Some((load, shares)) => (target.with_objects(load.clone(), shares.clone()), drives),
            None => (target, drives),
        })
    })?;
    let title = format!(
        "{} from {} ({}), {connections} x depth {}, {}{}",
        match args.objects {
            Some(count) => format!("{count} objects"),
            None => format_size(args.load.io_size.into()),
        },
        args.connect.join(", "),
        backends(&servers),
        args.load.depth,
        if args.load.sequential { "sequential" } else { "random" },
        if args.verify { ", every payload verified" } else { "" },
    );
    let groups = outcome.groups.clone();
    let config = Config { command: "bench", args: &args, connections_used: connections };
    let mut report = outcome.after(checks).report(config);
    report.servers = groups
        .into_iter()
        .map(|group| ServerResult {
            server: servers[group.number].clone(),
            connections: (0..connections)
                .filter(|n| cluster.lane(*n).server == group.number)
                .count(),
            group,
        })
        .collect();
    publish(&report, &title, args.load.json.as_deref())
}

/// What a server is, and whether it can do what is asked; and the size of landing slots for it.
fn meet(
    cluster: &ClusterOptions,
    number: usize,
    depth: u16,
    args: &BenchArgs,
) -> Result<(RemoteServer, usize)> {
    let LanePlan { server, local, .. } = cluster.lane(number);
    let address = &cluster.servers[server];
    let options = ClientOptions { local, ..cluster.client.clone() };
    let client = match args.objects {
        Some(_) => Client::connect_to_store(address, &options)?,
        None => Client::connect(address, &options)?,
    };
    if args.raw && args.verify && client.check_mode() != CheckMode::Crc {
        return Err(Error::new(
            Kind::Unsupported,
            format!("the server computes no CRC to verify against: {address}"),
        )
        .remedy("start it with --check crc, or leave out --verify"));
    }
    if client.credits() < depth {
        return Err(Error::usage(format!(
            "a depth of {depth}; {address} grants {} to a connection",
            client.credits()
        ))
        .remedy("lower --depth, open more --connections, or raise the server's --credits"));
    }
    Ok((RemoteServer::of(address, &client), client.landing_size()))
}

/// Which objects each server is asked for.
fn shares(args: &BenchArgs, count: u64, servers: &[RemoteServer]) -> Result<(ObjectLoad, Shares)> {
    let load = ObjectLoad { prefix: args.fill_prefix.clone(), seed: args.fill_seed };
    let uuid = |server: &RemoteServer| {
        let store = server.store.ok_or_else(|| Error::usage("a server without a store"))?;
        Ok(*store.as_bytes())
    };
    let stores = servers.iter().map(uuid).collect::<Result<Vec<_>>>()?;
    for (place, store) in stores.iter().enumerate() {
        if let Some(other) = stores[..place].iter().position(|earlier| earlier == store) {
            return Err(Error::usage(format!(
                "{} and {} have the same store",
                servers[other].address, servers[place].address
            ))
            .remedy("name each store once"));
        }
    }
    let shares = load.shares(count, &stores)?;
    Ok((load, shares))
}

/// The servers' backends, each once.
fn backends(servers: &[RemoteServer]) -> String {
    let mut names: Vec<&str> = servers.iter().map(|server| server.backend.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}
