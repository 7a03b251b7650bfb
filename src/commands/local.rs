//! `millrace local`: the storage path alone.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::options::{Backend, LoadArgs, StorageArgs};
use super::preflight::{Start, check};
use crate::bench::{
    HostChecks, LocalTarget, Order, PatternOptions, Report, RunOptions, run as run_load,
};
use crate::error::{Context, Error, Kind, Result};
use crate::host::affinity;
use crate::limits::SLOT_ALIGN;
use crate::memory::{ArenaSpec, SlotPool, seal};
use crate::storage::{DriveInfo, Storage};
use crate::units::format_size;

/// Flags of `millrace local`.
#[derive(Debug, Clone, Args, Serialize)]
pub struct LocalArgs {
    #[command(flatten)]
    storage: StorageArgs,
    /// CPUs, one thread pinned to each, like 1,3-5 [default: one thread, not on CPU 0 if another
    /// is there]
    #[arg(long)]
    cores: Option<String>,
    /// How a thread waits for completions: spin, as the server does, or block (uring; closed
    /// loop only), as tools that sleep do
    #[arg(long, value_enum, default_value_t = Wait::Spin)]
    wait: Wait,
    #[command(flatten)]
    load: LoadArgs,
}

/// How a thread waits for completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Look at the queue again and again
    Spin,
    /// Sleep in the kernel until one is there
    Block,
}

#[derive(Debug, Clone, Serialize)]
struct Config<'a> {
    command: &'static str,
    #[serde(flatten)]
    args: &'a LocalArgs,
    cores_used: Vec<usize>,
    arena: String,
    drives: Vec<DriveInfo>,
}

/// Opens, loads, reports.
pub fn run(args: LocalArgs) -> Result<()> {
    let checks = check(&[Start {
        storage: Some(&args.storage),
        cores: args.cores.as_deref().map(affinity::parse_list).transpose()?.unwrap_or_default(),
        io_size: args.load.io_size.into(),
        slots: args.load.depth.into(),
        ..Start::default()
    }])?;
    match args.storage.backend {
        Backend::Mem => measure(&args, &args.storage.open_mem()?, checks),
        Backend::Uring => measure(&args, &args.storage.open_uring()?, checks),
        #[cfg(feature = "spdk")]
        Backend::Spdk => measure(&args, &args.storage.open_spdk()?, checks),
        #[cfg(not(feature = "spdk"))]
        Backend::Spdk => Err(super::options::spdk_missing()),
    }
}

fn measure<S: Storage>(args: &LocalArgs, storage: &S, checks: HostChecks) -> Result<()> {
    let block = args.wait == Wait::Block;
    if block && (args.load.rate.is_some() || args.storage.backend != Backend::Uring) {
        return Err(Error::usage("--wait block is for io_uring in a closed loop")
            .remedy("use --wait spin with --rate and with the other backends"));
    }
    let cores = match &args.cores {
        Some(list) => affinity::parse_list(list)?,
        None => affinity::choose(1)?,
    };
    let slot_size = (args.load.io_size as usize).next_multiple_of(SLOT_ALIGN);
    SlotPool::check_slot_size(slot_size)?;
    let count = args.load.depth as usize;
    let spec = ArenaSpec {
        bytes: SlotPool::bytes_needed(slot_size, count),
        pages: args.storage.hugepages,
        node: args.storage.node.or_else(|| storage.node()),
    };
    let mut options = load_options(&args.load, cores.len(), cores.clone())?;
    options.observe = args.load.counters.observe(None, &args.storage.devices);
    let why = std::sync::Mutex::new(String::new());
    let outcome = run_load(&options, |_, _| {
        let arena = storage.arena(&spec)?;
        arena.why().clone_into(&mut why.lock().expect("no thread panics with it"));
        let queue = storage.queue(&arena, args.load.depth)?;
        let slots = SlotPool::new(arena, slot_size, count)?;
        let drives = storage.drives().iter().map(|d| (d.capacity, d.block_size)).collect();
        seal::unseal();
        let target = LocalTarget::new(queue, slots, args.storage.check, args.load.depth, block);
        Ok((target, std::collections::BTreeMap::from([(0, drives)])))
    })?;
    let config = Config {
        command: "local",
        args,
        cores_used: cores,
        arena: why.into_inner().expect("no thread panicked with it"),
        drives: storage.drives().to_vec(),
    };
    let title = format!(
        "{} from {} by {}, depth {}, {} thread(s), {}",
        format_size(args.load.io_size.into()),
        args.storage.devices.join(", "),
        storage.name(),
        args.load.depth,
        config.cores_used.len(),
        if args.load.sequential { "sequential" } else { "random" },
    );
    publish(&outcome.after(checks).report(config), &title, args.load.json.as_deref())
}

/// What the load flags mean for a run of this many threads.
pub(super) fn load_options(
    load: &LoadArgs,
    threads: usize,
    cores: Vec<usize>,
) -> Result<RunOptions> {
    Ok(RunOptions {
        threads,
        cores,
        depth: load.depth,
        rate: load.rate,
        warmup: load.warmup,
        duration: load.duration,
        rounds: load.rounds,
        drain: Duration::from_secs(35),
        pattern: PatternOptions {
            io_size: load.io_size,
            align: load.align.unwrap_or(load.io_size.into()),
            order: if load.sequential { Order::Sequential } else { Order::Random },
            seed: load.seed,
        },
        progress: std::io::stderr().is_terminal(),
        observe: None,
    })
}

/// Gives the result to the reader: a table, and JSON where it was asked for. Reads that failed
/// make the command fail.
pub(super) fn publish<C: Serialize>(
    report: &Report<C>,
    title: &str,
    json: Option<&Path>,
) -> Result<()> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|e| Error::new(Kind::Data, "the result cannot be written as JSON").caused_by(e))?;
    match json {
        Some(path) if path == Path::new("-") => println!("{text}"),
        Some(path) => {
            std::fs::write(path, text + "\n")
                .context(|| format!("cannot write the result to {}", path.display()))?;
            println!("{}  JSON         {}", report.table(title), path.display());
        }
        None => print!("{}", report.table(title)),
    }
    match report.summary.errors {
        0 => Ok(()),
        errors => Err(Error::new(
            Kind::Device,
            format!("{errors} reads failed: {}", report.summary.failures[0].what),
        )),
    }
}
