//! Hands objects from one thread to another; an empty mailbox costs its reader one atomic load.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A queue for what is rare: set-up and tear-down. It never grows beyond its first capacity as
/// long as no more is put in, so putting and taking allocate nothing.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    waiting: AtomicUsize,
    queue: Mutex<VecDeque<T>>,
}

impl<T> Mailbox<T> {
    /// Room for `capacity` objects.
    pub fn new(capacity: usize) -> Self {
        let queue = Mutex::new(VecDeque::with_capacity(capacity));
        Self { waiting: AtomicUsize::new(0), queue }
    }

    pub fn put(&self, item: T) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(item);
        // Inside the lock, so that the count never lags behind what a taker sees.
        self.waiting.store(queue.len(), Ordering::Release);
    }

    #[inline]
    pub fn take(&self) -> Option<T> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let item = queue.pop_front();
        self.waiting.store(queue.len(), Ordering::Release);
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_across_threads() {
        let mailbox = Mailbox::new(4);
        assert_eq!(mailbox.take(), None);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..1000).for_each(|n| mailbox.put(n)));
            let mut next = 0;
            while next < 1000 {
                if let Some(n) = mailbox.take() {
                    assert_eq!(n, next);
                    next += 1;
                }
            }
        });
        assert_eq!(mailbox.take(), None);
    }
}
