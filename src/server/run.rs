//! Starts the workers and the listener, and stops them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::worker::{Worker, WorkerOptions};
use crate::error::{Context, Error, Kind, Result};
use crate::fabric::{EndpointConfig, Listener};
use crate::host::affinity;
use crate::limits::{
    MAX_CONNECTIONS, MAX_CREDITS, MAX_DEPTH, MAX_DRIVES, MAX_PENDING, MAX_WORKERS, SLOTS_PER_DEPTH,
};
use crate::memory::{ArenaSpec, Pages, SlotPool};
use crate::stats::{Counters, Snapshot};
use crate::storage::{DriveInfo, Storage};
use crate::wire::{CheckMode, Welcome};

/// How a server runs.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// One worker is pinned to each of these CPUs.
    pub cores: Vec<usize>,
    /// Requests of one worker on its drives at once.
    pub depth: u32,
    /// Size of a slot in bytes: the largest request.
    pub slot_size: usize,
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
    /// Shared secret; `None` accepts everybody.
    pub token: Option<Arc<[u8]>>,
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
        SlotPool::check_slot_size(self.slot_size)
    }

    fn max_pending(&self) -> usize {
        self.max_connections * usize::from(self.credits)
    }
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
    counters: Vec<Arc<Counters>>,
    address: SocketAddr,
}

impl Server {
    /// Opens queues, maps and registers memory, and starts to listen. When it returns, clients
    /// can connect.
    pub fn start<S, L>(storage: S, listener: L, options: ServeOptions) -> Result<Self>
    where
        S: Storage + 'static,
        L: Listener + 'static,
    {
        options.validate(storage.drives().len())?;
        let address = listener.local_addr();
        let shared = Arc::new((storage, listener, options));
        let stop = Arc::new(AtomicBool::new(false));
        let mut server = Self { stop, threads: Vec::new(), counters: Vec::new(), address };
        let (ready, outcomes) = channel();
        for (number, core) in shared.2.cores.iter().copied().enumerate() {
            let counters = Arc::new(Counters::default());
            server.counters.push(Arc::clone(&counters));
            let (shared, stop, ready) =
                (Arc::clone(&shared), Arc::clone(&server.stop), ready.clone());
            server.spawn(&format!("worker-{number}"), move || {
                let (storage, listener, options) = &*shared;
                affinity::pin(core)?;
                run_worker(storage, listener, options, number, counters, &stop, &ready)
            })?;
        }
        drop(ready);
        let workers = server.threads.len();
        if outcomes.iter().take(workers).count() < workers {
            // One of them ended before it was ready; joining gives its error.
            return Err(server.stop().expect_err("a worker that was not ready has failed"));
        }
        let stop = Arc::clone(&server.stop);
        server.spawn("listener", move || shared.1.run(&stop))?;
        Ok(server)
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let stop = Arc::clone(&self.stop);
        let guarded = move || {
            // Whatever ends one thread ends the server: half a server serves nobody.
            let _stop_all = StopOnDrop(stop);
            body()
        };
        let thread = Builder::new()
            .name(name.to_owned())
            .spawn(guarded)
            .context(|| format!("cannot start the thread {name}"))?;
        self.threads.push(thread);
        Ok(())
    }

    /// The address that is listened on, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The counters of all workers, added up.
    pub fn snapshot(&self) -> Snapshot {
        self.counters.iter().map(|c| c.snapshot()).fold(Snapshot::default(), Snapshot::plus)
    }

    /// False once the server is stopping, be it asked or by a failure.
    pub fn is_running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Drains and stops; gives the first failure of a thread.
    pub fn stop(mut self) -> Result<()> {
        self.join()
    }

    fn join(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let mut outcome = Ok(());
        for thread in self.threads.drain(..) {
            let name = thread.thread().name().unwrap_or("?").to_owned();
            let ended = thread.join().unwrap_or_else(|_| {
                Err(Error::new(Kind::Device, format!("thread {name} panicked; see its message")))
            });
            if outcome.is_ok() {
                outcome = ended;
            }
        }
        outcome
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.join() {
            log::error!("{}", error.report());
        }
    }
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The node that all drives are on, if they are on one.
fn common_node<S: Storage>(storage: &S) -> Option<u32> {
    let mut nodes = storage.drives().iter().map(|drive| drive.node);
    let first = nodes.next()??;
    nodes.all(|node| node == Some(first)).then_some(first)
}

fn run_worker<S: Storage, L: Listener>(
    storage: &S,
    listener: &L,
    options: &ServeOptions,
    number: usize,
    counters: Arc<Counters>,
    stop: &AtomicBool,
    ready: &Sender<()>,
) -> Result<()> {
    // Storage in flight, and as many again on their way to the clients.
    let count = options.depth as usize * SLOTS_PER_DEPTH;
    let arena = storage.arena(&ArenaSpec {
        bytes: SlotPool::bytes_needed(options.slot_size, count),
        pages: options.pages,
        node: options.node.or_else(|| common_node(storage)),
    })?;
    log::info!("worker {number}: arena of {count} slots: {}", arena.why());
    let drives: Arc<[DriveInfo]> = Arc::from(storage.drives());
    let capacity: u64 = drives.iter().map(|drive| drive.capacity).sum();
    let queue = storage.queue(&arena, options.depth)?;
    let config = EndpointConfig {
        worker: number,
        max_connections: options.max_connections,
        credits: options.credits,
        max_payload: options.slot_size as u32,
        token: options.token.clone(),
        welcome: Welcome::new(
            storage.name(),
            options.check,
            drives.len() as u16,
            capacity,
            options.slot_size as u32,
            options.credits,
            number as u16,
        ),
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
    // The receiver is gone only if another worker failed; `stop` is set then.
    if ready.send(()).is_err() {
        return Ok(());
    }
    worker.run(stop)
}
