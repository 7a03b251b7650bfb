//! One change of a key at a time, also while the drives are at work on it: nobody waits here, who
//! finds a key taken comes again in the next turn of its loop.

use std::sync::atomic::{AtomicU8, Ordering};

use super::Digest;

/// Places. Keys that share one wait for each other, which costs time and nothing else: with 512
/// changes in flight, one in 128 meets another.
const PLACES: usize = 1 << 16;

const FREE: u8 = 0;
const HELD: u8 = 1;
const STUCK: u8 = 2;

/// The answer to [`KeyLocks::try_hold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// It is the caller's.
    Held,
    /// Another change is in flight.
    Busy,
    /// No change is possible until the store is opened anew: see [`KeyLocks::stick`].
    Stuck,
}

/// Which keys have a change in flight.
#[derive(Debug)]
pub(super) struct KeyLocks(Box<[AtomicU8]>);

impl KeyLocks {
    pub fn new() -> Self {
        Self((0..PLACES).map(|_| AtomicU8::new(FREE)).collect())
    }

    fn place(&self, digest: &Digest) -> &AtomicU8 {
        &self.0[digest.words()[2] as usize % PLACES]
    }

    /// Takes the key, if nobody has it.
    pub fn try_hold(&self, digest: &Digest) -> Hold {
        // Acquire: the index is as the last holder left it.
        let taken =
            self.place(digest).compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        match taken {
            Ok(_) => Hold::Held,
            Err(STUCK) => Hold::Stuck,
            Err(_) => Hold::Busy,
        }
    }

    /// Gives the key back.
    pub fn release(&self, digest: &Digest) {
        let before = self.place(digest).swap(FREE, Ordering::Release);
        debug_assert_eq!(before, HELD);
    }

    /// Closes the key for changes: a header of it may still be on a drive that does not let itself
    /// be written, and would count again after a change and a crash.
    pub fn stick(&self, digest: &Digest) {
        self.place(digest).store(STUCK, Ordering::Release);
    }

    /// Whether a change of the key (or of one that shares its place) is in flight.
    pub fn is_held(&self, digest: &Digest) -> bool {
        self.place(digest).load(Ordering::Acquire) == HELD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_held_once_and_stuck_for_good() {
        let locks = KeyLocks::new();
        let (one, two) = (Digest::of(b"one"), Digest::of(b"two"));
        assert_eq!(locks.try_hold(&one), Hold::Held);
        assert_eq!(locks.try_hold(&one), Hold::Busy);
        assert_eq!(locks.try_hold(&two), Hold::Held);
        assert!(locks.is_held(&one));
        locks.release(&one);
        assert!(!locks.is_held(&one));
        locks.stick(&two);
        assert_eq!(locks.try_hold(&two), Hold::Stuck);
        assert_eq!(locks.try_hold(&one), Hold::Held);
    }
}
