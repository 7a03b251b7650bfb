//! How a worker's endpoint hands work to the hardware.

use rdma_sys::ibv_sge;
use zerocopy::IntoBytes as _;

use super::conn::{Pulling, Sending, Work, WorkId};
use super::endpoint::RdmaEndpoint;
use crate::fabric::handshake::Message;
use crate::fabric::{Closed, ConnId};
use crate::memory::Slot;

impl RdmaEndpoint {
    /// Sends messages of the handshake from its records `first` on.
    pub(super) fn send_handshake(
        &mut self,
        id: ConnId,
        first: u16,
        send: &[Message],
    ) -> Result<(), Closed> {
        let Self { conns, chain, messages, .. } = self;
        let Some(conn) = conns[id.index as usize].as_deref_mut() else { return Ok(()) };
        for (nth, message) in (first..).zip(send) {
            let at = conn.handshake_at(nth);
            messages.write(at, message);
            let work = WorkId::of(id, Work::Handshake, nth).pack();
            chain.push_send(conn.qp(), work, at, true);
            conn.sends += 1;
        }
        let mut refused = 0;
        // SAFETY: the chain has no WRITE and no READ.
        let done = unsafe { chain.post(conn.qp(), |_| refused += 1) };
        conn.sends -= refused;
        done.map_err(|_| Closed::Transport)
    }

    /// Writes to the peer's probe word, which its hardware acknowledges. Its program sees nothing
    /// of it, and no receive is used up. The send queue is empty, so there is room.
    pub(super) fn send_probe(&mut self, id: ConnId) {
        let Self { conns, chain, .. } = self;
        let Some(conn) = conns[id.index as usize].as_deref_mut() else { return };
        // The bytes are those of the challenge, which the peer had before: kind, version, magic.
        let work = WorkId::of(id, Work::Probe, 0).pack();
        chain.push_probe(conn.qp(), work, conn.handshake_at(0), conn.probe);
        // SAFETY: the chain's WRITE is of the messages' memory, which the QP keeps registered.
        match unsafe { chain.post(conn.qp(), |_| {}) } {
            Ok(()) => conn.sends += 1,
            Err(_) => self.begin_close(id, Closed::Transport),
        }
    }

    /// Posts the pulls that wait on connection `index`, as far as it has entries.
    fn post_pulls(&mut self, index: u32) {
        let Self { conns, chain, mr, .. } = self;
        let Some(conn) = conns[index as usize].as_deref_mut() else { return };
        let id = conn.id;
        for (entry, place) in (0..).zip(&mut conn.pulling) {
            if place.is_some() {
                continue;
            }
            let Some(pull) = conn.pulls.pop_front() else { break };
            let slot = pull.slot.lend();
            let (start, len) = (pull.start as usize, pull.len as usize);
            assert!(mr.contains(slot.addr(), start + len), "a slot of another arena");
            let addr = slot.addr() as u64 + u64::from(pull.start);
            let target = ibv_sge { addr, length: pull.len, lkey: mr.lkey() };
            let work = WorkId::of(id, Work::Pull, entry).pack();
            chain.push_read(work, target, pull.remote_addr, pull.rkey);
            *place = Some(Pulling { slot, tag: pull.tag });
            conn.sends += 1;
        }
        let mut unposted = 0;
        // SAFETY: each target is of the registered arena and lent; it is kept in `pulling` until
        // the READ's completion was polled or the QP was destroyed.
        let done = unsafe { chain.post(conn.qp(), |_| unposted += 1) };
        if done.is_err() {
            // Those not posted come back with the QP's destruction, as the others do.
            conn.sends -= unposted;
            self.begin_close(id, Closed::Transport);
        }
    }

    /// Posts the answers that wait on connection `index`, as far as it has entries.
    fn post_pending(&mut self, index: u32) {
        loop {
            let Self { conns, chain, messages, mr, .. } = self;
            let Some(conn) = conns[index as usize].as_deref_mut() else { return };
            let id = conn.id;
            while chain.room() >= 2
                && !conn.pending.is_empty()
                && let Some(entry) = conn.free.pop()
            {
                let response = conn.pending.pop_front().expect("not empty, seen above");
                let at = conn.record_at(entry);
                let record = response.record.as_bytes();
                messages.write(at, record.try_into().expect("asserted in wire"));
                let slot = response.slot.map(Slot::lend);
                if let Some(lent) = slot.as_ref().filter(|_| response.len > 0) {
                    let (start, length) = (response.start, response.len);
                    let end = start as usize + length as usize;
                    assert!(mr.contains(lent.addr(), end), "a slot of another arena");
                    let addr = lent.addr() as u64 + u64::from(start);
                    let source = ibv_sge { addr, length, lkey: mr.lkey() };
                    let work = WorkId::of(id, Work::Payload, entry).pack();
                    chain.push_write(work, source, response.remote_addr, response.rkey);
                }
                let work = WorkId::of(id, Work::Answer, entry).pack();
                chain.push_send(conn.qp(), work, at, true);
                conn.sending[usize::from(entry)] = Some(Sending { slot, tag: response.tag });
                conn.sends += 1;
                // Once the client has the record it may use id and credit again, and its next
                // request may be polled before this send's own completion.
                conn.ids.remove(response.record.id.get());
            }
            if chain.is_empty() {
                return;
            }
            let mut unposted = 0;
            // SAFETY: each payload is of the registered arena and lent; it is kept in `sending`
            // until the record's completion was polled or the QP was destroyed.
            let done = unsafe {
                chain.post(conn.qp(), |work| {
                    unposted +=
                        u32::from(WorkId::unpack(work).is_some_and(|w| w.work == Work::Answer));
                })
            };
            if done.is_err() {
                // The device may have taken a payload and not its record. The entries stay
                // occupied, so their slots come back when the QP is destroyed.
                conn.sends -= unposted;
                return self.begin_close(id, Closed::Transport);
            }
        }
    }

    pub(super) fn post_dirty(&mut self) {
        while let Some(index) = self.dirty.pop() {
            if let Some(conn) = &mut self.conns[index as usize] {
                conn.dirty = false;
                let pulls = !conn.pulls.is_empty();
                self.post_pending(index);
                if pulls {
                    self.post_pulls(index);
                }
            }
        }
    }
}
