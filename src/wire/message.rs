//! What all messages share: the kind in byte 0, and why one can be refused.

use crate::limits::MESSAGE_SIZE;

/// First bytes of each handshake message after its kind: `MILL`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"MILL");

/// Version of the protocol. Both sides must have the same.
pub const VERSION: u16 = 2;

/// Byte 0 of every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Client: version, sizes wanted, nonce.
    Hello = 1,
    /// Server: nonce, and whether a proof is needed.
    Challenge = 2,
    /// Both: HMAC over both nonces.
    Proof = 3,
    /// Server: accepted, with credits and limits.
    Welcome = 4,
    /// Server: refused, with the reason; the connection ends.
    Reject = 5,
    /// Client: one request.
    Request = 16,
    /// Server: the answer to one request.
    Completion = 17,
}

/// Why a message was refused. One word; its text is for logs and people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Reason {
    /// Not [`MESSAGE_SIZE`] bytes.
    Size = 1,
    /// Byte 0 is not the kind that must come now.
    Kind = 2,
    /// The magic is not millrace's: something else is on the line.
    Magic = 3,
    /// Another version of the protocol.
    Version = 4,
    /// A reserved byte is not zero.
    Reserved = 5,
    /// An enumeration has a value that is not defined.
    Value = 6,
    /// More requests in flight than were granted.
    Credits = 7,
    /// A request id is in use already.
    Replay = 8,
    /// The proof is wrong: the tokens differ.
    Proof = 9,
    /// The server has as many connections as it takes.
    Full = 10,
    /// The server is shutting down.
    Stopping = 11,
    /// The handshake took too long.
    Timeout = 12,
}

impl Reason {
    /// The reason with this code.
    pub fn from_code(code: u16) -> Option<Self> {
        use Reason::*;
        [
            Size, Kind, Magic, Version, Reserved, Value, Credits, Replay, Proof, Full, Stopping,
            Timeout,
        ]
        .into_iter()
        .find(|reason| *reason as u16 == code)
    }

    /// The text for people.
    pub fn text(self) -> &'static str {
        match self {
            Reason::Size => "a message is not 64 bytes long",
            Reason::Kind => "a message of this kind is not expected now",
            Reason::Magic => "the peer does not speak millrace's protocol",
            Reason::Version => "the peer speaks another version of the protocol",
            Reason::Reserved => "a reserved byte is not zero",
            Reason::Value => "a field has a value that is not defined",
            Reason::Credits => "more requests in flight than were granted",
            Reason::Replay => "a request id is in flight already",
            Reason::Proof => "the tokens of the two sides differ",
            Reason::Full => "the server has as many connections as it takes",
            Reason::Stopping => "the server is shutting down",
            Reason::Timeout => "the handshake was not finished in time",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// Views `bytes` as a `T` after checking the size and the kind.
pub(super) fn view<T>(bytes: &[u8], kind: Kind) -> Result<T, Reason>
where
    T: zerocopy::FromBytes,
{
    if bytes.len() != MESSAGE_SIZE {
        return Err(Reason::Size);
    }
    if bytes[0] != kind as u8 {
        return Err(Reason::Kind);
    }
    T::read_from_bytes(bytes).map_err(|_| Reason::Size)
}

/// Refuses reserved bytes that are not zero: what they mean is for a later version to say.
pub(super) fn zero(reserved: &[u8]) -> Result<(), Reason> {
    if reserved.iter().all(|b| *b == 0) { Ok(()) } else { Err(Reason::Reserved) }
}

/// `text` cut to `N` bytes, or padded with zeros.
pub(super) fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
    bytes
}
