//! Several servers at once: lanes to each, over one or several local NICs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::lane::{Answer, Lane, LaneOptions, Sent};
use super::{Client, ClientOptions, Connector, Get, Read, RemoteDrive};
use crate::error::{Error, Kind, Result};
use crate::stats::Clock;
use crate::wire::{ANY_WORKER, CheckMode};

/// Time between two looks of [`Cluster::poll`] at deadlines and new connections, in nanoseconds.
const TICK_NS: u64 = 5_000_000;

/// Polls that found nothing after which the clock is read.
const POLLS_PER_CLOCK: u32 = 64;

/// Which servers, and how they are connected to.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Addresses: `tcp://host:port` or `rdma://host:port`. A server of several shards has one for
    /// each.
    pub servers: Vec<String>,
    /// Local addresses of the NICs to use (RDMA); empty leaves it to the routing table.
    pub locals: Vec<IpAddr>,
    /// Workers of each server, as [`RemoteServer::workers`] says; empty where that is not known.
    pub workers: Vec<u16>,
    /// How each connection is made; its `local` and `worker` are not looked at.
    pub client: ClientOptions,
    /// Time within which each request is answered, or its connection is given up and made again.
    pub deadline: Duration,
}

/// Where a connection goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LanePlan {
    /// Number of the server.
    pub server: usize,
    /// Local address of the NIC.
    pub local: Option<IpAddr>,
    /// The server's worker that is wished for; [`ANY_WORKER`] where nothing is known of them.
    pub worker: u16,
}

impl ClusterOptions {
    /// Where connection number `number` goes: to each server in turn, and on the next round to the
    /// next worker by the next NIC. With as many rounds as there are workers times NICs all pairs
    /// of the two have come about. (Once their numbers repeat together, the NICs shift by one.)
    pub fn lane(&self, number: usize) -> LanePlan {
        let (server, round) = (number % self.servers.len(), number / self.servers.len());
        let known = self.workers.get(server).copied().filter(|workers| *workers > 0);
        let nics = self.locals.len().max(1);
        let workers = known.map_or(nics, usize::from);
        let repeats = workers / gcd(workers, nics) * nics;
        LanePlan {
            server,
            local: self.locals.get((round + round / repeats) % nics).copied(),
            worker: known.map_or(ANY_WORKER, |workers| (round % usize::from(workers)) as u16),
        }
    }

    /// Connections in all with which every worker of every server has one from each NIC.
    pub fn full_mesh(&self) -> usize {
        let most = self.workers.iter().copied().max().unwrap_or(1).max(1);
        self.servers.len() * self.locals.len().max(1) * usize::from(most)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Connects to the worker that is wished for. Where the fabric cannot honour that, the server hands
/// connections to its workers in turn, of which others have some; so one that meets a worker which
/// has more of ours than another is given back, a few times.
fn connect(
    address: &str,
    options: &ClientOptions,
    met: &mut BTreeMap<u16, usize>,
) -> Result<Client> {
    let mut tries = 0;
    loop {
        let client = Client::connect(address, options)?;
        let (worker, workers) = client.worker();
        tries += 1;
        let of = |worker: u16| met.get(&worker).copied().unwrap_or(0);
        let least = (0..workers).map(of).min().unwrap_or(0);
        let as_wished = address.starts_with("rdma:") && worker == options.worker;
        if as_wished || of(worker) == least || tries > 2 * workers {
            *met.entry(worker).or_default() += 1;
            return Ok(client);
        }
    }
}

/// What a server of a cluster is.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct RemoteServer {
    /// Its address.
    pub address: String,
    /// Its backend: `uring`, `spdk`, `mem`.
    pub backend: String,
    /// What it does with the bytes that it reads.
    pub check: CheckMode,
    /// Requests that it lets one connection have in flight.
    pub credits: u16,
    /// Its workers.
    pub workers: u16,
    /// UUID of its store; `None` where it serves ranges of drives.
    pub store: Option<uuid::Uuid>,
    /// Its drives.
    pub drives: Vec<RemoteDrive>,
}

impl RemoteServer {
    /// What the server of this connection says of itself.
    pub fn of(address: &str, client: &Client) -> Self {
        Self {
            address: address.to_owned(),
            backend: client.backend(),
            check: client.check_mode(),
            credits: client.credits(),
            workers: client.worker().1,
            store: client.store().map(|store| uuid::Uuid::from_bytes(store.uuid)),
            drives: client.drives().to_vec(),
        }
    }
}

/// Connections to servers, for one thread. What is asked of one server waits for no other.
pub struct Cluster {
    servers: Vec<Option<RemoteServer>>,
    /// Lanes, and the server of each.
    lanes: Vec<(usize, Lane)>,
    /// Lanes of each server, and the one whose turn is next.
    by_server: Vec<(Vec<usize>, usize)>,
    unsent: Vec<bool>,
    answers: Vec<Answer>,
    clock: Clock,
    polls: u32,
    /// The last reading of the clock.
    now: u64,
    next_tick: u64,
}

impl Cluster {
    /// Connects the lanes with these numbers (see [`ClusterOptions::lane`]); times are by `clock`.
    /// All servers must be there now; later each may fail and come back.
    ///
    /// # Errors
    ///
    /// Those of [`Client::connect`]; `Data` where two connections to
    /// one address meet different drives.
    pub fn connect(options: &ClusterOptions, numbers: &[usize], clock: Clock) -> Result<Self> {
        let count = options.servers.len();
        if count == 0 || numbers.is_empty() {
            return Err(Error::usage("a cluster without servers or connections"));
        }
        let mut servers: Vec<Option<RemoteServer>> = vec![None; count];
        let mut connectors: Vec<Option<Connector>> = vec![None; count];
        let mut met_workers = vec![BTreeMap::new(); count];
        let mut lanes = Vec::with_capacity(numbers.len());
        for number in numbers.iter().copied() {
            let LanePlan { server, local, worker } = options.lane(number);
            let address = &options.servers[server];
            let client_options = ClientOptions { local, worker, ..options.client.clone() };
            let client = connect(address, &client_options, &mut met_workers[server])?;
            let met = RemoteServer::of(address, &client);
            match &servers[server] {
                Some(known) if (&known.drives, &known.store) != (&met.drives, &met.store) => {
                    return Err(Error::new(
                        Kind::Data,
                        format!("{address} has other drives or another store for each connection"),
                    )
                    .remedy("name each server of a name with several addresses by its own"));
                }
                Some(_) => {}
                None => servers[server] = Some(met),
            }
            let connector = match &connectors[server] {
                Some(connector) => connector.clone(),
                None => connectors[server]
                    .insert(Connector::start(address, options.client.clone())?)
                    .clone(),
            };
            let deadline = Clock::nanos(options.deadline);
            let lane = LaneOptions { deadline, local, worker };
            lanes.push((server, Lane::new(client, connector, lane)));
        }
        Ok(Self::of(servers, lanes, clock))
    }

    /// A cluster of these lanes, each with the number of its server.
    pub(crate) fn of(
        servers: Vec<Option<RemoteServer>>,
        lanes: Vec<(usize, Lane)>,
        clock: Clock,
    ) -> Self {
        let mut by_server = vec![(Vec::new(), 0); servers.len()];
        for (place, (server, _)) in lanes.iter().enumerate() {
            by_server[*server].0.push(place);
        }
        let most = lanes.iter().map(|(_, lane)| lane.capacity()).max().unwrap_or(0);
        Self {
            servers,
            unsent: vec![false; lanes.len()],
            lanes,
            by_server,
            answers: Vec::with_capacity(most),
            polls: 0,
            now: clock.now(),
            next_tick: 0,
            clock,
        }
    }

    /// The servers by their number; `None` for those that no lane of this thread goes to.
    pub fn servers(&self) -> &[Option<RemoteServer>] {
        &self.servers
    }

    /// Number of lanes.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The server of a lane.
    pub fn server_of(&self, lane: usize) -> usize {
        self.lanes[lane].0
    }

    /// How often lanes to this server were made again, and how long in nanoseconds they were away
    /// on the mean.
    pub fn outages(&self, server: usize, now: u64) -> (u64, u64) {
        let lanes = &self.by_server[server].0;
        let of = |lane: &usize| &self.lanes[*lane].1;
        let reconnects = lanes.iter().map(|lane| of(lane).reconnects()).sum();
        let away: u64 = lanes.iter().map(|lane| of(lane).away_ns(now)).sum();
        (reconnects, away / lanes.len().max(1) as u64)
    }

    /// The worker of each lane to a server that has its connection.
    pub fn workers(&self, server: usize) -> Vec<u16> {
        let lanes = self.by_server[server].0.iter();
        lanes.filter_map(|lane| Some(self.lanes[*lane].1.client()?.worker().0)).collect()
    }

    /// True while any lane has its connection.
    pub fn is_up(&self) -> bool {
        self.lanes.iter().any(|(_, lane)| lane.client().is_some())
    }

    /// Puts a read in the batch of one lane, at time `now`.
    ///
    /// # Errors
    ///
    /// As [`Lane::submit`].
    pub fn submit_on(&mut self, lane: usize, read: Read, now: u64) -> Result<Sent> {
        let sent = self.lanes[lane].1.submit(read, now)?;
        self.unsent[lane] |= sent == Sent::Queued;
        Ok(sent)
    }

    /// Puts a get in the batch of one lane, at time `now`.
    ///
    /// # Errors
    ///
    /// As [`Lane::submit_get`].
    pub fn get_on(&mut self, lane: usize, get: Get<'_>, now: u64) -> Result<Sent> {
        let sent = self.lanes[lane].1.submit_get(get, now)?;
        self.unsent[lane] |= sent == Sent::Queued;
        Ok(sent)
    }

    /// Puts a read in the batch of the next lane of a server that takes it: `Busy` where none has
    /// room, `Away` where all are away.
    ///
    /// # Errors
    ///
    /// As [`Lane::submit`].
    pub fn submit(&mut self, server: usize, read: Read, now: u64) -> Result<Sent> {
        let mut outcome = Sent::Away;
        for _ in 0..self.by_server[server].0.len() {
            let (lanes, next) = &mut self.by_server[server];
            let lane = lanes[*next];
            *next = (*next + 1) % lanes.len();
            match self.submit_on(lane, read, now)? {
                Sent::Queued => return Ok(Sent::Queued),
                Sent::Busy => outcome = Sent::Busy,
                Sent::Away => {}
            }
        }
        Ok(outcome)
    }

    /// Sends the batches.
    pub fn flush(&mut self) {
        for (lane, unsent) in self.unsent.iter_mut().enumerate() {
            if std::mem::take(unsent) {
                self.lanes[lane].1.flush(self.now);
            }
        }
    }

    /// Gives `each` the lane, the time and the outcome of the requests that ended, and takes their
    /// slots back. Also
    /// looks at deadlines and connections from time to time. Returns the time at which the answers
    /// were there; `None` where there were none and the clock was not read.
    pub fn poll(
        &mut self,
        mut each: impl FnMut(usize, u64, &Answer) -> Result<()>,
    ) -> Result<Option<u64>> {
        let mut last = None;
        for (place, (_, lane)) in self.lanes.iter_mut().enumerate() {
            if lane.in_flight() == 0 {
                continue;
            }
            lane.poll(self.now, &mut self.answers);
            if self.answers.is_empty() {
                continue;
            }
            let at = self.clock.now();
            (self.now, last) = (at, Some(at));
            for answer in self.answers.drain(..) {
                each(place, at, &answer)?;
                if let Answer::Done(done) = answer {
                    lane.recycle(done);
                }
            }
        }
        self.polls += 1;
        if last.is_some() || self.polls >= POLLS_PER_CLOCK {
            self.polls = 0;
            self.now = last.unwrap_or_else(|| self.clock.now());
            if self.now >= self.next_tick {
                self.next_tick = self.now + TICK_NS;
                self.lanes.iter_mut().for_each(|(_, lane)| lane.tick(self.now));
            }
        }
        Ok(last)
    }

    /// Reads `len` bytes of a server's drive and waits for them; nothing else may be in flight.
    ///
    /// # Errors
    ///
    /// Where the read fails, or the server is away or does not answer within the deadline.
    pub fn read(&mut self, server: usize, drive: u16, offset: u64, len: u32) -> Result<Vec<u8>> {
        let read = Read { drive, offset, len, tag: 0 };
        let address = self.servers[server].as_ref().map_or("?", |s| &s.address).to_owned();
        let lost = |what: &str| Error::new(Kind::Network, format!("{address} {what}"));
        let now = self.clock.now();
        if self.submit(server, read, now)? != Sent::Queued {
            self.now = now;
            self.lanes.iter_mut().for_each(|(_, lane)| lane.tick(now));
            return Err(lost("is away; it is being connected to"));
        }
        let mut outcome: Option<Result<Vec<u8>>> = None;
        while outcome.is_none() {
            self.flush();
            self.poll(|_, _, answer| {
                outcome = Some(match answer {
                    Answer::Done(done) => done.payload().map(<[u8]>::to_vec),
                    Answer::Lost { .. } => Err(lost("was lost before it answered")),
                });
                Ok(())
            })?;
        }
        let data = outcome.expect("the loop has ended")?;
        super::check_whole(data.len(), len)?;
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_server_is_reached_by_every_nic_and_nics_and_workers_meet() {
        let ip = |n: u8| IpAddr::from([10, 0, n, 1]);
        for (nics, workers) in [(0u8, 1u16), (1, 4), (2, 1), (2, 2), (2, 8), (3, 2), (4, 6), (2, 0)]
        {
            let options = ClusterOptions {
                servers: vec!["tcp://a:1".into(), "tcp://b:1".into(), "tcp://c:1".into()],
                locals: (0..nics).map(ip).collect(),
                workers: vec![workers; 3],
                client: ClientOptions::default(),
                deadline: Duration::from_secs(1),
            };
            let count = usize::from(nics.max(1));
            let lanes = |count| (0..count).map(|n| options.lane(n));
            let reached: HashSet<_> = lanes(3 * count).map(|l| (l.server, l.local)).collect();
            assert_eq!(reached.len(), 3 * count, "{nics} NICs");
            let all = options.full_mesh();
            assert_eq!(all, 3 * count * usize::from(workers.max(1)));
            let pairs: HashSet<_> = lanes(all).collect();
            assert_eq!(pairs.len(), all, "{nics} NICs, {workers} workers");
        }
    }
}
