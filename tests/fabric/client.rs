//! The client's side of the fabrics' tests.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Instant;

use millrace::Result;
use millrace::fabric::{Arrival, Channel};
use millrace::memory::SlotPool;
use millrace::wire::{Request, Status};

use super::{CREDITS, Fabric, PATIENCE, assert_filled, connect_config, fill, pool};

/// A channel with its slots.
pub struct Client<C> {
    pub channel: C,
    pub pool: SlotPool,
    offsets: HashMap<u64, (u64, u32)>,
    next: u64,
    out: Vec<Arrival>,
    pub errors: u64,
}

impl<C: Channel> Client<C> {
    pub fn connect<F: Fabric<Channel = C>>(to: SocketAddr) -> Self {
        let pool = pool(CREDITS as usize + 1);
        let channel = F::connect(to, &connect_config(), &pool).unwrap();
        let offsets = HashMap::with_capacity(64);
        Self { channel, pool, offsets, next: 1, out: Vec::with_capacity(4), errors: 0 }
    }

    /// Submits one read; false if the credits are used up.
    pub fn submit(&mut self, length: u32) -> bool {
        let Some(slot) = self.pool.acquire() else { return false };
        let offset = self.next * 4096;
        match self.channel.submit(Request::read(self.next, 0, offset, length), slot) {
            Ok(()) => {
                self.offsets.insert(self.next, (offset, length));
                self.next += 1;
                true
            }
            Err(slot) => {
                self.pool.release(slot);
                false
            }
        }
    }

    /// Submits one put with `length` bytes of data; false if the credits are used up.
    pub fn put(&mut self, length: u32) -> bool {
        let Some(mut slot) = self.pool.acquire() else { return false };
        let request = Request::put(self.next, [3; 24], length);
        fill(self.next * 4096, slot.bytes_mut(request.body() as usize));
        match self.channel.submit(request, slot) {
            Ok(()) => {
                self.offsets.insert(self.next, (0, 0));
                self.next += 1;
                true
            }
            Err(slot) => {
                self.pool.release(slot);
                false
            }
        }
    }

    /// Takes in what has arrived, and verifies it.
    pub fn poll(&mut self) -> Result<usize> {
        let n = self.channel.poll(&mut self.out)?;
        for arrival in self.out.drain(..) {
            let id = arrival.record.id.get();
            let (offset, length) = self.offsets.remove(&id).expect("answered once");
            let slot = arrival.slot.expect("nothing is leaked");
            if arrival.record.status() == Status::Ok {
                assert_eq!(arrival.record.length.get(), length);
                assert_filled(offset, slot.bytes(length as usize));
            } else {
                assert_eq!(arrival.record.length.get(), 0);
                self.errors += 1;
            }
            self.pool.release(slot);
        }
        Ok(n)
    }

    /// Reads `count` times with the credits used to the full; `length` of the n-th read.
    pub fn run(&mut self, count: u64, length: impl Fn(u64) -> u32) {
        self.run_by(count, |client, n| client.submit(length(n)));
    }

    /// Reads and puts in turn; `length` of the n-th.
    pub fn run_mixed(&mut self, count: u64, length: impl Fn(u64) -> u32) {
        let puts = |n: u64| n * n % 5 % 2 == 1;
        self.run_by(
            count,
            |client, n| {
                if puts(n) { client.put(length(n)) } else { client.submit(length(n)) }
            },
        );
    }

    /// Has `submit` send the n-th of `count` requests whenever there is room.
    pub fn run_by(&mut self, count: u64, submit: impl Fn(&mut Self, u64) -> bool) {
        let until = Instant::now() + PATIENCE;
        let (mut asked, mut got) = (0, 0);
        while got < count {
            assert!(Instant::now() < until, "{got} of {count} answers came");
            while asked < count && submit(self, asked) {
                asked += 1;
            }
            self.channel.flush().unwrap();
            let n = self.poll().unwrap();
            got += n as u64;
            if n == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!(self.channel.in_flight(), 0);
    }

    /// Ends it and counts the slots, all of which must be there.
    pub fn abandon(mut self) -> usize {
        let ids: Vec<_> = self.channel.abandon();
        let given = ids.len();
        for (id, slot) in ids {
            self.offsets.remove(&id).expect("a request in flight");
            self.pool.release(slot.expect("nothing is leaked"));
        }
        assert_eq!(self.pool.available(), self.pool.count(), "every landing slot is back");
        given
    }
}
