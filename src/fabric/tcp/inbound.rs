//! The client's receive path: a byte stream of records and payloads, into landing slots.

use std::io::{IoSliceMut, Read};

use super::ids::IdTable;
use super::{first_message, is_not_now};
use crate::fabric::Arrival;
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
    pub(super) length: u32,
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

/// What has been received and not been handed out.
#[derive(Debug)]
pub(super) struct Inbound {
    staging: Box<[u8]>,
    start: usize,
    end: usize,
    landing: Option<Landing>,
}

impl Inbound {
    pub(super) fn new() -> Self {
        Self { staging: vec![0; STAGING].into(), start: 0, end: 0, landing: None }
    }

    /// Gives up the payload that is under way: its request's id and slot.
    pub(super) fn abandon(&mut self) -> Option<(u64, Slot)> {
        self.landing.take().map(|landing| (landing.record.id.get(), landing.slot))
    }

    /// A payload is under way; its request is no longer in the table.
    pub(super) fn is_landing(&self) -> bool {
        self.landing.is_some()
    }

    /// Reads at most once and appends what is whole, up to `out`'s spare capacity.
    pub(super) fn receive(
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

    /// Appends what is whole.
    fn hand_out(
        &mut self,
        table: &mut IdTable<Pending>,
        out: &mut Vec<Arrival>,
    ) -> Result<(), Fault> {
        while out.len() < out.capacity() {
            let mut landing = match self.landing.take() {
                Some(landing) => landing,
                None => {
                    let staged = &self.staging[self.start..self.end];
                    let Some(message) = first_message(staged) else { return Ok(()) };
                    let landing = begin(message, table)?;
                    self.start += MESSAGE_SIZE;
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

/// Judges a record, and takes its request out of the table only if all is well.
fn begin(message: &[u8], table: &mut IdTable<Pending>) -> Result<Landing, Fault> {
    let record = Completion::parse(message).map_err(Fault::Malformed)?;
    let (id, announced) = (record.id.get(), record.length.get());
    let asked = table.get(id).ok_or(Fault::Unknown(id))?.length;
    if announced > asked {
        return Err(Fault::TooLong { id, announced, asked });
    }
    let slot = table.remove(id).ok_or(Fault::Unknown(id))?.slot;
    Ok(Landing { slot, record, got: 0 })
}
