//! Bytes that many threads copy from and into: what a drive in RAM consists of.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Arena;

const WORD: usize = size_of::<u64>();

/// A whole arena, read and written by copying only. No reference to the bytes exists while it is
/// shared, so several threads may use it at once.
///
/// Frozen bytes are copied by plain memcpy: nothing can write them. Writable ones are copied word
/// by word with relaxed atomics, which is what makes a read that overlaps a write a mixture of old
/// and new words (as on a drive) instead of undefined behaviour. It is slower than memcpy, so
/// drives that are only read are frozen.
#[derive(Debug)]
pub struct SharedBytes {
    arena: Arena,
    writable: bool,
}

impl SharedBytes {
    /// Takes an arena, lets `init` write its bytes, and shares it. Without `writable` the bytes
    /// are frozen from here on.
    ///
    /// # Errors
    ///
    /// `Usage` where the arena is cut into slots already.
    pub fn new(
        arena: Arena,
        writable: bool,
        init: impl FnOnce(&mut [u8]),
    ) -> crate::error::Result<Self> {
        // The slots would alias the bytes.
        arena.claim_for_slots()?;
        // SAFETY: the mapping is `len` initialised bytes (zeroed by the kernel) that this arena,
        // held by value and not cut into slots, is the only way to; the slice ends before sharing.
        init(unsafe { std::slice::from_raw_parts_mut(arena.base(), arena.len()) });
        Ok(Self { arena, writable })
    }

    /// Length in bytes: whole pages.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.arena.len()
    }

    /// The arena below, for its page size and the reason of it.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Copies from `offset` on into `to`.
    ///
    /// # Panics
    ///
    /// If the range is outside; for writable bytes also if offset or length is not a multiple
    /// of 8.
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        if !self.writable {
            // SAFETY: the range was checked; the bytes are frozen, so no write races with this
            // read; `to` is an exclusive borrow, so it cannot overlap the arena, of which no
            // reference exists.
            unsafe {
                let from = self.arena.base().add(offset);
                std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
            }
            return;
        }
        for (word, to) in self.words(offset, to.len()).iter().zip(to.chunks_exact_mut(WORD)) {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// Copies `from` to `offset` on.
    ///
    /// # Panics
    ///
    /// If the bytes are frozen, the range is outside, or offset or length is not a multiple of 8.
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(self.writable, "a write to frozen bytes");
        self.check(offset, from.len());
        for (word, from) in self.words(offset, from.len()).iter().zip(from.chunks_exact(WORD)) {
            let value = u64::from_ne_bytes(from.try_into().expect("a chunk is one word"));
            word.store(value, Ordering::Relaxed);
        }
    }

    fn check(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len()), "{offset}+{len} of {}", self.len());
    }

    /// The words of a range that was checked. For writable bytes only.
    fn words(&self, offset: usize, len: usize) -> &[AtomicU64] {
        debug_assert!(self.writable);
        assert!(offset.is_multiple_of(WORD) && len.is_multiple_of(WORD), "{offset}+{len}");
        // SAFETY: the range lies in the mapping and is aligned to 8 (the mapping is page-aligned);
        // AtomicU64 has the layout of u64 and any bytes are a valid value; all access to writable
        // bytes while shared goes through these atomics.
        unsafe { std::slice::from_raw_parts(self.arena.base().add(offset).cast(), len / WORD) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{ArenaSpec, Pages};

    fn bytes(writable: bool) -> SharedBytes {
        let arena = Arena::map(&ArenaSpec { bytes: 8192, pages: Pages::Base, node: None }).unwrap();
        let count = |all: &mut [u8]| all.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        SharedBytes::new(arena, writable, count).unwrap()
    }

    #[test]
    fn copies_give_what_was_written() {
        for writable in [false, true] {
            let shared = bytes(writable);
            let mut out = [0; 16];
            shared.copy_out(8, &mut out);
            assert_eq!(out, std::array::from_fn(|i| i as u8 + 8));
        }
        let shared = bytes(true);
        shared.copy_in(8176, &[7; 16]);
        let mut out = [0; 24];
        shared.copy_out(8168, &mut out);
        assert_eq!(out[8..], [7; 16]);
        assert_eq!(out[0], 8168_usize as u8);
    }

    #[test]
    #[should_panic(expected = "frozen")]
    fn frozen_bytes_stay() {
        bytes(false).copy_in(0, &[0; 8]);
    }

    #[test]
    #[should_panic(expected = "8192+8 of 8192")]
    fn the_end_is_kept() {
        bytes(false).copy_out(8192, &mut [0; 8]);
    }

    #[test]
    fn threads_share_it() {
        let shared = bytes(true);
        std::thread::scope(|scope| {
            for value in 1..=2_u8 {
                let shared = &shared;
                scope.spawn(move || {
                    for _ in 0..50 {
                        shared.copy_in(0, &[value; 4096]);
                        let mut out = [0; 4096];
                        shared.copy_out(0, &mut out);
                        assert!(out.chunks(8).all(|w| w == [1; 8] || w == [2; 8]), "torn word");
                    }
                });
            }
        });
    }
}
