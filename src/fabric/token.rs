//! The shared secret of a server, which can be changed while it serves.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// The secret that new connections must prove to know. Clones share it: what
/// [`Token::replace`] sets, every listener and worker of the server asks for from then on.
/// Connections that are established are not asked again.
#[derive(Clone, Default)]
pub struct Token(Arc<RwLock<Secrets>>);

#[derive(Default)]
struct Secrets {
    current: Option<Arc<[u8]>>,
    /// Older ones that a handshake may still hold: whoever drops the last reference frees the
    /// memory, and that must be the thread that replaces, never a worker.
    older: Vec<Arc<[u8]>>,
}

impl Token {
    /// A token; `None` accepts everybody.
    pub fn new(secret: Option<Arc<[u8]>>) -> Self {
        Self(Arc::new(RwLock::new(Secrets { current: secret, older: Vec::new() })))
    }

    /// What a handshake that begins now asks for.
    pub fn current(&self) -> Option<Arc<[u8]>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).current.clone()
    }

    /// Asks for `secret` from now on.
    pub fn replace(&self, secret: Arc<[u8]>) {
        let mut secrets = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Nobody can take a new reference while this lock is held, so one reference is ours alone.
        secrets.older.retain(|old| Arc::strong_count(old) > 1);
        if let Some(old) = secrets.current.replace(secret) {
            secrets.older.push(old);
        }
    }
}

impl From<Option<Arc<[u8]>>> for Token {
    fn from(secret: Option<Arc<[u8]>>) -> Self {
        Self::new(secret)
    }
}

/// Says whether there is one, never what it is.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.current().is_some() { "Token(set)" } else { "Token(none)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clones_see_the_new_one_and_holders_keep_the_old() {
        let token = Token::new(Some(Arc::from(&b"old"[..])));
        let clone = token.clone();
        let held = clone.current().unwrap();
        token.replace(Arc::from(&b"new"[..]));
        assert_eq!(&*clone.current().unwrap(), b"new");
        assert_eq!(&*held, b"old");
        token.replace(Arc::from(&b"newer"[..]));
        assert_eq!(Arc::strong_count(&held), 2, "kept, so that dropping it here frees nothing");
        drop(held);
        token.replace(Arc::from(&b"newest"[..]));
        let kept = token.0.read().unwrap().older.len();
        assert_eq!(kept, 1, "what nobody holds is forgotten");
        assert!(!format!("{token:?}").contains("newest"));
    }
}
