//! The body of a request on the server's side: the bytes after it on the stream.

use std::io::{self, IoSliceMut, Read};
use std::time::Instant;

use crate::fabric::Pull;

/// What comes next on the stream of a connection.
#[derive(Debug)]
pub(super) enum Body {
    /// A message.
    None,
    /// The body of request `id`, which was reported: nothing is read until the worker has said
    /// where to.
    Due {
        /// The request.
        id: u64,
        /// Bytes.
        len: u64,
    },
    /// A body on its way into a slot.
    Landing {
        /// Where to.
        pull: Pull,
        /// Bytes that are there.
        got: usize,
        /// When some of it came last.
        since: Instant,
    },
    /// A body whose request was answered without it.
    Discarding {
        /// Bytes.
        left: u64,
    },
}

/// What one read has given.
#[derive(Debug)]
pub(super) struct BodyRead {
    /// Bytes read beyond the body, into the buffer.
    pub(super) beyond: usize,
    /// All the room was filled: more may be there.
    pub(super) filled: bool,
}

impl Body {
    pub(super) fn is_landing(&self) -> bool {
        matches!(self, Body::Landing { .. })
    }

    pub(super) fn is_due(&self) -> bool {
        matches!(self, Body::Due { .. })
    }

    /// Bytes of a body are to be taken from the stream.
    pub(super) fn is_under_way(&self) -> bool {
        match self {
            Body::None | Body::Due { .. } => false,
            Body::Landing { pull, got, .. } => *got < pull.len as usize,
            Body::Discarding { left } => *left > 0,
        }
    }

    /// Says where the body goes.
    ///
    /// # Panics
    ///
    /// If the body of that request is not due, or not as long.
    pub(super) fn land(&mut self, pull: Pull) {
        match self {
            Body::Due { id, len } if *id == pull.id && *len == u64::from(pull.len) => {
                *self = Body::Landing { pull, got: 0, since: Instant::now() };
            }
            _ => panic!("a pull of {} bytes for request {}, while {self:?}", pull.len, pull.id),
        }
    }

    /// Request `answered` has its answer: it wants its body no more.
    ///
    /// # Panics
    ///
    /// If the body is landing.
    pub(super) fn on_answer(&mut self, answered: u64) {
        match self {
            Body::Due { id, len } if *id == answered => *self = Body::Discarding { left: *len },
            Body::Landing { pull, .. } => {
                assert!(pull.id != answered, "an answer to {answered} before its body is there");
            }
            _ => {}
        }
    }

    /// Takes what it can of bytes that came earlier; returns how many.
    pub(super) fn take(&mut self, bytes: &[u8]) -> usize {
        match self {
            Body::None | Body::Due { .. } => 0,
            Body::Landing { pull, got, .. } => {
                let rest = rest(pull, *got);
                let n = rest.len().min(bytes.len());
                rest[..n].copy_from_slice(&bytes[..n]);
                *got += n;
                n
            }
            Body::Discarding { left } => {
                let n = (bytes.len() as u64).min(*left);
                *left -= n;
                n as usize
            }
        }
    }

    /// Reads once: the body, and what follows it into `buffer`, which is empty.
    ///
    /// # Errors
    ///
    /// Those of the socket; `UnexpectedEof` where the stream ends within the body.
    pub(super) fn read(&mut self, mut from: impl Read, buffer: &mut [u8]) -> io::Result<BodyRead> {
        let (read, room) = match self {
            Body::Landing { pull, got, .. } => {
                let rest = rest(pull, *got);
                let room = rest.len() + buffer.len();
                let rooms = &mut [IoSliceMut::new(rest), IoSliceMut::new(buffer)];
                (from.read_vectored(rooms)?, room)
            }
            _ => (from.read(buffer)?, buffer.len()),
        };
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let filled = read == room;
        let beyond = match self {
            Body::Landing { pull, got, since } => {
                let landed = read.min(pull.len as usize - *got);
                *got += landed;
                *since = Instant::now();
                read - landed
            }
            Body::Discarding { left } => {
                let gone = (read as u64).min(*left);
                *left -= gone;
                // What follows goes to the start of the buffer.
                buffer.copy_within(gone as usize..read, 0);
                read - gone as usize
            }
            Body::None | Body::Due { .. } => read,
        };
        Ok(BodyRead { beyond, filled })
    }

    /// Ends a body that is whole; gives its pull back, if it had one.
    pub(super) fn finish(&mut self) -> Option<Pull> {
        if self.is_under_way() || self.is_due() {
            return None;
        }
        self.abandon()
    }

    /// Gives the pull up, if there is one.
    pub(super) fn abandon(&mut self) -> Option<Pull> {
        match std::mem::replace(self, Body::None) {
            Body::Landing { pull, .. } => Some(pull),
            _ => None,
        }
    }

    /// When the peer last sent some of a body that has a slot.
    pub(super) fn stalled_since(&self) -> Option<Instant> {
        match self {
            Body::Landing { since, .. } => Some(*since),
            _ => None,
        }
    }
}

/// The part of the slot that is to be filled.
fn rest(pull: &mut Pull, got: usize) -> &mut [u8] {
    let (start, end) = (pull.start as usize + got, (pull.start + pull.len) as usize);
    &mut pull.slot.bytes_mut(end)[start..]
}
