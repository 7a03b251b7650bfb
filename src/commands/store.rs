//! `millrace store create | fill | ingest | ls | verify`.

use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::options::{Backend, StorageArgs, parse, size};
use crate::error::{Context, Error, Kind, Result};
use crate::host::affinity;
use crate::limits::DEFAULT_DEPTH;
use crate::object::KeyName;
use crate::storage::{OpenMode, Storage};
use crate::store::{
    CreateOptions, FillOptions, Finding, IoOptions, OpenOptions, Progress, PutOutcome, PutReport,
    Puts, ScanReport, Sizes, Skipped, Store, create, default_lock_dir, fill, ingest, list, open,
    verify,
};
use crate::units::format_size;
use crate::wire::CheckMode;

/// Arguments of `millrace store`.
#[derive(Debug, Args)]
pub struct StoreArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a store of objects on drives; what is on them is lost
    ///
    /// Refuses a drive that holds anything, unless --force names it.
    Create(CreateArgs),
    /// Put seeded objects, whose contents a client can verify
    Fill(FillArgs),
    /// Put every file of a folder, under its path below that
    Ingest(IngestArgs),
    /// List keys and lengths, in the order in which the objects lie on the drives
    Ls(LsArgs),
    /// Read every object back and report damage by key, drive and offset
    Verify(VerifyArgs),
}

/// What all of them have in common.
#[derive(Debug, Args)]
struct DriveArgs {
    #[command(flatten)]
    storage: StorageArgs,
    /// Commands in flight on the drives
    #[arg(long, default_value_t = DEFAULT_DEPTH)]
    depth: u32,
    /// CPUs for reading the headers at the start, one thread pinned to each, like 1,3-5
    /// [default: one thread, not pinned]
    #[arg(long)]
    cores: Option<String>,
}

#[derive(Debug, Args)]
struct CreateArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// Longest object: a multiple of 4 KiB; each takes this and 4 KiB, whatever its size
    #[arg(long, default_value = "1MiB", value_parser = size)]
    object_size: u64,
    /// Serial number or name of a drive on which everything may be lost; repeatable
    #[arg(long, value_name = "SERIAL-OR-NAME")]
    force: Vec<String>,
}

#[derive(Debug, Args)]
struct FillArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// Objects [default: as many as there are free slots]
    #[arg(long)]
    count: Option<u64>,
    /// Number of the first one
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Their size, or sizes like 4KiB..1MiB [default: the store's limit]
    #[arg(long, value_parser = parse::<Sizes>)]
    size: Option<Sizes>,
    /// Seed of contents and sizes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What their keys begin with; ten digits follow
    #[arg(long, default_value = "object-")]
    prefix: String,
}

#[derive(Debug, Args)]
struct IngestArgs {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    drives: DriveArgs,
    /// Exit with 0 although files were left out
    #[arg(long)]
    skip: bool,
}

#[derive(Debug, Args)]
struct LsArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct VerifyArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// The result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &StoreArgs) -> Result<()> {
    match &args.command {
        Command::Create(args) => with_drives(&args.drives, OpenMode::ReadWrite, &Create(args)),
        Command::Fill(args) => with_drives(&args.drives, OpenMode::ReadWrite, &Fill(args)),
        Command::Ingest(args) => with_drives(&args.drives, OpenMode::ReadWrite, &Ingest(args)),
        Command::Ls(args) => with_drives(&args.drives, OpenMode::Read, &Ls(args)),
        Command::Verify(args) => with_drives(&args.drives, OpenMode::Read, &Verify(args)),
    }
}

/// A job on drives of any backend.
trait Job {
    fn run<S: Storage>(&self, storage: &S) -> Result<()>;
}

fn with_drives(args: &DriveArgs, mode: OpenMode, job: &impl Job) -> Result<()> {
    if args.storage.check != CheckMode::Crc {
        return Err(Error::usage("--check of a store command")
            .remedy("leave it out: the CRC is always checked"));
    }
    match args.storage.backend {
        Backend::Mem => Err(Error::usage("--backend mem: its contents end with this command")
            .remedy("use --backend uring with a file on tmpfs")),
        Backend::Uring => job.run(&args.storage.open_uring_for(mode)?),
        #[cfg(feature = "spdk")]
        Backend::Spdk => job.run(&args.storage.open_spdk_for(mode)?),
        #[cfg(not(feature = "spdk"))]
        Backend::Spdk => Err(super::options::spdk_missing()),
    }
}

impl DriveArgs {
    fn io(&self) -> IoOptions {
        IoOptions { depth: self.depth, pages: self.storage.hugepages, node: self.storage.node }
    }

    /// Opens the store, showing how far it is.
    fn open<S: Storage>(&self, storage: &S, writable: bool, progress: &Progress) -> Result<Store> {
        let cores = self.cores.as_deref().map(affinity::parse_list).transpose()?;
        let options = OpenOptions {
            writable,
            members: 1,
            cores: cores.unwrap_or_default(),
            io: self.io(),
            lock_dir: default_lock_dir(),
        };
        let store = shown(progress, "headers", || open(storage, &options, progress))?;
        let (tally, scan) = (store.objects.tally(), scan_line(&store.report));
        log::info!(
            "store {}: {} objects in {} slots, read in {:.2} s ({:.0} headers/s)",
            store.id(),
            tally.objects,
            tally.slots,
            scan.seconds,
            scan.headers_per_sec
        );
        Ok(store)
    }
}

struct Create<'a>(&'a CreateArgs);

impl Job for Create<'_> {
    fn run<S: Storage>(&self, storage: &S) -> Result<()> {
        let Create(args) = self;
        let options = CreateOptions {
            object_limit: args.object_size,
            force: args.force.clone(),
            io: args.drives.io(),
            lock_dir: default_lock_dir(),
        };
        let created = create(storage, &options)?;
        println!(
            "store {}: {} objects of up to {} on {} drives",
            created.store,
            created.slots,
            format_size(created.object_limit.into()),
            storage.drives().len()
        );
        Ok(())
    }
}

struct Fill<'a>(&'a FillArgs);

impl Job for Fill<'_> {
    fn run<S: Storage>(&self, storage: &S) -> Result<()> {
        let Fill(args) = self;
        let progress = interruptible()?;
        let store = args.drives.open(storage, true, &progress)?;
        let options = FillOptions {
            count: args.count.unwrap_or_else(|| store.objects.tally().free),
            first: args.first,
            sizes: args.size,
            seed: args.seed,
            prefix: args.prefix.clone(),
        };
        let limit = store.objects.layout().object_limit();
        let mut puts = Puts::new(storage, &store.objects, &args.drives.io())?;
        let begun = Instant::now();
        let report = shown(&progress, "objects", || {
            fill(&mut puts, limit, &options, &progress, &mut report_failure)
        })?;
        ended(&report, begun.elapsed(), &progress)
    }
}

struct Ingest<'a>(&'a IngestArgs);

impl Job for Ingest<'_> {
    fn run<S: Storage>(&self, storage: &S) -> Result<()> {
        let Ingest(args) = self;
        let progress = interruptible()?;
        let store = args.drives.open(storage, true, &progress)?;
        let limit = store.objects.layout().object_limit();
        let mut puts = Puts::new(storage, &store.objects, &args.drives.io())?;
        let (begun, mut left_out) = (Instant::now(), 0_u64);
        let mut skipped = |Skipped { path, why }: Skipped| {
            left_out += 1;
            log::warn!("left out {}: {why}", path.display());
        };
        let report = shown(&progress, "files", || {
            let root = &args.folder;
            ingest(&mut puts, limit, root, &progress, &mut skipped, &mut report_failure)
        })?;
        ended(&report, begun.elapsed(), &progress)?;
        if left_out > 0 && !args.skip {
            let what = format!("{left_out} files were left out; their names are above");
            return Err(
                Error::new(Kind::Data, what).remedy("add --skip where that is meant to be so")
            );
        }
        if left_out > 0 {
            log::warn!("{left_out} files were left out");
        }
        Ok(())
    }
}

struct Ls<'a>(&'a LsArgs);

/// A line of `ls --json`.
#[derive(Serialize)]
struct ListedLine<'a> {
    key: String,
    /// Where the key is not UTF-8: its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_bytes: Option<&'a [u8]>,
    length: u32,
    crc64nvme: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    damaged: bool,
}

impl Job for Ls<'_> {
    fn run<S: Storage>(&self, storage: &S) -> Result<()> {
        let Ls(args) = self;
        let progress = interruptible()?;
        let store = args.drives.open(storage, false, &progress)?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        let io = args.drives.io();
        let nameless = list(storage, &store, &io, &progress, &mut |object| {
            let (text, bytes) = key_text(&object.key);
            let line = if args.json {
                let line = ListedLine {
                    key: text,
                    key_bytes: bytes,
                    length: object.length,
                    crc64nvme: format!("{:016x}", object.data_crc),
                    damaged: object.damaged,
                };
                serde_json::to_string(&line).expect("text and numbers")
            } else {
                let damaged = if object.damaged { "  (damaged)" } else { "" };
                format!("{:>10}  {}{damaged}", object.length, object.key)
            };
            writeln!(out, "{line}").context(|| "cannot write to standard output".into())
        })?;
        out.flush().context(|| "cannot write to standard output".into())?;
        if nameless > 0 {
            let what = format!("{nameless} objects have no key that can be read");
            return Err(Error::new(Kind::Data, what).remedy("`millrace store verify` says where"));
        }
        interrupted(&progress, "the list is not whole")
    }
}

struct Verify<'a>(&'a VerifyArgs);

/// The result of `verify --json`.
#[derive(Serialize)]
struct Verified<'a> {
    schema: &'static str,
    store: String,
    objects: u64,
    bytes: u64,
    scan: ScanLine,
    superblocks: &'a [crate::store::SetWarning],
    damage: Vec<DamageLine<'a>>,
}

/// The reading of all headers at the start.
#[derive(Serialize)]
struct ScanLine {
    headers: u64,
    seconds: f64,
    headers_per_sec: f64,
    superseded: u64,
    torn: u64,
}

#[derive(Serialize)]
struct DamageLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    drive: &'a str,
    offset: u64,
    what: String,
}

impl Job for Verify<'_> {
    fn run<S: Storage>(&self, storage: &S) -> Result<()> {
        let Verify(args) = self;
        let progress = interruptible()?;
        let store = args.drives.open(storage, false, &progress)?;
        let mut each = |found: &Finding| {
            if !args.json {
                let key = found.key.map_or("(key unknown)".to_owned(), |key| key.to_string());
                println!("{}, byte {}: {key}: {}", found.drive, found.offset, found.what);
            }
        };
        let io = args.drives.io();
        let begun = Instant::now();
        let report =
            shown(&progress, "objects", || verify(storage, &store, &io, &progress, &mut each))?;
        interrupted(&progress, "not everything was read")?;
        let damage = report.findings.len() + store.warnings.len();
        if args.json {
            let result = Verified {
                schema: "millrace.verify/1",
                store: store.id().to_string(),
                objects: report.objects,
                bytes: report.bytes,
                scan: scan_line(&store.report),
                superblocks: &store.warnings,
                damage: report.findings.iter().map(line).collect(),
            };
            let text = serde_json::to_string_pretty(&result).expect("text and numbers");
            println!("{text}");
        } else {
            for warning in &store.warnings {
                println!("{}, byte {}: {}", warning.drive, warning.offset, warning.what);
            }
            let rate = rate(report.bytes, begun.elapsed());
            println!(
                "{} objects, {}, are whole ({rate}); {damage} with damage",
                report.objects,
                format_size(report.bytes)
            );
        }
        if damage == 0 {
            return Ok(());
        }
        let what = format!("{damage} places of store {} are damaged", store.id());
        Err(Error::new(Kind::Data, what)
            .remedy("put these objects again from where they are whole"))
    }
}

fn scan_line(report: &ScanReport) -> ScanLine {
    let seconds = report.elapsed.as_secs_f64().max(1e-9);
    ScanLine {
        headers: report.slots,
        seconds,
        headers_per_sec: report.slots as f64 / seconds,
        superseded: report.superseded,
        torn: report.torn,
    }
}

fn line(found: &Finding) -> DamageLine<'_> {
    DamageLine {
        key: found.key.map(|key| key.to_string()),
        drive: &found.drive,
        offset: found.offset,
        what: found.what.to_string(),
    }
}

/// A key as text, and its bytes where the text is not exactly them.
fn key_text(key: &KeyName) -> (String, Option<&[u8]>) {
    match std::str::from_utf8(key.bytes()) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (key.to_string(), Some(key.bytes())),
    }
}

fn report_failure(key: &KeyName, outcome: PutOutcome) {
    match outcome {
        PutOutcome::Stored => {}
        PutOutcome::Failed(status) => log::error!("{key} was not stored: {status}"),
        PutOutcome::Refused(refusal) => log::error!("{key} was not stored: {refusal}"),
    }
}

fn rate(bytes: u64, elapsed: Duration) -> String {
    let mib = bytes as f64 / f64::from(1 << 20) / elapsed.as_secs_f64().max(1e-9);
    format!("{mib:.0} MiB/s")
}

/// Says what a job of puts has come to.
fn ended(report: &PutReport, elapsed: Duration, progress: &Progress) -> Result<()> {
    println!(
        "{} objects stored, {}, in {:.1} s ({})",
        report.stored,
        format_size(report.bytes),
        elapsed.as_secs_f64(),
        rate(report.bytes, elapsed)
    );
    interrupted(progress, "what was stored stays")?;
    if report.failed > 0 {
        let what = format!("{} objects were not stored; their keys are above", report.failed);
        return Err(Error::new(Kind::Device, what).remedy("run the command again"));
    }
    Ok(())
}

fn interrupted(progress: &Progress, so: &str) -> Result<()> {
    if progress.stop.load(Ordering::Relaxed) {
        return Err(
            Error::new(Kind::Busy, format!("interrupted: {so}")).remedy("run the command again")
        );
    }
    Ok(())
}

/// A job that SIGINT and SIGTERM end early; a second one ends the program at once, which harms
/// the store as little as a loss of power.
fn interruptible() -> Result<Progress> {
    let progress = Progress::default();
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let stop = || Arc::clone(&progress.stop);
        signal_hook::flag::register_conditional_default(signal, stop())
            .and_then(|_| signal_hook::flag::register(signal, stop()))
            .context(|| format!("cannot handle signal {signal}"))?;
    }
    Ok(progress)
}

/// Runs a job; where standard error is a terminal, a line there says how far it is.
fn shown<T>(progress: &Progress, unit: &str, job: impl FnOnce() -> Result<T>) -> Result<T> {
    const EVERY: Duration = Duration::from_millis(200);
    if !std::io::stderr().is_terminal() {
        return job();
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bar = ProgressBar::no_length();
            let style = |text| ProgressStyle::with_template(text).expect("a constant template");
            let known = style("{wide_bar} {msg} {elapsed} (left: {eta})");
            bar.set_style(style("{spinner} {msg} {elapsed}"));
            let begun = Instant::now();
            while !over.load(Ordering::Relaxed) {
                let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
                let (done, total) = (read(&progress.done), read(&progress.total));
                if total > 0 && bar.length().is_none() {
                    bar.set_style(known.clone());
                    bar.set_length(total);
                }
                bar.set_position(done);
                let per_second = done as f64 / begun.elapsed().as_secs_f64().max(1e-9);
                let rate = rate(read(&progress.bytes), begun.elapsed());
                bar.set_message(format!("{done} {unit}, {per_second:.0}/s, {rate}"));
                std::thread::park_timeout(EVERY);
            }
            bar.finish_and_clear();
        });
        // Also where the job panics, or the scope would wait for ever.
        let _over = Over(&over);
        job()
    })
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
