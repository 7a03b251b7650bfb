//! Starts the workers and the listeners of all shards, and stops them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{Builder, JoinHandle};

use super::shard::{Body, Run, Shard, ShardInfo};
use crate::error::{Context, Error, Kind, Result};
use crate::stats::{Counters, Snapshot};

/// What a running server shows of itself: constant facts, and counters that its workers write.
#[derive(Debug, Default)]
pub struct View {
    /// Its shards.
    pub shards: Vec<ShardInfo>,
    /// The counters of each shard's workers, by shard and worker.
    pub counters: Vec<Vec<Arc<Counters>>>,
}

impl View {
    /// The counters of all workers, added up.
    pub fn snapshot(&self) -> Snapshot {
        let all = self.counters.iter().flatten();
        all.map(|c| c.snapshot()).fold(Snapshot::default(), Snapshot::plus)
    }
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
    view: Arc<View>,
}

impl Server {
    /// Opens queues, maps and registers memory, and starts to listen, for all of `shards`. When
    /// it returns, clients can connect to each.
    ///
    /// # Errors
    ///
    /// `Usage` for no shard at all, two of one name, or two workers on one CPU; else the first
    /// failure of any thread: nothing is left running then.
    pub fn start(shards: Vec<Shard>) -> Result<Self> {
        check_set(&shards)?;
        let several = shards.len() > 1;
        let counters: Vec<Vec<Arc<Counters>>> = shards
            .iter()
            .map(|Shard { info, .. }| {
                let one = |_: &usize| Arc::new(Counters::new(info.drives.len()));
                info.cores.iter().map(one).collect()
            })
            .collect();
        let bodies: Vec<Arc<dyn Body>> = shards.iter().map(|s| Arc::clone(&s.body)).collect();
        let infos = shards.into_iter().map(|shard| shard.info).collect();
        let view = Arc::new(View { shards: infos, counters });
        let mut server = Self { stop: Arc::default(), threads: Vec::new(), view };
        let (ready, outcomes) = channel();
        for (place, body) in bodies.iter().enumerate() {
            for (number, counters) in server.view.counters[place].clone().into_iter().enumerate() {
                // A thread's name has 15 characters at most, so a shard has its number here.
                let name = if several {
                    format!("worker-{place}.{number}")
                } else {
                    format!("worker-{number}")
                };
                let run = Run { stop: Arc::clone(&server.stop), ready: ready.clone() };
                let (body, thread) = (Arc::clone(body), name.clone());
                server.spawn(&name, move || body.work(&thread, number, counters, &run))?;
            }
        }
        drop(ready);
        let workers = server.threads.len();
        if outcomes.iter().take(workers).count() < workers {
            // One of them ended before it was ready; joining gives its error.
            return Err(server.stop().expect_err("a worker that was not ready has failed"));
        }
        for (place, body) in bodies.into_iter().enumerate() {
            let stop = Arc::clone(&server.stop);
            let name = if several { format!("listener-{place}") } else { "listener".into() };
            server.spawn(&name, move || body.listen(&stop))?;
        }
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

    /// Its shards.
    pub fn shards(&self) -> &[ShardInfo] {
        &self.view.shards
    }

    /// What it shows of itself, for threads that outlast it.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// The counters of all workers, added up.
    pub fn snapshot(&self) -> Snapshot {
        self.view.snapshot()
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

/// What no shard can see alone.
fn check_set(shards: &[Shard]) -> Result<()> {
    if shards.is_empty() {
        return Err(Error::usage("a server without a shard"));
    }
    let (mut names, mut cores) = (HashSet::new(), HashSet::new());
    for shard in shards {
        let name = &shard.info.name;
        if !names.insert(name) {
            return Err(Error::usage(format!("two shards have the name \"{name}\"")));
        }
        if let Some(core) = shard.info.cores.iter().find(|core| !cores.insert(**core)) {
            return Err(Error::usage(format!("shard {name} wants CPU {core}, which has a worker"))
                .remedy("a worker needs a CPU of its own: name each once"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
