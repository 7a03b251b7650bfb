//! `millrace doctor`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use super::options::{duration, parse, size};
use crate::doctor::{self, Case, Job, Peaks, changes, examine, exit_code, line, measure};
use crate::error::{Context, Error, Result};
use crate::host::sample::Sample;
use crate::host::{Root, affinity, uring};
use crate::limits::{DEFAULT_DEPTH, DEFAULT_SLOT_SIZE, SLOT_ALIGN, SLOTS_PER_DEPTH};
use crate::memory::Pages;

/// A path that the host is to be fit for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Path {
    /// The kernel's driver through io_uring
    Uring,
    /// SPDK's userspace driver on vfio-pci
    Spdk,
    /// RDMA to the clients
    Rdma,
}

/// Flags of `millrace doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// What the host is to do: uring, spdk, rdma, with commas between them [default: what its
    /// drives and NICs are set up for]
    #[arg(long = "for", value_enum, value_name = "PATH", value_delimiter = ',')]
    paths: Vec<Path>,
    /// Drive: /dev/nvme0n1, a partition, a file, 0000:5e:00.0; repeat it for more [default: every
    /// NVMe drive]
    #[arg(long = "device", value_name = "D")]
    devices: Vec<String>,
    /// RDMA device, or the network interface of one [default: all]
    #[arg(long)]
    nic: Option<String>,
    /// CPUs of the workers, like 1,3-5 [default: it is left open which]
    #[arg(long)]
    cores: Option<String>,
    /// Bytes of each read
    #[arg(long, default_value_t = DEFAULT_SLOT_SIZE as u64, value_parser = size)]
    io_size: u64,
    /// Reads of one worker on its drives at once
    #[arg(long, default_value_t = DEFAULT_DEPTH)]
    depth: u32,
    /// Pages of the slots' memory: auto, none, 2m, 1g
    #[arg(long, default_value = "auto", value_parser = parse::<Pages>)]
    hugepages: Pages,
    /// The drives' completions are to be polled for
    #[arg(long)]
    iopoll: bool,
    /// Bytes per second that one drive gives, from its data sheet or from millrace local
    #[arg(long, value_name = "RATE", value_parser = size)]
    drive_rate: Option<u64>,
    /// JSON instead of a table, and nothing else on standard output
    #[arg(long, conflicts_with_all = ["fix_script", "watch"])]
    json: bool,
    /// Print a shell script of what would mend the host; nothing is changed
    #[arg(long, conflicts_with = "watch")]
    fix_script: bool,
    /// Watch clocks, sleep, interrupts, steal time, heat and links once a second during a load,
    /// for this long [default: until Ctrl-C], then say what changed
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "0",
          value_parser = duration)]
    watch: Option<Duration>,
}

/// Looks, reports, and gives the exit code: 0 all well, 3 warnings, 4 failures.
pub fn run(args: &DoctorArgs) -> Result<u8> {
    if args.io_size == 0 || args.depth == 0 {
        return Err(Error::usage("an --io-size or --depth of 0"));
    }
    let cores = args.cores.as_deref().map(affinity::parse_list).transpose()?.unwrap_or_default();
    let has = |path| args.paths.contains(&path);
    let slot = args.io_size.next_multiple_of(SLOT_ALIGN as u64);
    let job = Job {
        uring: has(Path::Uring),
        spdk: has(Path::Spdk),
        // Without --for, it is chosen below whether RDMA is meant.
        rdma: has(Path::Rdma) || args.paths.is_empty(),
        devices: (!args.devices.is_empty()).then(|| args.devices.clone()),
        nic: args.nic.clone(),
        cores,
        io_size: args.io_size,
        arena_bytes: slot * u64::from(args.depth) * SLOTS_PER_DEPTH as u64,
        pages: args.hugepages,
        iopoll: args.iopoll,
        ..Job::server()
    };
    let root = Root::system();
    let mut case = Case::read(&root, job, uring::probe());
    if args.paths.is_empty() {
        case.choose_paths();
    }
    if let Some(time) = args.watch {
        return watch(&root, &case, time);
    }
    let findings = examine(&case);
    if args.fix_script {
        print!("{}", doctor::script(&findings));
        return Ok(exit_code(&findings));
    }
    let mut rates = measure(&case.job.cores);
    rates.drive = args.drive_rate.map(|rate| rate as f64);
    let ceiling = doctor::ceiling(&case, rates);
    match args.json {
        true => println!("{}", doctor::json(&case, &findings, &ceiling)?),
        false => print!("{}", doctor::table(&case, &findings, &ceiling)),
    }
    Ok(exit_code(&findings))
}

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);

fn watch(root: &Root, case: &Case, time: Duration) -> Result<u8> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context(|| format!("cannot handle signal {signal}"))?;
    }
    let cpus: Vec<usize> = case.worker_cpus().iter().map(|cpu| cpu.number).collect();
    let functions: Vec<_> =
        case.all_functions().iter().map(|(_, function)| function.address).collect();
    let (start, mut peaks) = (Instant::now(), Peaks::default());
    let over = || !time.is_zero() && start.elapsed() >= time;
    let mut last = Sample::read(root, &cpus, &functions);
    while !stop.load(Ordering::Relaxed) && !over() {
        let until = Instant::now() + EVERY;
        while Instant::now() < until && !stop.load(Ordering::Relaxed) && !over() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let now = Sample::read(root, &cpus, &functions);
        let interval = now.since(&last);
        peaks.add(&interval);
        println!("{:6.1} s  {}", start.elapsed().as_secs_f64(), line(&interval));
        last = now;
    }
    print!("\nwhat changed:\n{}", changes(&peaks));
    Ok(0)
}
