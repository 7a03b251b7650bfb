//! The loop of one load-generating thread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::pattern::Pattern;
use super::target::{Failed, Finished, Op, Outages, Taken, Target};
use crate::error::{Error, Kind, Result};
use crate::host::affinity::process_cpu_ns;
use crate::stats::{Clock, Latency};

/// How much load one thread makes, and when. Times in nanoseconds by the run's clock.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Reads in flight per lane.
    pub depth: u32,
    /// Nanoseconds between two intended starts of a stream's reads; `None`: a closed loop.
    pub interval: Option<f64>,
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
    /// Reads that failed, by cause.
    pub errors: BTreeMap<Failed, u64>,
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
        self.errors.values().sum::<u64>()
    }

    /// Counts what must never go unseen, whenever it happens. True if the read ended well.
    fn count_failure(&mut self, finished: &Finished) -> bool {
        if let Some(why) = finished.failed {
            *self.errors.entry(why).or_default() += 1;
        }
        finished.failed.is_none()
    }

    fn count_away(&mut self, count: u64) {
        *self.errors.entry(Failed::Away).or_default() += count;
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

/// The load on one group of lanes: drives, schedule and depth of its own, so that a group which is
/// slow or away holds nobody up.
struct Stream {
    group: usize,
    pattern: Pattern,
    /// First in, first out: the lanes come in turn, also where few reads are in flight.
    idle: VecDeque<u32>,
    /// Tokens in all, idle or not.
    tokens: usize,
    /// The first intended start.
    first: u64,
    started: u64,
    /// Everything of this group in all rounds, and the failures outside of them.
    total: RoundStats,
}

/// What was done about reads that were due.
struct Begun {
    /// Reads that are in flight for it.
    queued: usize,
    /// Reads that were due while the group was away.
    away: u64,
}

/// What one thread saw.
pub struct Seen {
    /// Its rounds; the last one is for what happened outside of them.
    pub rounds: Vec<RoundStats>,
    /// The same by group, all rounds together.
    pub groups: Vec<(usize, RoundStats, Outages)>,
}

/// One thread's load on one target.
pub(super) struct Job<'a, T> {
    pub target: T,
    /// The patterns of the groups that the target has lanes of, and when each begins after the
    /// start, so that not all begin at once.
    pub patterns: BTreeMap<usize, (Pattern, u64)>,
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
    pub fn run(mut self) -> Result<Seen> {
        let depth = self.load.depth as usize;
        let total = self.target.lanes() * depth;
        // The last one is for what happens outside of the rounds.
        let outside = self.load.rounds;
        let mut rounds = vec![RoundStats::default(); outside + 1];
        rounds[..outside].iter_mut().for_each(|round| round.span_ns = self.load.round);
        let mut starts = vec![Start::default(); total];
        let mut finished = Vec::with_capacity(total);
        let end = self.load.measure_from + self.load.round * self.load.rounds as u64;
        let mut now = self.clock.now();
        let mut streams = self.streams(now);
        let stream_of: Vec<usize> = (0..self.target.lanes())
            .map(|lane| {
                let group = self.target.group(lane);
                streams.iter().position(|s| s.group == group).expect("each group has its stream")
            })
            .collect();
        // With one group the rounds say it all, and each read is counted once.
        let alone = streams.len() == 1;
        let mut in_flight = 0usize;
        let mut due = true;
        let mut current = None;
        let counts_cpu = self.counts_cpu;
        let cpu_now = || if counts_cpu { process_cpu_ns() } else { Ok((0, 0)) };
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
                // What the schedules wanted and the depth did not let them have.
                if let Some(interval) = self.load.interval {
                    for stream in &mut streams {
                        let time = end.saturating_sub(stream.first) as f64;
                        let wanted = (time / interval).ceil() as u64;
                        let unstarted = wanted.saturating_sub(stream.started);
                        rounds[outside].unstarted += unstarted;
                        stream.total.unstarted += if alone { 0 } else { unstarted };
                    }
                }
            }
            if !running && in_flight == 0 {
                if alone {
                    rounds.iter().for_each(|round| streams[0].total.merge(round));
                }
                let groups = streams.into_iter().map(|stream| {
                    let outages = self.target.outages(stream.group, now);
                    (stream.group, stream.total, outages)
                });
                return Ok(Seen { groups: groups.collect(), rounds });
            }
            if !running && now > end + self.load.drain {
                return Err(Error::new(
                    Kind::Network,
                    format!("{in_flight} reads were not answered after the run"),
                ));
            }
            if running {
                let place = round.unwrap_or(outside);
                for stream in &mut streams {
                    let begun = self.start(stream, now, &mut starts)?;
                    in_flight += begun.queued;
                    if begun.queued > 0 {
                        self.end_idling(&mut idle_since, now, &mut rounds);
                    }
                    if begun.away > 0 {
                        rounds[place].count_away(begun.away);
                        if !alone {
                            stream.total.count_away(begun.away);
                        }
                    }
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
            in_flight -= finished.len();
            for one in finished.drain(..) {
                let start = starts[one.token as usize];
                let stream = &mut streams[stream_of[one.token as usize / depth]];
                if let Some(round) = self.round_at(one.at) {
                    let open_loop = self.load.interval.is_some();
                    rounds[round].count(&one, start, open_loop);
                    if !alone {
                        stream.total.count(&one, start, open_loop);
                    }
                } else {
                    let both = [&mut rounds[outside], &mut stream.total];
                    for stats in both.into_iter().take(2 - usize::from(alone)) {
                        stats.count_failure(&one);
                        if one.at >= end {
                            stats.count_late(&one, start);
                        }
                    }
                }
                stream.idle.push_back(one.token);
                done += 1;
            }
            self.progress.store(done, Ordering::Relaxed);
        }
    }

    /// A stream for each group, with the tokens of its lanes: a first one of each, then a second.
    fn streams(&mut self, now: u64) -> Vec<Stream> {
        let depth = self.load.depth as usize;
        let patterns = std::mem::take(&mut self.patterns);
        let stream = |(group, (pattern, phase)): (usize, (Pattern, u64))| {
            let lanes: Vec<usize> =
                (0..self.target.lanes()).filter(|lane| self.target.group(*lane) == group).collect();
            let tokens = lanes.len() * depth;
            let token = |turn| lanes.iter().map(move |lane| (lane * depth + turn) as u32);
            Stream {
                group,
                pattern,
                idle: (0..depth).flat_map(token).collect(),
                tokens,
                first: now + phase,
                started: 0,
                total: RoundStats::default(),
            }
        };
        patterns.into_iter().map(stream).collect()
    }

    /// Starts what is due of a stream.
    fn start(&mut self, stream: &mut Stream, now: u64, starts: &mut [Start]) -> Result<Begun> {
        let depth = self.load.depth as usize;
        let (mut queued, mut away) = (0, 0);
        // Each idle token has one try: those of lanes without a connection stay.
        let mut tries = stream.idle.len();
        while tries > 0 {
            let intended = match self.load.interval {
                None => now,
                Some(interval) => stream.first + (stream.started as f64 * interval) as u64,
            };
            if intended > now {
                break;
            }
            let token = stream.idle.pop_front().expect("there are as many as tries");
            let (drive, offset) = stream.pattern.advance();
            let len = stream.pattern.io_size();
            let op = Op { token, drive, offset, len, at: now };
            match self.target.submit(token as usize / depth, op)? {
                Taken::Queued => {
                    queued += 1;
                    stream.started += 1;
                    starts[token as usize] = Start { intended, actual: now };
                }
                Taken::Away => stream.idle.push_back(token),
                Taken::Busy => {
                    return Err(Error::usage(format!(
                        "depth {depth} is more than the server grants a connection"
                    ))
                    .remedy("lower --depth, or raise the server's --credits"));
                }
            }
            tries -= 1;
        }
        // With everything idle and nothing taken the whole group is away. A schedule goes on all
        // the same: what is due fails, else it would all be sent at once when the server is back.
        let is_away = queued == 0 && tries == 0 && stream.idle.len() == stream.tokens;
        if let Some(interval) = self.load.interval.filter(|_| is_away) {
            while stream.first + (stream.started as f64 * interval) as u64 <= now {
                stream.started += 1;
                away += 1;
            }
        }
        Ok(Begun { queued, away })
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
