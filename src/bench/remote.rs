//! Servers as a target: a group each, with a lane for each connection.

use crate::client::{Answer, Cluster, Done, Read, Sent, check_whole};
use crate::error::{Error, Kind, Result};
use crate::stats::Clock;
use crate::wire::Status;

use super::objects::{Gets, ObjectLoad, Shares};
use super::target::{Failed, Finished, Op, Outages, Polled, Taken, Target};

/// The connections of one thread.
pub struct RemoteTarget {
    cluster: Cluster,
    verify: bool,
    /// What is got, where objects are.
    gets: Option<Gets>,
    /// Bytes of each read: all are of one size.
    len: u32,
    /// Nanoseconds for which all servers may be away.
    patience: u64,
    /// Since when they are.
    alone_since: Option<u64>,
}

impl RemoteTarget {
    /// A target over a cluster; with `verify`, each payload's CRC is compared. Where all servers
    /// of this thread are away for longer than `patience` nanoseconds, the run ends.
    pub fn new(cluster: Cluster, verify: bool, patience: u64) -> Self {
        Self { cluster, verify, gets: None, len: 0, patience, alone_since: None }
    }

    /// Makes it get objects instead of ranges: the place of each read, in reads, is the place of
    /// an object in its server's share. With `verify`, contents are compared too.
    #[must_use]
    pub fn with_objects(mut self, load: ObjectLoad, shares: Shares) -> Self {
        self.gets = Some(Gets::new(load, shares));
        self
    }

    /// The servers: see [`Cluster::servers`].
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn check_alone(&mut self, now: u64) -> Result<()> {
        if self.cluster.is_up() {
            self.alone_since = None;
            return Ok(());
        }
        let since = *self.alone_since.get_or_insert(now);
        if now.saturating_sub(since) <= self.patience {
            return Ok(());
        }
        let servers: Vec<&str> =
            self.cluster.servers().iter().flatten().map(|s| s.address.as_str()).collect();
        Err(Error::new(
            Kind::Network,
            format!(
                "no server is left: {} could not be connected to again for {} ms",
                servers.join(", "),
                self.patience / 1_000_000
            ),
        ))
    }
}

impl Target for RemoteTarget {
    fn lanes(&self) -> usize {
        self.cluster.lanes()
    }

    fn group(&self, lane: usize) -> usize {
        self.cluster.server_of(lane)
    }

    fn submit(&mut self, lane: usize, op: Op) -> Result<Taken> {
        self.len = op.len;
        let sent = if let Some(gets) = &mut self.gets {
            gets.submit(&mut self.cluster, lane, op)?
        } else {
            let (drive, offset, tag) = (op.drive, op.offset, op.token.into());
            self.cluster.submit_on(lane, Read { drive, offset, len: op.len, tag }, op.at)?
        };
        Ok(match sent {
            Sent::Queued => Taken::Queued,
            Sent::Busy => Taken::Busy,
            Sent::Away => Taken::Away,
        })
    }

    fn flush(&mut self) -> Result<()> {
        self.cluster.flush();
        Ok(())
    }

    fn poll(&mut self, clock: &Clock, out: &mut Vec<Finished>) -> Result<Option<Polled>> {
        let (verify, len, gets) = (self.verify, self.len, &mut self.gets);
        let mut verified = false;
        let mut found = None;
        let mut now = self.cluster.poll(|_, at, answer| {
            found = found.or(Some(at));
            let (tag, failed, done) = match answer {
                Answer::Lost { tag, why } => (*tag, Some(Failed::Lost(*why)), None),
                Answer::Done(done) => {
                    verified |= verify;
                    (done.tag, outcome(done, len, verify, gets.as_mut())?, Some(done))
                }
            };
            let record = done.map(|done| done.record);
            let figure = |of: fn(&crate::wire::Completion) -> u64| record.as_ref().map_or(0, of);
            out.push(Finished {
                token: u32::try_from(tag).expect("the tag is the token"),
                at,
                failed,
                bytes: record.as_ref().map_or(0, |r| r.length.get()),
                commands: record.as_ref().map_or(0, |r| r.commands.get()),
                queued_ns: figure(|r| r.queued_ns.get()),
                drive_ns: figure(|r| r.drive_ns.get()),
                check_ns: figure(|r| r.check_ns.get()),
            });
            Ok(())
        })?;
        if verified {
            // Verification took time that the next submission must not claim.
            now = Some(clock.now());
        }
        if !self.cluster.is_up() {
            self.check_alone(clock.now())?;
        } else if self.alone_since.is_some() {
            self.alone_since = None;
        }
        Ok(found.zip(now).map(|(found, after)| Polled { found, after }))
    }

    fn outages(&self, group: usize, now: u64) -> Outages {
        let (reconnects, away_ns) = self.cluster.outages(group, now);
        Outages { reconnects, away_ns }
    }
}

/// Why an answered read failed, if it did.
///
/// # Errors
///
/// Where the server breaks the protocol, or computes no CRC.
fn outcome(done: &Done, len: u32, verify: bool, gets: Option<&mut Gets>) -> Result<Option<Failed>> {
    let record = &done.record;
    let status = record.status();
    if status != Status::Ok {
        return Ok(Some(Failed::Status(status as u16, record.detail.get())));
    }
    if gets.is_none() {
        check_whole(record.length.get() as usize, len)?;
    }
    if !verify {
        return Ok(None);
    }
    match gets.map_or_else(|| done.verify(), |gets| gets.verify(done)) {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == Kind::Data => {
            log::error!("{}", error.report());
            Ok(Some(Failed::Corrupt))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
