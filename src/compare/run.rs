//! A comparison from beginning to end: trials, rounds, and what is kept of them.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};

use super::child::{Children, RunOf, stopped};
use super::drives::Drives;
use super::facts::{self, RunFacts};
use super::matrix::Matrix;
use super::record::{self, Header, LeftOut, RECORD_SCHEMA, Record, Run};
use super::schedule::{self, Cell};
use crate::error::{Context, Error, Result};
use crate::host::Root;

/// What is told beside the matrix.
#[derive(Debug, Clone)]
pub struct CompareOptions {
    /// Folder of the result.
    pub out: PathBuf,
    /// This program.
    pub program: PathBuf,
    /// Where servers listen.
    pub listen: String,
    /// The journal of moved drives.
    pub journal: PathBuf,
    /// Serials of drives with data that may be bound.
    pub meant: Vec<String>,
    /// Whether to count during the rounds.
    pub counters: bool,
    /// Whether each variant has a traced run first, for what is counted at a cost.
    pub traced: bool,
    /// What the kernel is.
    pub kernel: String,
}

/// What a comparison gave: the header and all finished rounds.
pub type Measured = (Header, Vec<Run>);

/// Runs what is missing of a comparison, and gives all of it. The matrix is valid.
///
/// # Errors
///
/// The first run that fails; what was finished before is kept.
pub fn run(matrix: &Matrix, options: &CompareOptions, stop: &AtomicBool) -> Result<Measured> {
    std::fs::create_dir_all(options.out.join("log"))
        .context(|| format!("cannot make {}", options.out.display()))?;
    let revision = env!("MILLRACE_REVISION");
    let known = record::read(&options.out)?;
    if let Some((header, _)) = &known {
        record::same(header, matrix, revision, &options.kernel)?;
    }
    let mut drives = Drives::of_system(&options.journal, &matrix.devices, &options.meant)?;
    let (header, mut runs, mut record) = match known {
        Some((mut header, runs)) => {
            header.matrix.rounds = matrix.rounds;
            let whole = runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
            log::info!("going on after {whole} finished rounds in {}", options.out.display());
            (header, runs, Record::resume(&options.out)?)
        }
        None => {
            let zeros = facts::zeros(&matrix.devices, matrix.seed);
            let (matrix, left_out, traced) = trials(matrix, options, &mut drives, stop)?;
            let drives = serde_json::to_value(facts::serials(&Root::system(), &matrix.devices));
            let header = Header {
                schema: RECORD_SCHEMA.into(),
                revision: revision.into(),
                kernel: options.kernel.clone(),
                matrix,
                left_out,
                traced,
                drives: drives.expect("names and serials are text"),
                zeros,
            };
            let record = Record::create(&options.out, &header)?;
            (header, Vec::new(), record)
        }
    };
    let children = children(&header.matrix, options, stop);
    let first = runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
    let progress = Progress::new(&header.matrix, first);
    for round in first..header.matrix.rounds {
        let mut finished = Vec::new();
        for cell in schedule::round(&header.matrix, round) {
            progress.show(&header.matrix, cell);
            let counters = if options.counters { "on" } else { "off" };
            finished.push(one(&children, &mut drives, cell, counters, full(&header.matrix))?);
            progress.step();
        }
        record.add(round, &finished)?;
        runs.extend(finished);
    }
    progress.done();
    drives.give_back()?;
    Ok((header, runs))
}

fn children<'a>(
    matrix: &'a Matrix,
    options: &CompareOptions,
    stop: &'a AtomicBool,
) -> Children<'a> {
    Children {
        program: options.program.clone(),
        matrix,
        listen: options.listen.clone(),
        stop,
        logs: options.out.join("log"),
    }
}

fn full(matrix: &Matrix) -> (f64, f64) {
    (matrix.seconds, matrix.warmup)
}

/// Runs each variant briefly, so that what cannot run here is known before hours are spent; these
/// runs are traced where that is wanted. Gives the matrix without what is left out.
fn trials(
    matrix: &Matrix,
    options: &CompareOptions,
    drives: &mut Drives<'_>,
    stop: &AtomicBool,
) -> Result<(Matrix, Vec<LeftOut>, Vec<Run>)> {
    const SECONDS: (f64, f64) = (0.5, 0.1);
    let mut left_out: Vec<LeftOut> = Vec::new();
    let mut traced = Vec::new();
    let children = children(matrix, options, stop);
    let counters = if options.traced { "traced" } else { "off" };
    // By driver, so that drives move once.
    let mut order: Vec<usize> = (0..matrix.variants.len()).collect();
    order.sort_by_key(|n| matrix.variants[*n].switches.uses_spdk());
    for variant in order {
        if stop.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        let name = &matrix.variants[variant].name;
        log::info!("trying \"{name}\"");
        let cell = Cell { round: 0, load: 0, variant };
        let seconds = (SECONDS.0.min(matrix.seconds.max(0.1)), SECONDS.1);
        match one(&children, drives, cell, counters, seconds) {
            Ok(run) => traced.push(run),
            Err(error) if stop.load(Ordering::Relaxed) => return Err(error),
            Err(error) if matrix.may_leave_out && variant != 0 => {
                log::info!("left out: \"{name}\": {}", error.report());
                left_out.push(LeftOut { variant: name.clone(), why: error.report() });
            }
            Err(error) => {
                let what = format!("the variant \"{name}\" cannot run here");
                return Err(Error::new(error.kind(), what).caused_by(error));
            }
        }
    }
    let gone: Vec<String> = left_out.iter().map(|left| left.variant.clone()).collect();
    let rest = matrix.clone().without(&gone);
    for variant in &matrix.variants {
        if rest.variant(&variant.name).is_none() && !gone.contains(&variant.name) {
            let from = variant.from.clone().unwrap_or_default();
            let why = format!("it is compared to \"{from}\", which is left out");
            left_out.push(LeftOut { variant: variant.name.clone(), why });
        }
    }
    if rest.variants.len() < 2 {
        let what = "of all variants, only the baseline can run here";
        let mut error = Error::usage(what);
        if let Some(first) = left_out.first() {
            error = error.remedy(format!("the first reason: {}", first.why));
        }
        return Err(error);
    }
    // Numbers change where variants are gone.
    traced.retain_mut(|run| {
        let name = &matrix.variants[run.variant].name;
        match rest.variants.iter().position(|variant| variant.name == *name) {
            Some(number) => {
                run.variant = number;
                options.traced
            }
            None => false,
        }
    });
    Ok((rest, left_out, traced))
}

/// One run with what is known of the host around it.
fn one(
    children: &Children<'_>,
    drives: &mut Drives<'_>,
    cell: Cell,
    counters: &str,
    seconds: (f64, f64),
) -> Result<Run> {
    let matrix = children.matrix;
    let root = Root::system();
    let variant = &matrix.variants[cell.variant];
    drives.ready_for(variant.switches.uses_spdk())?;
    let cores = &matrix.cores[..variant.switches.workers()];
    let mut facts = RunFacts {
        started: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |since| since.as_secs_f64()),
        core_nodes: facts::nodes_of(&root, cores),
        memory_node: variant.switches.get("node").parse().ok(),
        nic_bytes_per_sec: match matrix.fabric.as_str() {
            "rdma" => facts::nic_bytes(&root),
            _ => None,
        },
        load_average: (facts::load_average(&root), None),
        ..RunFacts::default()
    };
    let (done, during) = std::sync::mpsc::channel::<()>();
    let addresses = drives.addresses().to_vec();
    let output = std::thread::scope(|scope| {
        // Links and domains are looked at in the middle of the run: idle links slow down.
        let half = Duration::from_secs_f64(seconds.1 + seconds.0 / 2.0);
        let (root, matrix) = (&root, &matrix);
        let looking = scope.spawn(move || {
            // It ends early where the run does; either way it is time to look.
            let _ = during.recv_timeout(half);
            let named = matrix.devices.iter().zip(&addresses);
            named.map(|(name, address)| facts::drive(root, name, *address)).collect()
        });
        let load = matrix.loads[cell.load];
        let output = children.run(RunOf { variant, load, seconds, counters });
        drop(done);
        facts.drives = looking.join().expect("reading facts does not panic");
        output
    })?;
    facts.load_average.1 = facts::load_average(&root);
    Ok(Run {
        round: cell.round,
        load: cell.load,
        variant: cell.variant,
        arena: output.arena(),
        summary: output.summary,
        counters: output.counters,
        facts,
    })
}

/// A line with the time left, on a terminal only.
struct Progress(ProgressBar);

impl Progress {
    fn new(matrix: &Matrix, first: usize) -> Self {
        let cells = matrix.variants.len() * matrix.loads.len();
        let left = cells * matrix.rounds.saturating_sub(first);
        let bar = match std::io::stderr().is_terminal() {
            true => ProgressBar::new(left as u64),
            false => ProgressBar::hidden(),
        };
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} runs, {eta} left: {msg}")
            .expect("a constant template");
        bar.set_style(style);
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(bar)
    }

    fn show(&self, matrix: &Matrix, cell: Cell) {
        let variant = &matrix.variants[cell.variant].name;
        let load = matrix.loads[cell.load].title();
        self.0.set_message(format!("round {}, {variant}, {load}", cell.round + 1));
    }

    fn step(&self) {
        self.0.inc(1);
    }

    fn done(&self) {
        self.0.finish_and_clear();
    }
}

/// What is on disk already, for `--report`.
///
/// # Errors
///
/// `NotFound` where `dir` holds no comparison.
pub fn kept(dir: &Path) -> Result<Measured> {
    record::read(dir)?.ok_or_else(|| {
        Error::new(crate::error::Kind::NotFound, format!("{} holds no comparison", dir.display()))
            .remedy("name the folder that was given as --out")
    })
}
