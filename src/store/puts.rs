//! A pipeline of puts at full depth, for jobs that bring their own objects.

use std::sync::Arc;

use crate::check::crc;
use crate::error::{Error, IoStatus, Kind, Result};
use crate::memory::Slot;
use crate::object::{BLOCK, KeyName, Member, Mutation, Objects, Refusal, Start, WriteAt};
use crate::storage::{Command, Operation, Queue, Storage, Submit};

use super::Progress;
use super::io::{Io, IoOptions, queue_failed};

/// Where objects come from.
pub trait Source {
    /// Writes the data of the next object to the start of `data`, which has the store's limit, and
    /// gives its key and length; `None` where there are no more.
    fn next(&mut self, data: &mut [u8]) -> Result<Option<(KeyName, u32)>>;
}

/// How the put of one object ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// It is there, durably.
    Stored,
    /// The drive answered with an error.
    Failed(IoStatus),
    /// It did not begin.
    Refused(Refusal),
}

/// What became of all puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PutReport {
    /// Objects acknowledged.
    pub stored: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that failed.
    pub failed: u64,
}

/// An object whose put is in flight, by the number of its slot of memory.
struct Active {
    mutation: Mutation,
    key: KeyName,
    length: u32,
}

/// One thread's pipeline.
pub struct Puts<Q> {
    io: Io<Q>,
    member: Member,
    active: Vec<Option<Active>>,
    held: Option<Command>,
    /// An object whose key, or whose slot, is not to be had yet.
    later: Option<(Slot, KeyName, u32)>,
}

impl<Q: Queue> Puts<Q> {
    /// On the objects of a store that was opened to be written.
    pub fn new<S>(storage: &S, objects: &Arc<Objects>, options: &IoOptions) -> Result<Self>
    where
        S: Storage<Queue = Q>,
    {
        let member = objects
            .join()
            .ok_or_else(|| Error::usage("more workers than the store was opened for"))?;
        let io = Io::new(storage, objects.layout().slot_size() as usize, options)?;
        let active = (0..io.pool.count()).map(|_| None).collect();
        Ok(Self { io, member, active, held: None, later: None })
    }

    /// Puts all that `source` gives, as long as the job is not stopped; `each` learns of every
    /// object's end, in the order in which they end. When it returns, nothing is in flight.
    ///
    /// # Errors
    ///
    /// `Resource` where the store is full; `Device` where the drives' queue fails; the source's
    /// own. What was acknowledged stays.
    pub fn run(
        &mut self,
        source: &mut dyn Source,
        progress: &Progress,
        each: &mut dyn FnMut(&KeyName, PutOutcome),
    ) -> Result<PutReport> {
        let mut report = PutReport::default();
        let mut failed = None;
        let mut over = false;
        loop {
            self.member.turn();
            if progress.is_stopped() && !over {
                over = true;
                if let Some((slot, ..)) = self.later.take() {
                    self.io.release(slot);
                }
            }
            while !over || self.held.is_some() {
                match self.start(source, over, &mut report, each) {
                    Ok(Started::More) => {}
                    Ok(Started::Wait) => break,
                    Ok(Started::Over) => over = true,
                    Err(error) => {
                        failed = Some(error);
                        over = true;
                    }
                }
            }
            let idle = self.io.queue.in_flight() == 0 && self.held.is_none();
            if over && idle && self.later.is_none() {
                break;
            }
            self.io.turn(!idle && self.later.is_none())?;
            self.finish(&mut report, progress, each)?;
        }
        failed.map_or(Ok(report), Err)
    }

    /// Begins one more put, or gives the drives the write that they had no room for.
    fn start(
        &mut self,
        source: &mut dyn Source,
        over: bool,
        report: &mut PutReport,
        each: &mut dyn FnMut(&KeyName, PutOutcome),
    ) -> Result<Started> {
        if let Some(command) = self.held.take() {
            return Ok(self.submit(command));
        }
        if over {
            return Ok(Started::Wait);
        }
        let (mut slot, key, length) = match self.later.take() {
            Some(later) => later,
            None => {
                let Some(mut slot) = self.io.pool.acquire() else { return Ok(Started::Wait) };
                let size = slot.size();
                match source.next(&mut slot.bytes_mut(size)[BLOCK..]) {
                    Ok(Some((key, length))) => (slot, key, length),
                    Ok(None) => {
                        self.io.release(slot);
                        return Ok(Started::Over);
                    }
                    Err(error) => {
                        self.io.release(slot);
                        return Err(error);
                    }
                }
            }
        };
        let size = slot.size();
        let memory = slot.bytes_mut(size);
        let data_crc = crc(&memory[BLOCK..BLOCK + length as usize]);
        match self.member.start_put(&key, &key.digest(), length, data_crc, memory) {
            Start::Go(mutation, write) => {
                let place = slot.index() as usize;
                self.active[place] = Some(Active { mutation, key, length });
                Ok(self.submit(command(slot, write)))
            }
            Start::Later => {
                self.later = Some((slot, key, length));
                Ok(Started::Wait)
            }
            Start::Refused(refusal) => {
                self.io.release(slot);
                each(&key, PutOutcome::Refused(refusal));
                report.failed += 1;
                match refusal {
                    Refusal::NoSpace => Err(self.full(report)),
                    _ => Ok(Started::More),
                }
            }
        }
    }

    fn full(&self, report: &PutReport) -> Error {
        let tally = self.member.objects().tally();
        Error::new(
            Kind::Resource,
            format!(
                "the store is full: {} slots, {} objects, {} slots set aside; {} were stored \
                 before",
                tally.slots, tally.objects, tally.set_aside, report.stored
            ),
        )
        .remedy("delete objects, or make a store on more drives")
    }

    fn submit(&mut self, command: Command) -> Started {
        match self.io.queue.submit(command) {
            Submit::Queued => Started::More,
            Submit::Busy(command) => {
                self.held = Some(command);
                Started::Wait
            }
        }
    }

    fn finish(
        &mut self,
        report: &mut PutReport,
        progress: &Progress,
        each: &mut dyn FnMut(&KeyName, PutOutcome),
    ) -> Result<()> {
        let mut out = std::mem::take(&mut self.io.out);
        for done in out.drain(..) {
            let place = done.tag as usize;
            let mut active = self.active[place].take().expect("a completion has its put");
            let Some(mut slot) = done.slot else {
                self.member.abandon(active.mutation);
                return Err(queue_failed());
            };
            let size = slot.size();
            let memory = slot.bytes_mut(size);
            let step = self.member.advance(&mut active.mutation, done.status, memory);
            match step.answer {
                Some(Ok(())) => {
                    report.stored += 1;
                    report.bytes += u64::from(active.length);
                    progress.add(1, active.length.into());
                    each(&active.key, PutOutcome::Stored);
                }
                Some(Err(status)) => {
                    report.failed += 1;
                    each(&active.key, PutOutcome::Failed(status));
                }
                None => {}
            }
            match step.write {
                // One completion made room for it.
                Some(write) => {
                    self.active[place] = Some(active);
                    let mut next = command(slot, write);
                    while let Submit::Busy(same) = self.io.queue.submit(next) {
                        next = same;
                        self.io.queue.flush()?;
                    }
                }
                None => self.io.release(slot),
            }
        }
        self.io.out = out;
        Ok(())
    }
}

enum Started {
    /// Try the next one.
    More,
    /// Not now.
    Wait,
    /// There are no more.
    Over,
}

fn command(slot: Slot, write: WriteAt) -> Command {
    let WriteAt { drive, offset, len } = write;
    let tag = u64::from(slot.index());
    Command { slot, drive, operation: Operation::WriteDurable, offset, len, tag }
}
