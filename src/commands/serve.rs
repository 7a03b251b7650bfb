//! `millrace serve`.

mod auto;
mod config;
mod plan;
mod store;

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;

use self::auto::{Host, Nic};
use self::plan::{Plan, ShardPlan};
use super::options::{Backend, StorageArgs, duration, parse, read_token, size};
use super::preflight::{Start, check};
use crate::device::{DEFAULT_JOURNAL, Journal, survey};
use crate::error::{Context, Error, Result};
use crate::fabric::address::{Address, FabricKind};
use crate::fabric::rdma::{RdmaListener, device};
use crate::fabric::tcp::{TcpListener, TcpOptions};
use crate::fabric::{Listener, Token};
use crate::host::notify::Notifier;
use crate::host::{Root, affinity, net, topology};
use crate::limits::{
    DEFAULT_CONNECTIONS, DEFAULT_CREDITS, DEFAULT_DEPTH, DEFAULT_SLOT_SIZE, SLOTS_PER_DEPTH,
};
use crate::server::{MetricsServer, ServeOptions, Server, Shard};
use crate::stats::Snapshot;
use crate::storage::Storage;
use crate::store::Store;
use crate::units::format_nanos;

/// Flags of `millrace serve`.
#[derive(Debug, Args)]
#[command(mut_arg("devices", |arg| arg
    .required(false)
    .required_unless_present_any(["config", "auto_shard"])))]
pub struct ServeArgs {
    /// Several shards, as FILE.toml describes them (docs/DEPLOY.md), in place of the flags below
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = [
        "auto_shard", "devices", "backend", "hugepages", "node", "regbufs", "regfiles", "regring",
        "iopoll", "sqpoll", "check", "raw", "fabric", "listen", "cores", "depth", "slot_size",
        "credits", "max_connections", "token_file", "insecure", "metrics", "metrics_public",
        "deadline", "drain", "workers", "writable",
    ])]
    config: Option<PathBuf>,
    /// A shard for each NUMA node with free drives, with that node's NIC and cores
    #[arg(long, conflicts_with_all = ["devices", "node", "cores"])]
    auto_shard: bool,
    /// Print the file that --auto-shard would run, for --config, and exit
    #[arg(long, requires = "auto_shard")]
    print_config: bool,
    /// Check the plan, show it and what of it does not suit this host, and exit
    #[arg(long)]
    dry_run: bool,
    /// Workers of each shard of --auto-shard [default: 8, or the node's CPUs if they are fewer]
    #[arg(long, requires = "auto_shard")]
    workers: Option<usize>,
    #[command(flatten)]
    storage: StorageArgs,
    /// Serve byte ranges of the drives, read-only, instead of the objects of the store on them
    #[arg(long)]
    raw: bool,
    /// Take puts and deletes: the drives are opened to be written
    #[arg(long, conflicts_with = "raw")]
    writable: bool,
    /// How clients connect: rdma or tcp
    #[arg(long, default_value = "tcp", value_parser = parse::<FabricKind>)]
    fabric: FabricKind,
    /// Address to listen on; port 0: one that is free
    #[arg(long, default_value = "127.0.0.1:4790", value_parser = parse::<Address>)]
    listen: Address,
    /// CPUs, one worker pinned to each, like 1,3-5 [default: one worker, not on CPU 0 if another
    /// is there]
    #[arg(long)]
    cores: Option<String>,
    /// Reads of one worker on its drives at once
    #[arg(long, default_value_t = DEFAULT_DEPTH)]
    depth: u32,
    /// Largest read (--raw); for objects it follows from the store
    #[arg(long, default_value_t = DEFAULT_SLOT_SIZE as u64, value_parser = size)]
    slot_size: u64,
    /// Reads that one connection may have in flight
    #[arg(long, default_value_t = DEFAULT_CREDITS)]
    credits: u16,
    /// Connections of one worker
    #[arg(long, default_value_t = DEFAULT_CONNECTIONS)]
    max_connections: usize,
    /// File with the secret that clients must know
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Listen beyond loopback without a token
    #[arg(long)]
    insecure: bool,
    /// Time within which every read is answered, with an error if need be
    #[arg(long, default_value = "30s", value_parser = duration)]
    deadline: Duration,
    /// Time that reads in flight have after SIGTERM or SIGINT
    #[arg(long, default_value = "10s", value_parser = duration)]
    drain: Duration,
    /// Show metrics for Prometheus on this address: http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS", value_parser = parse::<Address>)]
    metrics: Option<Address>,
    /// Show them beyond loopback: nobody is asked for a secret
    #[arg(long, requires = "metrics")]
    metrics_public: bool,
    /// Print a line of statistics to standard error this often
    #[arg(long, value_name = "EVERY", value_parser = duration)]
    stats: Option<Duration>,
}

/// Serves until SIGTERM or SIGINT. SIGHUP reads the token again.
pub fn run(args: ServeArgs) -> Result<()> {
    let root = Root::system();
    let plan = match (&args.config, args.auto_shard) {
        (Some(file), _) => config::read(file, &root)?,
        (None, true) => {
            let text = auto::write(&host(&root, args.fabric)?, &args)?;
            if args.print_config {
                print!("{text}");
                return Ok(());
            }
            config::parse("--auto-shard", &text, &root)?
        }
        (None, false) => plan_of_flags(&args)?,
    };
    plan.check()?;
    if args.dry_run {
        print!("{}", plan.show(&root)?);
        return Ok(());
    }
    check(&plan.shards.iter().map(start_of).collect::<Vec<_>>())?;
    serve(&plan, args.stats)
}

/// What the checks of the host need to know of a shard.
fn start_of(shard: &ShardPlan) -> Start<'_> {
    Start {
        storage: Some(&shard.storage),
        rdma: shard.fabric == FabricKind::Rdma,
        cores: shard.cores.clone(),
        io_size: shard.slot_size,
        slots: u64::from(shard.depth) * SLOTS_PER_DEPTH as u64,
        files: shard.max_connections as u64,
    }
}

fn plan_of_flags(args: &ServeArgs) -> Result<Plan> {
    let cores = match &args.cores {
        Some(list) => affinity::parse_list(list)?,
        None => affinity::choose(1)?,
    };
    let shard = ShardPlan {
        name: "0".into(),
        origin: None,
        storage: args.storage.clone(),
        fabric: args.fabric,
        listen: args.listen.clone(),
        cores,
        depth: args.depth,
        slot_size: args.slot_size,
        credits: args.credits,
        max_connections: args.max_connections,
    };
    Ok(Plan {
        shards: vec![shard],
        raw: args.raw,
        writable: args.writable,
        token_file: args.token_file.clone(),
        insecure: args.insecure,
        metrics: args.metrics.clone(),
        metrics_public: args.metrics_public,
        deadline: args.deadline,
        drain: args.drain,
    })
}

/// What this host has: drives and who uses them, NICs, CPUs that this process may use.
fn host(root: &Root, fabric: FabricKind) -> Result<Host> {
    let allowed: HashSet<usize> = affinity::allowed()?.into_iter().collect();
    let mut nodes = topology::nodes(root)?;
    for node in &mut nodes {
        node.cpus.retain(|cpu| allowed.contains(cpu));
        node.cpus = topology::by_preference(root, &node.cpus);
    }
    let nics = match fabric {
        FabricKind::Tcp => net::interfaces(root, &net::addresses()?)
            .into_iter()
            .map(|i| Nic { name: i.name, address: i.addresses[0], node: i.node })
            .collect(),
        FabricKind::Rdma => device::list(root)?.iter().filter_map(rdma_nic).collect(),
    };
    Ok(Host { nodes, drives: survey(root, &Journal::read(Path::new(DEFAULT_JOURNAL))?)?, nics })
}

/// An RDMA device by its first address that other machines can use.
fn rdma_nic(device: &device::Device) -> Option<Nic> {
    let active = device.ports.iter().filter(|port| port.is_active());
    let address = active.flat_map(|port| &port.gids).map(device::Gid::ip).find(|ip| match ip {
        std::net::IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_loopback(),
        std::net::IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_loopback(),
    })?;
    Some(Nic { name: device.name.clone(), address, node: device.node })
}

fn serve(plan: &Plan, stats: Option<Duration>) -> Result<()> {
    let token = Token::new(read_token(plan.token_file.as_deref())?);
    let notifier = Notifier::from_env()?;
    let [asked_to_stop, asked_to_reload] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    for (signal, flag) in [
        (signal_hook::consts::SIGTERM, &asked_to_stop),
        (signal_hook::consts::SIGINT, &asked_to_stop),
        (signal_hook::consts::SIGHUP, &asked_to_reload),
    ] {
        signal_hook::flag::register(signal, Arc::clone(flag))
            .context(|| format!("cannot handle signal {signal}"))?;
    }
    leave_the_workers_cores(plan)?;
    let shards = plan.shards.iter().map(|shard| open(plan, shard, &token));
    // The stores hold their locks until the server has ended.
    let (shards, stores): (Vec<_>, Vec<_>) =
        shards.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let server = Server::start(shards)?;
    let metrics = match &plan.metrics {
        Some(address) => {
            let address = address.resolve()?[0];
            let metrics = MetricsServer::start(address, Arc::clone(server.view()))?;
            log::info!("metrics at http://{}/metrics", metrics.address());
            Some(metrics)
        }
        None => None,
    };
    // Scripts wait for these lines; they are the only ones on standard output.
    let mut stdout = std::io::stdout();
    for shard in server.shards() {
        writeln!(stdout, "listening on {}://{}", shard.fabric, shard.address)
            .context(|| "cannot write to standard output".into())?;
    }
    stdout.flush().context(|| "cannot write to standard output".into())?;
    let status = format!("{} shard(s) serving", server.shards().len());
    notifier.ready(&status);

    let mut last = (Instant::now(), server.snapshot());
    while server.is_running() && !asked_to_stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
        if asked_to_reload.swap(false, Ordering::Relaxed) {
            notifier.reloading();
            reload(plan.token_file.as_deref(), &token);
            notifier.ready(&status);
        }
        if let Some(every) = stats
            && last.0.elapsed() >= every
        {
            let now = server.snapshot();
            eprintln!("{}", line(&last.1, &now, last.0.elapsed()));
            last = (Instant::now(), now);
        }
    }
    notifier.stopping();
    let view = Arc::clone(server.view());
    // What was served and lost is said also where a failure ended it.
    let outcome = server.stop();
    drop((metrics, stores));
    let total = view.snapshot();
    log::info!(
        "stopped: {} requests served, {} failed, {} slots leaked",
        total.served,
        total.failed,
        total.leaked
    );
    outcome
}

/// Reads the token again. A file that cannot be used leaves the old one in force: locking
/// everybody out, or letting everybody in, would be worse than either.
fn reload(file: Option<&Path>, token: &Token) {
    match read_token(file) {
        Ok(Some(secret)) => {
            token.replace(secret);
            log::info!("the token was read again; new connections need it");
        }
        Ok(None) => log::warn!("SIGHUP reads the token again, and this server has none"),
        Err(error) => log::error!("the old token stays in force: {}", error.report()),
    }
}

/// Keeps this thread, and those that it starts for listening and metrics, off the CPUs on which
/// workers poll. Where workers have them all, there is nowhere to go.
fn leave_the_workers_cores(plan: &Plan) -> Result<()> {
    let mut others = affinity::allowed()?;
    others.retain(|cpu| !plan.shards.iter().any(|shard| shard.cores.contains(cpu)));
    if others.is_empty() { Ok(()) } else { affinity::restrict(&others) }
}

/// Opens the drives of a shard, and their store unless ranges are served, and binds its address.
fn open(plan: &Plan, shard: &ShardPlan, token: &Token) -> Result<(Shard, Option<Store>)> {
    let mode = store::mode(plan);
    match shard.storage.backend {
        Backend::Mem => listen(plan, shard, token, shard.storage.open_mem()?),
        Backend::Uring => listen(plan, shard, token, shard.storage.open_uring_for(mode)?),
        #[cfg(feature = "spdk")]
        Backend::Spdk => listen(plan, shard, token, shard.storage.open_spdk_for(mode)?),
        #[cfg(not(feature = "spdk"))]
        Backend::Spdk => Err(super::options::spdk_missing()),
    }
}

fn listen<S: Storage + 'static>(
    plan: &Plan,
    shard: &ShardPlan,
    token: &Token,
    storage: S,
) -> Result<(Shard, Option<Store>)> {
    let store = if plan.raw { None } else { Some(store::open_store(plan, shard, &storage)?) };
    let slot_size = match &store {
        Some(store) => store::slot_size(store),
        None => usize::try_from(shard.slot_size)
            .map_err(|_| Error::usage(format!("a slot size of {}", shard.slot_size)))?,
    };
    let options = ServeOptions {
        cores: shard.cores.clone(),
        depth: shard.depth,
        slot_size,
        objects: store.as_ref().map(|store| Arc::clone(&store.objects)),
        pages: shard.storage.hugepages,
        node: shard.storage.node,
        check: shard.storage.check,
        credits: shard.credits,
        max_connections: shard.max_connections,
        token: token.clone(),
        deadline: plan.deadline,
        drain: plan.drain,
        handshake_timeout: Duration::from_secs(5),
    };
    for drive in storage.drives() {
        log::info!(
            "shard {}: drive {}: {} bytes in blocks of {}, serial {}",
            shard.name,
            drive.name,
            drive.capacity,
            drive.block_size,
            drive.serial.as_deref().unwrap_or("none")
        );
    }
    let address = shard.listen.resolve()?[0];
    let shard = match shard.fabric {
        FabricKind::Tcp => {
            join(shard, storage, TcpListener::bind(address, TcpOptions::default())?, options)
        }
        FabricKind::Rdma => join(shard, storage, RdmaListener::bind(address)?, options),
    };
    Ok((shard?, store))
}

/// Joins the two; what is wrong with the options is said with the place of the shard.
fn join<S, L>(shard: &ShardPlan, storage: S, listener: L, options: ServeOptions) -> Result<Shard>
where
    S: Storage + 'static,
    L: Listener + 'static,
{
    Shard::new(&shard.name, storage, listener, options).map_err(|e| match &shard.origin {
        None => e,
        Some(_) => {
            let remedy = e.remedy_text().unwrap_or("see docs/DEPLOY.md for the limits").to_owned();
            Error::new(e.kind(), format!("{}{}", shard.place(), e.what())).remedy(remedy)
        }
    })
}

/// The statistics of one interval.
fn line(before: &Snapshot, now: &Snapshot, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let served = now.served - before.served;
    let mean = |sum: u64, past: u64| format_nanos((sum - past) / served.max(1));
    format!(
        "{:.0} reads/s  {:.2} GiB/s  {} failed  {} in flight  {} connections  queued {}  drive {}  \
         check {}  {} slots leaked",
        served as f64 / seconds,
        (now.bytes - before.bytes) as f64 / seconds / f64::from(1 << 30),
        now.failed - before.failed,
        now.active,
        now.connections,
        mean(now.queued_ns, before.queued_ns),
        mean(now.drive_ns, before.drive_ns),
        mean(now.check_ns, before.check_ns),
        now.leaked,
    )
}
