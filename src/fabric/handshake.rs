//! The handshake of both fabrics, as two state machines without I/O.
//!
//! ```text
//!   client                                server
//!   Hello      version, sizes, nonce  ->
//!                                     <-  Challenge  nonce, are proofs checked
//!   Proof      of hello + challenge   ->
//!                                     <-  Welcome    credits, limits
//!                                     <-  Proof      of hello + challenge + welcome
//! ```
//!
//! A proof is HMAC-SHA-256 under the token over a label and the messages named above, so neither
//! side can be replayed, reflected, or talked down to other sizes. No address and no key is
//! accepted before the server has seen the client's proof. At any point the server may send
//! `Reject` instead; the connection ends after it.

use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zerocopy::IntoBytes;

use super::ConnectConfig;
use crate::error::{Error, Kind, Result};
use crate::limits::MESSAGE_SIZE;
use crate::wire::{Challenge, Hello, Proof, Reason, Reject, Welcome};

/// One message as it goes over the wire.
pub type Message = [u8; MESSAGE_SIZE];

const CLIENT_LABEL: &[u8] = b"millrace client proof 1";
const SERVER_LABEL: &[u8] = b"millrace server proof 1";

/// Random bytes for a hello or a challenge. A system call: not for a worker's loop.
pub fn nonce() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new(Kind::Resource, "the system gives no random bytes").caused_by(e))?;
    Ok(bytes)
}

fn mac(token: &[u8], label: &[u8], messages: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(token).expect("HMAC takes keys of any length");
    mac.update(label);
    messages.iter().for_each(|message| mac.update(message));
    mac.finalize().into_bytes().into()
}

fn message<T: IntoBytes + zerocopy::Immutable>(of: &T) -> Message {
    of.as_bytes().try_into().expect("messages have one size, asserted in wire")
}

/// What the server sends and does after a message of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Send this and wait for the next message.
    Continue(Message),
    /// Send both; from now on requests may come, at most `credits` at once.
    Established {
        /// Welcome, then proof.
        send: [Message; 2],
        /// Requests granted.
        credits: u16,
    },
    /// Send this, then end the connection.
    Refuse(Message, Reason),
}

#[derive(Debug, Clone, Copy)]
enum ServerState {
    AwaitHello,
    AwaitProof(Hello, Challenge),
    Over,
}

/// The server's side for one connection. It allocates nothing after `new`.
#[derive(Debug, Clone)]
pub struct ServerHandshake {
    token: Option<Arc<[u8]>>,
    nonce: [u8; 32],
    welcome: Welcome,
    state: ServerState,
}

impl ServerHandshake {
    /// Awaits a hello. `welcome` holds the most that may be granted; `nonce` is from [`nonce`].
    pub fn new(token: Option<Arc<[u8]>>, nonce: [u8; 32], welcome: Welcome) -> Self {
        Self { token, nonce, welcome, state: ServerState::AwaitHello }
    }

    /// Takes the client's next message.
    pub fn receive(&mut self, bytes: &[u8]) -> Step {
        match self.advance(bytes) {
            Ok(step) => step,
            Err(reason) => {
                self.state = ServerState::Over;
                Step::Refuse(message(&Reject::new(reason)), reason)
            }
        }
    }

    fn advance(&mut self, bytes: &[u8]) -> Result<Step, Reason> {
        match self.state {
            ServerState::AwaitHello => {
                let hello = Hello::parse(bytes)?;
                let challenge = Challenge::new(self.token.is_some(), self.nonce);
                self.state = ServerState::AwaitProof(hello, challenge);
                Ok(Step::Continue(message(&challenge)))
            }
            ServerState::AwaitProof(hello, challenge) => {
                let proof = Proof::parse(bytes)?;
                let mut welcome = self.welcome;
                welcome.credits = welcome.credits.get().min(hello.credits.get()).into();
                welcome.max_payload = welcome.max_payload.get().min(hello.max_payload.get()).into();
                let seen = [hello.as_bytes(), challenge.as_bytes(), welcome.as_bytes()];
                let mine = match &self.token {
                    None => [0; 32],
                    Some(token) => {
                        let expected = mac(token, CLIENT_LABEL, &seen[..2]);
                        if !bool::from(expected.ct_eq(&proof.mac)) {
                            return Err(Reason::Proof);
                        }
                        mac(token, SERVER_LABEL, &seen)
                    }
                };
                self.state = ServerState::Over;
                Ok(Step::Established {
                    send: [message(&welcome), message(&Proof::new(mine))],
                    credits: welcome.credits.get(),
                })
            }
            ServerState::Over => Err(Reason::Kind),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum ClientState {
    AwaitChallenge,
    AwaitWelcome(Challenge),
    AwaitProof(Challenge, Welcome),
    Over,
}

/// The client's side for one connection.
#[derive(Debug, Clone)]
pub struct ClientHandshake {
    token: Option<Arc<[u8]>>,
    hello: Hello,
    state: ClientState,
}

impl ClientHandshake {
    /// Ready to send [`ClientHandshake::hello`].
    pub fn new(token: Option<Arc<[u8]>>, credits: u16, max_payload: u32) -> Result<Self> {
        let hello = Hello::new(credits, max_payload, nonce()?);
        Ok(Self { token, hello, state: ClientState::AwaitChallenge })
    }

    /// The handshake that `config` describes.
    pub fn of(config: &ConnectConfig) -> Result<Self> {
        let mut of = Self::new(config.token.clone(), config.credits, config.max_payload)?;
        of.hello = of.hello.with_worker(config.worker);
        Ok(of)
    }

    /// The first message to send.
    pub fn hello(&self) -> Message {
        message(&self.hello)
    }

    /// Takes the server's next message. Returns what to send, if anything, and the welcome once
    /// the connection is established.
    ///
    /// # Errors
    ///
    /// `Denied` where the server refuses or the tokens differ, `Protocol` where it does not speak
    /// the protocol.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(Option<Message>, Option<Welcome>)> {
        if let Ok(reject) = Reject::parse(bytes) {
            self.state = ClientState::Over;
            return Err(refused(&reject));
        }
        let broken = |reason: Reason| {
            Error::new(Kind::Protocol, format!("the server's handshake is wrong: {reason}"))
                .remedy("check that host and port are those of a millrace server")
        };
        match self.state {
            ClientState::AwaitChallenge => {
                let challenge = Challenge::parse(bytes).map_err(broken)?;
                let proof = match (&self.token, challenge.authenticated) {
                    (None, 0) => [0; 32],
                    (Some(token), 1) => {
                        mac(token, CLIENT_LABEL, &[self.hello.as_bytes(), challenge.as_bytes()])
                    }
                    (None, _) => {
                        return Err(Error::new(Kind::Denied, "the server asks for a token")
                            .remedy("give the file with the server's token by --token-file"));
                    }
                    (Some(_), _) => {
                        return Err(Error::new(
                            Kind::Denied,
                            "the server checks no token, though one was given",
                        )
                        .remedy("start the server with --token-file, or leave it out here"));
                    }
                };
                self.state = ClientState::AwaitWelcome(challenge);
                Ok((Some(message(&Proof::new(proof))), None))
            }
            ClientState::AwaitWelcome(challenge) => {
                let welcome = Welcome::parse(bytes).map_err(broken)?;
                self.state = ClientState::AwaitProof(challenge, welcome);
                Ok((None, None))
            }
            ClientState::AwaitProof(challenge, welcome) => {
                let proof = Proof::parse(bytes).map_err(broken)?;
                if let Some(token) = &self.token {
                    let seen = [self.hello.as_bytes(), challenge.as_bytes(), welcome.as_bytes()];
                    if !bool::from(mac(token, SERVER_LABEL, &seen).ct_eq(&proof.mac)) {
                        return Err(Error::new(
                            Kind::Denied,
                            "the server does not know the token: it may not be the one you mean",
                        ));
                    }
                }
                self.state = ClientState::Over;
                Ok((None, Some(welcome)))
            }
            ClientState::Over => Err(broken(Reason::Kind)),
        }
    }
}

fn refused(reject: &Reject) -> Error {
    let reason = match reject.reason() {
        Ok(reason) => reason,
        Err(reason) => return Error::new(Kind::Protocol, reason.text()),
    };
    let error = Error::new(Kind::Denied, format!("the server refuses: {reason}"));
    match reason {
        Reason::Version => error.remedy(format!(
            "use the same release on both sides: the server has protocol {}, this is {}",
            reject.version,
            crate::wire::VERSION
        )),
        Reason::Proof => error.remedy("give both sides the same --token-file"),
        Reason::Full => error.remedy("raise the server's --max-connections or open fewer"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::CheckMode;

    fn token(text: &str) -> Option<Arc<[u8]>> {
        Some(Arc::from(text.as_bytes()))
    }

    fn server(token: Option<Arc<[u8]>>) -> ServerHandshake {
        let welcome = Welcome::new("mem", CheckMode::Crc, 1, 1 << 20, 65_536, 16, 0);
        ServerHandshake::new(token, nonce().unwrap(), welcome)
    }

    /// Runs both sides against each other, after `tamper` had its hands on each message.
    fn run(
        mut server: ServerHandshake,
        mut client: ClientHandshake,
        mut tamper: impl FnMut(&mut Message),
    ) -> Result<Welcome> {
        let mut up = Some(client.hello());
        loop {
            let mut request = up.take().expect("the client has something to say");
            tamper(&mut request);
            let down = match server.receive(&request) {
                Step::Continue(reply) | Step::Refuse(reply, _) => vec![reply],
                Step::Established { send, .. } => send.to_vec(),
            };
            for mut reply in down {
                tamper(&mut reply);
                match client.receive(&reply)? {
                    (_, Some(welcome)) => return Ok(welcome),
                    (send, None) => up = send.or(up),
                }
            }
        }
    }

    #[test]
    fn both_grant_the_lesser() {
        for secret in [None, token("s3cret")] {
            let client = ClientHandshake::new(secret.clone(), 64, 4096).unwrap();
            let welcome = run(server(secret), client, |_| ()).unwrap();
            assert_eq!(welcome.credits.get(), 16);
            assert_eq!(welcome.max_payload.get(), 4096);
        }
    }

    #[test]
    fn tokens_must_agree() {
        let cases = [
            (token("a"), token("b"), "tokens of the two sides differ"),
            (token("a"), None, "asks for a token"),
            (None, token("b"), "checks no token"),
        ];
        for (ours, theirs, text) in cases {
            let client = ClientHandshake::new(theirs, 1, 4096).unwrap();
            let error = run(server(ours), client, |_| ()).unwrap_err();
            assert_eq!(error.kind(), Kind::Denied);
            assert!(error.what().contains(text), "{error}");
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for at in 0..5 * MESSAGE_SIZE * 8 {
            let client = ClientHandshake::new(token("t"), 8, 4096).unwrap();
            let mut bit = 0;
            let outcome = run(server(token("t")), client, |message| {
                if (bit..bit + MESSAGE_SIZE * 8).contains(&at) {
                    message[(at - bit) / 8] ^= 1 << (at % 8);
                }
                bit += MESSAGE_SIZE * 8;
            });
            assert!(outcome.is_err(), "bit {at}");
        }
    }

    #[test]
    fn a_proof_cannot_be_replayed_or_reflected() {
        let client = ClientHandshake::new(token("t"), 8, 4096).unwrap();
        let mut seen = Vec::new();
        run(server(token("t")), client, |message| seen.push(*message)).unwrap();
        let mut fresh = server(token("t"));
        assert!(matches!(fresh.receive(&seen[0]), Step::Continue(_)));
        assert!(matches!(fresh.receive(&seen[2]), Step::Refuse(_, Reason::Proof)), "replayed");
        let mut fresh = server(token("t"));
        fresh.receive(&seen[0]);
        assert!(matches!(fresh.receive(&seen[4]), Step::Refuse(_, Reason::Proof)), "reflected");
    }

    #[test]
    fn nothing_is_accepted_out_of_order() {
        let mut fresh = server(None);
        let early = crate::wire::Request::read(1, 0, 0, 512);
        assert!(matches!(fresh.receive(early.as_bytes()), Step::Refuse(_, Reason::Kind)));
        assert!(matches!(server(None).receive(&[0; 3]), Step::Refuse(_, Reason::Size)));
    }
}
