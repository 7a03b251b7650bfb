//! The loop of one load-generating thread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::pattern::Pattern;
use super::target::{Finished, Op, Target};
use crate::error::{Error, Kind, Result};
use crate::host::affinity::process_cpu_ns;
use crate::stats::{Clock, Latency};
use crate::wire::Status;

/// How much load one thread makes, and when. Times in nanoseconds by the run's clock.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Reads in flight per lane.
    pub depth: u32,
    /// Nanoseconds between two intended starts of this thread's reads; `None`: a closed loop.
    pub interval: Option<f64>,
    /// The first intended start after the beginning, so that threads do not all start at once.
    pub phase: u64,
    /// Start of the first round.
    pub measure_from: u64,
    /// Length of a round.
    pub round: u64,
    /// Number of rounds.
    pub rounds: usize,
    /// Time that reads in flight have after the last round.
    pub drain: u64,
}

/// What one thread saw in one round. Sums of nanoseconds are over answered reads.
#[derive(Debug, Clone, Default)]
pub struct RoundStats {
    /// Reads that ended well.
    pub ops: u64,
    /// Bytes of their payload.
    pub bytes: u64,
    /// Commands that the drives were sent for them.
    pub commands: u64,
    /// From the intended start (open loop) or the submission (closed loop) to the data.
    pub latency: Latency,
    /// From the actual submission to the data: open loop only, to show beside `latency`.
    pub service: Latency,
    /// Sum of times in line at the server.
    pub queued_ns: u64,
    /// Sum of times on the drive.
    pub drive_ns: u64,
    /// Sum of times in the check.
    pub check_ns: u64,
    /// Sum of latencies, to which the stages are compared.
    pub total_ns: u64,
    /// Longest delay of a submission behind its schedule.
    pub max_slip_ns: u64,
    /// Reads that failed, by status and detail.
    pub errors: BTreeMap<(u16, u32), u64>,
    /// Reads whose contents were wrong.
    pub corrupt: u64,
    /// Reads that were in flight when the last round ended, and the longest of them.
    pub late: u64,
    /// See [`RoundStats::late`].
    pub late_max_ns: u64,
    /// Open loop: reads that were due before the end and could not be started.
    pub unstarted: u64,
    /// CPU time of the process: user and system. One thread reads it for all.
    pub cpu_ns: (u64, u64),
    /// Time during which a thread had nothing to do but to look for completions.
    pub idle_ns: u64,
    /// Time of the rounds, added up over threads: what `idle_ns` is a share of.
    pub span_ns: u64,
}

impl RoundStats {
    /// Adds another thread's, or another round's.
    pub fn merge(&mut self, other: &RoundStats) {
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.commands += other.commands;
        self.latency.merge(&other.latency);
        self.service.merge(&other.service);
        self.queued_ns += other.queued_ns;
        self.drive_ns += other.drive_ns;
        self.check_ns += other.check_ns;
        self.total_ns += other.total_ns;
        self.max_slip_ns = self.max_slip_ns.max(other.max_slip_ns);
        for (key, count) in &other.errors {
            *self.errors.entry(*key).or_default() += count;
        }
        self.corrupt += other.corrupt;
        self.late += other.late;
        self.late_max_ns = self.late_max_ns.max(other.late_max_ns);
        self.unstarted += other.unstarted;
        self.cpu_ns.0 += other.cpu_ns.0;
        self.cpu_ns.1 += other.cpu_ns.1;
        self.idle_ns += other.idle_ns;
        self.span_ns += other.span_ns;
    }

    /// Reads that failed or were wrong.
    pub fn failures(&self) -> u64 {
        self.errors.values().sum::<u64>() + self.corrupt
    }

    /// Counts what must never go unseen, whenever it happens. True if the read ended well.
    fn count_failure(&mut self, finished: &Finished) -> bool {
        let well = finished.status == Status::Ok;
        if !well {
            *self.errors.entry((finished.status as u16, finished.detail)).or_default() += 1;
        }
        self.corrupt += u64::from(well && finished.corrupt);
        well
    }

    /// Counts a read that ended after the last round.
    fn count_late(&mut self, finished: &Finished, start: Start) {
        self.late += 1;
        self.late_max_ns = self.late_max_ns.max(finished.at.saturating_sub(start.intended));
    }

    fn count(&mut self, finished: &Finished, start: Start, open_loop: bool) {
        if !self.count_failure(finished) {
            return;
        }
        self.ops += 1;
        self.bytes += u64::from(finished.bytes);
        self.commands += u64::from(finished.commands);
        self.queued_ns += finished.queued_ns;
        self.drive_ns += finished.drive_ns;
        self.check_ns += finished.check_ns;
        let latency = finished.at.saturating_sub(start.intended);
        self.total_ns += latency;
        self.latency.record(latency);
        if open_loop {
            self.service.record(finished.at.saturating_sub(start.actual));
            self.max_slip_ns = self.max_slip_ns.max(start.actual.saturating_sub(start.intended));
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Start {
    intended: u64,
    actual: u64,
}

/// Empty turns between two readings of the clock: the data is looked for far more often.
const IDLE_TURNS: u32 = 32;

/// One thread's load on one target.
pub(super) struct Job<'a, T> {
    pub target: T,
    pub pattern: Pattern,
    pub load: Load,
    pub clock: Clock,
    /// Whether this is the thread that reads the CPU time.
    pub counts_cpu: bool,
    /// Reads that ended well so far: for the progress line.
    pub progress: &'a AtomicU64,
    /// Becomes true when the run is to end early.
    pub stop: &'a AtomicBool,
}

impl<T: Target> Job<'_, T> {
    /// Runs warm-up and rounds, then lets what is in flight finish.
    pub fn run(mut self) -> Result<Vec<RoundStats>> {
        let depth = self.load.depth as usize;
        let total = self.target.lanes() * depth;
        // The last one is for what happens outside of the rounds.
        let outside = self.load.rounds;
        let mut rounds = vec![RoundStats::default(); outside + 1];
        rounds[..outside].iter_mut().for_each(|round| round.span_ns = self.load.round);
        let mut starts = vec![Start::default(); total];
        let mut finished = Vec::with_capacity(total);
        // First in, first out: the lanes come in turn, also where few reads are in flight.
        let mut idle: VecDeque<u32> = (0..total as u32)
            .map(|n| {
                let (turn, lane) =
                    (n as usize / self.target.lanes(), n as usize % self.target.lanes());
                (lane * depth + turn) as u32
            })
            .collect();

        let end = self.load.measure_from + self.load.round * self.load.rounds as u64;
        let mut now = self.clock.now();
        let first = now + self.load.phase;
        let mut started = 0u64;
        let mut due = true;
        let mut current = None;
        let cpu_now = || if self.counts_cpu { process_cpu_ns() } else { Ok((0, 0)) };
        let mut cpu = cpu_now()?;
        let mut done = 0u64;
        let mut empty_turns = 0u32;
        // Since when there has been nothing to do.
        let mut idle_since: Option<u64> = None;
        loop {
            let round = self.round_at(now);
            if round != current {
                let cpu_now = cpu_now()?;
                if let Some(past) = current {
                    let stats: &mut RoundStats = &mut rounds[past];
                    stats.cpu_ns = (cpu_now.0 - cpu.0, cpu_now.1 - cpu.1);
                }
                (current, cpu) = (round, cpu_now);
            }
            let running = now < end && !self.stop.load(Ordering::Relaxed);
            if !running && std::mem::replace(&mut due, false) {
                // What the schedule wanted and the depth did not let it have.
                if let Some(interval) = self.load.interval {
                    let wanted = (end.saturating_sub(first) as f64 / interval).ceil() as u64;
                    rounds[outside].unstarted = wanted.saturating_sub(started);
                }
            }
            if !running && idle.len() == total {
                return Ok(rounds);
            }
            if !running && now > end + self.load.drain {
                return Err(Error::new(
                    Kind::Network,
                    format!("{} reads were not answered after the run", total - idle.len()),
                ));
            }
            if running {
                while let Some(token) = idle.front().copied() {
                    let intended = match self.load.interval {
                        None => now,
                        Some(interval) => first + (started as f64 * interval) as u64,
                    };
                    if intended > now {
                        break;
                    }
                    self.end_idling(&mut idle_since, now, &mut rounds);
                    let (drive, offset) = self.pattern.advance();
                    let len = self.pattern.io_size();
                    let op = Op { token, drive, offset, len, at: now };
                    if !self.target.submit(token as usize / depth, op)? {
                        return Err(Error::usage(format!(
                            "depth {depth} is more than the server grants a connection"
                        ))
                        .remedy("lower --depth, or raise the server's --credits"));
                    }
                    started += 1;
                    idle.pop_front();
                    starts[token as usize] = Start { intended, actual: now };
                }
            }
            self.target.flush()?;
            match self.target.poll(&self.clock, &mut finished)? {
                Some(polled) => {
                    self.end_idling(&mut idle_since, polled.found, &mut rounds);
                    now = polled.after;
                    empty_turns = 0;
                }
                None => {
                    empty_turns += 1;
                    if idle_since.is_none() {
                        now = self.clock.now();
                        idle_since = Some(now);
                    } else if empty_turns >= IDLE_TURNS || self.load.interval.is_some() {
                        empty_turns = 0;
                        now = self.clock.now();
                    }
                }
            }
            for one in finished.drain(..) {
                let start = starts[one.token as usize];
                if let Some(round) = self.round_at(one.at) {
                    rounds[round].count(&one, start, self.load.interval.is_some());
                } else {
                    rounds[outside].count_failure(&one);
                    if one.at >= end {
                        rounds[outside].count_late(&one, start);
                    }
                }
                idle.push_back(one.token);
                done += 1;
            }
            self.progress.store(done, Ordering::Relaxed);
        }
    }

    /// Counts the time without work that ends at `now` to the round in which it began.
    fn end_idling(&self, since: &mut Option<u64>, now: u64, rounds: &mut [RoundStats]) {
        if let Some(since) = since.take()
            && let Some(round) = self.round_at(since)
        {
            rounds[round].idle_ns += now.saturating_sub(since);
        }
    }

    /// The round that `time` falls into.
    fn round_at(&self, time: u64) -> Option<usize> {
        let since = time.checked_sub(self.load.measure_from)?;
        let round = (since / self.load.round) as usize;
        (round < self.load.rounds).then_some(round)
    }
}

#[cfg(test)]
mod tests;
