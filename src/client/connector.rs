//! Makes connections away from the threads that make load: connecting blocks, and a server that
//! does not answer must cost the others nothing.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use super::{Backoff, Client, ClientOptions, RemoteDrive};
use crate::error::{Context, Error, Kind, Result};
use crate::wire::StoreInfo;

/// The longest first wait after a failure, and the longest of all.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const MOST_WAIT: Duration = Duration::from_secs(5);

/// Makes connections to one server, on a thread of its own, one after the other. Clones share it.
#[derive(Debug, Clone)]
pub struct Connector {
    wishes: Sender<Wish>,
    address: Arc<str>,
}

/// A connection that is wanted.
struct Wish {
    /// The one that it replaces: ended here, since that may take time.
    old: Option<Client>,
    local: Option<IpAddr>,
    worker: u16,
    /// What the server was.
    identity: Identity,
    place: Arc<Pending>,
}

/// By what a server is known again: another one at its address must not be taken for it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Identity {
    drives: Vec<RemoteDrive>,
    store: Option<[u8; 16]>,
}

impl Identity {
    pub(super) fn of(client: &Client) -> Self {
        let uuid = |store: StoreInfo| store.uuid;
        Self { drives: client.drives().to_vec(), store: client.store().map(uuid) }
    }

    /// In words.
    fn describe(&self) -> String {
        let drive = |d: &RemoteDrive| format!("{} {}", d.name, d.serial).trim_end().to_owned();
        let drives: Vec<String> = self.drives.iter().map(drive).collect();
        let store = self.store.map(|uuid| format!(", store {}", uuid::Uuid::from_bytes(uuid)));
        format!("drives {}{}", drives.join(", "), store.unwrap_or_default())
    }
}

/// Where a connection will be.
#[derive(Default)]
pub(super) struct Pending {
    ready: AtomicBool,
    given_up: AtomicBool,
    client: Mutex<Option<Client>>,
}

impl Pending {
    /// The connection, once. A load of one flag while there is none.
    pub(super) fn take(&self) -> Option<Client> {
        if !self.ready.swap(false, Ordering::Acquire) {
            return None;
        }
        self.client.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Nobody wants it any more.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }
}

impl Connector {
    /// A connector to `address` (`tcp://host:port` or `rdma://host:port`). Its thread ends after
    /// the last clone is gone and an attempt under way has ended.
    pub fn start(address: &str, options: ClientOptions) -> Result<Self> {
        let (wishes, queue) = channel();
        let address: Arc<str> = Arc::from(address);
        let to = Arc::clone(&address);
        Builder::new()
            .name("connector".into())
            .spawn(move || run(&to, &options, &queue))
            .context(|| "cannot start a thread for connecting".into())?;
        Ok(Self { wishes, address })
    }

    /// The server's address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Asks for a connection in place of `old`, to that very server.
    pub(super) fn want(
        &self,
        old: Option<Client>,
        local: Option<IpAddr>,
        worker: u16,
        identity: Identity,
    ) -> Arc<Pending> {
        let place = Arc::new(Pending::default());
        let wish = Wish { old, local, worker, identity, place: Arc::clone(&place) };
        // The thread is there as long as a sender is.
        self.wishes.send(wish).expect("the connector's thread takes wishes");
        place
    }
}

fn run(address: &str, options: &ClientOptions, queue: &Receiver<Wish>) {
    let seed = RandomState::new().build_hasher().finish();
    let mut backoff = Backoff::new(FIRST_WAIT, MOST_WAIT, seed);
    let mut said = String::new();
    let mut waiting = std::collections::VecDeque::new();
    while let Ok(wish) = waiting.pop_front().map_or_else(|| queue.recv(), Ok) {
        let Wish { old, local, worker, identity, place } = wish;
        drop(old);
        let options = ClientOptions { local, worker, ..options.clone() };
        loop {
            if place.given_up.load(Ordering::Relaxed) {
                break;
            }
            match connect(address, &identity, &options) {
                Ok(client) => {
                    log::info!("{address}: connected again");
                    backoff.reset();
                    said.clear();
                    *place.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client);
                    place.ready.store(true, Ordering::Release);
                    break;
                }
                Err(error) => {
                    let text = error.report();
                    if text != said {
                        log::warn!("{address}: {text}; it is tried again");
                        said = text;
                    }
                }
            }
            // Also here, so that the thread ends when nobody is left to wait for it.
            match queue.recv_timeout(backoff.wait()) {
                Ok(mut next) => {
                    drop(next.old.take());
                    waiting.push_back(next);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn connect(address: &str, identity: &Identity, options: &ClientOptions) -> Result<Client> {
    let client = Client::connect(address, options)?;
    let met = Identity::of(&client);
    if met == *identity {
        return Ok(client);
    }
    Err(Error::new(
        Kind::Data,
        format!(
            "another server answers there, with {}; it had {}",
            met.describe(),
            identity.describe()
        ),
    )
    .remedy("start the one that was there, with the same --device in the same order"))
}
