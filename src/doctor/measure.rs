//! The two rates that no file tells: how fast a core computes the CRC, and how fast the cores
//! together read memory. Each takes a tenth of a second.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::ceiling::Rates;
use crate::check::crc;
use crate::host::affinity;

/// Time of one measurement.
const TIME: Duration = Duration::from_millis(100);

/// Bytes that are checksummed at once: a payload of the default size.
const PAYLOAD: usize = 1 << 20;

/// Bytes that each core reads through: beyond what caches of a core hold.
const WIDE: usize = 32 << 20;

/// Measures on these CPUs, or on one where none is named.
pub fn measure(cores: &[usize]) -> Rates {
    Rates {
        crc_per_core: Some(on(cores.first().copied(), crc_rate)),
        memory: Some(memory_rate(cores)),
        drive: None,
    }
}

/// Runs `job` on a thread of its own that is pinned, where that is allowed.
fn on(cpu: Option<usize>, job: impl FnOnce() -> f64 + Send) -> f64 {
    std::thread::scope(|scope| {
        let work = move || {
            if let Some(cpu) = cpu
                && let Err(e) = affinity::pin(cpu)
            {
                log::info!("measured on any CPU: {}", e.report());
            }
            job()
        };
        scope.spawn(work).join().expect("a measurement does not panic")
    })
}

/// Bytes per second of one core's CRC-64/NVME over a payload that is in its cache.
fn crc_rate() -> f64 {
    let payload = vec![0x5A_u8; PAYLOAD];
    rate(|| {
        black_box(crc(black_box(&payload)));
        PAYLOAD
    })
}

/// Bytes per second that the cores read from memory together.
fn memory_rate(cores: &[usize]) -> f64 {
    let places: Vec<Option<usize>> = match cores.is_empty() {
        true => vec![None],
        false => cores.iter().copied().map(Some).collect(),
    };
    std::thread::scope(|scope| {
        let job = |cpu| scope.spawn(move || on(cpu, read_rate));
        let running: Vec<_> = places.into_iter().map(job).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}

fn read_rate() -> f64 {
    let bytes = vec![1_u64; WIDE / 8];
    rate(|| {
        black_box(black_box(&bytes).iter().fold(0_u64, |sum, word| sum.wrapping_add(*word)));
        WIDE
    })
}

/// Repeats `work`, which says how many bytes it went through, for [`TIME`], and at least once.
/// The rate is per second of CPU time: what a core can do, whoever else runs on it meanwhile.
fn rate(mut work: impl FnMut() -> usize) -> f64 {
    work();
    let (start, before) = (Instant::now(), affinity::thread_cpu_ns());
    let mut bytes = 0;
    loop {
        bytes += work();
        if start.elapsed() >= TIME {
            let spent = affinity::thread_cpu_ns() - before;
            return bytes as f64 / Duration::from_nanos(spent.max(1)).as_secs_f64();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_off_the_core_does_not_count() {
        let by_the_wall = 1000.0 / 0.03;
        let rate = rate(|| {
            std::thread::sleep(Duration::from_millis(30));
            1000
        });
        assert!(rate > 10.0 * by_the_wall, "{rate}");
    }
}
