//! Threads of the process that reads: CPU time, faults, switches, the kernel's helpers, and
//! hardware events.

use std::collections::BTreeMap;

use super::{LOAD_THREAD, Totals};
use crate::error::{Error, Kind, Result};
use crate::host::Root;
use crate::host::perf::{Counter, Event};
use crate::host::task::{Task, tasks};

/// Names of a server's workers begin with this.
const WORKER: &str = "worker-";
/// Names of the kernel's helpers of io_uring: requests that it could not submit without waiting,
/// and the thread that polls for submissions.
const IO_WQ: &str = "iou-wrk-";
const SQPOLL: &str = "iou-sqp-";

const ALWAYS: [(&str, Event); 4] = [
    ("cycles", Event::Cycles),
    ("instructions", Event::Instructions),
    ("dtlb_load_misses", Event::DtlbLoadMisses),
    ("l1d_load_misses", Event::L1dLoadMisses),
];

/// Each hit costs the load time, so only a traced run has them. A kernel has one or the other of
/// the two functions that look a file up by its number, by release.
const TRACED: [(&str, &[Event]); 3] = [
    ("syscalls", &[Event::TracePoint("raw_syscalls/sys_enter")]),
    ("io_wq_requests", &[Event::TracePoint("io_uring/io_uring_queue_async_work")]),
    ("fget", &[Event::Calls("fget"), Event::Calls("__fdget")]),
];

/// The open counters of one figure, over all threads; or why there are none.
type Opened = Result<Vec<Counter>, String>;

pub(super) struct Threads {
    pid: u32,
    before: Vec<Task>,
    counters: Vec<(&'static str, Opened, Option<f64>)>,
}

impl Threads {
    pub(super) fn open(root: &Root, pid: u32, traced: bool) -> Result<Self> {
        let before = tasks(root, pid)?;
        let readers: Vec<u32> = before.iter().filter(|t| reads(t)).map(|t| t.tid).collect();
        if readers.is_empty() {
            return Err(Error::new(
                Kind::NotFound,
                format!(
                    "process {pid} has no thread that reads: none is called worker-N or load-N"
                ),
            )
            .remedy("name the process of `millrace serve` or `millrace local`"));
        }
        let single = ALWAYS.iter().map(|(name, event)| (*name, std::slice::from_ref(event)));
        let mut counters = Vec::new();
        for (name, events) in single {
            counters.push((name, open(root, &readers, events), None));
        }
        for (name, events) in TRACED {
            let opened = match traced {
                true => open(root, &readers, events),
                false => Err("counted in traced runs only, since counting it takes time".into()),
            };
            counters.push((name, opened, None));
        }
        Ok(Self { pid, before, counters })
    }

    /// CPUs of the threads that read.
    pub(super) fn cpus(&self) -> Vec<usize> {
        let mut cpus: Vec<usize> =
            self.before.iter().filter(|task| reads(task)).map(|task| task.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    pub(super) fn begin(&mut self, root: &Root) -> Result<()> {
        self.before = tasks(root, self.pid)?;
        for (_, opened, start) in &mut self.counters {
            if let Ok(counters) = opened {
                match sum(counters) {
                    Ok(count) => *start = Some(count),
                    Err(why) => *opened = Err(why),
                }
            }
        }
        Ok(())
    }

    /// Adds its figures; gives the time in nanoseconds that threads of the process had, by CPU.
    pub(super) fn end(&mut self, root: &Root, totals: &mut Totals) -> Result<BTreeMap<usize, u64>> {
        for (name, opened, start) in &mut self.counters {
            let count = match (opened, start) {
                (Ok(counters), Some(start)) => {
                    if counters.iter().any(|counter| counter.user_only) {
                        let limit = "user mode only: kernel.perf_event_paranoid forbids the rest";
                        totals.limits.insert(*name, limit.to_owned());
                    }
                    sum(counters).map(|count| count - *start)
                }
                (Ok(_), None) => Err("the run ended before its rounds began".to_owned()),
                (Err(why), _) => Err(why.clone()),
            };
            totals.sums.insert(*name, count);
        }
        let after = tasks(root, self.pid)?;
        let grown = |task: &Task, field: &dyn Fn(&Task) -> u64| {
            let before = self.before.iter().find(|old| old.tid == task.tid).map_or(0, field);
            field(task).saturating_sub(before)
        };
        let total = |wanted: &dyn Fn(&Task) -> bool, field: &dyn Fn(&Task) -> u64| {
            let tasks = after.iter().filter(|task| wanted(task));
            tasks.map(|task| grown(task, field)).sum::<u64>() as f64
        };
        let any = |_: &Task| true;
        let named = |prefix: &'static str| move |task: &Task| task.name.starts_with(prefix);
        totals.sums.insert("cpu_user_ns", Ok(total(&any, &|t| t.user_ns)));
        totals.sums.insert("cpu_system_ns", Ok(total(&any, &|t| t.system_ns)));
        totals.sums.insert("page_faults", Ok(total(&reads, &|t| t.page_faults)));
        totals.sums.insert("context_switches", Ok(total(&reads, &|t| t.switches)));
        let exact = after.iter().all(|task| task.run_ns.is_some());
        let run = |wanted: &dyn Fn(&Task) -> bool| match exact {
            true => Ok(total(wanted, &|t| t.run_ns.unwrap_or(0))),
            false => Err("this kernel has no schedstat of threads".to_owned()),
        };
        totals.sums.insert("io_wq_cpu_ns", run(&named(IO_WQ)));
        totals.sums.insert("sqpoll_cpu_ns", run(&named(SQPOLL)));
        let count = |prefix| after.iter().filter(|task| task.name.starts_with(prefix)).count();
        totals.plain.insert("io_wq_threads", Ok(count(IO_WQ) as f64));
        // Shares of one CPU, as a mean over the threads that read.
        let readers = after.iter().filter(|task| reads(task)).count().max(1) as f64;
        let share = |ns: f64| ns / 1e9 / totals.seconds / readers;
        totals.plain.insert("reader_run_share", run(&reads).map(share));
        let wait = match exact {
            true => Ok(share(total(&reads, &|t| t.wait_ns.unwrap_or(0)))),
            false => Err("this kernel has no schedstat of threads".to_owned()),
        };
        totals.plain.insert("reader_wait_share", wait);
        let mut by_cpu = BTreeMap::new();
        for task in &after {
            let ran = grown(task, &|t| t.run_ns.unwrap_or(t.user_ns + t.system_ns));
            *by_cpu.entry(task.cpu).or_default() += ran;
        }
        Ok(by_cpu)
    }
}

/// A thread that submits reads.
fn reads(task: &Task) -> bool {
    task.name.starts_with(WORKER) || task.name.starts_with(LOAD_THREAD)
}

/// Counters of whichever of `events` exist, for all threads.
fn open(root: &Root, tids: &[u32], events: &[Event]) -> Opened {
    let mut counters = Vec::new();
    let mut why = String::new();
    for event in events {
        let opened: Opened = tids.iter().map(|tid| Counter::open(root, *tid, *event)).collect();
        match opened {
            Ok(opened) => counters.extend(opened),
            Err(reason) => why = reason,
        }
    }
    if counters.is_empty() { Err(why) } else { Ok(counters) }
}

fn sum(counters: &mut [Counter]) -> Result<f64, String> {
    let mut sum = 0.0;
    for counter in counters {
        sum += counter
            .read()
            .map_err(|e| format!("cannot be read: {e}"))?
            .ok_or("other users of the machine's counters left none free")?;
    }
    Ok(sum)
}
