//! A client that reads one drive all the time, and counts how its reads end.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace::client::{Client, ClientOptions, Read, Submitted};
use millrace::memory::Pages;
use millrace::wire::Status;

/// Bytes of each read.
pub const LEN: u32 = 16 << 10;

/// Bytes from the start of the drive that are read.
const SPAN: u64 = 8 << 20;

/// How the reads of one client have ended so far, and its end.
#[derive(Debug, Default)]
pub struct Reader {
    pub ok: AtomicU64,
    pub gone: AtomicU64,
    pub aborted: AtomicU64,
    /// No more reads; those in flight are awaited.
    pub stop: AtomicBool,
}

impl Reader {
    /// Reads `drive` with `depth` in flight until it is stopped. Each read has to end once, and
    /// data that comes has to be right. Any status but ok, gone and aborted is a failure.
    pub fn run(&self, address: &str, drive: u16, depth: u16, expected: &dyn Fn(u64, &mut [u8])) {
        let options = ClientOptions {
            depth,
            max_read: LEN as usize,
            pages: Pages::Base,
            ..ClientOptions::default()
        };
        let mut client = Client::connect(address, &options).unwrap_or_else(|e| panic!("{e}"));
        let place = |tag: u64| tag * u64::from(LEN) % SPAN;
        let mut open = HashSet::new();
        let mut out = Vec::with_capacity(depth.into());
        let mut wanted = vec![0; LEN as usize];
        let mut next = 0;
        let mut last = Instant::now();
        while !self.stop.load(Ordering::Relaxed) || !open.is_empty() {
            while !self.stop.load(Ordering::Relaxed) && open.len() < depth.into() {
                let read = Read { drive, offset: place(next), len: LEN, tag: next };
                match client.submit(read).expect("a read that suits") {
                    Submitted::Queued => assert!(open.insert(next)),
                    Submitted::Busy => break,
                }
                next += 1;
            }
            client.flush().unwrap_or_else(|e| panic!("{e}"));
            client.poll(&mut out).unwrap_or_else(|e| panic!("{e}"));
            for done in out.drain(..) {
                assert!(open.remove(&done.tag), "{} ended twice", done.tag);
                last = Instant::now();
                match done.record.status() {
                    Status::Ok => {
                        client.verify(&done).unwrap_or_else(|e| panic!("{e}"));
                        expected(place(done.tag), &mut wanted);
                        let data = client.payload(&done).expect("verified");
                        assert!(data == wanted, "drive {drive} at {}", place(done.tag));
                        self.ok.fetch_add(1, Ordering::Relaxed);
                    }
                    Status::Gone => drop(self.gone.fetch_add(1, Ordering::Relaxed)),
                    Status::Aborted => drop(self.aborted.fetch_add(1, Ordering::Relaxed)),
                    other => panic!("{other:?} was not asked for"),
                }
                client.recycle(done);
            }
            let silent = last.elapsed();
            assert!(silent < Duration::from_secs(120), "{} reads do not end", open.len());
            std::thread::yield_now();
        }
    }

    pub fn counts(&self) -> (u64, u64, u64) {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (count(&self.ok), count(&self.gone), count(&self.aborted))
    }
}
