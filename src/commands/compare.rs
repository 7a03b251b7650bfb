//! `millrace compare`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::options::{OnOff, duration};
use crate::compare::{
    CompareOptions, Matrix, Report, article, choose_cores, fabric_name, from_file, kept, loads,
    paths, run as compare,
};
use crate::device::DEFAULT_JOURNAL;
use crate::error::{Context, Error, Result};
use crate::fabric::address::{Address, FabricKind};
use crate::host::Root;

/// Where variants are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Over {
    /// The storage path alone
    Local,
    /// Behind TCP
    Tcp,
    /// Behind RDMA
    Rdma,
}

/// Flags of `millrace compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Drive, as `millrace local` takes it; repeat it for more
    #[arg(long = "device", value_name = "D", required_unless_present = "report")]
    devices: Vec<String>,
    /// What is compared: paths (io_uring and SPDK), article (one switch at a time), or a TOML file
    #[arg(long, default_value = "paths")]
    set: String,
    /// local: without a network; tcp, rdma: a server and a client on this machine
    #[arg(long, value_enum, default_value_t = Over::Local)]
    fabric: Over,
    /// Folder of the result; one that holds an interrupted comparison of the same goes on with it
    #[arg(long, value_name = "DIR", required_unless_present = "report")]
    out: Option<PathBuf>,
    /// Draw the reports of a finished comparison again, from its JSON
    #[arg(long, value_name = "DIR", conflicts_with_all = ["devices", "out"])]
    report: Option<PathBuf>,
    /// Rounds: in each, every variant runs once under every load
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Time measured in each run [default: 3s]
    #[arg(long, value_parser = duration)]
    duration: Option<Duration>,
    /// Time before that [default: 1s]
    #[arg(long, value_parser = duration)]
    warmup: Option<Duration>,
    /// Sizes of reads, like 4KiB,1MiB [default: those of the set]
    #[arg(long, value_delimiter = ',', value_name = "S")]
    io_size: Vec<String>,
    /// Reads in flight, like 1,16,64: per worker, or per connection behind a fabric [default:
    /// those of the set]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    depth: Vec<u32>,
    /// Reads per second, at fixed intervals [default: a closed loop]
    #[arg(long, value_name = "R", value_delimiter = ',')]
    rate: Vec<f64>,
    /// CPUs of the workers; a variant takes as many as it has workers [default: all, CPU 0 last]
    #[arg(long)]
    cores: Option<String>,
    /// CPUs of the client, a thread each, behind a fabric
    #[arg(long)]
    client_cores: Option<String>,
    /// Connections behind a fabric
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Address of this machine to serve on, behind RDMA that of the NIC
    #[arg(long, value_name = "ADDR:PORT", value_parser = super::options::parse::<Address>)]
    listen: Option<Address>,
    /// Seed of the offsets, the same for all variants, and of the statistics
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Serial of a drive that holds data and may be bound to vfio-pci; repeatable
    #[arg(long = "yes-i-mean", value_name = "SERIAL")]
    meant: Vec<String>,
    /// Count what the machine does in every run
    #[arg(long, value_enum, default_value_t = OnOff::On)]
    counters: OnOff,
    /// Run each variant once more first, for what is counted at a cost: system calls, requests
    /// that go to io-wq, look-ups of files
    #[arg(long, value_enum, default_value_t = OnOff::On)]
    traced: OnOff,
    /// The journal of moved drives
    #[arg(long, value_name = "FILE", default_value = DEFAULT_JOURNAL)]
    journal: PathBuf,
    /// Write the JSON here too; "-": to standard output, and nothing else there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Compares, and writes the reports.
pub fn run(args: &CompareArgs) -> Result<()> {
    let (dir, report) = match (&args.report, &args.out) {
        (Some(dir), _) => (dir, redraw(dir)?),
        (None, Some(dir)) => (dir, measure(args, dir)?),
        (None, None) => return Err(Error::usage("no --out").remedy("name a folder")),
    };
    let written = report.write(dir)?;
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => print!("{}", report.json()?),
        Some(path) => {
            std::fs::write(path, report.json()?)
                .context(|| format!("cannot write the result to {}", path.display()))?;
            print!("{}", report.markdown());
        }
        None => print!("{}", report.markdown()),
    }
    log::info!(
        "written: {}, {}, {}",
        written.json.display(),
        written.markdown.display(),
        written.html.display()
    );
    Ok(())
}

/// The JSON that is there, or what is there of an interrupted comparison.
fn redraw(dir: &Path) -> Result<Report> {
    if dir.join("compare.json").exists() {
        return Report::read(dir);
    }
    let (header, runs) = kept(dir)?;
    if runs.is_empty() {
        return Err(Error::usage(format!("{} holds no finished round", dir.display()))
            .remedy("run the same comparison again to go on with it"));
    }
    Report::of((header, runs))
}

fn measure(args: &CompareArgs, dir: &Path) -> Result<Report> {
    let matrix = matrix(args)?;
    matrix.validate()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context(|| format!("cannot handle signal {signal}"))?;
    }
    let options = CompareOptions {
        out: dir.to_owned(),
        program: std::env::current_exe().context(|| "cannot find this program".into())?,
        listen: listen(args)?,
        journal: args.journal.clone(),
        meant: args.meant.clone(),
        counters: args.counters.is_on(),
        traced: args.counters.is_on() && args.traced.is_on(),
        kernel: Root::system().read("/proc/sys/kernel/osrelease")?,
    };
    Report::of(compare(&matrix, &options, &stop)?)
}

fn listen(args: &CompareArgs) -> Result<String> {
    match (args.fabric, &args.listen) {
        (Over::Rdma, None) => {
            Err(Error::usage("no address of an RDMA device").remedy("give --listen ADDR:PORT"))
        }
        (_, Some(address)) => Ok(address.to_string()),
        (_, None) => Ok("127.0.0.1:0".into()),
    }
}

fn matrix(args: &CompareArgs) -> Result<Matrix> {
    let fabric = match args.fabric {
        Over::Local => None,
        Over::Tcp => Some(FabricKind::Tcp),
        Over::Rdma => Some(FabricKind::Rdma),
    };
    let (cores, client_cores) =
        choose_cores(args.cores.as_deref(), args.client_cores.as_deref(), fabric.is_some())?;
    let mut matrix = Matrix {
        name: args.set.clone(),
        fabric: fabric_name(fabric),
        rounds: 8,
        seconds: 3.0,
        warmup: 1.0,
        seed: args.seed,
        cores,
        client_cores,
        connections: args.connections,
        devices: args.devices.clone(),
        loads: Vec::new(),
        variants: Vec::new(),
        may_leave_out: false,
    };
    matrix = match args.set.as_str() {
        "paths" => paths(matrix)?,
        "article" => article(matrix)?,
        file => from_file(Path::new(file), matrix)?,
    };
    // What is said here goes before what a set says.
    matrix.rounds = args.rounds.unwrap_or(matrix.rounds);
    matrix.seconds = args.duration.map_or(matrix.seconds, |time| time.as_secs_f64());
    matrix.warmup = args.warmup.map_or(matrix.warmup, |time| time.as_secs_f64());
    if !args.io_size.is_empty() || !args.depth.is_empty() || !args.rate.is_empty() {
        let mut sizes: Vec<String> = args.io_size.clone();
        let mut depths = args.depth.clone();
        for load in &matrix.loads {
            let size = load.io_size.to_string();
            if args.io_size.is_empty() && !sizes.contains(&size) {
                sizes.push(size);
            }
            if args.depth.is_empty() && !depths.contains(&load.depth) {
                depths.push(load.depth);
            }
        }
        let rates = (!args.rate.is_empty()).then(|| args.rate.clone());
        matrix.loads = loads(&sizes, &depths, &rates)?;
    }
    Ok(matrix)
}
