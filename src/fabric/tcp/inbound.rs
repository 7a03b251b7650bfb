//! The client's receive path: a byte stream of records and payloads, into landing slots.

use std::cell::RefCell;
use std::io::{IoSliceMut, Read};

use super::{first_message, is_not_now};
use crate::fabric::Arrival;
use crate::fabric::ids::IdTable;
use crate::limits::MESSAGE_SIZE;
use crate::memory::Slot;
use crate::wire::{Completion, Reason};

/// Bytes read beyond a payload, or where no payload is under way.
const STAGING: usize = 64 << 10;

/// From this size of payload on, only the next record is read beyond it, so that the next payload
/// can go straight into its slot. Below it, copying once more costs less than a system call for
/// each payload.
const DIRECT: usize = 32 << 10;

/// A request in flight.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) slot: Slot,
    /// Most bytes of payload.
    pub(super) length: u32,
    /// A part of its body is still to be sent from the slot.
    pub(super) unsent: bool,
}

/// Why nothing more can be received.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The server has closed the connection.
    Ended,
    /// The socket failed.
    Io(i32),
    /// A record is malformed.
    Malformed(Reason),
    /// A record is of no request in flight.
    Unknown(u64),
    /// A record announces more bytes than were asked for.
    TooLong {
        /// The request.
        id: u64,
        /// Bytes announced.
        announced: u32,
        /// Bytes asked for.
        asked: u32,
    },
}

#[derive(Debug)]
struct Landing {
    slot: Slot,
    record: Completion,
    got: usize,
}

impl Landing {
    fn rest(&mut self) -> &mut [u8] {
        let whole = self.record.length.get() as usize;
        &mut self.slot.bytes_mut(whole)[self.got..]
    }
}

thread_local! {
    /// Staging buffers that no connection of this thread has bytes in, the last used on top. One
    /// serves them all, so it stays in the cache however many connections there are.
    static SPARE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// What has been received and not been handed out.
#[derive(Debug)]
pub(super) struct Inbound {
    /// Empty where nothing is in it: then it is with the thread's spare ones.
    staging: Box<[u8]>,
    start: usize,
    end: usize,
    landing: Option<Landing>,
    /// Answers to requests whose bodies are still being sent: handed out once that is over, since
    /// the slot is needed until then, and the server reads the whole body in any case.
    early: Vec<Completion>,
}

impl Inbound {
    pub(super) fn new(credits: usize) -> Self {
        let (staging, early) = (Box::default(), Vec::with_capacity(credits));
        Self { staging, start: 0, end: 0, landing: None, early }
    }

    /// Takes a staging buffer, unless it has one.
    fn borrow(&mut self) {
        if self.staging.is_empty() {
            let spare = SPARE.with_borrow_mut(Vec::pop);
            self.staging = spare.unwrap_or_else(|| vec![0; STAGING].into());
        }
    }

    /// Gives the staging buffer back where nothing is left in it.
    fn give_back(&mut self) {
        if self.start == self.end && !self.staging.is_empty() {
            (self.start, self.end) = (0, 0);
            let staging = std::mem::take(&mut self.staging);
            SPARE.with_borrow_mut(|spare| spare.push(staging));
        }
    }

    /// Gives up the payload that is under way: its request's id and slot.
    pub(super) fn abandon(&mut self) -> Option<(u64, Slot)> {
        self.landing.take().map(|landing| (landing.record.id.get(), landing.slot))
    }

    /// A payload is under way; its request is no longer in the table.
    pub(super) fn is_landing(&self) -> bool {
        self.landing.is_some()
    }

    /// The request of the payload that is under way.
    pub(super) fn landing_id(&self) -> Option<u64> {
        self.landing.as_ref().map(|landing| landing.record.id.get())
    }

    /// Reads at most once and appends what is whole, up to `out`'s spare capacity.
    pub(super) fn receive(
        &mut self,
        socket: &mut impl Read,
        table: &mut IdTable<Pending>,
        out: &mut Vec<Arrival>,
    ) -> Result<(), Fault> {
        self.borrow();
        let outcome = self.read(socket, table, out);
        self.give_back();
        outcome
    }

    fn read(
        &mut self,
        socket: &mut impl Read,
        table: &mut IdTable<Pending>,
        out: &mut Vec<Arrival>,
    ) -> Result<(), Fault> {
        self.hand_out(table, out)?;
        if out.len() == out.capacity() {
            return Ok(());
        }
        // Less than a record is left in the staging buffer, and nothing if a payload is under way.
        self.staging.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let read = match &mut self.landing {
            None => socket.read(&mut self.staging[self.end..]),
            Some(landing) => {
                let ahead = if landing.record.length.get() as usize >= DIRECT {
                    MESSAGE_SIZE
                } else {
                    STAGING
                };
                let staging = IoSliceMut::new(&mut self.staging[..ahead]);
                socket.read_vectored(&mut [IoSliceMut::new(landing.rest()), staging])
            }
        };
        match read {
            Ok(0) => return Err(Fault::Ended),
            Ok(n) => match &mut self.landing {
                None => self.end += n,
                Some(landing) => {
                    let landed = n.min(landing.rest().len());
                    landing.got += landed;
                    self.end = n - landed;
                }
            },
            Err(e) if is_not_now(&e) => return Ok(()),
            Err(e) => return Err(Fault::Io(e.raw_os_error().unwrap_or(0))),
        }
        self.hand_out(table, out)
    }

    /// Appends the answers whose requests' bodies have been sent by now.
    fn hand_out_early(&mut self, table: &mut IdTable<Pending>, out: &mut Vec<Arrival>) {
        self.early.retain(|record| {
            let id = record.id.get();
            if out.len() == out.capacity() || table.get(id).is_none_or(|pending| pending.unsent) {
                return true;
            }
            let slot = table.remove(id).map(|pending| pending.slot);
            out.push(Arrival { slot, record: *record });
            false
        });
    }

    /// Appends what is whole.
    fn hand_out(
        &mut self,
        table: &mut IdTable<Pending>,
        out: &mut Vec<Arrival>,
    ) -> Result<(), Fault> {
        if !self.early.is_empty() {
            self.hand_out_early(table, out);
        }
        while out.len() < out.capacity() {
            let mut landing = match self.landing.take() {
                Some(landing) => landing,
                None => {
                    let staged = &self.staging[self.start..self.end];
                    let Some(message) = first_message(staged) else { return Ok(()) };
                    let begun = begin(message, table, &mut self.early)?;
                    self.start += MESSAGE_SIZE;
                    let Some(landing) = begun else { continue };
                    landing
                }
            };
            let staged = &self.staging[self.start..self.end];
            let rest = landing.rest();
            let copied = rest.len().min(staged.len());
            rest[..copied].copy_from_slice(&staged[..copied]);
            let whole = copied == rest.len();
            landing.got += copied;
            self.start += copied;
            if !whole {
                self.landing = Some(landing);
                return Ok(());
            }
            out.push(Arrival { slot: Some(landing.slot), record: landing.record });
        }
        Ok(())
    }
}

/// Judges a record, and takes its request out of the table only if all is well. `None` if it came
/// before the request's body was sent.
fn begin(
    message: &[u8],
    table: &mut IdTable<Pending>,
    early: &mut Vec<Completion>,
) -> Result<Option<Landing>, Fault> {
    let record = Completion::parse(message).map_err(Fault::Malformed)?;
    let (id, announced) = (record.id.get(), record.length.get());
    let Pending { length: asked, unsent, .. } = *table.get(id).ok_or(Fault::Unknown(id))?;
    if announced > asked {
        return Err(Fault::TooLong { id, announced, asked });
    }
    if early.iter().any(|other| other.id.get() == id) {
        return Err(Fault::Unknown(id));
    }
    if unsent {
        early.push(record);
        return Ok(None);
    }
    let slot = table.remove(id).ok_or(Fault::Unknown(id))?.slot;
    Ok(Some(Landing { slot, record, got: 0 }))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::memory::{Arena, ArenaSpec, Pages, SlotPool};
    use crate::wire::Status;

    /// Gives a stream in pieces of the given sizes, and between them nothing.
    struct Pieces<'a> {
        bytes: &'a [u8],
        sizes: std::iter::Cycle<std::slice::Iter<'a, usize>>,
    }

    impl Read for Pieces<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            self.read_vectored(&mut [IoSliceMut::new(room)])
        }

        fn read_vectored(&mut self, rooms: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
            let size = *self.sizes.next().expect("a cycle has no end");
            if size == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let (piece, _) = self.bytes.split_at(size.min(self.bytes.len()));
            let n = (&mut &piece[..]).read_vectored(rooms)?;
            self.bytes = &self.bytes[n..];
            Ok(n)
        }
    }

    const SLOT: usize = 128 << 10;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// However the stream is cut, the same answers come out of it.
        #[test]
        fn every_split_parses_the_same(
            lengths in prop::collection::vec(
                prop_oneof![Just(0u32), 1u32..200, Just(4096), 30_000u32..=SLOT as u32], 1..24),
            mut sizes in prop::collection::vec(
                prop_oneof![Just(0usize), 1usize..130, 1usize..100_000], 1..12),
            room in 1usize..5,
        ) {
            // Something must come now and then.
            sizes.push(40_000);
            let bytes = SlotPool::bytes_needed(SLOT, lengths.len());
            let arena = Arena::map(&ArenaSpec { bytes, pages: Pages::Base, node: None }).unwrap();
            let mut pool = SlotPool::new(Arc::new(arena), SLOT, lengths.len()).unwrap();
            let mut table = IdTable::new(lengths.len());
            let mut stream = Vec::new();
            // Answered from last to first, each with bytes that tell its id.
            for (id, &length) in lengths.iter().enumerate().rev() {
                let slot = pool.acquire().unwrap();
                table.insert(id as u64, Pending { slot, length, unsent: false });
                let mut record = Completion::new(id as u64, Status::Ok, 0);
                record.length = length.into();
                stream.extend(record.as_bytes());
                stream.extend((0..length).map(|at| (at as usize * 7 + id) as u8));
            }
            let mut socket = Pieces { bytes: &stream, sizes: sizes.iter().cycle() };
            let mut inbound = Inbound::new(lengths.len());
            let mut out = Vec::with_capacity(room);
            let mut next = lengths.len();
            loop {
                let end = inbound.receive(&mut socket, &mut table, &mut out);
                for Arrival { slot, record } in out.drain(..) {
                    next -= 1;
                    prop_assert_eq!(record.id.get(), next as u64);
                    prop_assert_eq!(record.length.get(), lengths[next]);
                    let slot = slot.unwrap();
                    for (at, byte) in slot.bytes(lengths[next] as usize).iter().enumerate() {
                        prop_assert_eq!(*byte, (at * 7 + next) as u8);
                    }
                    pool.release(slot);
                }
                match end {
                    Ok(()) => {}
                    Err(fault) => {
                        prop_assert_eq!(fault, Fault::Ended);
                        break;
                    }
                }
            }
            prop_assert_eq!(next, 0);
            prop_assert_eq!(pool.available(), lengths.len());
            prop_assert_eq!(table.len(), 0);
        }
    }
}
