//! When a freed slot may be written again: once every read that began before it was freed is over.
//!
//! ```text
//!   worker: index says slot 7 .. read of slot 7 in flight ............ read is over
//!   other:               slot 7 freed, at epoch 4   not yet, not yet,  free: all are at 4 or later
//! ```
//!
//! Each worker publishes the epoch of its oldest read in flight, in a cache line of its own, and
//! reads one shared word. Nothing on the way of a read is a locked instruction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Published by a reader that is gone, or has not come yet.
const ABSENT: u64 = u64::MAX;

/// On two lines of its own, since processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Line(AtomicU64);

/// The epochs of a set of readers.
#[derive(Debug)]
pub(super) struct Epochs {
    now: Line,
    oldest: Box<[Line]>,
}

impl Epochs {
    /// For up to `readers` of them.
    pub fn new(readers: usize) -> Self {
        let oldest = (0..readers).map(|_| Line(AtomicU64::new(ABSENT))).collect();
        Self { now: Line(AtomicU64::new(1)), oldest }
    }

    /// Begins a new epoch, after something was taken out of the index: [`Epochs::reached`] of the
    /// returned one tells when no read can know of it any more.
    pub fn advance(&self) -> u64 {
        // Release: who sees the new epoch sees the index as it was left.
        self.now.0.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The epoch that every reader has reached.
    pub fn reached(&self) -> u64 {
        // Against a reader that joins at this moment: either it is seen here, or it sees what was
        // done before.
        fence(Ordering::SeqCst);
        // Acquire: the reads before it are over.
        self.oldest.iter().map(|line| line.0.load(Ordering::Acquire)).min().unwrap_or(ABSENT)
    }
}

/// Reads that began in one epoch, or in a few.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    epoch: u64,
    reads: u32,
}

/// Proof that a read has begun: to be given back when it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a read that is never ended keeps freed slots from reuse"]
pub struct Ticket(u8);

/// One worker's reads. Two buckets are enough: new reads go to one of them, and once the other is
/// empty they change places.
#[derive(Debug)]
pub(super) struct Reader {
    epochs: Arc<Epochs>,
    number: usize,
    buckets: [Bucket; 2],
    current: u8,
}

impl Reader {
    /// The reader of a number that is not taken; `None` where all are.
    pub fn join(epochs: &Arc<Epochs>) -> Option<Self> {
        let now = epochs.now.0.load(Ordering::Acquire);
        // Taken by publishing; from here on nothing that is freed later comes free.
        let number = epochs.oldest.iter().position(|line| {
            line.0.compare_exchange(ABSENT, now, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        fence(Ordering::SeqCst);
        let bucket = Bucket { epoch: now, reads: 0 };
        Some(Self { epochs: Arc::clone(epochs), number, buckets: [bucket; 2], current: 0 })
    }

    /// Before the index is asked for where to read.
    #[inline]
    pub fn begin(&mut self) -> Ticket {
        self.buckets[usize::from(self.current)].reads += 1;
        Ticket(self.current)
    }

    /// After the read, when its bytes are not needed from the drive any more.
    #[inline]
    pub fn end(&mut self, ticket: Ticket) {
        let bucket = &mut self.buckets[usize::from(ticket.0)];
        assert!(bucket.reads > 0, "a read ended twice");
        bucket.reads -= 1;
    }

    /// Reads that have begun and not ended.
    pub fn in_flight(&self) -> u32 {
        self.buckets[0].reads + self.buckets[1].reads
    }

    /// Once in every turn of the worker's loop, idle or not: tells the others how far it is.
    #[inline]
    pub fn turn(&mut self) {
        let now = self.epochs.now.0.load(Ordering::Acquire);
        let current = usize::from(self.current);
        if self.buckets[current].epoch == now {
            // Nothing was freed since; but the other bucket may have run empty.
            if self.buckets[1 - current].reads == 0 {
                self.publish(now);
            }
            return;
        }
        if self.buckets[1 - current].reads > 0 {
            return;
        }
        let older = self.buckets[current];
        self.buckets[1 - current] = Bucket { epoch: now, reads: 0 };
        self.current = 1 - self.current;
        self.publish(if older.reads > 0 { older.epoch } else { now });
    }

    #[inline]
    fn publish(&self, epoch: u64) {
        let line = &self.epochs.oldest[self.number].0;
        if line.load(Ordering::Relaxed) != epoch {
            line.store(epoch, Ordering::Release);
        }
    }
}

impl Drop for Reader {
    /// What it has in flight at this moment is a queue's, which waits for it or leaks it: memory
    /// is what it would write to then, not a slot of the drive.
    fn drop(&mut self) {
        self.epochs.oldest[self.number].0.store(ABSENT, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_holds_back_what_was_freed_after_it_began_and_nothing_else() {
        let epochs = Arc::new(Epochs::new(2));
        let (mut one, mut two) = (Reader::join(&epochs).unwrap(), Reader::join(&epochs).unwrap());
        let early = one.begin();
        let freed = epochs.advance();
        for _ in 0..3 {
            one.turn();
            two.turn();
            assert!(epochs.reached() < freed, "the early read may know of it");
        }
        let late = one.begin();
        one.end(early);
        one.turn();
        two.turn();
        assert!(epochs.reached() >= freed, "the late read cannot know of it");
        one.end(late);
    }

    #[test]
    fn reads_that_never_stop_coming_do_not_hold_back_for_ever() {
        let epochs = Arc::new(Epochs::new(1));
        let mut reader = Reader::join(&epochs).unwrap();
        let mut reads = std::collections::VecDeque::new();
        for _ in 0..8 {
            reads.push_back(reader.begin());
        }
        for _ in 0..100 {
            let freed = epochs.advance();
            // Twice the reads in flight come and go.
            for _ in 0..16 {
                reader.turn();
                reader.end(reads.pop_front().unwrap());
                reads.push_back(reader.begin());
            }
            reader.turn();
            assert!(epochs.reached() >= freed);
        }
        assert_eq!(reader.in_flight(), 8);
    }

    #[test]
    fn who_is_gone_holds_back_nothing_and_leaves_its_place() {
        let epochs = Arc::new(Epochs::new(1));
        let mut reader = Reader::join(&epochs).unwrap();
        assert!(Reader::join(&epochs).is_none(), "one place");
        let _lost = reader.begin();
        let freed = epochs.advance();
        reader.turn();
        assert!(epochs.reached() < freed);
        drop(reader);
        assert!(epochs.reached() >= freed);
        assert!(Reader::join(&epochs).is_some());
    }
}
