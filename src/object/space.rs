//! Free slots of all drives, shared by all workers: a stack for each drive.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::layout::{Layout, Part};

/// No slot: slots in the lists are numbered from 1.
const END: u32 = 0;

/// The top of a drive's stack: how often it was changed (so that a top which went and came back is
/// not taken for the same) in the upper half, the slot's number and 1 in the lower.
#[derive(Debug)]
#[repr(align(128))]
struct Stack {
    top: AtomicU64,
    free: AtomicU64,
}

/// The free slots. All are taken in a new one: what is free is given.
#[derive(Debug)]
pub(super) struct Space {
    stacks: Box<[Stack]>,
    parts: Box<[Part]>,
    /// The slot below each, while it is in a stack.
    below: Box<[AtomicU32]>,
}

impl Space {
    pub fn new(layout: &Layout) -> Self {
        let stack = |_| Stack { top: AtomicU64::new(END.into()), free: AtomicU64::new(0) };
        Self {
            stacks: layout.parts().iter().map(stack).collect(),
            parts: layout.parts().into(),
            below: (0..layout.slots()).map(|_| AtomicU32::new(END)).collect(),
        }
    }

    /// Takes a free slot: of the drive whose turn it is by `cursor`, or of the next that has one.
    pub fn take(&self, cursor: &mut usize) -> Option<u32> {
        for turn in 0..self.stacks.len() {
            let drive = (*cursor + turn) % self.stacks.len();
            if let Some(slot) = self.pop(&self.stacks[drive]) {
                *cursor = drive + 1;
                return Some(slot);
            }
        }
        None
    }

    fn pop(&self, stack: &Stack) -> Option<u32> {
        let mut top = stack.top.load(Ordering::Acquire);
        loop {
            let slot = (top as u32).checked_sub(1)?;
            // Another may take the slot meanwhile and change this: then the exchange fails.
            let below = self.below[slot as usize].load(Ordering::Relaxed);
            match stack.top.compare_exchange_weak(
                top,
                next(top, below),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    stack.free.fetch_sub(1, Ordering::Relaxed);
                    return Some(slot);
                }
                Err(now) => top = now,
            }
        }
    }

    /// Gives a slot back: the one that is taken next from its drive.
    pub fn give(&self, slot: u32) {
        let drive = self.parts.partition_point(|part| part.first <= slot) - 1;
        let stack = &self.stacks[drive];
        // Before the slot can be seen, so that the count never goes below 0.
        stack.free.fetch_add(1, Ordering::Relaxed);
        let mut top = stack.top.load(Ordering::Relaxed);
        loop {
            self.below[slot as usize].store(top as u32, Ordering::Relaxed);
            // Release: who takes the slot sees what is below it.
            match stack.top.compare_exchange_weak(
                top,
                next(top, slot + 1),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Free slots now.
    pub fn free(&self) -> u64 {
        self.stacks.iter().map(|stack| stack.free.load(Ordering::Relaxed)).sum()
    }
}

/// The next top with `slot` (and 1) in it.
fn next(top: u64, slot: u32) -> u64 {
    (top >> 32).wrapping_add(1) << 32 | u64::from(slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{State, StoreId, Superblock};

    fn space(slots: &[u64]) -> (Space, u32) {
        let superblock = |(drive, slots): (usize, &u64)| Superblock {
            state: State::Ready,
            store: StoreId([1; 16]),
            drive: drive as u16,
            drives: 2,
            object_limit: 4096,
            slots: *slots,
            bytes: 0,
            created: 0,
        };
        let superblocks: Vec<_> = slots.iter().enumerate().map(superblock).collect();
        let layout = Layout::new(&superblocks, 512).unwrap();
        let space = Space::new(&layout);
        (0..layout.slots()).rev().for_each(|slot| space.give(slot));
        (space, layout.slots())
    }

    #[test]
    fn drives_take_turns_and_each_slot_is_had_once() {
        let (space, _) = space(&[2, 4]);
        let mut cursor = 0;
        let taken: Vec<_> = std::iter::from_fn(|| space.take(&mut cursor)).collect();
        assert_eq!(taken, [0, 2, 1, 3, 4, 5]);
        assert_eq!(space.free(), 0);
        space.give(3);
        assert_eq!((space.free(), space.take(&mut cursor)), (1, Some(3)));
    }

    #[test]
    fn threads_never_have_the_same_slot() {
        let (space, slots) = space(&[40, 24]);
        let owners: Vec<AtomicU32> = (0..slots).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 1..=4 {
                let (space, owners) = (&space, &owners);
                scope.spawn(move || {
                    let (mut cursor, mut held) = (thread as usize, Vec::new());
                    for round in 0..20_000_usize {
                        if let Some(slot) = space.take(&mut cursor) {
                            let before = owners[slot as usize].swap(thread, Ordering::Relaxed);
                            assert_eq!(before, 0, "slot {slot} has two owners");
                            held.push(slot);
                        }
                        if held.len() > round % 7 {
                            let slot = held.swap_remove(round % held.len());
                            owners[slot as usize].store(0, Ordering::Relaxed);
                            space.give(slot);
                        }
                    }
                    for slot in held {
                        owners[slot as usize].store(0, Ordering::Relaxed);
                        space.give(slot);
                    }
                });
            }
        });
        assert_eq!(space.free(), u64::from(slots));
        let mut cursor = 0;
        assert_eq!(std::iter::from_fn(|| space.take(&mut cursor)).count() as u32, slots);
    }
}
