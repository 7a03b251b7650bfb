//! The index alone: memory for ten million objects, and lookups by 1 to 8 threads.
//!
//! ```text
//! cargo bench --bench index [-- OBJECTS [SECONDS]]
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace::object::{Digest, Entry, Index, Offer};

/// The digest of object `number`: as evenly spread as a SHA-256, at less cost.
fn digest(number: u64) -> Digest {
    let word = |salt: u64| {
        let mut z = (number ^ salt).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    Digest::from_words([word(1 << 60), word(2 << 60), word(3 << 60)])
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status of this process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a VmRSS line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") << 10
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse::<f64>().ok());
    let objects = numbers.next().unwrap_or(10e6) as u32;
    let seconds = Duration::from_secs_f64(numbers.next().unwrap_or(2.0));

    let before = resident();
    let begun = Instant::now();
    let index = Index::new(objects);
    for number in 0..objects {
        let entry = Entry { slot: number, length: 1 << 20, sequence: 1, damaged: false };
        assert_eq!(index.offer(&digest(number.into()), entry), Offer::New);
    }
    let filled = begun.elapsed();
    let taken = resident() - before;
    println!(
        "{objects} objects entered in {:.2} s; {:.0} MiB resident, {:.1} bytes an object",
        filled.as_secs_f64(),
        taken as f64 / f64::from(1 << 20),
        taken as f64 / f64::from(objects)
    );

    let mut one = 0.0;
    for threads in [1, 2, 4, 8] {
        let (stop, total) = (AtomicBool::new(false), AtomicU64::new(0));
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads as u64 {
                let (index, stop, total) = (&index, &stop, &total);
                scope.spawn(move || {
                    let mut count = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        for _ in 0..1024 {
                            // In an order that no cache foresees.
                            count += 1;
                            let [drawn, ..] = digest(thread << 40 | count).words();
                            let number = ((u128::from(drawn) * u128::from(objects)) >> 64) as u64;
                            let entry = index.get(&digest(number)).expect("it was entered");
                            assert_eq!(u64::from(entry.slot), number);
                        }
                    }
                    total.fetch_add(count, Ordering::Relaxed);
                });
            }
            std::thread::sleep(seconds);
            stop.store(true, Ordering::Relaxed);
        });
        let rate = total.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
        if threads == 1 {
            one = rate;
        }
        println!(
            "{threads} threads: {:.2} million lookups/s, {:.2} of one",
            rate / 1e6,
            rate / one
        );
    }
}
