//! The client's send path: requests and bodies, to be sent in order.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

use super::inbound::Pending;
use super::is_not_now;
use crate::fabric::ids::IdTable;
use crate::limits::MESSAGE_SIZE;
use crate::wire::Request;

use zerocopy::IntoBytes;

/// Pieces of one writev.
const MAX_PIECES: usize = 32;

/// A body that is to be sent from the slot of its request.
#[derive(Debug)]
struct Body {
    id: u64,
    len: usize,
    /// Bytes of `messages` that go before it.
    after: usize,
    /// Bytes of it that were sent.
    sent: usize,
}

/// Requests to be sent, and the bodies that follow some of them.
#[derive(Debug)]
pub(super) struct Outbound {
    /// The first `sent` bytes have been sent.
    messages: Vec<u8>,
    sent: usize,
    bodies: VecDeque<Body>,
    /// The socket was full at the last write.
    pub(super) full: bool,
}

impl Outbound {
    /// Room for `credits` requests.
    pub(super) fn new(credits: usize) -> Self {
        Self {
            messages: Vec::with_capacity(credits * MESSAGE_SIZE),
            sent: 0,
            bodies: VecDeque::with_capacity(credits),
            full: false,
        }
    }

    /// Appends a request; its body is in its slot, in the table of those in flight.
    pub(super) fn push(&mut self, request: &Request) {
        if self.messages.len() == self.messages.capacity() {
            // A part of it may have been sent; the rest has room, since the credits bound it.
            self.messages.copy_within(self.sent.., 0);
            self.messages.truncate(self.messages.len() - self.sent);
            self.bodies.iter_mut().for_each(|body| body.after -= self.sent);
            self.sent = 0;
        }
        self.messages.extend_from_slice(request.as_bytes());
        if request.body() > 0 {
            let (id, len) = (request.id.get(), request.body() as usize);
            self.bodies.push_back(Body { id, len, after: self.messages.len(), sent: 0 });
        }
    }

    /// Forgets what was not sent.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
        self.bodies.clear();
        self.sent = 0;
        self.full = false;
    }

    /// Writes what the socket takes.
    pub(super) fn write(
        &mut self,
        socket: &mut impl Write,
        table: &mut IdTable<Pending>,
    ) -> io::Result<()> {
        while self.sent < self.messages.len() || !self.bodies.is_empty() {
            match self.write_once(socket, table) {
                Ok(n) => self.advance(n, table),
                Err(e) if is_not_now(&e) => {
                    self.full = true;
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        self.clear();
        Ok(())
    }

    fn write_once(&self, socket: &mut impl Write, table: &IdTable<Pending>) -> io::Result<usize> {
        if self.bodies.is_empty() {
            return socket.write(&self.messages[self.sent..]);
        }
        let mut pieces = [IoSlice::new(&[]); MAX_PIECES];
        let (mut count, mut from) = (0, self.sent);
        for body in self.bodies.iter().take(MAX_PIECES / 2 - 1) {
            if body.after > from {
                pieces[count] = IoSlice::new(&self.messages[from..body.after]);
                (count, from) = (count + 1, body.after);
            }
            let pending = table.get(body.id).expect("in flight until its body is sent");
            pieces[count] = IoSlice::new(&pending.slot.bytes(body.len)[body.sent..]);
            count += 1;
        }
        if self.bodies.len() < MAX_PIECES / 2 && from < self.messages.len() {
            pieces[count] = IoSlice::new(&self.messages[from..]);
            count += 1;
        }
        socket.write_vectored(&pieces[..count])
    }

    /// Counts `n` bytes as sent.
    fn advance(&mut self, mut n: usize, table: &mut IdTable<Pending>) {
        while let Some(body) = self.bodies.front_mut() {
            let before = n.min(body.after - self.sent);
            self.sent += before;
            n -= before;
            let of_body = n.min(body.len - body.sent);
            body.sent += of_body;
            n -= of_body;
            if body.sent < body.len {
                return;
            }
            table.get_mut(body.id).expect("in flight until its body is sent").unsent = false;
            self.bodies.pop_front();
        }
        self.sent += n;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::memory::{Arena, ArenaSpec, Pages, SlotPool};

    const SLOT: usize = 8192;
    const CREDITS: usize = 8;

    /// Takes as much as the next size says, and nothing where it is 0.
    struct Narrow {
        taken: Vec<u8>,
        sizes: Vec<usize>,
        next: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.write_vectored(&[IoSlice::new(bytes)])
        }

        fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
            let size = self.sizes[self.next % self.sizes.len()];
            self.next += 1;
            if size == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let before = self.taken.len();
            for byte in pieces.iter().flat_map(|piece| piece.iter()).take(size) {
                self.taken.push(*byte);
            }
            Ok(self.taken.len() - before)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// However little the socket takes at a time, requests and bodies go out whole and in
        /// order, and a slot is needed until its body is sent and no longer.
        #[test]
        fn any_split_sends_the_same(
            lengths in prop::collection::vec(prop::option::of(1u32..7000), 1..60),
            mut sizes in prop::collection::vec(
                prop_oneof![Just(0usize), 1usize..70, 1usize..9000], 1..12),
        ) {
            sizes.push(4000);
            let bytes = SlotPool::bytes_needed(SLOT, CREDITS);
            let arena = Arena::map(&ArenaSpec { bytes, pages: Pages::Base, node: None }).unwrap();
            let mut pool = SlotPool::new(Arc::new(arena), SLOT, CREDITS).unwrap();
            let mut table = IdTable::new(CREDITS);
            let mut outbound = Outbound::new(CREDITS);
            let mut socket = Narrow { taken: Vec::new(), sizes, next: 0 };
            let mut expected = Vec::new();
            let mut in_flight = VecDeque::new();
            for (id, length) in (0u64..).zip(&lengths) {
                while pool.available() == 0 {
                    outbound.write(&mut socket, &mut table).unwrap();
                    // Answered in order, each once its request has been sent.
                    let oldest: u64 = *in_flight.front().unwrap();
                    if !table.get(oldest).unwrap().unsent && (!outbound.full || oldest + 4 < id) {
                        in_flight.pop_front();
                        pool.release(table.remove(oldest).unwrap().slot);
                    }
                }
                let mut slot = pool.acquire().unwrap();
                let request = match length {
                    Some(length) => Request::put(id, [1; 24], *length),
                    None => Request::get(id, [1; 24], 100),
                };
                let body = slot.bytes_mut(request.body() as usize);
                body.iter_mut().enumerate().for_each(|(at, b)| *b = (at as u64 * 7 + id) as u8);
                expected.extend(request.as_bytes());
                expected.extend_from_slice(body);
                let unsent = request.body() > 0;
                table.insert(id, Pending { slot, length: request.most(), unsent });
                in_flight.push_back(id);
                outbound.push(&request);
            }
            loop {
                outbound.write(&mut socket, &mut table).unwrap();
                if !outbound.full {
                    break;
                }
            }
            prop_assert!(socket.taken == expected, "{} of {}", socket.taken.len(), expected.len());
            prop_assert!(in_flight.iter().all(|id| !table.get(*id).unwrap().unsent));
        }
    }
}
