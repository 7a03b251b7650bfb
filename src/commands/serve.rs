//! `millrace serve`.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;

use super::options::{Backend, StorageArgs, duration, parse, read_token, size};
use crate::error::{Context, Error, Kind, Result};
use crate::fabric::Listener;
use crate::fabric::address::{Address, FabricKind};
use crate::fabric::rdma::RdmaListener;
use crate::fabric::tcp::{TcpListener, TcpOptions};
use crate::host::affinity;
use crate::limits::{DEFAULT_CONNECTIONS, DEFAULT_CREDITS, DEFAULT_DEPTH, DEFAULT_SLOT_SIZE};
use crate::server::{ServeOptions, Server};
use crate::stats::Snapshot;
use crate::storage::Storage;
use crate::units::format_nanos;

/// Flags of `millrace serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    storage: StorageArgs,
    /// Serve byte ranges of the drives, read-only
    #[arg(long)]
    raw: bool,
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
    /// Largest read
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
    /// Print a line of statistics to standard error this often
    #[arg(long, value_name = "EVERY", value_parser = duration)]
    stats: Option<Duration>,
}

/// Serves until SIGTERM or SIGINT.
pub fn run(args: ServeArgs) -> Result<()> {
    if !args.raw {
        return Err(Error::usage("only byte ranges can be served so far").remedy("add --raw"));
    }
    match args.storage.backend {
        Backend::Mem => listen(&args, args.storage.open_mem()?),
        Backend::Uring => listen(&args, args.storage.open_uring()?),
        Backend::Spdk => Err(spdk_missing()),
    }
}

/// What `--backend spdk` says in a build without it.
pub(super) fn spdk_missing() -> Error {
    Error::new(Kind::Unsupported, "this build has no SPDK backend").remedy(
        "install SPDK (https://spdk.io/doc/getting_started.html), then build with \
         --features spdk; or use --backend uring",
    )
}

fn listen<S: Storage + 'static>(args: &ServeArgs, storage: S) -> Result<()> {
    let token = read_token(args.token_file.as_deref())?;
    let address = args.listen.resolve()?[0];
    if !address.ip().is_loopback() && token.is_none() && !args.insecure {
        return Err(Error::usage(format!(
            "{address} can be reached from other machines, and no token is asked for"
        ))
        .remedy("give --token-file FILE, or --insecure on a network where all are trusted"));
    }
    let cores = match &args.cores {
        Some(list) => affinity::parse_list(list)?,
        None => affinity::choose(1)?,
    };
    let slot_size = usize::try_from(args.slot_size)
        .map_err(|_| Error::usage(format!("a slot size of {}", args.slot_size)))?;
    let options = ServeOptions {
        cores,
        depth: args.depth,
        slot_size,
        pages: args.storage.hugepages,
        node: args.storage.node,
        check: args.storage.check,
        credits: args.credits,
        max_connections: args.max_connections,
        token,
        deadline: args.deadline,
        drain: args.drain,
        handshake_timeout: Duration::from_secs(5),
    };
    for drive in storage.drives() {
        log::info!(
            "drive {}: {} bytes in blocks of {}, serial {}",
            drive.name,
            drive.capacity,
            drive.block_size,
            drive.serial.as_deref().unwrap_or("none")
        );
    }
    match args.fabric {
        FabricKind::Tcp => {
            serve(args, storage, TcpListener::bind(address, TcpOptions::default())?, options)
        }
        FabricKind::Rdma => serve(args, storage, RdmaListener::bind(address)?, options),
    }
}

fn serve<S, L>(args: &ServeArgs, storage: S, listener: L, options: ServeOptions) -> Result<()>
where
    S: Storage + 'static,
    L: Listener + 'static,
{
    let asked_to_stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&asked_to_stop))
            .context(|| format!("cannot handle signal {signal}"))?;
    }
    let server = Server::start(storage, listener, options)?;
    // Scripts wait for this line; it is the only one on standard output.
    println!("listening on {}://{}", args.fabric, server.address());
    std::io::stdout().flush().context(|| "cannot write to standard output".into())?;

    let mut last = (Instant::now(), server.snapshot());
    while server.is_running() && !asked_to_stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
        if let Some(every) = args.stats
            && last.0.elapsed() >= every
        {
            let now = server.snapshot();
            eprintln!("{}", line(&last.1, &now, last.0.elapsed()));
            last = (Instant::now(), now);
        }
    }
    let total = server.snapshot();
    server.stop()?;
    log::info!(
        "stopped: {} requests served, {} failed, {} slots leaked",
        total.served,
        total.failed,
        total.leaked
    );
    Ok(())
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
