//! The table of commands in flight, and the callback that SPDK ends each of them with.
//!
//! The table is reached by raw pointers only, since SPDK's callback writes to it while the queue
//! that owns it is borrowed. All of it happens on one thread: SPDK calls back from within the
//! functions that the queue calls.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use spdk_sys as sys;

use crate::error::IoStatus;
use crate::memory::Lent;
use crate::storage::Operation;

/// Where a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The place is free.
    Free,
    /// With SPDK: it will call back.
    Sent,
    /// Here, to be sent when its controller takes commands again.
    Parked,
    /// Ended, and in the ring of those to be handed out.
    Done,
}

/// What was done about a command that is overdue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overdue {
    No,
    Aborted,
    Reset,
}

/// A command, or a free place for one.
#[repr(align(64))]
pub(super) struct Op {
    /// The ring of its queue. Set once.
    ring: NonNull<Ring>,
    /// The memory: present from submission until it is handed out or leaked.
    pub lent: Option<Lent>,
    pub tag: u64,
    /// In the namespace: a partition's start is added.
    pub offset: u64,
    /// Ticks at the first look at it; 0 before that.
    pub born: u64,
    pub len: u32,
    /// Its own number. Set once.
    index: u32,
    pub drive: u16,
    pub commands: u16,
    /// Status word of its completion.
    pub raw: u16,
    pub state: State,
    pub operation: Operation,
    pub overdue: Overdue,
    /// How often it was sent again after a reset.
    pub retries: u8,
    /// An outcome that is decided here and not by the completion.
    pub verdict: Option<IoStatus>,
}

/// Commands that have ended, oldest first: as many places as there are commands.
#[derive(Debug)]
pub(super) struct Ring {
    done: Box<[u32]>,
    /// Next to be handed out.
    head: u32,
    /// Commands in it.
    len: u32,
}

impl Ring {
    fn push(&mut self, index: u32) {
        let capacity = self.done.len() as u32;
        debug_assert!(self.len < capacity, "a command ended twice");
        let at = self.head + self.len;
        let at = if at >= capacity { at - capacity } else { at };
        self.done[at as usize] = index;
        self.len += 1;
    }

    fn pop(&mut self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let index = self.done[self.head as usize];
        self.head += 1;
        if self.head == self.done.len() as u32 {
            self.head = 0;
        }
        self.len -= 1;
        Some(index)
    }
}

/// The table and its ring, at fixed addresses.
#[derive(Debug)]
pub(super) struct Table {
    ops: NonNull<Op>,
    depth: u32,
    ring: NonNull<Ring>,
}

impl Table {
    pub(super) fn new(depth: u32) -> Self {
        let ring = Ring { done: vec![0; depth as usize].into_boxed_slice(), head: 0, len: 0 };
        let ring = NonNull::from(Box::leak(Box::new(ring)));
        let op = |index| Op {
            ring,
            lent: None,
            tag: 0,
            offset: 0,
            born: 0,
            len: 0,
            index,
            drive: 0,
            commands: 0,
            raw: 0,
            state: State::Free,
            operation: Operation::Read,
            overdue: Overdue::No,
            retries: 0,
            verdict: None,
        };
        let ops: Box<[Op]> = (0..depth).map(op).collect();
        let ops = NonNull::from(Box::leak(ops)).cast::<Op>();
        Self { ops, depth, ring }
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Address of a command: what SPDK is given as the callback's argument.
    #[inline]
    pub(super) fn at(&self, index: u32) -> *mut Op {
        debug_assert!(index < self.depth);
        // SAFETY: the table has `depth` elements, and index is below that (numbers come from the
        // free list and the ring only, which were filled with 0..depth).
        unsafe { self.ops.as_ptr().add(index as usize) }
    }

    /// A command.
    #[inline]
    pub(super) fn op(&mut self, index: u32) -> &mut Op {
        // SAFETY: in the table; no other reference is alive, as `&mut self` and the callback,
        // which runs only inside of SPDK's functions, are the only ways to one.
        unsafe { &mut *self.at(index) }
    }

    /// Commands that have ended and wait to be handed out.
    #[inline]
    pub(super) fn ended(&self) -> usize {
        // SAFETY: allocated in `new`, freed in `free`; no reference is alive, as for `op`.
        unsafe { (*self.ring.as_ptr()).len as usize }
    }

    /// Takes the oldest that has ended.
    #[inline]
    pub(super) fn take_ended(&mut self) -> Option<u32> {
        // SAFETY: as for `ended`.
        unsafe { (*self.ring.as_ptr()).pop() }
    }

    /// Ends a command that is not with SPDK, with an outcome decided here.
    pub(super) fn end(&mut self, index: u32, verdict: IoStatus) {
        let op = self.op(index);
        debug_assert!(op.state != State::Done && op.state != State::Free);
        op.verdict = Some(verdict);
        op.state = State::Done;
        // SAFETY: as for `ended`.
        unsafe { (*self.ring.as_ptr()).push(index) };
    }

    /// Frees the table. Commands that still have their slot leak it.
    ///
    /// # Safety
    ///
    /// SPDK has no command of it any more.
    pub(super) unsafe fn free(self) {
        // SAFETY: made of these boxes in `new`; SPDK has no pointer to them (the caller's word).
        unsafe {
            drop(Box::from_raw(self.ring.as_ptr()));
            let ops = std::ptr::slice_from_raw_parts_mut(self.ops.as_ptr(), self.depth as usize);
            drop(Box::from_raw(ops));
        }
    }
}

/// SPDK's callback: notes the status and puts the command in the ring. Called once for each
/// command that SPDK has accepted.
pub(super) unsafe extern "C" fn ended(
    argument: *mut c_void,
    completion: *const sys::spdk_nvme_cpl,
) {
    let op = argument.cast::<Op>();
    // SAFETY: the argument is what `Table::at` gave to the function that accepted the command; the
    // table outlives it. No reference to an op or the ring is alive while SPDK's functions run.
    unsafe {
        // SAFETY of the union: both of its fields are the same 16 bits.
        (*op).raw = (*completion).__bindgen_anon_1.status_raw;
        (*op).state = State::Done;
        (*(*op).ring.as_ptr()).push((*op).index);
    }
}

/// Callback of an abort command: it makes room for another. What counts otherwise is how the
/// aborted command itself ends.
pub(super) unsafe extern "C" fn abort_ended(argument: *mut c_void, _: *const sys::spdk_nvme_cpl) {
    // SAFETY: the counter that `Controller::begin_abort` gave, which outlives the command.
    unsafe { &*argument.cast::<AtomicU32>() }.fetch_sub(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_order_around_its_end() {
        let mut table = Table::new(3);
        for round in 0..5u16 {
            for index in [2, 0, 1] {
                table.op(index).state = State::Sent;
                // SAFETY: all integers.
                let mut completion: sys::spdk_nvme_cpl = unsafe { std::mem::zeroed() };
                completion.__bindgen_anon_1.status_raw = round;
                // SAFETY: an op of the table, and a completion.
                unsafe { ended(table.at(index).cast(), &completion) };
            }
            assert_eq!(table.ended(), 3);
            assert_eq!(table.take_ended(), Some(2));
            assert_eq!(table.op(2).raw, round);
            assert_eq!([table.take_ended(), table.take_ended()], [Some(0), Some(1)]);
            assert_eq!(table.take_ended(), None);
            // The next round starts elsewhere in the ring.
            table.op(0).state = State::Parked;
            table.end(0, IoStatus::Gone);
            assert_eq!(table.take_ended(), Some(0));
            assert_eq!(table.op(0).verdict, Some(IoStatus::Gone));
        }
        // SAFETY: SPDK never saw it.
        unsafe { table.free() };
    }
}
