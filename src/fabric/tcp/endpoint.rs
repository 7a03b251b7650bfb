//! One worker's connections.

use std::collections::VecDeque;
use std::io::Read;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::body::Body;
use super::connection::{Connection, Phase, Sent};
use super::is_not_now;
use super::listener::{LINGER, Mailbox};
use crate::error::{Context, Error, Result};
use crate::fabric::handshake::{Message, Step};
use crate::fabric::{Closed, ConnId, Endpoint, Event, Pull, Response};
use crate::host::socket::unacknowledged;
use crate::limits::{MAX_CONNECTIONS, MAX_CREDITS, MAX_SLOTS};
use crate::memory::Arena;
use crate::wire::Reason;

/// Turns between two looks at the clock, which costs about as much as 1/10 of an idle turn.
const TURNS_PER_CLOCK: u32 = 64;

/// Time between two looks at all deadlines.
const SWEEP: Duration = Duration::from_millis(50);

/// Readiness events taken from the kernel at once.
const EVENTS: usize = 256;

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// The connections of one worker over TCP.
#[derive(Debug)]
pub struct TcpEndpoint {
    mailbox: Arc<Mailbox>,
    poll: Poll,
    events: Events,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Connections whose socket or buffer may hold requests.
    readable: VecDeque<u32>,
    /// Connections with answers to be handed to a socket that may take them.
    unsent: VecDeque<u32>,
    /// Connections with something to be reported: answers that are done, or their own end.
    finished: VecDeque<u32>,
    /// Ends of answers and pulls whose connections were gone.
    orphans: VecDeque<Event>,
    /// Sockets that were refused while stopping; closed when this is dropped.
    leaving: Vec<TcpStream>,
    in_flight: u32,
    open: u32,
    turn: u32,
    next_sweep: Instant,
}

impl TcpEndpoint {
    pub(super) fn new(mailbox: Arc<Mailbox>, arena: &Arc<Arena>) -> Result<Self> {
        let config = &mailbox.config;
        let most = config.max_connections;
        if most == 0 || most > MAX_CONNECTIONS {
            return Err(Error::usage(format!("{most} connections per worker are not possible"))
                .remedy(format!("choose 1 to {MAX_CONNECTIONS}")));
        }
        if config.credits == 0 || config.credits > MAX_CREDITS {
            return Err(Error::usage(format!("{} credits are not possible", config.credits))
                .remedy(format!("choose 1 to {MAX_CREDITS}")));
        }
        let slots = arena.len() / (config.max_payload as usize).max(1);
        Ok(Self {
            poll: Poll::new().context(|| "cannot make an epoll instance".into())?,
            events: Events::with_capacity(EVENTS),
            places: std::iter::repeat_with(Place::default).take(most).collect(),
            // The lowest place is on top.
            free: (0..most as u32).rev().collect(),
            readable: VecDeque::with_capacity(most),
            unsent: VecDeque::with_capacity(most),
            finished: VecDeque::with_capacity(most),
            orphans: VecDeque::with_capacity(slots.min(MAX_SLOTS)),
            leaving: Vec::with_capacity(most),
            in_flight: 0,
            open: 0,
            turn: 0,
            next_sweep: Instant::now() + SWEEP,
            mailbox,
        })
    }

    fn id(&self, index: u32) -> ConnId {
        ConnId { index, generation: self.places[index as usize].generation }
    }

    fn connection(&mut self, index: u32) -> Option<&mut Connection> {
        self.places[index as usize].connection.as_deref_mut()
    }

    /// The connection of this id, unless it is over.
    fn current(&mut self, id: ConnId) -> Option<&mut Connection> {
        let place = self.places.get_mut(id.index as usize)?;
        let connection = place.connection.as_deref_mut()?;
        (place.generation == id.generation && !connection.is_dead()).then_some(connection)
    }

    fn take_in(&mut self) {
        while let Some(mut connection) = self.mailbox.take() {
            if self.mailbox.is_refusing() {
                connection.reject(Reason::Stopping);
                self.leaving.extend(connection.part());
                self.mailbox.retire(connection);
                continue;
            }
            let index = self.free.pop().expect("the listener gives no more than there are places");
            let place = &mut self.places[index as usize];
            place.generation = place.generation.wrapping_add(1);
            let registered = connection.stream.as_ref().is_some_and(|stream| {
                let interest = Interest::READABLE | Interest::WRITABLE;
                let token = Token(index as usize);
                let registry = self.poll.registry();
                registry.register(&mut SourceFd(&stream.as_raw_fd()), token, interest).is_ok()
            });
            place.connection = Some(connection);
            if !registered {
                self.kill(index, Closed::Transport);
            }
        }
    }

    /// Ends a connection; the rest is reporting.
    fn kill(&mut self, index: u32, why: Closed) {
        let Some(connection) = self.connection(index) else { return };
        if connection.is_dead() {
            return;
        }
        let was_open = matches!(connection.phase, Phase::Open);
        connection.kill(why);
        if !std::mem::replace(&mut connection.listed.finished, true) {
            self.finished.push_back(index);
        }
        self.open -= u32::from(was_open);
    }

    /// Frees the place of a connection whose end has been reported.
    fn retire(&mut self, index: u32) {
        let Some(connection) = self.places[index as usize].connection.take() else { return };
        if connection.listed.readable {
            self.readable.retain(|other| *other != index);
        }
        if connection.listed.unsent {
            self.unsent.retain(|other| *other != index);
        }
        self.free.push(index);
        self.mailbox.retire(connection);
    }

    /// Reports what is over; false if `out` is full before all is reported.
    fn report(&mut self, out: &mut Vec<Event>) -> bool {
        while !self.orphans.is_empty() {
            if out.len() == out.capacity() {
                return false;
            }
            self.in_flight -= 1;
            out.extend(self.orphans.pop_front());
        }
        while let Some(&index) = self.finished.front() {
            let conn = self.id(index);
            let connection = self.places[index as usize].connection.as_deref_mut();
            let connection = connection.expect("listed connections are in their place");
            if out.len() < out.capacity()
                && let Some(Pull { tag, slot, .. }) = connection.take_cut_off()
            {
                self.in_flight -= 1;
                out.push(Event::Pulled { conn, tag, slot: Some(slot), ok: false });
            }
            while connection.has_done() && out.len() < out.capacity() {
                let Some((response, delivered)) = connection.take_done() else { break };
                self.in_flight -= 1;
                let Response { tag, slot, .. } = response;
                out.push(Event::Sent { conn, tag, slot, delivered });
            }
            if out.len() == out.capacity() && (connection.has_done() || connection.is_dead()) {
                return false;
            }
            connection.listed.finished = false;
            self.finished.pop_front();
            if let Phase::Dead(why) = connection.phase {
                out.push(Event::Closed(conn, why));
                self.retire(index);
            }
        }
        true
    }

    /// Asks the kernel which sockets have changed.
    fn wait(&mut self) {
        // Zero time: only a signal can interrupt it, and the next turn asks again.
        if self.poll.poll(&mut self.events, Some(Duration::ZERO)).is_err() {
            return;
        }
        for event in &self.events {
            let index = event.token().0 as u32;
            // Events of a closed socket cannot be here: closing took it out of the epoll set.
            let Some(connection) = self.places[index as usize].connection.as_deref_mut() else {
                continue;
            };
            if event.is_readable() || event.is_read_closed() || event.is_error() {
                connection.maybe_readable = true;
                connection.ending |= event.is_read_closed() || event.is_error();
                if !std::mem::replace(&mut connection.listed.readable, true) {
                    self.readable.push_back(index);
                }
            }
            let wants = event.is_writable() && connection.has_unsent();
            if wants && !std::mem::replace(&mut connection.listed.unsent, true) {
                self.unsent.push_back(index);
            }
        }
    }

    /// One write on each connection that has answers and whose socket may take them.
    fn send(&mut self) {
        for _ in 0..self.unsent.len() {
            let Some(index) = self.unsent.pop_front() else { return };
            let Some(connection) = self.connection(index) else { continue };
            connection.listed.unsent = false;
            if connection.is_dead() {
                continue;
            }
            let sent = connection.send();
            if connection.has_done() && !std::mem::replace(&mut connection.listed.finished, true) {
                self.finished.push_back(index);
            }
            match sent {
                Ok(Sent::Part) => self.list_unsent(index),
                Ok(Sent::All | Sent::Full) => {}
                Err(why) => self.kill(index, why),
            }
        }
    }

    fn list_unsent(&mut self, index: u32) {
        let Some(connection) = self.connection(index) else { return };
        if !std::mem::replace(&mut connection.listed.unsent, true) {
            self.unsent.push_back(index);
        }
    }

    fn list_readable(&mut self, index: u32) {
        let Some(connection) = self.connection(index) else { return };
        if !std::mem::replace(&mut connection.listed.readable, true) {
            self.readable.push_back(index);
        }
    }

    /// One read on each connection that may have something, and all messages that it gave.
    fn receive(&mut self, out: &mut Vec<Event>) {
        for _ in 0..self.readable.len() {
            if out.len() == out.capacity() {
                return;
            }
            let Some(index) = self.readable.pop_front() else { return };
            match self.receive_on(index, out) {
                Ok(true) => self.readable.push_back(index),
                Ok(false) => {
                    if let Some(connection) = self.connection(index) {
                        connection.listed.readable = false;
                    }
                }
                Err(why) => {
                    if let Some(connection) = self.connection(index) {
                        connection.listed.readable = false;
                    }
                    self.kill(index, why);
                }
            }
        }
    }

    /// True if there may be more.
    fn receive_on(&mut self, index: u32, out: &mut Vec<Event>) -> Result<bool, Closed> {
        let conn = self.id(index);
        let Some(connection) = self.places[index as usize].connection.as_deref_mut() else {
            return Ok(false);
        };
        if connection.is_dead() {
            return Ok(false);
        }
        // Requests whose answers are done but not reported still count against the credits; a
        // quick client would be accused wrongly. They are reported at the next poll.
        if connection.has_done() {
            return Ok(true);
        }
        if connection.body.is_under_way() {
            if let Some(Pull { tag, slot, .. }) = connection.receive_body()? {
                self.in_flight -= 1;
                out.push(Event::Pulled { conn, tag, slot: Some(slot), ok: true });
            }
        } else if !connection.has_message() && connection.maybe_readable {
            connection.fill()?;
        }
        while matches!(connection.body, Body::None) && out.len() < out.capacity() {
            let Some(message) = connection.next_message() else { break };
            if matches!(connection.phase, Phase::Open) {
                out.push(Event::Request(conn, connection.admit(&message)?));
            } else if shake_hands(connection, &message)? {
                self.open += 1;
                out.push(Event::Opened(conn));
            }
        }
        Ok(connection.may_go_on())
    }

    /// Ends connections that have been waited for long enough.
    fn sweep(&mut self) {
        let now = Instant::now();
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + SWEEP;
        let stall = self.mailbox.options.stall_timeout;
        for index in 0..self.places.len() as u32 {
            let Some(connection) = self.connection(index) else { continue };
            if matches!(connection.phase, Phase::Handshake(_, until) if until <= now) {
                connection.reject(Reason::Timeout);
                self.kill(index, Closed::HandshakeTimeout);
            } else if connection.stalled().is_some_and(|since| now >= since + stall) {
                self.kill(index, Closed::Transport);
            }
        }
    }
}

/// Takes one message of the handshake; true if it was the last.
fn shake_hands(connection: &mut Connection, message: &Message) -> Result<bool, Closed> {
    let Phase::Handshake(handshake, _) = &mut connection.phase else { return Ok(false) };
    match handshake.receive(message) {
        Step::Continue(reply) => connection.send_now(&reply).map(|()| false),
        Step::Established { send, credits } => {
            connection.send_now(send.as_flattened())?;
            connection.open(credits);
            Ok(true)
        }
        Step::Refuse(reply, reason) => {
            // It is refused with or without its knowing.
            let _ = connection.send_now(&reply);
            Err(match reason {
                Reason::Proof => Closed::Unauthenticated,
                reason => Closed::Protocol(reason),
            })
        }
    }
}

impl Endpoint for TcpEndpoint {
    fn poll(&mut self, out: &mut Vec<Event>) {
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(TURNS_PER_CLOCK) {
            self.sweep();
        }
        self.take_in();
        self.wait();
        self.send();
        if self.report(out) {
            self.receive(out);
        }
    }

    fn respond(&mut self, conn: ConnId, response: Response) {
        self.in_flight += 1;
        let Some(connection) = self.current(conn) else {
            let Response { tag, slot, .. } = response;
            self.orphans.push_back(Event::Sent { conn, tag, slot, delivered: false });
            return;
        };
        let was_due = connection.body.is_due();
        connection.queue(response);
        let goes_on = was_due && !connection.body.is_due();
        // A full socket says when it can be written to again.
        if connection.stalled_since.is_none() {
            self.list_unsent(conn.index);
        }
        if goes_on {
            self.list_readable(conn.index);
        }
    }

    fn pull(&mut self, conn: ConnId, pull: Pull) {
        pull.check();
        self.in_flight += 1;
        let Some(connection) = self.current(conn) else {
            let Pull { tag, slot, .. } = pull;
            self.orphans.push_back(Event::Pulled { conn, tag, slot: Some(slot), ok: false });
            return;
        };
        connection.body.land(pull);
        self.list_readable(conn.index);
    }

    fn flush(&mut self) {
        self.send();
    }

    fn close(&mut self, conn: ConnId) {
        if self.current(conn).is_some() {
            self.kill(conn.index, Closed::ByUs);
        }
    }

    fn shed(&mut self, patience: Duration) {
        let stalled = (0u32..)
            .zip(&self.places)
            .filter_map(|(index, place)| Some((place.connection.as_ref()?.stalled()?, index)));
        if let Some((since, index)) = stalled.min()
            && since.elapsed() >= patience
        {
            self.kill(index, Closed::Transport);
        }
    }

    fn refuse_new(&mut self) {
        self.mailbox.refuse();
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn connections(&self) -> u32 {
        self.open
    }
}

/// True once a socket that was half-closed can be closed. Closing one that holds unread requests,
/// or gets more of them afterwards, resets the connection and throws away what it has yet to send:
/// so its requests are read until the peer's kernel has all of the answers, or the peer is gone.
fn has_left(mut stream: &TcpStream) -> bool {
    let mut scrap = [0; 4096];
    loop {
        match stream.read(&mut scrap) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) if is_not_now(&e) => return matches!(unacknowledged(stream), Ok(0) | Err(_)),
            Err(_) => return true,
        }
    }
}

impl Drop for TcpEndpoint {
    /// Blocks until every peer has its last answers, for [`LINGER`] at most.
    fn drop(&mut self) {
        let mut leaving = std::mem::take(&mut self.leaving);
        for mut connection in self.mailbox.close() {
            connection.reject(Reason::Stopping);
            leaving.extend(connection.part());
        }
        let places = self.places.iter_mut().filter_map(|place| place.connection.as_mut());
        leaving.extend(places.filter_map(|connection| connection.part()));
        let deadline = Instant::now() + LINGER;
        loop {
            leaving.retain(|stream| !has_left(stream));
            if leaving.is_empty() || Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
