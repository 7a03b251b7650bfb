//! Which CPUs this process may run on, and pinning a thread to one.

use crate::error::{Context, Error, Kind, Result};

/// CPUs that an affinity mask of this module can name.
const CPUS: usize = libc::CPU_SETSIZE as usize;

/// CPUs that the calling thread may run on, ascending (sched_getaffinity(2)).
pub fn allowed() -> Result<Vec<usize>> {
    // SAFETY: cpu_set_t is plain bits; all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the given size into the set.
    let done = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    if done != 0 {
        return Err(std::io::Error::last_os_error())
            .context(|| "cannot read the CPU affinity of this process".into());
    }
    // SAFETY: CPU_ISSET reads a bit below CPU_SETSIZE.
    Ok((0..CPUS).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect())
}

/// Pins the calling thread to one CPU.
pub fn pin(cpu: usize) -> Result<()> {
    restrict(&[cpu])
}

/// Keeps the calling thread, and threads that it starts from now on, to these CPUs.
pub fn restrict(cpus: &[usize]) -> Result<()> {
    // SAFETY: as in `allowed`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().copied() {
        if cpu >= CPUS {
            return Err(Error::usage(format!("CPU {cpu} is out of range")));
        }
        // SAFETY: cpu is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the kernel reads the given size of the set; 0 is the calling thread.
    if unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) } != 0 {
        let cause = std::io::Error::last_os_error();
        let named: Vec<String> = cpus.iter().map(usize::to_string).collect();
        return Err(cannot_pin(&named.join(", ")).caused_by(cause));
    }
    Ok(())
}

/// The error of CPUs, as a list, that this process may not use.
pub fn cannot_pin(cpu: &str) -> Error {
    Error::new(Kind::Usage, format!("cannot pin a thread to CPU {cpu}"))
        .remedy("name CPUs that are online and in this process's cpuset by --cores")
}

/// The CPUs for `count` threads: the lowest allowed ones, CPU 0 last, because the kernel puts its
/// own work there first.
pub fn choose(count: usize) -> Result<Vec<usize>> {
    let mut cpus = allowed()?;
    if cpus.first() == Some(&0) {
        cpus.rotate_left(1);
    }
    if cpus.len() < count {
        return Err(Error::usage(format!(
            "{count} threads need as many CPUs; this process may use {}",
            cpus.len()
        ))
        .remedy("ask for fewer workers, or widen the cpuset"));
    }
    cpus.truncate(count);
    Ok(cpus)
}

/// CPU time, user and system, of this process in nanoseconds (getrusage(2)): of all its threads,
/// those that the kernel made for an io_uring among them.
pub fn process_cpu_ns() -> Result<(u64, u64)> {
    // SAFETY: rusage is plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills in the struct.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) } != 0 {
        return Err(std::io::Error::last_os_error())
            .context(|| "cannot read the CPU time of this process".into());
    }
    let nanos = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
    Ok((nanos(usage.ru_utime), nanos(usage.ru_stime)))
}

/// CPU time of the calling thread in nanoseconds (CLOCK_THREAD_CPUTIME_ID, clock_gettime(2)).
pub fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills in the struct; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The monotonic clock (CLOCK_MONOTONIC) in microseconds, as service managers compare it.
pub fn monotonic_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills in the struct; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

/// Parses a CPU list as the kernel writes it: `0,2-4`. Duplicates are refused.
pub fn parse_list(text: &str) -> Result<Vec<usize>> {
    let bad =
        || Error::usage(format!("\"{text}\" is not a list of CPUs")).remedy("write it like 1,3-5");
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let from: usize = from.trim().parse().map_err(|_| bad())?;
        let to: usize = to.trim().parse().map_err(|_| bad())?;
        if from > to || to >= CPUS {
            return Err(bad());
        }
        cpus.extend(from..=to);
    }
    let mut unique = cpus.clone();
    unique.sort_unstable();
    unique.dedup();
    if unique.len() != cpus.len() {
        return Err(Error::usage(format!("\"{text}\" names a CPU twice"))
            .remedy("a worker needs a CPU of its own: name each once"));
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_parse() {
        assert_eq!(parse_list("1,3-5").unwrap(), [1, 3, 4, 5]);
        assert_eq!(parse_list("0\n").unwrap(), [0]);
        for text in ["", "a", "3-1", "1,1", "0-2,1", "99999"] {
            assert!(parse_list(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cpu_0_comes_last() {
        let allowed = allowed().unwrap();
        let chosen = choose(allowed.len()).unwrap();
        assert_eq!(chosen.len(), allowed.len());
        if allowed.len() > 1 && allowed[0] == 0 {
            assert_eq!(chosen.last(), Some(&0));
        }
        assert!(choose(allowed.len() + 1).is_err());
    }

    #[test]
    fn pinning_shows() {
        std::thread::spawn(|| {
            let cpu = *allowed().unwrap().last().unwrap();
            pin(cpu).unwrap();
            assert_eq!(allowed().unwrap(), [cpu]);
            assert!(pin(CPUS).is_err());
        })
        .join()
        .unwrap();
    }
}
