use super::*;
use crate::bench::pattern::{Order, PatternOptions};
use crate::bench::target::Polled;
use crate::wire::Status;

const MS: u64 = 1_000_000;

/// A server that answers at once, or holds some reads for a while.
struct Fake {
    lanes: Vec<u64>,
    in_flight: VecDeque<(Op, bool)>,
    /// Numbers of the reads that it holds, until when, and how they end.
    held: std::ops::Range<u64>,
    until: u64,
    status: Status,
    /// Lanes of each group; and those without connection.
    per_group: usize,
    away: Vec<usize>,
}

impl Fake {
    fn new(lanes: usize) -> Self {
        let (lanes, in_flight) = (vec![0; lanes], VecDeque::new());
        let per_group = usize::MAX;
        let away = Vec::new();
        Self { lanes, in_flight, held: 0..0, until: 0, status: Status::Ok, per_group, away }
    }
}

impl Target for &mut Fake {
    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn submit(&mut self, lane: usize, op: Op) -> Result<Taken> {
        if self.away.contains(&lane) {
            return Ok(Taken::Away);
        }
        let held = self.held.contains(&self.lanes.iter().sum());
        self.lanes[lane] += 1;
        self.in_flight.push_back((op, held));
        Ok(Taken::Queued)
    }

    fn group(&self, lane: usize) -> usize {
        lane / self.per_group
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn poll(&mut self, clock: &Clock, out: &mut Vec<Finished>) -> Result<Option<Polled>> {
        let now = clock.now();
        let until = self.until;
        while let Some((op, held)) = self.in_flight.pop_front_if(|(_, held)| !*held || now >= until)
        {
            let status = if held { self.status } else { Status::Ok };
            out.push(Finished {
                token: op.token,
                at: now,
                failed: (status != Status::Ok).then_some(Failed::Status(status as u16, 0)),
                bytes: op.len,
                commands: 1,
                queued_ns: 0,
                drive_ns: 0,
                check_ns: 0,
            });
        }
        Ok((!out.is_empty()).then_some(Polled { found: now, after: now }))
    }
}

/// One round of 300 ms after 300 ms of warm-up. The round, and what was outside of it.
fn run(fake: &mut Fake, depth: u32, interval: Option<f64>) -> (RoundStats, RoundStats) {
    let [round, outside] = run_groups(fake, depth, interval).rounds.try_into().unwrap();
    (round, outside)
}

fn run_groups(fake: &mut Fake, depth: u32, interval: Option<f64>) -> Seen {
    let load = Load {
        depth,
        interval,
        measure_from: 300 * MS,
        round: 300 * MS,
        rounds: 1,
        drain: 5000 * MS,
    };
    let options = PatternOptions { io_size: 512, align: 512, order: Order::Random, seed: 1 };
    let pattern = Pattern::new(&[(1 << 20, 512)], options).unwrap();
    let (progress, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let clock = Clock::start();
    let (progress, stop) = (&progress, &stop);
    let groups = 0..fake.lanes.len().div_ceil(fake.per_group);
    let patterns = groups.map(|group| (group, (pattern.clone(), 0))).collect();
    let job = Job { target: fake, patterns, load, clock, counts_cpu: true, progress, stop };
    job.run().unwrap()
}

#[test]
fn an_open_loop_loads_all_lanes_alike() {
    let mut fake = Fake::new(4);
    run(&mut fake, 8, Some(1e6));
    let (least, most) = (fake.lanes.iter().min().unwrap(), fake.lanes.iter().max().unwrap());
    assert!(most - least <= 1, "{:?}", fake.lanes);
}

#[test]
fn a_rate_is_kept_where_the_interval_is_no_whole_number() {
    let mut fake = Fake::new(1);
    let (_, outside) = run(&mut fake, 1, Some(1.5));
    // In whole nanoseconds it would be half as much again.
    let all = fake.lanes[0] + outside.unstarted;
    assert!(all <= 400_000_000, "{all} in 600 ms");
}

#[test]
fn a_stall_until_the_end_shows() {
    for (status, errors) in [(Status::Ok, 0), (Status::TimedOut, 4)] {
        let mut fake = Fake::new(1);
        (fake.held, fake.until, fake.status) = (20..u64::MAX, 900 * MS, status);
        let (_, outside) = run(&mut fake, 4, Some(1e6));
        assert_eq!(outside.failures(), errors);
        assert_eq!(outside.late, 4);
        assert!(outside.late_max_ns >= 300 * MS, "{}", outside.late_max_ns);
        // Of up to 600, 20 ended and 4 were held.
        assert!(outside.unstarted >= 50, "{}", outside.unstarted);
    }
}

#[test]
fn failures_in_the_warm_up_are_counted() {
    let mut fake = Fake::new(1);
    (fake.held, fake.status) = (0..4, Status::TimedOut);
    let (round, outside) = run(&mut fake, 4, None);
    assert_eq!((round.failures(), outside.failures()), (0, 4));
}

#[test]
fn a_group_that_is_away_takes_no_load_from_the_others() {
    // Two groups of two lanes; the second has no connection.
    let mut fake = Fake::new(4);
    (fake.per_group, fake.away) = (2, vec![2, 3]);
    let seen = run_groups(&mut fake, 4, Some(1e6));
    let [(0, first, _), (1, second, _)] = &seen.groups[..] else { panic!() };
    assert_eq!((first.failures(), second.ops), (0, 0));
    assert!(first.ops > 0);
    // Of up to 600 that its schedule wanted, all failed or were not started at the end.
    let away = second.errors.get(&Failed::Away).copied().unwrap_or(0);
    assert!(away + second.unstarted >= 300, "{away} and {}", second.unstarted);
    assert_eq!(second.failures(), away);
    let all: u64 = seen.rounds.iter().map(RoundStats::failures).sum();
    assert_eq!(all, away, "they are in the totals");
    assert_eq!((fake.lanes[2], fake.lanes[3]), (0, 0));
}

#[test]
fn a_group_with_one_lane_left_has_its_load_on_that() {
    let mut fake = Fake::new(2);
    (fake.per_group, fake.away) = (2, vec![0]);
    let seen = run_groups(&mut fake, 4, Some(1e6));
    assert_eq!(fake.lanes[0], 0);
    let all: u64 = seen.rounds.iter().map(RoundStats::failures).sum();
    assert_eq!(all, 0);
    assert!(fake.lanes[1] >= 100, "{}", fake.lanes[1]);
}

#[test]
fn groups_add_up_to_the_whole() {
    let mut fake = Fake::new(4);
    fake.per_group = 1;
    let seen = run_groups(&mut fake, 2, None);
    let of_groups: u64 = seen.groups.iter().map(|(_, stats, _)| stats.ops).sum();
    assert_eq!(of_groups, seen.rounds[0].ops);
    assert!(seen.groups.iter().all(|(_, stats, _)| stats.ops > 0));
    let mut alone = Fake::new(4);
    let seen = run_groups(&mut alone, 2, None);
    assert_eq!(seen.groups[0].1.ops, seen.rounds[0].ops + seen.rounds[1].ops);
}

#[test]
fn time_without_work_is_idle() {
    let mut busy = Fake::new(1);
    let (round, _) = run(&mut busy, 1, None);
    assert_eq!(round.span_ns, 300 * MS);
    assert!(round.idle_ns < round.span_ns / 2, "{}", round.idle_ns);
    // One read in 10 ms: the thread waits nearly all of the time.
    let (round, _) = run(&mut Fake::new(1), 1, Some(10.0 * MS as f64));
    assert!(round.idle_ns > round.span_ns / 2, "{}", round.idle_ns);
}
