//! The promise that a thread allocates nothing from a point on, and the allocator that checks it.
//!
//! A worker calls [`seal`] when it enters its loop. In production that sets a thread-local flag
//! and nothing else. Test programs install [`CountingAllocator`] as their global allocator; it
//! counts what sealed threads allocate. It cannot see `malloc` called by C libraries.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static SEALED: Cell<bool> = const { Cell::new(false) };
}

static SEALED_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Marks this thread: from now on it allocates nothing.
pub fn seal() {
    SEALED.set(true);
}

/// Takes the mark away, before the thread winds down or takes in a new connection.
pub fn unseal() {
    SEALED.set(false);
}

/// Allocations by sealed threads so far, in a program that uses [`CountingAllocator`].
pub fn sealed_allocations() -> u64 {
    SEALED_ALLOCATIONS.load(Ordering::Relaxed)
}

/// The system allocator, counting what sealed threads ask of it.
#[derive(Debug)]
pub struct CountingAllocator;

impl CountingAllocator {
    fn count() {
        // try_with: a thread that is being torn down has no flag any more, and no loop either.
        if SEALED.try_with(Cell::get).unwrap_or(false) {
            SEALED_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's duties are those of System.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // Freeing on the data path is as much a fault as allocating there.
        Self::count();
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        Self::count();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
