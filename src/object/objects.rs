//! What the workers of a shard share: where each object is, and which slots are free.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::epoch::Epochs;
use super::locks::KeyLocks;
use super::member::Member;
use super::space::Space;
use super::{Digest, Entry, Index, Layout, Offer, Place, StoreId};

/// The objects of a store. All of it is atomics: any number of threads use it by `&`.
#[derive(Debug)]
pub struct Objects {
    store: StoreId,
    layout: Layout,
    writable: bool,
    pub(super) index: Index,
    pub(super) space: Space,
    pub(super) epochs: Arc<Epochs>,
    pub(super) locks: KeyLocks,
    sequence: AtomicU64,
    pub(super) retired: AtomicU64,
    pub(super) set_aside: AtomicU64,
    pub(super) stuck: AtomicU64,
}

/// Slots and objects of a store at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Tally {
    /// Slots in all.
    pub slots: u64,
    /// Objects in the index.
    pub objects: u64,
    /// Free slots.
    pub free: u64,
    /// Freed slots that wait for reads which began before.
    pub retired: u64,
    /// Slots that are not used until the store is opened anew: damaged, or not to be written.
    pub set_aside: u64,
    /// Keys that cannot be changed until then: an old header of theirs could not be cleared.
    pub stuck: u64,
}

impl Objects {
    /// An empty store, with no slot free yet: whoever has looked at the slots enters what is in
    /// them and gives the free ones. `members`: workers that [`join`](Self::join) at most.
    pub fn new(store: StoreId, layout: Layout, members: usize, writable: bool) -> Self {
        Self {
            store,
            writable,
            index: Index::new(layout.slots()),
            space: Space::new(&layout),
            epochs: Arc::new(Epochs::new(members)),
            locks: KeyLocks::new(),
            sequence: AtomicU64::new(0),
            retired: AtomicU64::new(0),
            set_aside: AtomicU64::new(0),
            stuck: AtomicU64::new(0),
            layout,
        }
    }

    /// The store's identity.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Where its slots are.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether objects may be put and deleted.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Enters an object that was found in its slot.
    pub fn enter(&self, digest: &Digest, found: Entry) -> Offer {
        // Sequence numbers go on above the highest there is, losers' included.
        self.sequence.fetch_max(found.sequence, Ordering::Relaxed);
        self.index.offer(digest, found)
    }

    /// Gives a slot that was found free, or has become so. Those given last are taken first.
    pub fn give(&self, slot: u32) {
        self.space.give(slot);
    }

    /// Leaves a slot out of use.
    pub fn set_aside(&self, _slot: u32) {
        self.set_aside.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes sure that sequence numbers go on above `highest`.
    pub fn at_least(&self, highest: u64) {
        self.sequence.fetch_max(highest, Ordering::Relaxed);
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Where the header in a slot says that it is.
    pub fn place(&self, slot: u32) -> Place {
        let part = self.layout.part_of(slot);
        Place { member: part.member, slot: u64::from(slot - part.first) }
    }

    /// A worker's hand on the store; `None` where as many have joined as it was made for. Workers
    /// join before the first change.
    pub fn join(self: &Arc<Self>) -> Option<Member> {
        Member::new(Arc::clone(self))
    }

    /// Counts. Each is right at its own moment.
    pub fn tally(&self) -> Tally {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Tally {
            slots: self.layout.slots().into(),
            objects: self.index.len(),
            free: self.space.free(),
            retired: read(&self.retired),
            set_aside: read(&self.set_aside),
            stuck: read(&self.stuck),
        }
    }
}
