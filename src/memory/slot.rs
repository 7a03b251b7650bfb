//! Slots: equal pieces of an arena that are owned, lent to hardware, and reclaimed.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use super::Arena;
use crate::error::{Error, Result};
use crate::limits::{MAX_SLOT_SIZE, MAX_SLOTS, SLOT_ALIGN};
use crate::units::format_size;

/// A piece of an arena that its holder owns and no hardware touches.
///
/// It keeps its arena mapped. Dropping it outside its pool is safe and costs the pool a slot.
#[derive(Debug)]
#[must_use = "a slot that is dropped is lost to its pool"]
pub struct Slot {
    base: NonNull<u8>,
    size: u32,
    index: u32,
    generation: u32,
    arena: Arc<Arena>,
}

// SAFETY: a Slot is the only owner of its bytes (SlotPool hands each range out once), so it may
// move to another thread like a Vec; the arena it points into is kept by its Arc.
unsafe impl Send for Slot {}

impl Slot {
    /// Number of this slot in its pool.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How often this slot was lent, modulo 2^32: tells a late completion from a current one.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Bytes from the start of the arena.
    pub fn arena_offset(&self) -> usize {
        self.base.as_ptr() as usize - self.arena.base() as usize
    }

    /// The first `len` bytes.
    ///
    /// # Panics
    ///
    /// If `len` exceeds the slot.
    pub fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= self.size(), "{len} bytes of a slot of {}", self.size);
        // SAFETY: base..base+size lies in the arena, which lives as long as self.arena, was
        // zeroed by the kernel (so it is initialised), and is owned by this Slot alone; hardware
        // cannot write to it because only Lent is ever given to hardware.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), len) }
    }

    /// The first `len` bytes, to be written to.
    ///
    /// # Panics
    ///
    /// If `len` exceeds the slot.
    pub fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.size(), "{len} bytes of a slot of {}", self.size);
        // SAFETY: as for `bytes`, and the exclusive borrow of the Slot makes this the only view.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), len) }
    }

    /// Gives the slot to hardware. From here on only its address can be had.
    pub fn lend(mut self) -> Lent {
        self.generation = self.generation.wrapping_add(1);
        Lent(ManuallyDrop::new(self))
    }
}

/// A slot in flight: hardware may read or write it at any moment.
///
/// Dropping it leaks the slot and keeps its arena mapped for good, so a forgotten completion
/// can never turn into a write to memory that was handed out again.
#[derive(Debug)]
#[must_use = "a lent slot that is dropped is leaked, with its arena"]
pub struct Lent(ManuallyDrop<Slot>);

impl Lent {
    /// Address of the first byte, for the hardware.
    pub fn addr(&self) -> *mut u8 {
        self.0.base.as_ptr()
    }

    /// Number of the slot in its pool.
    pub fn index(&self) -> u32 {
        self.0.index
    }

    /// Generation of this loan.
    pub fn generation(&self) -> u32 {
        self.0.generation
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.0.size()
    }

    /// Bytes from the start of the arena.
    pub fn arena_offset(&self) -> usize {
        self.0.arena_offset()
    }

    /// Takes the slot back.
    ///
    /// # Safety
    ///
    /// No hardware and no kernel may read or write the slot any more: the operation it was lent
    /// for has completed, was never submitted, or its queue (ring, qpair, QP, socket) has been
    /// destroyed or drained.
    pub unsafe fn reclaim(self) -> Slot {
        ManuallyDrop::into_inner(self.0)
    }
}

/// The slots of one worker or client. One thread owns it.
#[derive(Debug)]
pub struct SlotPool {
    free: Vec<Slot>,
    arena: Arc<Arena>,
    slot_size: usize,
    count: usize,
}

impl SlotPool {
    /// Bytes of arena that `count` slots of `slot_size` need.
    pub fn bytes_needed(slot_size: usize, count: usize) -> usize {
        slot_size * count
    }

    /// Checks a slot size in bytes: a multiple of [`SLOT_ALIGN`], at most [`MAX_SLOT_SIZE`].
    pub fn check_slot_size(slot_size: usize) -> Result<()> {
        if slot_size == 0 || slot_size > MAX_SLOT_SIZE || !slot_size.is_multiple_of(SLOT_ALIGN) {
            return Err(Error::usage(format!("a slot size of {slot_size} bytes is not usable"))
                .remedy(format!(
                    "choose a multiple of {} up to {}, such as {}",
                    format_size(SLOT_ALIGN as u64),
                    format_size(MAX_SLOT_SIZE as u64),
                    format_size(
                        slot_size.next_multiple_of(SLOT_ALIGN).clamp(SLOT_ALIGN, MAX_SLOT_SIZE)
                            as u64
                    ),
                )));
        }
        Ok(())
    }

    /// Cuts `arena` into `count` slots of `slot_size` bytes. An arena is cut once.
    pub fn new(arena: Arc<Arena>, slot_size: usize, count: usize) -> Result<Self> {
        Self::check_slot_size(slot_size)?;
        if count == 0 || count > MAX_SLOTS {
            return Err(Error::usage(format!("{count} slots; 1 to {MAX_SLOTS} are possible")));
        }
        let need = Self::bytes_needed(slot_size, count);
        if arena.len() < need {
            return Err(Error::usage(format!(
                "{count} slots of {slot_size} bytes need {need} bytes; the arena has {}",
                arena.len()
            )));
        }
        arena.claim_for_slots()?;
        let slot = |index: usize| {
            // SAFETY: index * slot_size is below `need`, which is within the arena's mapping.
            let base = unsafe { arena.base().add(index * slot_size) };
            Slot {
                base: NonNull::new(base).expect("a mapping is never at address 0"),
                size: slot_size as u32,
                index: index as u32,
                generation: 0,
                arena: Arc::clone(&arena),
            }
        };
        // The lowest slot is on top, so a lightly loaded worker stays on few pages.
        let free = (0..count).rev().map(slot).collect();
        Ok(Self { free, arena, slot_size, count })
    }

    /// Takes a free slot, the one returned last (its lines are the likeliest to be cached).
    pub fn acquire(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// Returns a slot.
    ///
    /// # Panics
    ///
    /// If the slot is of another pool.
    pub fn release(&mut self, slot: Slot) {
        assert!(Arc::ptr_eq(&slot.arena, &self.arena), "slot of another pool");
        debug_assert!(self.free.len() < self.count);
        self.free.push(slot);
    }

    /// True where `slot` is of this pool.
    pub fn owns(&self, slot: &Slot) -> bool {
        Arc::ptr_eq(&slot.arena, &self.arena)
    }

    /// Slots that are free now.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Slots in all.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Size of each slot in bytes.
    pub fn slot_size(&self) -> usize {
        self.slot_size
    }

    /// The arena that the slots are of.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{ArenaSpec, Pages};

    fn pool(count: usize) -> SlotPool {
        let spec = ArenaSpec { bytes: count * 8192, pages: Pages::Base, node: None };
        SlotPool::new(Arc::new(Arena::map(&spec).unwrap()), 8192, count).unwrap()
    }

    #[test]
    fn slots_are_disjoint_and_come_back() {
        let mut pool = pool(4);
        let mut slots: Vec<_> = std::iter::from_fn(|| pool.acquire()).collect();
        assert_eq!(slots.len(), 4);
        for slot in &mut slots {
            let index = slot.index() as u8;
            slot.bytes_mut(8192).fill(index);
        }
        for slot in &slots {
            assert!(slot.bytes(8192).iter().all(|b| *b == slot.index() as u8));
        }
        slots.into_iter().for_each(|slot| pool.release(slot));
        assert_eq!(pool.available(), 4);
    }

    #[test]
    fn each_loan_has_its_generation() {
        let mut pool = pool(1);
        let lent = pool.acquire().unwrap().lend();
        assert_eq!(lent.generation(), 1);
        // SAFETY: it was given to nobody.
        let lent = unsafe { lent.reclaim() }.lend();
        assert_eq!(lent.generation(), 2);
        // SAFETY: as above.
        pool.release(unsafe { lent.reclaim() });
    }

    #[test]
    fn a_dropped_loan_keeps_the_arena_for_good() {
        let mut pool = pool(2);
        let arena = Arc::clone(pool.arena());
        drop(pool.acquire().unwrap().lend());
        drop(pool);
        assert_eq!(Arc::strong_count(&arena), 2, "ours and the leaked slot's");
    }

    #[test]
    fn an_arena_is_cut_once() {
        let spec = ArenaSpec { bytes: 8192, pages: Pages::Base, node: None };
        let arena = Arc::new(Arena::map(&spec).unwrap());
        let _pool = SlotPool::new(Arc::clone(&arena), 4096, 2).unwrap();
        assert!(SlotPool::new(arena, 4096, 2).is_err());
    }

    #[test]
    fn sizes_are_checked() {
        for size in [0, 1, 4095, 4097, MAX_SLOT_SIZE + 4096] {
            assert!(SlotPool::check_slot_size(size).is_err(), "{size}");
        }
        assert!(SlotPool::check_slot_size(1028 * 1024).is_ok());
    }

    #[test]
    #[should_panic(expected = "slot of another pool")]
    fn a_foreign_slot_is_refused() {
        let (mut one, mut other) = (pool(1), pool(1));
        one.release(other.acquire().unwrap());
    }
}
