//! A run: threads, warm-up, rounds, progress, and the sums.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::counters::{Counters, LOAD_THREAD, Observe, Probe, Totals};
use super::job::{Job, Load, RoundStats, Seen};
use super::pattern::{Pattern, PatternOptions};
use super::report::{Group, HostChecks, HostFacts, Report, SCHEMA, Spread, Summary, Tool};
use super::target::{Outages, Target};
use crate::error::{Error, Kind, Result};
use crate::host::facts::Facts;
use crate::host::{Root, affinity};
use crate::stats::Clock;

/// Longest sleep of the thread that counts: so long a failed run waits for it.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How a run goes.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Threads, each with a target of its own.
    pub threads: usize,
    /// CPUs to pin them to, in turn; empty: not pinned.
    pub cores: Vec<usize>,
    /// Reads in flight per lane.
    pub depth: u32,
    /// Reads per second of the whole run; `None`: a closed loop.
    pub rate: Option<f64>,
    /// Time before the first round.
    pub warmup: Duration,
    /// Time of all rounds.
    pub duration: Duration,
    /// Number of rounds.
    pub rounds: usize,
    /// Time that reads in flight have at the end.
    pub drain: Duration,
    /// What is read.
    pub pattern: PatternOptions,
    /// Show a progress line on standard error.
    pub progress: bool,
    /// What is counted from the beginning of the first round to the end of the last.
    pub observe: Option<Observe>,
}

/// What a run gave.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The host before and after.
    pub host: HostFacts,
    /// Figures by round.
    pub rounds: Vec<Summary>,
    /// Figures of all rounds.
    pub summary: Summary,
    /// The same by group of lanes (server).
    pub groups: Vec<Group>,
    /// What was counted, where that was asked for.
    pub counters: Option<Counters>,
}

impl Outcome {
    /// Adds what was found before the run.
    #[must_use]
    pub fn after(mut self, checks: HostChecks) -> Self {
        self.host.start = Some(checks);
        self
    }

    /// The result with the configuration that led to it.
    pub fn report<C>(self, config: C) -> Report<C> {
        Report {
            schema: SCHEMA,
            tool: Tool::this(),
            host: self.host,
            config,
            spread: Spread::of(&self.rounds),
            rounds: self.rounds,
            summary: self.summary,
            counters: self.counters,
            servers: Vec::new(),
        }
    }
}

impl RunOptions {
    fn validate(&self) -> Result<()> {
        if self.threads == 0 || self.rounds == 0 || self.depth == 0 {
            return Err(Error::usage("threads, rounds and depth must be 1 or more"));
        }
        if !self.cores.is_empty() && self.cores.len() < self.threads {
            // They poll, so two on one CPU would measure the scheduler.
            return Err(Error::usage(format!(
                "{} threads on {} CPUs",
                self.threads,
                self.cores.len()
            ))
            .remedy("name a CPU for each thread with --cores"));
        }
        if self.duration < Duration::from_millis(1) * self.rounds as u32 {
            return Err(Error::usage(format!(
                "a duration of {:?} is too short for {} rounds",
                self.duration, self.rounds
            )));
        }
        match self.rate {
            Some(rate) if !(rate.is_finite() && rate > 0.0) => {
                Err(Error::usage(format!("a rate of {rate} reads/s")))
            }
            _ => Ok(()),
        }
    }
}

/// Sizes and block sizes in bytes of the drives of a group.
pub type Sizes = Vec<(u64, u32)>;

/// Runs a load: `make` gives each thread, on that thread, its target and the drives of each group
/// that it has lanes of. Times are by the clock that it is given.
///
/// # Errors
///
/// The first failure of any thread; the others are stopped then.
pub fn run<T: Target>(
    options: &RunOptions,
    make: impl Fn(usize, Clock) -> Result<(T, BTreeMap<usize, Sizes>)> + Sync,
) -> Result<Outcome> {
    options.validate()?;
    let clock = Clock::start();
    let stop = AtomicBool::new(false);
    let counts: Vec<AtomicU64> = (0..options.threads).map(|_| AtomicU64::new(0)).collect();
    let running = AtomicU64::new(options.threads as u64);
    // All targets are ready before the warm-up of any begins.
    let ready = Barrier::new(options.threads);
    let start_at = AtomicU64::new(0);
    // Streams of all threads together, among which a rate is shared out evenly.
    let streams = AtomicUsize::new(0);
    let before = Facts::read(&Root::system());

    let body = |number: usize| -> Result<Seen> {
        // A panic here would leave the other threads at the barrier for ever.
        let made = catch_unwind(AssertUnwindSafe(|| {
            pin(options, number)?;
            make(number, clock)
        }))
        .unwrap_or_else(|_| {
            Err(Error::new(Kind::Device, "a load thread panicked; see its message"))
        });
        let mut first = 0;
        match &made {
            Ok((_, groups)) => first = streams.fetch_add(groups.len(), Ordering::Relaxed),
            Err(_) => stop.store(true, Ordering::Relaxed),
        }
        if ready.wait().is_leader() {
            start_at.store(clock.now(), Ordering::Release);
        }
        ready.wait();
        let (target, drives) = made?;
        let streams = streams.load(Ordering::Relaxed);
        let mut patterns = BTreeMap::new();
        for (place, (group, sizes)) in drives.into_iter().enumerate() {
            let stream = first + place;
            let seed = options.pattern.seed.wrapping_add(stream as u64);
            let pattern = Pattern::new(&sizes, PatternOptions { seed, ..options.pattern })?;
            let phase = options.rate.map_or(0, |rate| (1e9 * stream as f64 / rate) as u64);
            patterns.insert(group, (pattern, phase));
        }
        let load = Load {
            depth: options.depth,
            interval: options.rate.map(|rate| 1e9 * streams as f64 / rate),
            measure_from: start_at.load(Ordering::Acquire) + Clock::nanos(options.warmup),
            round: Clock::nanos(options.duration) / options.rounds as u64,
            rounds: options.rounds,
            drain: Clock::nanos(options.drain),
        };
        let (counts_cpu, progress, stop) = (number == 0, &counts[number], &stop);
        Job { target, patterns, load, clock, counts_cpu, progress, stop }.run()
    };

    let observer = |observe: &Observe| -> Result<Option<Totals>> {
        let begin = loop {
            match start_at.load(Ordering::Acquire) {
                0 if running.load(Ordering::Relaxed) == 0 => return Ok(None),
                0 => std::thread::sleep(Duration::from_millis(1)),
                start => break start + Clock::nanos(options.warmup),
            }
        };
        let mut probe = Probe::open(&Root::system(), observe)?;
        let wait_until = |time: u64| {
            while !stop.load(Ordering::Relaxed) {
                match time.saturating_sub(clock.now()) {
                    0 => return true,
                    left => std::thread::sleep(Duration::from_nanos(left).min(LOOK_EVERY)),
                }
            }
            false
        };
        if !wait_until(begin) {
            return Ok(None);
        }
        probe.begin()?;
        let end = begin + Clock::nanos(options.duration);
        Ok(if wait_until(end) { Some(probe.end()?) } else { None })
    };
    // What /proc says of a thread goes with it, so they stay until it is read.
    let observed = AtomicBool::new(options.observe.is_none());
    let mut counted = Ok(None);
    let outcomes: Vec<Result<Seen>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads)
            .map(|number| {
                let (body, stop, running, observed) = (&body, &stop, &running, &observed);
                let work = move || {
                    let _ending = Ending { stop, running };
                    let outcome = body(number).inspect_err(|_| stop.store(true, Ordering::Relaxed));
                    while !observed.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    outcome
                };
                let named = Builder::new().name(format!("{LOAD_THREAD}{number}"));
                named.spawn_scoped(scope, work).expect("a thread can be started")
            })
            .collect();
        let observing = options.observe.as_ref().map(|observe| {
            let (observer, observed) = (&observer, &observed);
            scope.spawn(move || {
                let outcome = catch_unwind(AssertUnwindSafe(|| observer(observe)));
                observed.store(true, Ordering::Relaxed);
                outcome.unwrap_or_else(|_| {
                    Err(Error::new(Kind::Device, "the thread that counts panicked"))
                })
            })
        });
        if options.progress {
            show_progress(options, &counts, &running);
        }
        let outcomes = threads
            .into_iter()
            .map(|thread| {
                thread.join().unwrap_or_else(|_| {
                    Err(Error::new(Kind::Device, "a load thread panicked; see its message"))
                })
            })
            .collect();
        if let Some(observing) = observing {
            counted = observing.join().expect("its panics are caught");
        }
        outcomes
    });

    // And one for what happened outside of them.
    let mut rounds = vec![RoundStats::default(); options.rounds + 1];
    let mut groups: BTreeMap<usize, (RoundStats, Outages, u64)> = BTreeMap::new();
    for outcome in outcomes {
        let seen = outcome?;
        for (sum, round) in rounds.iter_mut().zip(&seen.rounds) {
            sum.merge(round);
        }
        for (number, stats, outages) in &seen.groups {
            let (sum, away, threads) = groups.entry(*number).or_default();
            sum.merge(stats);
            away.reconnects += outages.reconnects;
            away.away_ns += outages.away_ns;
            *threads += 1;
        }
    }
    let seconds = options.duration.as_secs_f64() / options.rounds as f64;
    let mut total = RoundStats::default();
    rounds.iter().for_each(|round| total.merge(round));
    rounds.truncate(options.rounds);
    let open_loop = options.rate.is_some();
    let seconds_of_all = options.duration.as_secs_f64();
    let group = |(number, (stats, away, threads)): (usize, (RoundStats, Outages, u64))| Group {
        number,
        summary: Summary::of(&stats, seconds_of_all, open_loop),
        reconnects: away.reconnects,
        // The mean over threads.
        away_seconds: away.away_ns as f64 / threads as f64 / 1e9,
    };
    let summary = Summary::of(&total, seconds_of_all, open_loop);
    Ok(Outcome {
        counters: counted?.map(|totals| totals.per_read(summary.iops)),
        groups: groups.into_iter().map(group).collect(),
        host: HostFacts { before, after: Facts::read(&Root::system()), start: None },
        summary,
        rounds: rounds.iter().map(|round| Summary::of(round, seconds, open_loop)).collect(),
    })
}

/// Tells that a thread has ended, be it by a panic, which stops the others.
struct Ending<'a> {
    stop: &'a AtomicBool,
    running: &'a AtomicU64,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop.store(true, Ordering::Relaxed);
        }
        self.running.fetch_sub(1, Ordering::Relaxed);
    }
}

fn pin(options: &RunOptions, number: usize) -> Result<()> {
    options.cores.get(number).map_or(Ok(()), |core| affinity::pin(*core))
}

/// A line with the rate and the time left, until all threads are done.
fn show_progress(options: &RunOptions, counts: &[AtomicU64], running: &AtomicU64) {
    const EVERY: Duration = Duration::from_millis(200);
    let total = options.warmup + options.duration;
    let bar = ProgressBar::new(total.as_millis() as u64);
    let style = ProgressStyle::with_template("{wide_bar} {elapsed}/{duration} {msg}")
        .expect("a constant template");
    bar.set_style(style);
    let (mut before, begun) = (0, std::time::Instant::now());
    while running.load(Ordering::Relaxed) > 0 {
        std::thread::sleep(EVERY);
        let now: u64 = counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        let rate = (now - before) as f64 / EVERY.as_secs_f64();
        before = now;
        let warming = if begun.elapsed() < options.warmup { " (warm-up)" } else { "" };
        bar.set_position(begun.elapsed().min(total).as_millis() as u64);
        bar.set_message(format!("{rate:.0} reads/s{warming}"));
    }
    bar.finish_and_clear();
}

#[cfg(test)]
mod tests;
