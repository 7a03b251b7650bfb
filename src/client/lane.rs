//! A connection that comes back: what was in flight when it failed is reported as lost, and a
//! [`Connector`] makes it again meanwhile.

use std::net::IpAddr;
use std::sync::Arc;

use super::connector::{Connector, Pending};
use super::{Client, Done, Get, Identity, Read, Submitted};
use crate::error::Result;

/// How a lane behaves. Times in nanoseconds by the caller's clock.
#[derive(Debug, Clone, Copy)]
pub struct LaneOptions {
    /// Time within which each request is answered, or the connection is given up: only its end
    /// proves that nothing lands in the slot of a late answer any more.
    pub deadline: u64,
    /// Local address of the NIC; `None` leaves it to the routing table.
    pub local: Option<IpAddr>,
    /// Number of the server's worker, as in [`ClientOptions`](super::ClientOptions).
    pub worker: u16,
}

/// The answer to [`Lane::submit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// On its way at the next flush.
    Queued,
    /// As many requests are in flight as the server granted.
    Busy,
    /// There is no connection now; one is being made.
    Away,
}

/// Why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lost {
    /// Its connection failed.
    Connection,
    /// It was not answered within the deadline, or another one of its connection was not.
    Deadline,
}

/// How a request ended.
#[derive(Debug)]
pub enum Answer {
    /// The server answered; the slot goes back by [`Lane::recycle`].
    Done(Done),
    /// It did not. Whether it was done is not known.
    Lost {
        /// The request's tag.
        tag: u64,
        /// Why.
        why: Lost,
    },
}

/// A request in flight.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    tag: u64,
    since: u64,
}

enum Link {
    Up(Box<Client>),
    Down(Arc<Pending>),
}

/// One connection to one server, for one thread.
pub struct Lane {
    link: Link,
    connector: Connector,
    options: LaneOptions,
    identity: Identity,
    /// Requests in flight, by the number that the server knows them by.
    waiting: Vec<Option<Waiting>>,
    free: Vec<u16>,
    done: Vec<Done>,
    /// Why requests of the connection that failed last are lost.
    lost: Option<Lost>,
    reconnects: u64,
    /// Since when it is away; and how long it was before that.
    away_since: u64,
    away: u64,
}

impl Lane {
    /// A lane on an established connection, which `connector` makes again when it fails.
    pub fn new(client: Client, connector: Connector, options: LaneOptions) -> Self {
        let credits = client.credits();
        Self {
            identity: Identity::of(&client),
            link: Link::Up(Box::new(client)),
            connector,
            options,
            waiting: vec![None; credits.into()],
            free: (0..credits).rev().collect(),
            done: Vec::with_capacity(credits.into()),
            lost: None,
            reconnects: 0,
            away_since: 0,
            away: 0,
        }
    }

    /// The connection, while there is one.
    pub fn client(&self) -> Option<&Client> {
        match &self.link {
            Link::Up(client) => Some(client),
            Link::Down(_) => None,
        }
    }

    /// How often the connection was made again.
    pub fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// Nanoseconds without a connection, up to `now`.
    pub fn away_ns(&self, now: u64) -> u64 {
        let still = self.client().map_or(now.saturating_sub(self.away_since), |_| 0);
        self.away + still
    }

    /// Most requests in flight.
    pub fn capacity(&self) -> usize {
        self.waiting.len()
    }

    /// Requests in flight, those that were lost and not yet reported among them.
    pub fn in_flight(&self) -> usize {
        self.waiting.len() - self.free.len()
    }

    /// Puts a read in the batch at time `now`.
    ///
    /// # Errors
    ///
    /// `Usage` where the connection does not carry reads of this length.
    pub fn submit(&mut self, read: Read, now: u64) -> Result<Sent> {
        self.send(read.tag, now, |client, tag| client.submit(Read { tag, ..read }))
    }

    /// Puts a get in the batch at time `now`.
    ///
    /// # Errors
    ///
    /// As [`Client::submit_get`].
    pub fn submit_get(&mut self, get: Get<'_>, now: u64) -> Result<Sent> {
        self.send(get.tag, now, |client, tag| client.submit_get(Get { tag, ..get }))
    }

    fn send(
        &mut self,
        tag: u64,
        now: u64,
        submit: impl FnOnce(&mut Client, u64) -> Result<Submitted>,
    ) -> Result<Sent> {
        let Link::Up(client) = &mut self.link else { return Ok(Sent::Away) };
        // What was lost is to be reported before its numbers are used again.
        if self.lost.is_some() {
            return Ok(Sent::Away);
        }
        let Some(number) = self.free.last().copied() else { return Ok(Sent::Busy) };
        match submit(client, number.into())? {
            Submitted::Busy => Ok(Sent::Busy),
            Submitted::Queued => {
                self.free.pop();
                self.waiting[usize::from(number)] = Some(Waiting { tag, since: now });
                Ok(Sent::Queued)
            }
        }
    }

    /// Sends the batch.
    pub fn flush(&mut self, now: u64) {
        if let Link::Up(client) = &mut self.link
            && let Err(error) = client.flush()
        {
            self.fail(Lost::Connection, &error.report(), now);
        }
    }

    /// Appends how requests ended, at most `out`'s spare capacity.
    pub fn poll(&mut self, now: u64, out: &mut Vec<Answer>) {
        if let Some(why) = self.lost {
            return self.report_lost(why, out);
        }
        if self.free.len() == self.waiting.len() {
            return;
        }
        let Link::Up(client) = &mut self.link else { return };
        let outcome = client.poll(&mut self.done);
        for mut done in self.done.drain(..) {
            let known =
                usize::try_from(done.tag).ok().and_then(|n| self.waiting.get_mut(n)?.take());
            // Channels give answers to requests in flight only.
            let waiting = known.expect("an answer to a request in flight");
            self.free.push(done.tag as u16);
            done.tag = waiting.tag;
            out.push(Answer::Done(done));
        }
        if let Err(error) = outcome {
            self.fail(Lost::Connection, &error.report(), now);
            self.report_lost(Lost::Connection, out);
        }
    }

    /// Looks at deadlines, and for the connection that is being made. To be called a few times
    /// within a deadline.
    pub fn tick(&mut self, now: u64) {
        match &self.link {
            Link::Up(_) => {
                let limit = self.options.deadline;
                let late = |w: &Waiting| now.saturating_sub(w.since) > limit;
                if self.lost.is_none()
                    && let Some(late) = self.waiting.iter().flatten().find(|w| late(w))
                {
                    let text = format!("no answer within {} ms", (now - late.since) / 1_000_000);
                    self.fail(Lost::Deadline, &text, now);
                }
            }
            Link::Down(pending) => {
                if let Some(client) = pending.take() {
                    self.away += now.saturating_sub(self.away_since);
                    self.reconnects += 1;
                    self.link = Link::Up(Box::new(client));
                    // It may grant fewer than before: what is above stays unused.
                }
            }
        }
    }

    /// Takes the slot of an answer back.
    pub fn recycle(&mut self, done: Done) {
        // The slot of a connection that is gone is of no more use; its memory goes with the last.
        if let Link::Up(client) = &mut self.link
            && client.owns(&done)
        {
            client.recycle(done);
        }
    }

    /// Gives up the connection: from now on everything in flight is lost, whatever still comes.
    fn fail(&mut self, why: Lost, text: &str, now: u64) {
        log::warn!("{}: {text}; {} requests lost", self.connector.address(), self.in_flight());
        let place = Arc::new(Pending::default());
        if let Link::Up(client) = std::mem::replace(&mut self.link, Link::Down(place)) {
            let LaneOptions { local, worker, .. } = self.options;
            let identity = self.identity.clone();
            let place = self.connector.want(Some(*client), local, worker, identity);
            self.link = Link::Down(place);
        }
        self.away_since = now;
        self.lost = Some(why);
    }

    fn report_lost(&mut self, why: Lost, out: &mut Vec<Answer>) {
        for (number, place) in self.waiting.iter_mut().enumerate() {
            if out.len() == out.capacity() {
                return;
            }
            if let Some(waiting) = place.take() {
                self.free.push(number as u16);
                out.push(Answer::Lost { tag: waiting.tag, why });
            }
        }
        self.lost = None;
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Link::Down(pending) = &self.link {
            pending.give_up();
        }
    }
}

#[cfg(test)]
mod tests;
