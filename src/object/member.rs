//! One worker's hand on a store: its reads, its changes, and the slots that it has freed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::epoch::Reader;
use super::locks::Hold;
use super::mutation::{Mutation, Refusal, Stage, Start, Step, WriteAt, clear};
use super::objects::Objects;
use super::{BLOCK, Digest, Entry, Header, KeyName, ObjectInfo, Offer};
use crate::error::IoStatus;

pub use super::epoch::Ticket;

/// Most slots that one worker has in quarantine, and changes in flight, together.
const MOST_FREED: usize = 8192;

/// What to do with a slot whose header was not what the index had said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recheck {
    /// The object was replaced meanwhile: it is here now. Read there, with the same ticket.
    Moved(Entry),
    /// The object was deleted meanwhile.
    Gone,
    /// A change of the key is in flight: ask again in the next turn.
    Later,
    /// Nothing has changed: the object is damaged.
    Damaged,
}

/// A worker's hand on the store. One thread owns it. Nothing is allocated after it was made.
#[derive(Debug)]
pub struct Member {
    objects: Arc<Objects>,
    reader: Reader,
    /// Slots that this worker has freed, with the epoch of that, oldest first.
    freed: VecDeque<(u32, u64)>,
    changing: usize,
    cursor: usize,
}

impl Member {
    pub(super) fn new(objects: Arc<Objects>) -> Option<Self> {
        let reader = Reader::join(&objects.epochs)?;
        let freed = VecDeque::with_capacity(MOST_FREED);
        Some(Self { objects, reader, freed, changing: 0, cursor: 0 })
    }

    /// What it shares with the others.
    pub fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    /// Once in every turn of the worker's loop, idle or not: freed slots come free only while all
    /// workers do this.
    #[inline]
    pub fn turn(&mut self) {
        self.reader.turn();
        if !self.freed.is_empty() {
            self.reuse();
        }
    }

    fn reuse(&mut self) {
        let reached = self.objects.epochs.reached();
        while let Some(&(slot, epoch)) = self.freed.front()
            && epoch <= reached
        {
            self.freed.pop_front();
            self.objects.give(slot);
            // After the slot can be had: a full store is told apart from one that waits.
            self.objects.retired.fetch_sub(1, Ordering::Release);
        }
    }

    /// Begins a read of the object of this digest. Until the ticket is given to
    /// [`Member::end_read`], the slot is not written again, whatever becomes of the object.
    #[inline]
    pub fn begin_read(&mut self, digest: &Digest) -> Option<(Ticket, Entry)> {
        let ticket = self.reader.begin();
        let found = self.objects.index.get(digest);
        if found.is_none() {
            self.reader.end(ticket);
        }
        found.map(|entry| (ticket, entry))
    }

    /// Ends a read, when its bytes are in memory or will never be used.
    #[inline]
    pub fn end_read(&mut self, ticket: Ticket) {
        self.reader.end(ticket);
    }

    /// Reads that have begun and not ended.
    pub fn reads_in_flight(&self) -> u32 {
        self.reader.in_flight()
    }

    /// Puts and deletes that have begun and not ended.
    pub fn changes_in_flight(&self) -> usize {
        self.changing
    }

    /// The read of `seen` gave a header that does not suit it: a change of the object came between,
    /// or the object is damaged.
    pub fn recheck(&self, digest: &Digest, seen: &Entry) -> Recheck {
        let moved = || match self.objects.index.get(digest) {
            None => Some(Recheck::Gone),
            Some(entry) if entry != *seen => Some(Recheck::Moved(entry)),
            Some(_) => None,
        };
        if let Some(moved) = moved() {
            return moved;
        }
        if self.objects.locks.is_held(digest) {
            return Recheck::Later;
        }
        // A change that ended between both looks has left its trace in the index.
        moved().unwrap_or(Recheck::Damaged)
    }

    /// Begins a put. `memory` has the data from byte [`BLOCK`] on; what is before, and what is
    /// behind up to the end of the last logical block, is overwritten.
    ///
    /// # Panics
    ///
    /// If `memory` is shorter than [`Layout::transfer_len`](super::Layout::transfer_len) of the
    /// length.
    pub fn start_put(
        &mut self,
        key: &KeyName,
        digest: &Digest,
        length: u32,
        data_crc: u64,
        memory: &mut [u8],
    ) -> Start {
        debug_assert_eq!(key.digest(), *digest);
        let limit = self.objects.layout().object_limit();
        if length == 0 || length > limit {
            return Start::Refused(Refusal::Length(limit));
        }
        if let Some(refused) = self.hold(digest) {
            return refused;
        }
        // Read before the look for a slot: one that comes free between both is not missed.
        let waiting = self.objects.retired.load(Ordering::Acquire) > 0;
        let Some(slot) = self.objects.space.take(&mut self.cursor) else {
            self.release(digest);
            return if waiting { Start::Later } else { Start::Refused(Refusal::NoSpace) };
        };
        clear(memory);
        let len = self.objects.layout().transfer_len(length);
        memory[BLOCK + length as usize..len as usize].fill(0);
        let (drive, offset) = self.objects.layout().locate(slot);
        let mutation = Mutation {
            digest: *digest,
            stage: Stage::Data,
            slot,
            length,
            sequence: 0,
            data_crc,
            key: Some(*key),
        };
        Start::Go(mutation, WriteAt { drive, offset, len })
    }

    /// Begins a delete. `memory` is of one [`BLOCK`] at least.
    pub fn start_delete(&mut self, digest: &Digest, memory: &mut [u8]) -> Start {
        if let Some(refused) = self.hold(digest) {
            return refused;
        }
        let Some(entry) = self.objects.index.get(digest) else {
            self.release(digest);
            return Start::Refused(Refusal::NotFound);
        };
        clear(memory);
        let mutation = Mutation {
            digest: *digest,
            stage: Stage::Remove,
            slot: entry.slot,
            length: entry.length,
            sequence: entry.sequence,
            data_crc: 0,
            key: None,
        };
        Start::Go(mutation, self.block_of(entry.slot))
    }

    /// Takes the outcome of a mutation's write. `memory` is the same in every step.
    pub fn advance(
        &mut self,
        mutation: &mut Mutation,
        status: IoStatus,
        memory: &mut [u8],
    ) -> Step {
        let Mutation { digest, slot, .. } = *mutation;
        match (mutation.stage, status) {
            (Stage::Data, IoStatus::Ok) => self.write_header(mutation, memory),
            (Stage::Data, error) => {
                // No header was written, so the slot is free; but it does not take writes.
                self.objects.set_aside(slot);
                self.finish(&digest);
                Step::end(Some(Err(error)))
            }
            (Stage::Header, IoStatus::Ok) => self.swing(mutation, memory),
            (Stage::Header, error) => {
                // It may be on the drive all the same.
                clear(memory);
                mutation.stage = Stage::Undo;
                Step { answer: Some(Err(error)), write: Some(self.block_of(slot)) }
            }
            (Stage::Undo, IoStatus::Ok) => {
                self.objects.set_aside(slot);
                self.finish(&digest);
                Step::end(None)
            }
            (Stage::Undo, _) => {
                self.objects.set_aside(slot);
                self.stick(&digest);
                Step::end(None)
            }
            (Stage::Clear(old), IoStatus::Ok) => {
                self.retire(old);
                self.finish(&digest);
                Step::end(None)
            }
            (Stage::Clear(old), _) => {
                self.objects.set_aside(old);
                self.stick(&digest);
                Step::end(None)
            }
            (Stage::Remove, IoStatus::Ok) => {
                let removed = self.objects.index.remove(&digest, slot);
                debug_assert!(removed.is_some(), "the key was held");
                self.retire(slot);
                self.finish(&digest);
                Step::end(Some(Ok(())))
            }
            (Stage::Remove, error) => {
                // The header is there or not; the object is wholly there or not, too.
                self.finish(&digest);
                Step::end(Some(Err(error)))
            }
        }
    }

    /// Ends a mutation whose queue has failed: nobody knows what its last write did, so its key
    /// takes no change any more, and its slot is not used.
    pub fn abandon(&mut self, mutation: Mutation) {
        self.objects.set_aside(mutation.slot);
        self.stick(&mutation.digest);
    }

    fn write_header(&mut self, mutation: &mut Mutation, memory: &mut [u8]) -> Step {
        let key = mutation.key.expect("a put has its key");
        mutation.sequence = self.objects.next_sequence();
        mutation.stage = Stage::Header;
        let object = ObjectInfo {
            key,
            length: mutation.length,
            data_crc: mutation.data_crc,
            sequence: mutation.sequence,
        };
        let header = Header::new(self.objects.store(), self.objects.place(mutation.slot), &object);
        header.write_block(memory.first_chunk_mut().expect("memory of a block at least"));
        Step { answer: None, write: Some(self.block_of(mutation.slot)) }
    }

    fn swing(&mut self, mutation: &mut Mutation, memory: &mut [u8]) -> Step {
        let new = Entry {
            slot: mutation.slot,
            length: mutation.length,
            sequence: mutation.sequence,
            damaged: false,
        };
        let answer = Some(Ok(()));
        match self.objects.index.offer(&mutation.digest, new) {
            Offer::New => {
                self.finish(&mutation.digest);
                Step::end(answer)
            }
            Offer::Newer(old) => {
                clear(memory);
                mutation.stage = Stage::Clear(old.slot);
                Step { answer, write: Some(self.block_of(old.slot)) }
            }
            Offer::Older(_) => unreachable!("sequence numbers grow while the key is held"),
        }
    }

    /// Takes the key, or says why that is not possible.
    fn hold(&mut self, digest: &Digest) -> Option<Start> {
        if !self.objects.is_writable() {
            return Some(Start::Refused(Refusal::ReadOnly));
        }
        if self.freed.len() + self.changing >= MOST_FREED {
            return Some(Start::Later);
        }
        match self.objects.locks.try_hold(digest) {
            Hold::Held => {
                self.changing += 1;
                None
            }
            Hold::Busy => Some(Start::Later),
            Hold::Stuck => Some(Start::Refused(Refusal::Stuck)),
        }
    }

    /// Gives the key back where nothing was begun.
    fn release(&mut self, digest: &Digest) {
        self.finish(digest);
    }

    fn finish(&mut self, digest: &Digest) {
        self.changing -= 1;
        self.objects.locks.release(digest);
    }

    fn stick(&mut self, digest: &Digest) {
        self.changing -= 1;
        self.objects.stuck.fetch_add(1, Ordering::Relaxed);
        self.objects.locks.stick(digest);
    }

    /// A slot without a header, out of the index: free, once no read knows of it.
    fn retire(&mut self, slot: u32) {
        self.objects.retired.fetch_add(1, Ordering::Relaxed);
        let epoch = self.objects.epochs.advance();
        debug_assert!(self.freed.len() < self.freed.capacity());
        self.freed.push_back((slot, epoch));
    }

    fn block_of(&self, slot: u32) -> WriteAt {
        let (drive, offset) = self.objects.layout().locate(slot);
        WriteAt { drive, offset, len: BLOCK as u32 }
    }
}

impl Drop for Member {
    /// What it has freed comes free for the others once nobody reads it; that is not waited for,
    /// so what is not free yet stays out of use until the store is opened anew.
    fn drop(&mut self) {
        self.reuse();
        let left = self.freed.len() as u64;
        self.objects.retired.fetch_sub(left, Ordering::Relaxed);
        self.objects.set_aside.fetch_add(left, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
