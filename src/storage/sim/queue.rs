//! The queue over simulated drives.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::cache::Entry;
use super::random::Random;
use super::{Fault, Latency, Shared};
use crate::error::{IoStatus, Result};
use crate::storage::{Command, Completion, Operation, Queue, Submit};

/// When something is due, in the unit of [`Latency`]: turns, or nanoseconds.
type When = u64;

/// How a command will end, decided when it is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Ends(IoStatus),
    Never,
}

/// A command in flight.
#[derive(Debug)]
struct Flight {
    command: Command,
    fate: Fate,
    due: When,
    /// Bytes to transfer in all: less than the command's where it ends short.
    len: u32,
    /// Bytes transferred.
    done: u32,
    commands: u16,
    /// What the drives' cache knows it by, where they have one.
    entry: Option<Entry>,
}

/// The queue of one worker over simulated drives.
#[derive(Debug)]
pub struct SimQueue {
    shared: Arc<Shared>,
    random: Random,
    /// In the order of submission; never longer than the capacity it was made with.
    flights: Vec<Flight>,
    depth: usize,
    turn: u64,
    started: Instant,
}

impl SimQueue {
    pub(super) fn new(shared: Arc<Shared>, number: u64, depth: usize) -> Self {
        let random = Random::new(shared.spec.seed, number);
        let flights = Vec::with_capacity(depth);
        Self { shared, random, flights, depth, turn: 0, started: Instant::now() }
    }

    fn now(&self) -> When {
        match self.shared.spec.latency {
            Latency::Turns(..) => self.turn,
            Latency::Time(..) => self.started.elapsed().as_nanos() as u64,
        }
    }

    /// Draws how long one command to the drive takes.
    fn draw_latency(&mut self) -> When {
        let nanos = |time: Duration| time.as_nanos() as u64;
        let spec = &self.shared.spec;
        let (least, most) = match spec.latency {
            Latency::Turns(least, most) => (u64::from(least), u64::from(most)),
            Latency::Time(least, most) => (nanos(least), nanos(most)),
        };
        let drawn = self.random.between(least, most);
        let tail = spec.tail_one_in > 0 && self.random.between(1, spec.tail_one_in.into()) == 1;
        if tail { drawn.saturating_mul(spec.tail_factor.into()) } else { drawn }
    }

    /// Decides how a command ends, and after how many bytes.
    fn draw_fate(&mut self, command: &Command) -> (Fate, u32) {
        let spec = &self.shared.spec;
        let failed = self.random.chance(spec.error_rate);
        let stuck = self.random.chance(spec.stuck_rate);
        if let Some(at) = spec.faults.iter().find(|at| at.hits(command)) {
            return match at.fault {
                Fault::Status(status) => (Fate::Ends(status), 0),
                Fault::Stuck => (Fate::Never, 0),
                Fault::End => {
                    let block = u64::from(super::super::mem::BLOCK_SIZE);
                    let bytes = at.range.start.saturating_sub(command.offset);
                    (Fate::Ends(IoStatus::Short), (bytes - bytes % block) as u32)
                }
            };
        }
        if stuck {
            (Fate::Never, 0)
        } else if failed {
            (Fate::Ends(spec.error), 0)
        } else {
            (Fate::Ends(IoStatus::Ok), command.len)
        }
    }

    /// Whether the drive of a command has gone, counting the command.
    fn is_gone(&self, command: &Command) -> bool {
        match self.shared.spec.gone_after {
            Some((drive, after)) if drive == command.drive => {
                self.shared.counted.fetch_add(1, Ordering::Relaxed) >= after
            }
            _ => false,
        }
    }

    /// Transfers what one command to the drive gives. True where the whole is done.
    fn advance(&mut self, index: usize) -> bool {
        let flight = &mut self.flights[index];
        flight.commands = flight.commands.saturating_add(1);
        let rest = flight.len - flight.done;
        let blocks = rest / super::super::mem::BLOCK_SIZE;
        let short = self.random.chance(self.shared.spec.short_rate);
        let now = if short && blocks > 1 {
            self.random.between(1, u64::from(blocks) - 1) as u32 * super::super::mem::BLOCK_SIZE
        } else {
            rest
        };
        if now > 0 {
            self.shared.drives.transfer(&mut flight.command, flight.done, now);
        }
        flight.done += now;
        flight.done == flight.len
    }
}

impl Queue for SimQueue {
    fn submit(&mut self, command: Command) -> Submit {
        let drives = &self.shared.drives;
        drives.infos[usize::from(command.drive)].check(&command, drives.writable);
        let busy = self.random.chance(self.shared.spec.busy_rate);
        if busy || self.flights.len() == self.depth {
            return Submit::Busy(command);
        }
        let (mut fate, mut len) = self.draw_fate(&command);
        if self.is_gone(&command) {
            (fate, len) = (Fate::Ends(IoStatus::Gone), 0);
        }
        if command.operation == Operation::Sync {
            len = 0;
        }
        let due = self.now().saturating_add(self.draw_latency());
        // From here on some of it may be on the drive, however it ends.
        let entry = self.shared.cache.as_ref().map(|cache| cache.submitted(&command));
        self.flights.push(Flight { command, fate, due, len, done: 0, commands: 0, entry });
        Submit::Queued
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        let now = self.now();
        self.turn += 1;
        let mut index = 0;
        while index < self.flights.len() && out.len() < out.capacity() {
            let Flight { fate, due, .. } = self.flights[index];
            let status = match fate {
                Fate::Ends(status) if due <= now => status,
                // In order, what has not ended holds up what comes after it, on a real queue by
                // the same right.
                _ if !self.shared.spec.reorder => break,
                _ => {
                    index += 1;
                    continue;
                }
            };
            if !self.advance(index) {
                self.flights[index].due = now.saturating_add(1 + self.draw_latency());
                continue;
            }
            let Flight { command, commands, entry, .. } = self.flights.remove(index);
            if let (Some(cache), Some(entry), IoStatus::Ok) = (&self.shared.cache, entry, status) {
                cache.completed(entry);
            }
            let Command { slot, tag, drive, .. } = command;
            out.push(Completion { slot: Some(slot), tag, drive, status, commands });
        }
        out.len() - before
    }

    fn in_flight(&self) -> u32 {
        self.flights.len() as u32
    }
}

impl Drop for SimQueue {
    /// What would have ended is waited for in no time. What never ends is leaked, as a queue of
    /// real drives has to: its slot is lent for good.
    fn drop(&mut self) {
        for flight in self.flights.drain(..).filter(|flight| flight.fate == Fate::Never) {
            drop(flight.command.slot.lend());
        }
    }
}
