use super::*;
use crate::bench::pattern::{Order, PatternOptions};
use crate::bench::target::Polled;

const MS: u64 = 1_000_000;

/// A server that answers at once, or holds some reads for a while.
struct Fake {
    lanes: Vec<u64>,
    in_flight: VecDeque<(Op, bool)>,
    /// Numbers of the reads that it holds, until when, and how they end.
    held: std::ops::Range<u64>,
    until: u64,
    status: Status,
}

impl Fake {
    fn new(lanes: usize) -> Self {
        let (lanes, in_flight) = (vec![0; lanes], VecDeque::new());
        Self { lanes, in_flight, held: 0..0, until: 0, status: Status::Ok }
    }
}

impl Target for &mut Fake {
    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn submit(&mut self, lane: usize, op: Op) -> Result<bool> {
        let held = self.held.contains(&self.lanes.iter().sum());
        self.lanes[lane] += 1;
        self.in_flight.push_back((op, held));
        Ok(true)
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
                status,
                detail: 0,
                bytes: op.len,
                corrupt: false,
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
    let load = Load {
        depth,
        interval,
        phase: 0,
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
    let job = Job { target: fake, pattern, load, clock, counts_cpu: true, progress, stop };
    let [round, outside] = job.run().unwrap().try_into().unwrap();
    (round, outside)
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
fn time_without_work_is_idle() {
    let mut busy = Fake::new(1);
    let (round, _) = run(&mut busy, 1, None);
    assert_eq!(round.span_ns, 300 * MS);
    assert!(round.idle_ns < round.span_ns / 2, "{}", round.idle_ns);
    // One read in 10 ms: the thread waits nearly all of the time.
    let (round, _) = run(&mut Fake::new(1), 1, Some(10.0 * MS as f64));
    assert!(round.idle_ns > round.span_ns / 2, "{}", round.idle_ns);
}
