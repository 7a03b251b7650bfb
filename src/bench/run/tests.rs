use super::*;
use crate::bench::pattern::Order;
use crate::bench::target::{Finished, Op, Polled, Taken};

struct Broken;

impl Target for Broken {
    fn lanes(&self) -> usize {
        1
    }

    fn submit(&mut self, _: usize, _: Op) -> Result<Taken> {
        Ok(Taken::Queued)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn poll(&mut self, _: &Clock, _: &mut Vec<Finished>) -> Result<Option<Polled>> {
        panic!("a fault of the target");
    }
}

fn options(threads: usize) -> RunOptions {
    RunOptions {
        threads,
        cores: Vec::new(),
        depth: 1,
        rate: None,
        warmup: Duration::ZERO,
        duration: Duration::from_millis(100),
        rounds: 1,
        drain: Duration::ZERO,
        pattern: PatternOptions { io_size: 512, align: 512, order: Order::Random, seed: 1 },
        progress: true,
        observe: None,
    }
}

/// The error of a run, which must end.
fn failure(panics_in_make: bool) -> Error {
    let (done, outcome) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let make = |number, _| {
            assert!(!(panics_in_make && number == 0), "a fault on the way to the target");
            Ok((Broken, BTreeMap::from([(0, vec![(1 << 20, 512)])])))
        };
        done.send(run(&options(2), make).err()).unwrap();
    });
    let ended = outcome.recv_timeout(Duration::from_secs(20));
    ended.expect("the run hangs").expect("the run fails")
}

#[test]
fn a_thread_that_panics_ends_the_run() {
    for panics_in_make in [false, true] {
        let error = failure(panics_in_make);
        assert!(error.what().contains("panicked"), "{error}");
    }
}

#[test]
fn two_threads_do_not_share_a_cpu() {
    let shared = RunOptions { cores: vec![0], ..options(2) };
    let error = run(&shared, |_, _| Ok((Broken, BTreeMap::new()))).unwrap_err();
    assert!(error.what().contains("2 threads on 1 CPUs"), "{error}");
}
