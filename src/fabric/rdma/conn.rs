//! One connection of the server, as its worker sees it. Made and dropped on the control thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::private::ProbeWord;
use super::qp::Qp;
use super::sizing::{HANDSHAKE_SENDS, receives};
use crate::fabric::handshake::ServerHandshake;
use crate::fabric::ids::IdTable;
use crate::fabric::{Closed, ConnId, Pull, Response};
use crate::limits::MAX_CONNECTIONS;
use crate::memory::Lent;

/// What a work request was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// A receive; the entry is the message's place among the connection's receives.
    Receive = 1,
    /// The record of an answer; the entry is its place in the table of sends.
    Answer = 2,
    /// The payload of the answer of the same entry: completes only if it fails.
    Payload = 3,
    /// A message of the handshake.
    Handshake = 4,
    /// A write to the probe word, to see whether the peer's machine is still there.
    Probe = 5,
    /// The READ of a body; the entry is its place in the table of pulls.
    Pull = 6,
}

/// The id that a work request gives to its completion: work, entry, and which connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WorkId {
    pub work: Work,
    pub entry: u16,
    /// Place of the connection in the worker's table.
    pub index: u32,
    /// Generation of the place, modulo 2^24: completions of a connection that is gone are told
    /// from those of its successor.
    pub generation: u32,
}

const GENERATION_BITS: u32 = 24;
const _: () = assert!(MAX_CONNECTIONS <= 1 << 16);

impl WorkId {
    pub fn of(conn: ConnId, work: Work, entry: u16) -> Self {
        let generation = conn.generation & ((1 << GENERATION_BITS) - 1);
        Self { work, entry, index: conn.index, generation }
    }

    pub fn pack(self) -> u64 {
        u64::from(self.work as u8)
            | u64::from(self.entry) << 8
            | u64::from(self.index as u16) << 24
            | u64::from(self.generation) << 40
    }

    /// `None` for a word that `pack` never made.
    pub fn unpack(word: u64) -> Option<Self> {
        let work = match word as u8 {
            1 => Work::Receive,
            2 => Work::Answer,
            3 => Work::Payload,
            4 => Work::Handshake,
            5 => Work::Probe,
            6 => Work::Pull,
            _ => return None,
        };
        let (entry, index) = ((word >> 8) as u16, (word >> 24) as u16);
        Some(Self { work, entry, index: index.into(), generation: (word >> 40) as u32 })
    }
}

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Handshake messages come; no address or key is accepted.
    Handshake,
    /// A refusal is on its way; the connection ends when it was sent.
    Refusing(Closed),
    /// Requests come.
    Open,
    /// The QP is on its way to ERR; what was posted is awaited.
    Closing,
}

/// An answer that the hardware has.
#[derive(Debug)]
pub(super) struct Sending {
    pub slot: Option<Lent>,
    pub tag: u64,
}

/// A pull that the hardware has.
#[derive(Debug)]
pub(super) struct Pulling {
    pub slot: Lent,
    pub tag: u64,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub id: ConnId,
    /// Number of its worker, as the control side counts.
    pub worker: usize,
    /// Key of its rdma_cm id.
    pub cm: usize,
    /// Shared with the control thread, which takes it out to destroy it.
    pub qp: Option<Arc<Qp>>,
    pub credits: u16,
    pub phase: Phase,
    pub handshake: ServerHandshake,
    /// End of the handshake's time, or of the wait for flushed work.
    pub deadline: Instant,
    /// First of this connection's messages: its receives, then its records.
    pub messages: usize,
    /// Receives that the hardware has.
    pub receives: u32,
    /// Signalled sends that the hardware has.
    pub sends: u32,
    /// Requests received and not answered. An id leaves with its record's post: the client may
    /// use it again, and its credit, from when it has the record.
    pub ids: IdTable<()>,
    /// Answers that the hardware has, by entry.
    pub sending: Vec<Option<Sending>>,
    /// Entries of `sending` that are free.
    pub free: Vec<u16>,
    /// Answers that wait for the next flush, or for an entry.
    pub pending: VecDeque<Response>,
    /// Where the peer lets itself be probed.
    pub probe: ProbeWord,
    /// Pulls that the hardware has, by entry: as many as READs may be under way.
    pub pulling: Vec<Option<Pulling>>,
    /// Pulls that wait for the next flush, or for an entry.
    pub pulls: VecDeque<Pull>,
    /// Something has completed since the last look for idle connections.
    pub heard: bool,
    /// True while the connection is in the worker's list of those to flush.
    pub dirty: bool,
}

/// Messages that each connection's place needs, by the server's credits: receives, records, and
/// the handshake's sends.
pub(super) fn messages_per_conn(credits: u16) -> usize {
    receives(credits) as usize + usize::from(credits) + HANDSHAKE_SENDS as usize
}

impl Conn {
    /// Place of the message of receive `entry`.
    pub fn receive_at(&self, entry: u16) -> usize {
        self.messages + usize::from(entry)
    }

    /// Place of the record of answer `entry`.
    pub fn record_at(&self, entry: u16) -> usize {
        self.messages + receives(self.credits) as usize + usize::from(entry)
    }

    /// Place of handshake message `nth`.
    pub fn handshake_at(&self, nth: u16) -> usize {
        self.record_at(self.credits) + usize::from(nth)
    }

    /// The QP of a connection that was not retired yet.
    pub fn qp(&self) -> &Qp {
        self.qp.as_ref().expect("a worker's connection has its QP until it is retired")
    }

    /// Posts receive `entry`.
    pub fn post_receive(&mut self, entry: u16) -> std::io::Result<()> {
        let id = WorkId::of(self.id, Work::Receive, entry).pack();
        self.qp().post_receive(self.receive_at(entry), id)?;
        self.receives += 1;
        Ok(())
    }

    /// True if the hardware has slots of this connection.
    pub fn has_slots(&self) -> bool {
        self.sending.iter().any(Option::is_some) || self.pulling.iter().any(Option::is_some)
    }

    /// True when the hardware has nothing of this connection any more.
    pub fn is_drained(&self) -> bool {
        self.receives == 0 && self.sends == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ids_survive_the_trip() {
        for (work, entry, index, generation) in [
            (Work::Receive, 0, 0, 0),
            (Work::Answer, 1023, 4095, (1 << 24) - 1),
            (Work::Payload, u16::MAX, 65_535, 1),
            (Work::Handshake, 2, 1, 77),
            (Work::Pull, 15, 1, 77),
        ] {
            let id = WorkId::of(ConnId { index, generation }, work, entry);
            assert_eq!(WorkId::unpack(id.pack()), Some(id));
        }
        assert_eq!(WorkId::unpack(0), None);
        assert_eq!(WorkId::unpack(7), None);
    }

    #[test]
    fn a_reused_place_has_another_id() {
        let id = |generation| WorkId::of(ConnId { index: 3, generation }, Work::Answer, 1).pack();
        assert_ne!(id(1), id(2));
    }
}
