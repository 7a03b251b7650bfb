//! Threads of a process as /proc shows them (proc(5), Documentation/scheduler/sched-stats.rst).

use super::Root;
use crate::error::{Error, Kind, Result};

/// What one thread has used so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Thread id.
    pub tid: u32,
    /// Name: `worker-0`, `iou-wrk-123`.
    pub name: String,
    /// CPU time in user mode, in nanoseconds, by the kernel's ticks.
    pub user_ns: u64,
    /// CPU time in the kernel, likewise.
    pub system_ns: u64,
    /// Time on a CPU in nanoseconds, exactly; `None` on a kernel that does not count it.
    pub run_ns: Option<u64>,
    /// Time that it could have run and had no CPU, in nanoseconds.
    pub wait_ns: Option<u64>,
    /// Page faults, minor and major.
    pub page_faults: u64,
    /// Context switches, voluntary and not.
    pub switches: u64,
    /// The CPU it ran on last.
    pub cpu: usize,
}

/// Nanoseconds of a tick of `utime` and `stime`: USER_HZ is 100 on all machines of Linux.
const TICK_NS: u64 = 10_000_000;

/// All threads of a process.
///
/// # Errors
///
/// Where the process is gone. A thread that ends meanwhile is left out.
pub fn tasks(root: &Root, pid: u32) -> Result<Vec<Task>> {
    let folder = format!("/proc/{pid}/task");
    let tids = root.list(&folder).map_err(|e| {
        Error::new(Kind::NotFound, format!("there is no process {pid} to look at")).caused_by(e)
    })?;
    Ok(tids.iter().filter_map(|tid| task(root, &folder, tid.parse().ok()?)).collect())
}

fn task(root: &Root, folder: &str, tid: u32) -> Option<Task> {
    let stat = root.read(format!("{folder}/{tid}/stat")).ok()?;
    // The name may hold anything, also brackets: fields begin behind the last one.
    let (head, rest) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc(5) counts from 1 with pid and comm first: field N is here at N - 3.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let status = root.read(format!("{folder}/{tid}/status")).unwrap_or_default();
    let switches = |which: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(which))?;
        line.trim().parse::<u64>().ok()
    };
    let schedstat = root.read(format!("{folder}/{tid}/schedstat")).ok();
    let sched = |number: usize| {
        schedstat.as_deref()?.split_ascii_whitespace().nth(number)?.parse::<u64>().ok()
    };
    Some(Task {
        tid,
        name,
        user_ns: field(14)? * TICK_NS,
        system_ns: field(15)? * TICK_NS,
        run_ns: sched(0),
        wait_ns: sched(1),
        page_faults: field(10)? + field(12)?,
        switches: switches("voluntary_ctxt_switches:").unwrap_or(0)
            + switches("nonvoluntary_ctxt_switches:").unwrap_or(0),
        cpu: field(39)? as usize,
    })
}

/// Time of one CPU by kind, in nanoseconds since boot: the `cpuN` lines of /proc/stat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// User, nice, system, interrupts.
    pub busy_ns: u64,
    /// Idle, and waiting for I/O.
    pub idle_ns: u64,
    /// Taken away by a hypervisor.
    pub steal_ns: u64,
}

/// The time of `cpu`; `None` where /proc/stat has no such CPU.
pub fn cpu_time(root: &Root, cpu: usize) -> Option<CpuTime> {
    let stat = root.read("/proc/stat").ok()?;
    let prefix = format!("cpu{cpu} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&prefix))?;
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    let at = |n: usize| ticks.get(n).copied().unwrap_or(0) * TICK_NS;
    Some(CpuTime {
        busy_ns: at(0) + at(1) + at(2) + at(5) + at(6),
        idle_ns: at(3) + at(4),
        steal_ns: at(7),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_threads() {
        let tasks = tasks(&Root::system(), std::process::id()).unwrap();
        assert!(!tasks.is_empty());
        assert!(tasks.iter().all(|task| !task.name.is_empty()));
        assert!(super::tasks(&Root::system(), u32::MAX).unwrap_err().what().contains("no process"));
    }

    #[test]
    fn fields_are_those_of_the_manual() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("proc/7/task/8");
        std::fs::create_dir_all(&folder).unwrap();
        let stat = "8 (a) b) R 1 1 1 0 -1 0 11 0 2 0 30 40 0 0 20 0 1 0 9 0 0 0 0 0 0 0 0 0 0 0 0 \
                    0 0 0 0 3 0 0";
        std::fs::write(folder.join("stat"), stat).unwrap();
        std::fs::write(folder.join("schedstat"), "500 60 7\n").unwrap();
        let status = "Name:\ta\nvoluntary_ctxt_switches:\t4\nnonvoluntary_ctxt_switches:\t5\n";
        std::fs::write(folder.join("status"), status).unwrap();
        let stat = "cpu  0\ncpu0 9 9 9 9\ncpu3 1 2 3 40 5 6 7 80 0 0\n";
        std::fs::write(dir.path().join("proc/stat"), stat).unwrap();
        let root = Root::at(dir.path());
        let found = tasks(&root, 7).unwrap();
        let wanted = Task {
            tid: 8,
            name: "a) b".into(),
            user_ns: 300_000_000,
            system_ns: 400_000_000,
            run_ns: Some(500),
            wait_ns: Some(60),
            page_faults: 13,
            switches: 9,
            cpu: 3,
        };
        assert_eq!(found, [wanted]);
        let time = cpu_time(&root, 3).unwrap();
        assert_eq!(time.busy_ns, (1 + 2 + 3 + 6 + 7) * TICK_NS);
        assert_eq!((time.idle_ns, time.steal_ns), (45 * TICK_NS, 80 * TICK_NS));
        assert_eq!(cpu_time(&root, 1), None);
    }
}
