//! A shard: drives, the address by which they are reached, and the workers between the two. A
//! server has one for each NUMA node, or just one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::worker::{Worker, WorkerOptions};
use crate::error::{Error, Result};
use crate::fabric::address::FabricKind;
use crate::fabric::{EndpointConfig, Listener, Token};
use crate::host::affinity;
use crate::limits::{
    MAX_CONNECTIONS, MAX_CREDITS, MAX_DEPTH, MAX_DRIVES, MAX_PENDING, MAX_WORKERS, SLOTS_PER_DEPTH,
};
use crate::memory::{ArenaSpec, Pages, SlotPool};
use crate::object::Objects;
use crate::stats::Counters;
use crate::storage::{DriveInfo, Storage};
use crate::wire::{CheckMode, StoreInfo, Welcome};

/// Bodies of puts that are fetched from one connection at once: as many RDMA READs as devices in
/// the field carry out at a time.
const PULLS: u16 = 16;

/// How a shard runs.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// One worker is pinned to each of these CPUs.
    pub cores: Vec<usize>,
    /// Requests of one worker on its drives at once.
    pub depth: u32,
    /// Size of a slot in bytes: the largest request.
    pub slot_size: usize,
    /// The store whose objects are served; `None`: ranges of the drives.
    pub objects: Option<Arc<Objects>>,
    /// Pages of the arenas.
    pub pages: Pages,
    /// NUMA node of the arenas; `None`: that of the drives, where they agree.
    pub node: Option<u32>,
    /// What to do with the bytes that were read.
    pub check: CheckMode,
    /// Requests that one connection may have in flight.
    pub credits: u16,
    /// Connections of one worker.
    pub max_connections: usize,
    /// The secret that clients must know. Shards that share one are told of a new one together.
    pub token: Token,
    /// Time within which each request is answered.
    pub deadline: Duration,
    /// Time that requests in flight have once the server stops.
    pub drain: Duration,
    /// Time that a client has for the handshake.
    pub handshake_timeout: Duration,
}

impl ServeOptions {
    fn validate(&self, drives: usize) -> Result<()> {
        let within = |what: &str, value: usize, most: usize| {
            if (1..=most).contains(&value) {
                Ok(())
            } else {
                Err(Error::usage(format!("{what} of {value} is not possible: 1 to {most} are")))
            }
        };
        within("a number of drives", drives, MAX_DRIVES)?;
        within("a number of workers", self.cores.len(), MAX_WORKERS)?;
        within("a depth", self.depth as usize, MAX_DEPTH as usize)?;
        within("a number of credits", self.credits.into(), MAX_CREDITS.into())?;
        within("a number of connections", self.max_connections, MAX_CONNECTIONS)?;
        within("connections times credits", self.max_pending(), MAX_PENDING)?;
        SlotPool::check_slot_size(self.slot_size)?;
        let object = self.objects.as_ref().map_or(0, |objects| objects.layout().slot_size());
        if self.slot_size < object as usize {
            return Err(Error::usage(format!(
                "a slot size of {}; an object has up to {object} bytes with its header",
                self.slot_size
            ))
            .remedy("raise --slot-size, or leave it out"));
        }
        Ok(())
    }

    /// Bodies of one connection that may be fetched at once.
    fn pulls(&self) -> u16 {
        let writable = self.objects.as_ref().is_some_and(|objects| objects.is_writable());
        if writable { PULLS.min(self.credits) } else { 0 }
    }

    fn welcome(&self, backend: &str, drives: &[DriveInfo], number: usize) -> Welcome {
        let welcome = Welcome::new(
            backend,
            self.check,
            drives.len() as u16,
            drives.iter().map(|drive| drive.capacity).sum(),
            self.slot_size as u32,
            self.credits,
            number as u16,
        )
        .with_workers(self.cores.len() as u16);
        match &self.objects {
            None => welcome,
            Some(objects) => welcome.with_store(&StoreInfo {
                uuid: objects.store().0,
                object_limit: objects.layout().object_limit(),
                writable: objects.is_writable(),
            }),
        }
    }

    fn max_pending(&self) -> usize {
        self.max_connections * usize::from(self.credits)
    }
}

/// What is known of a shard, for logs and metrics.
#[derive(Debug, Clone)]
pub struct ShardInfo {
    /// Its name, unique in the server.
    pub name: String,
    /// By what it is reached.
    pub fabric: FabricKind,
    /// Where it is reached, with the real port.
    pub address: SocketAddr,
    /// `uring`, `spdk`, `mem`.
    pub backend: &'static str,
    /// CPU of each worker, by its number.
    pub cores: Vec<usize>,
    /// Its drives, by their number.
    pub drives: Vec<DriveInfo>,
}

/// A shard that is ready to start.
pub struct Shard {
    pub(super) info: ShardInfo,
    pub(super) body: Arc<dyn Body>,
}

impl Shard {
    /// Joins opened drives and a bound listener.
    ///
    /// # Errors
    ///
    /// `Usage` where the options are out of range.
    pub fn new<S, L>(name: &str, storage: S, listener: L, options: ServeOptions) -> Result<Self>
    where
        S: Storage + 'static,
        L: Listener + 'static,
    {
        options.validate(storage.drives().len())?;
        let info = ShardInfo {
            name: name.to_owned(),
            fabric: listener.fabric(),
            address: listener.local_addr(),
            backend: storage.name(),
            cores: options.cores.clone(),
            drives: storage.drives().to_vec(),
        };
        Ok(Self { info, body: Arc::new(Joined { storage, listener, options }) })
    }

    /// What is known of it.
    pub fn info(&self) -> &ShardInfo {
        &self.info
    }
}

/// What the threads of a shard run. The one call through a pointer that they make: below it, all
/// is generic over backend and fabric.
pub(super) trait Body: Send + Sync {
    /// A worker: sets up, says that it is ready, serves until `stop`. `name` is for the log.
    fn work(&self, name: &str, number: usize, counters: Arc<Counters>, run: &Run) -> Result<()>;

    /// Accepts connections until `stop`.
    fn listen(&self, stop: &AtomicBool) -> Result<()>;
}

/// What a worker needs to know of the server's run.
pub(super) struct Run {
    pub stop: Arc<AtomicBool>,
    pub ready: Sender<()>,
}

struct Joined<S, L> {
    storage: S,
    listener: L,
    options: ServeOptions,
}

impl<S: Storage, L: Listener> Body for Joined<S, L> {
    fn work(&self, name: &str, number: usize, counters: Arc<Counters>, run: &Run) -> Result<()> {
        let Self { storage, listener, options } = self;
        affinity::pin(options.cores[number])?;
        // Storage in flight, and as many again on their way to the clients.
        let count = options.depth as usize * SLOTS_PER_DEPTH;
        let arena = storage.arena(&ArenaSpec {
            bytes: SlotPool::bytes_needed(options.slot_size, count),
            pages: options.pages,
            node: options.node.or_else(|| storage.node()),
        })?;
        log::info!("{name}: arena of {count} slots: {}", arena.why());
        let drives: Arc<[DriveInfo]> = Arc::from(storage.drives());
        let queue = storage.queue(&arena, options.depth)?;
        let config = EndpointConfig {
            worker: number,
            max_connections: options.max_connections,
            credits: options.credits,
            max_payload: options.slot_size as u32,
            pulls: options.pulls(),
            token: options.token.clone(),
            welcome: options.welcome(storage.name(), &drives, number),
            handshake_timeout: options.handshake_timeout,
        };
        let endpoint = listener.endpoint(config, &arena)?;
        let slots = SlotPool::new(arena, options.slot_size, count)?;
        let worker_options = WorkerOptions {
            check: options.check,
            deadline: options.deadline,
            drain: options.drain,
            max_pending: options.max_pending(),
        };
        let mut worker = Worker::new(queue, endpoint, slots, drives, worker_options, counters);
        if let Some(objects) = &options.objects {
            let member = objects.join().ok_or_else(|| {
                Error::usage(format!("the store was opened for fewer workers than {}", number + 1))
            })?;
            worker = worker.with_store(member);
        }
        // The receiver is gone only if another worker failed; `stop` is set then.
        if run.ready.send(()).is_err() {
            return Ok(());
        }
        worker.run(&run.stop)
    }

    fn listen(&self, stop: &AtomicBool) -> Result<()> {
        self.listener.run(stop)
    }
}
