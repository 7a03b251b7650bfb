//! Connections to servers as a target.

use crate::client::{Client, Done, Read, Submitted, check_whole};
use crate::error::{Error, Kind, Result};
use crate::fabric::Channel;
use crate::stats::Clock;
use crate::wire::Status;

use super::objects::{Gets, ObjectLoad};
use super::target::{Finished, Op, Polled, Target};

/// The connections of one thread, a lane each.
pub struct RemoteTarget<C: Channel> {
    lanes: Vec<Client<C>>,
    /// Lanes with something in the batch.
    unsent: Vec<bool>,
    verify: bool,
    /// What is got, where objects are.
    gets: Option<Gets>,
    /// Bytes of each read: all are of one size.
    len: u32,
    done: Vec<Done>,
}

impl<C: Channel> RemoteTarget<C> {
    /// A target over these connections; with `verify`, each payload's CRC is compared.
    pub fn new(lanes: Vec<Client<C>>, verify: bool) -> Self {
        let most = lanes.iter().map(|lane| usize::from(lane.credits())).max().unwrap_or(0);
        let (unsent, done) = (vec![false; lanes.len()], Vec::with_capacity(most));
        Self { lanes, unsent, verify, gets: None, len: 0, done }
    }

    /// Makes it get objects instead of ranges: the place of each read, in reads, is the number of
    /// an object. With `verify`, contents are compared too.
    #[must_use]
    pub fn with_objects(mut self, load: ObjectLoad) -> Self {
        self.gets = Some(Gets::new(load));
        self
    }
}

impl<C: Channel> Target for RemoteTarget<C> {
    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn submit(&mut self, lane: usize, op: Op) -> Result<bool> {
        self.len = op.len;
        let lane_of = &mut self.lanes[lane];
        let queued = if let Some(gets) = &mut self.gets {
            gets.submit(lane_of, op)?
        } else {
            let (drive, offset, tag) = (op.drive, op.offset, op.token.into());
            lane_of.submit(Read { drive, offset, len: op.len, tag })? == Submitted::Queued
        };
        self.unsent[lane] |= queued;
        Ok(queued)
    }

    fn flush(&mut self) -> Result<()> {
        for (lane, unsent) in self.lanes.iter_mut().zip(&mut self.unsent) {
            if std::mem::take(unsent) {
                lane.flush()?;
            }
        }
        Ok(())
    }

    fn poll(&mut self, clock: &Clock, out: &mut Vec<Finished>) -> Result<Option<Polled>> {
        let mut now = None;
        let mut found = None;
        for lane in &mut self.lanes {
            if lane.in_flight() == 0 || lane.poll(&mut self.done)? == 0 {
                continue;
            }
            let at = clock.now();
            now = Some(at);
            found = found.or(now);
            for done in self.done.drain(..) {
                let record = done.record;
                let status = record.status();
                let mut corrupt = false;
                if status == Status::Ok && self.gets.is_none() {
                    check_whole(record.length.get() as usize, self.len)?;
                }
                if self.verify && status == Status::Ok {
                    let verdict = match &mut self.gets {
                        Some(gets) => gets.verify(lane, &done),
                        None => lane.verify(&done),
                    };
                    match verdict {
                        Ok(()) => {}
                        Err(error) if error.kind() == Kind::Data => {
                            log::error!("{}", error.report());
                            corrupt = true;
                        }
                        Err(error) => return Err(error),
                    }
                    now = None;
                }
                out.push(Finished {
                    token: u32::try_from(done.tag).map_err(|_| {
                        Error::new(Kind::Protocol, format!("an answer to read {}", done.tag))
                    })?,
                    at,
                    status,
                    detail: record.detail.get(),
                    bytes: record.length.get(),
                    corrupt,
                    commands: record.commands.get(),
                    queued_ns: record.queued_ns.get(),
                    drive_ns: record.drive_ns.get(),
                    check_ns: record.check_ns.get(),
                });
                lane.recycle(done);
            }
        }
        if now.is_none() && !out.is_empty() {
            // Verification took time that the next submission must not claim.
            now = Some(clock.now());
        }
        Ok(found.zip(now).map(|(found, after)| Polled { found, after }))
    }
}

#[cfg(test)]
mod tests;
