//! The server's side of one connection: what came in, what goes out, what is in flight.

use std::collections::VecDeque;
use std::io::{IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use zerocopy::IntoBytes;

use super::body::Body;
use super::{first_message, is_not_now};
use crate::fabric::handshake::{Message, ServerHandshake};
use crate::fabric::ids::IdTable;
use crate::fabric::{Closed, Pull, Response};
use crate::limits::MESSAGE_SIZE;
use crate::wire::{Reason, Reject, Request};

/// Requests that one recv can take in. 64 are what a client has by default in flight.
const RECEIVE_MESSAGES: usize = 64;

/// Pieces (records and payloads) of one writev: 32 answers. More of them save no time that could
/// be measured, and the array of them is on the stack.
const MAX_PIECES: usize = 64;

/// How far a connection is.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be freed on the worker's thread")]
pub(super) enum Phase {
    /// In the handshake until the deadline.
    Handshake(ServerHandshake, Instant),
    /// Requests and answers.
    Open,
    /// Ended; what is left is to be reported.
    Dead(Closed),
}

/// One connection. The listener makes it, a worker uses it, the listener reuses its memory.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Option<TcpStream>,
    pub(super) phase: Phase,
    credits: usize,
    received: Box<[u8]>,
    start: usize,
    end: usize,
    /// Answers: first those that are `done` and await their report, then those to be sent.
    queue: VecDeque<Response>,
    done: usize,
    /// Bytes that were sent of the first answer that is not done.
    written: usize,
    ids: IdTable<()>,
    /// The body that comes next on the stream.
    pub(super) body: Body,
    /// Since when the first answer waits for the peer; set while the socket is full.
    pub(super) stalled_since: Option<Instant>,
    /// The socket may have bytes, as far as epoll has said.
    pub(super) maybe_readable: bool,
    /// The peer has sent its last byte.
    pub(super) ending: bool,
    /// In the endpoint's lists, each at most once.
    pub(super) listed: Listed,
}

/// In which lists of the endpoint a connection is.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) readable: bool,
    pub(super) unsent: bool,
    pub(super) finished: bool,
}

/// What a connection's socket did with bytes to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Nothing is left to be sent.
    All,
    /// More could be sent at once.
    Part,
    /// The socket is full.
    Full,
}

impl Connection {
    /// Memory for a connection with at most `credits` requests in flight.
    pub(super) fn new(credits: u16) -> Box<Self> {
        let credits = usize::from(credits);
        Box::new(Self {
            stream: None,
            phase: Phase::Dead(Closed::ByUs),
            credits: 0,
            received: vec![0; RECEIVE_MESSAGES * MESSAGE_SIZE].into(),
            start: 0,
            end: 0,
            queue: VecDeque::with_capacity(credits),
            done: 0,
            written: 0,
            ids: IdTable::new(credits),
            body: Body::None,
            stalled_since: None,
            maybe_readable: false,
            ending: false,
            listed: Listed::default(),
        })
    }

    /// Starts it anew on a socket.
    pub(super) fn start(&mut self, stream: TcpStream, handshake: ServerHandshake, until: Instant) {
        debug_assert!(self.queue.is_empty(), "reported before it was given back");
        debug_assert!(!self.body.is_landing(), "reported before it was given back");
        self.body = Body::None;
        self.stream = Some(stream);
        self.phase = Phase::Handshake(handshake, until);
        self.credits = 0;
        (self.start, self.end) = (0, 0);
        (self.done, self.written) = (0, 0);
        self.stalled_since = None;
        self.maybe_readable = false;
        self.ending = false;
        self.listed = Listed::default();
    }

    /// Opens it after the handshake.
    pub(super) fn open(&mut self, credits: u16) {
        self.credits = credits.into();
        self.ids.reset(self.credits);
        self.phase = Phase::Open;
    }

    pub(super) fn is_dead(&self) -> bool {
        matches!(self.phase, Phase::Dead(_))
    }

    /// Takes the next message from the buffer.
    pub(super) fn next_message(&mut self) -> Option<Message> {
        let message = *first_message(&self.received[self.start..self.end])?;
        self.start += MESSAGE_SIZE;
        Some(message)
    }

    /// True if a whole message is in the buffer.
    pub(super) fn has_message(&self) -> bool {
        self.end - self.start >= MESSAGE_SIZE
    }

    /// Reads from the socket what there is, once. Call it when no whole message is buffered.
    pub(super) fn fill(&mut self) -> Result<(), Closed> {
        debug_assert!(!self.has_message());
        self.received.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let Some(mut stream) = self.stream.as_ref() else { return Err(Closed::ByUs) };
        let room = &mut self.received[self.end..];
        let room_len = room.len();
        match stream.read(room) {
            Ok(0) if self.end > 0 => Err(Closed::Protocol(Reason::Size)),
            Ok(0) => Err(Closed::ByPeer),
            Ok(n) => {
                self.end += n;
                // A short read has emptied the socket: what comes later is a new edge (epoll(7)).
                // Not so the end of the stream, which may have been announced with these bytes.
                self.maybe_readable = n == room_len || self.ending;
                Ok(())
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                self.maybe_readable = false;
                Ok(())
            }
            Err(e) if is_not_now(&e) => Ok(()),
            Err(_) => Err(Closed::Transport),
        }
    }

    /// Goes on with a body, by one read from the socket at most; gives the pull back once the
    /// body is whole.
    pub(super) fn receive_body(&mut self) -> Result<Option<Pull>, Closed> {
        let buffered = &self.received[self.start..self.end];
        self.start += self.body.take(buffered);
        if self.body.is_under_way() && self.maybe_readable {
            (self.start, self.end) = (0, 0);
            let Some(stream) = self.stream.as_ref() else { return Err(Closed::ByUs) };
            match self.body.read(stream, &mut self.received) {
                Ok(read) => {
                    self.end = read.beyond;
                    self.maybe_readable = read.filled || self.ending;
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    self.maybe_readable = false;
                }
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Err(Closed::ByPeer);
                }
                Err(e) if is_not_now(&e) => {}
                Err(_) => return Err(Closed::Transport),
            }
        }
        Ok(self.body.finish())
    }

    /// True if what is buffered, or may be in the socket, can be worked on now.
    pub(super) fn may_go_on(&self) -> bool {
        match self.body {
            Body::Due { .. } => false,
            Body::None => self.has_message() || self.maybe_readable,
            Body::Landing { .. } | Body::Discarding { .. } => {
                self.end > self.start || self.maybe_readable
            }
        }
    }

    /// The pull that its end has cut off.
    pub(super) fn take_cut_off(&mut self) -> Option<Pull> {
        if self.is_dead() { self.body.abandon() } else { None }
    }

    /// Since when the peer has been waited for: to take an answer, or to go on with a body.
    pub(super) fn stalled(&self) -> Option<Instant> {
        self.stalled_since.into_iter().chain(self.body.stalled_since()).min()
    }

    /// Judges a message as a request and notes its id.
    pub(super) fn admit(&mut self, message: &Message) -> Result<Request, Closed> {
        let request = Request::parse(message).map_err(Closed::Protocol)?;
        self.ids.admit(request.id.get(), self.credits).map_err(Closed::Protocol)?;
        if request.body() > 0 {
            self.body = Body::Due { id: request.id.get(), len: request.body() };
        }
        Ok(request)
    }

    /// Queues an answer.
    ///
    /// # Panics
    ///
    /// If it answers no request in flight, or one whose body is on its way, or if its parts
    /// disagree.
    pub(super) fn queue(&mut self, response: Response) {
        response.check(&self.ids, self.queue.len());
        self.body.on_answer(response.record.id.get());
        self.queue.push_back(response);
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.queue.len() > self.done
    }

    /// Sends a message of the handshake. The socket has taken nothing but the handshake so far,
    /// so its buffer cannot be full; should it be, the connection is of no use.
    pub(super) fn send_now(&mut self, bytes: &[u8]) -> Result<(), Closed> {
        let Some(mut stream) = self.stream.as_ref() else { return Err(Closed::ByUs) };
        match stream.write(bytes) {
            Ok(n) if n == bytes.len() => Ok(()),
            _ => Err(Closed::Transport),
        }
    }

    /// Sends a refusal, if that is possible.
    pub(super) fn reject(&mut self, reason: Reason) {
        let _ = self.send_now(Reject::new(reason).as_bytes());
    }

    /// Hands answers to the socket, by one system call.
    pub(super) fn send(&mut self) -> Result<Sent, Closed> {
        if !self.has_unsent() {
            return Ok(Sent::All);
        }
        let Some(mut stream) = self.stream.as_ref() else { return Err(Closed::ByUs) };
        let mut pieces = [IoSlice::new(&[]); MAX_PIECES];
        let (mut count, mut bytes) = (0, 0);
        let mut skip = self.written;
        for response in self.queue.range(self.done..) {
            if count + 2 > MAX_PIECES {
                break;
            }
            let mut add = |piece| {
                pieces[count] = IoSlice::new(piece);
                count += 1;
                bytes += piece.len();
            };
            if skip < MESSAGE_SIZE {
                add(&response.record.as_bytes()[skip..]);
            }
            if let (Some(slot), 1..) = (&response.slot, response.len) {
                let (from, len) = (response.start as usize, response.len as usize);
                add(&slot.bytes(from + len)[from + skip.saturating_sub(MESSAGE_SIZE)..]);
            }
            skip = 0;
        }
        match stream.write_vectored(&pieces[..count]) {
            Ok(n) => {
                self.advance(n);
                if n < bytes {
                    self.stalled_since.get_or_insert_with(Instant::now);
                    Ok(Sent::Full)
                } else {
                    Ok(if self.has_unsent() { Sent::Part } else { Sent::All })
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                self.stalled_since.get_or_insert_with(Instant::now);
                Ok(Sent::Full)
            }
            Err(e) if is_not_now(&e) => Ok(Sent::Part),
            Err(_) => Err(Closed::Transport),
        }
    }

    /// Counts `n` bytes as sent.
    fn advance(&mut self, mut n: usize) {
        while n > 0 {
            let whole = MESSAGE_SIZE + self.queue[self.done].len as usize;
            let step = n.min(whole - self.written);
            n -= step;
            self.written += step;
            if self.written == whole {
                self.written = 0;
                self.done += 1;
                // The time to take an answer starts when it is the first in the queue.
                self.stalled_since = None;
            }
        }
    }

    /// Takes an answer that needs no more sending, and whether it was sent. Its request is over
    /// with this, so the endpoint reports all of them before it reads on.
    pub(super) fn take_done(&mut self) -> Option<(Response, bool)> {
        let delivered = self.done > 0;
        if !delivered && !self.is_dead() {
            return None;
        }
        let response = self.queue.pop_front()?;
        self.done = self.done.saturating_sub(1);
        self.ids.remove(response.record.id.get());
        if self.queue.is_empty() {
            // Back to the ring's start: going around it would make each answer a cache miss.
            self.queue.clear();
        }
        Some((response, delivered))
    }

    /// True if [`Connection::take_done`] has something.
    pub(super) fn has_done(&self) -> bool {
        self.done > 0 || (self.is_dead() && !self.queue.is_empty())
    }

    /// Sends no more, and gives its socket up for what is left to be read from it.
    pub(super) fn part(&mut self) -> Option<TcpStream> {
        self.phase = Phase::Dead(Closed::ByUs);
        let stream = self.stream.take()?;
        stream.shutdown(Shutdown::Write).is_ok().then_some(stream)
    }

    /// Ends it: the socket is closed, every answer left is done.
    pub(super) fn kill(&mut self, why: Closed) {
        self.phase = Phase::Dead(why);
        self.stream = None;
        self.stalled_since = None;
    }
}
