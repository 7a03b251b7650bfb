//! Digest of a key -> slot, length and sequence number, in memory of a size that is known at start.
//!
//! ```text
//!   buckets   digest -> number of a slot's entry        2 words of 32 bits for each slot
//!   entries   one for each slot of the store: digest, sequence number, length, next of the bucket
//!   stripes   a lock and version for every so many buckets; readers look at the version only
//! ```
//!
//! An object takes a slot, so there is an entry for every object that there can be: the index never
//! grows and never moves, and takes 48 bytes for each slot. A reader takes no lock and writes
//! nothing: an entry's sequence number, which never comes twice, tells that the entry did not
//! change while it was read, and the version of the stripe that nothing was missed where nothing
//! was found.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::{Damage, Digest};

/// End of a bucket: entries are named by the slot's number and 1.
const END: u32 = 0;

/// Set in an entry's length where the object is known to be damaged.
const DAMAGED: u32 = 1 << 31;

/// Most stripes: 256 KiB of locks.
const MOST_STRIPES: usize = 4096;

/// Looks at a stripe that is being changed, before the thread lets others run.
const SPINS: u32 = 128;

/// Where an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Number of its slot among all slots of the store.
    pub slot: u32,
    /// Bytes of data.
    pub length: u32,
    /// Its sequence number.
    pub sequence: u64,
    /// Its header was found damaged when the store was opened.
    pub damaged: bool,
}

/// What became of an entry that was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It is the key's first.
    New,
    /// It is newer than this one, and has taken its place.
    Newer(Entry),
    /// This one is newer, and stays.
    Older(Entry),
}

#[derive(Debug, Default)]
#[repr(C)]
struct Record {
    digest: [AtomicU64; 3],
    /// 0 while the record is of no object, or is being written.
    sequence: AtomicU64,
    /// Length and flags in the lower half, next of the bucket in the upper.
    rest: AtomicU64,
}

/// Even: nobody changes its buckets; odd: somebody does. Grows with each change.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(AtomicU64);

/// The index of a store.
#[derive(Debug)]
pub struct Index {
    buckets: Box<[AtomicU32]>,
    records: Box<[Record]>,
    stripes: Box<[Stripe]>,
    objects: AtomicU64,
}

/// What one walk along a bucket came to.
enum Walk {
    Hit(Entry),
    Miss,
    /// Something changed under it.
    Again,
}

impl Index {
    /// An empty index for a store of `slots`. Allocates, and touches, all that it ever will.
    pub fn new(slots: u32) -> Self {
        let slots = slots as usize;
        // Twice as many buckets as objects: five of four walks end at the first entry.
        let buckets = (slots * 2).max(1);
        let stripes = buckets.next_power_of_two().min(MOST_STRIPES);
        Self {
            buckets: (0..buckets).map(|_| AtomicU32::new(END)).collect(),
            records: (0..slots).map(|_| Record::default()).collect(),
            stripes: (0..stripes).map(|_| Stripe::default()).collect(),
            objects: AtomicU64::new(0),
        }
    }

    /// Objects in it.
    pub fn len(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// True where there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that it takes.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.buckets) + size_of_val(&*self.records) + size_of_val(&*self.stripes)
    }

    #[inline]
    fn bucket_of(&self, digest: &Digest) -> usize {
        let spread = u128::from(digest.words()[0]) * self.buckets.len() as u128;
        (spread >> 64) as usize
    }

    #[inline]
    fn stripe_of(&self, bucket: usize) -> &AtomicU64 {
        // A power of two.
        &self.stripes[bucket & (self.stripes.len() - 1)].0
    }

    /// Where the object of this digest is. Takes no lock.
    #[inline]
    pub fn get(&self, digest: &Digest) -> Option<Entry> {
        let bucket = self.bucket_of(digest);
        let stripe = self.stripe_of(bucket);
        let wanted = digest.words();
        let mut tries = 0;
        loop {
            let version = stripe.load(Ordering::Acquire);
            match self.walk(bucket, &wanted) {
                Walk::Hit(entry) => return Some(entry),
                Walk::Miss => {
                    fence(Ordering::Acquire);
                    if version & 1 == 0 && stripe.load(Ordering::Relaxed) == version {
                        return None;
                    }
                }
                Walk::Again => {}
            }
            pause(&mut tries);
        }
    }

    #[inline]
    fn walk(&self, bucket: usize, wanted: &[u64; 3]) -> Walk {
        let mut at = self.buckets[bucket].load(Ordering::Acquire);
        while at != END {
            let record = &self.records[(at - 1) as usize];
            let sequence = record.sequence.load(Ordering::Acquire);
            let hit =
                (0..3).all(|word| record.digest[word].load(Ordering::Relaxed) == wanted[word]);
            let rest = record.rest.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if sequence == 0 || record.sequence.load(Ordering::Relaxed) != sequence {
                return Walk::Again;
            }
            if hit {
                return Walk::Hit(entry(at - 1, sequence, rest));
            }
            at = (rest >> 32) as u32;
        }
        Walk::Miss
    }

    /// Enters an object, unless the key has one of a higher sequence number. `offered.slot` must
    /// be of no object.
    ///
    /// A reader finds the old entry or the new one, never none.
    ///
    /// # Panics
    ///
    /// If the slot is of an object, or the sequence number is 0.
    pub fn offer(&self, digest: &Digest, offered: Entry) -> Offer {
        assert!(offered.sequence > 0, "sequence numbers begin with 1");
        let bucket = self.bucket_of(digest);
        let locked = Locked::new(self.stripe_of(bucket));
        let found = self.find(bucket, digest);
        if let Some((_, at)) = found {
            let there = self.at_index(at).expect("linked, so it is of an object");
            if there.sequence >= offered.sequence {
                return Offer::Older(there);
            }
        }
        let record = &self.records[offered.slot as usize];
        assert_eq!(record.sequence.load(Ordering::Relaxed), 0, "slot {} is taken", offered.slot);
        for (to, word) in record.digest.iter().zip(digest.words()) {
            to.store(word, Ordering::Relaxed);
        }
        let head = self.buckets[bucket].load(Ordering::Relaxed);
        let length = offered.length | if offered.damaged { DAMAGED } else { 0 };
        record.rest.store(u64::from(head) << 32 | u64::from(length), Ordering::Relaxed);
        record.sequence.store(offered.sequence, Ordering::Release);
        self.buckets[bucket].store(offered.slot + 1, Ordering::Release);
        let outcome = match self.find_from(Some(offered.slot), head, digest) {
            None => {
                self.objects.fetch_add(1, Ordering::Relaxed);
                Offer::New
            }
            Some((before, at)) => {
                let old = self.at_index(at).expect("linked, so it is of an object");
                self.unlink(bucket, before, at);
                Offer::Newer(old)
            }
        };
        drop(locked);
        outcome
    }

    /// Takes the object of this digest out, if it is in this slot.
    pub fn remove(&self, digest: &Digest, slot: u32) -> Option<Entry> {
        let bucket = self.bucket_of(digest);
        let locked = Locked::new(self.stripe_of(bucket));
        let (before, at) = self.find(bucket, digest).filter(|(_, at)| *at == slot)?;
        let old = self.at_index(at).expect("linked, so it is of an object");
        self.unlink(bucket, before, at);
        self.objects.fetch_sub(1, Ordering::Relaxed);
        drop(locked);
        Some(old)
    }

    /// The object in a slot, if there is one.
    pub fn at(&self, slot: u32) -> Option<(Digest, Entry)> {
        let record = &self.records[slot as usize];
        let mut tries = 0;
        loop {
            let sequence = record.sequence.load(Ordering::Acquire);
            if sequence == 0 {
                return None;
            }
            let words = [0, 1, 2].map(|word| record.digest[word].load(Ordering::Relaxed));
            let rest = record.rest.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if record.sequence.load(Ordering::Relaxed) == sequence {
                return Some((Digest::from_words(words), entry(slot, sequence, rest)));
            }
            pause(&mut tries);
        }
    }

    /// Of a record that the caller has locked.
    fn at_index(&self, slot: u32) -> Option<Entry> {
        self.at(slot).map(|(_, entry)| entry)
    }

    /// The entry before (or none) and the entry of a digest, in a bucket that is locked.
    fn find(&self, bucket: usize, digest: &Digest) -> Option<(Option<u32>, u32)> {
        self.find_from(None, self.buckets[bucket].load(Ordering::Relaxed), digest)
    }

    /// The same, from the entry `at` on, which comes after `before`.
    fn find_from(
        &self,
        mut before: Option<u32>,
        mut at: u32,
        digest: &Digest,
    ) -> Option<(Option<u32>, u32)> {
        let wanted = digest.words();
        while at != END {
            let record = &self.records[(at - 1) as usize];
            if (0..3).all(|word| record.digest[word].load(Ordering::Relaxed) == wanted[word]) {
                return Some((before, at - 1));
            }
            before = Some(at - 1);
            at = (record.rest.load(Ordering::Relaxed) >> 32) as u32;
        }
        None
    }

    /// Takes an entry out of a bucket that is locked. The entry keeps its way on, for readers that
    /// stand at it.
    fn unlink(&self, bucket: usize, before: Option<u32>, at: u32) {
        let record = &self.records[at as usize];
        let next = (record.rest.load(Ordering::Relaxed) >> 32) as u32;
        match before {
            None => self.buckets[bucket].store(next, Ordering::Release),
            Some(before) => {
                let rest = &self.records[before as usize].rest;
                let length = rest.load(Ordering::Relaxed) & u64::from(u32::MAX);
                rest.store(u64::from(next) << 32 | length, Ordering::Release);
            }
        }
        record.sequence.store(0, Ordering::Relaxed);
        // Whoever sees the record's next contents sees the 0 as well.
        fence(Ordering::Release);
    }
}

fn entry(slot: u32, sequence: u64, rest: u64) -> Entry {
    let length = rest as u32;
    Entry { slot, sequence, length: length & !DAMAGED, damaged: length & DAMAGED != 0 }
}

impl Entry {
    /// What is wrong with it, as far as the index knows.
    pub fn damage(&self) -> Option<Damage> {
        self.damaged.then_some(Damage::Header)
    }
}

/// Lets the other side come on: a change is a few stores, unless its thread was taken off its CPU.
#[cold]
fn pause(tries: &mut u32) {
    *tries += 1;
    if tries.is_multiple_of(SPINS) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// A stripe that the holder alone changes.
struct Locked<'a>(&'a AtomicU64);

impl<'a> Locked<'a> {
    fn new(stripe: &'a AtomicU64) -> Self {
        let mut tries = 0;
        loop {
            let version = stripe.load(Ordering::Relaxed);
            let odd = version.wrapping_add(1);
            if version & 1 == 0
                && stripe
                    .compare_exchange_weak(version, odd, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                // Whoever sees what is changed from here on sees the odd version as well.
                fence(Ordering::Release);
                return Self(stripe);
            }
            pause(&mut tries);
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
