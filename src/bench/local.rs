//! The storage path alone as a target: a queue, its slots, and the check.

use crate::check::check;
use crate::error::Result;
use crate::memory::SlotPool;
use crate::stats::Clock;
use crate::storage::{Command, Completion, Operation, Queue, Submit};
use crate::wire::{CheckMode, Status};

use super::target::{Failed, Finished, Op, Polled, Taken, Target};

/// A storage queue of the calling thread.
pub struct LocalTarget<Q> {
    queue: Q,
    slots: SlotPool,
    check: CheckMode,
    /// Sleep for completions instead of spinning.
    block: bool,
    completions: Vec<Completion>,
    /// Submission times by token.
    starts: Vec<u64>,
}

impl<Q: Queue> LocalTarget<Q> {
    /// A target of up to `depth` reads at once. With `block` its thread sleeps for completions,
    /// where the backend can; that suits a closed loop only.
    pub fn new(queue: Q, slots: SlotPool, check: CheckMode, depth: u32, block: bool) -> Self {
        let depth = depth as usize;
        let completions = Vec::with_capacity(depth);
        Self { queue, slots, check, block, completions, starts: vec![0; depth] }
    }
}

impl<Q: Queue> Target for LocalTarget<Q> {
    fn lanes(&self) -> usize {
        1
    }

    fn submit(&mut self, _lane: usize, op: Op) -> Result<Taken> {
        let Some(slot) = self.slots.acquire() else { return Ok(Taken::Busy) };
        self.starts[op.token as usize] = op.at;
        let command = Command {
            slot,
            drive: op.drive,
            operation: Operation::Read,
            offset: op.offset,
            len: op.len,
            tag: u64::from(op.len) << 32 | u64::from(op.token),
        };
        match self.queue.submit(command) {
            Submit::Queued => Ok(Taken::Queued),
            Submit::Busy(command) => {
                self.slots.release(command.slot);
                Ok(Taken::Busy)
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        if self.block { self.queue.flush_and_wait() } else { self.queue.flush() }
    }

    fn poll(&mut self, clock: &Clock, out: &mut Vec<Finished>) -> Result<Option<Polled>> {
        if self.queue.poll(&mut self.completions) == 0 {
            return Ok(None);
        }
        let reaped = clock.now();
        let mut now = reaped;
        for completion in self.completions.drain(..) {
            let (token, len) = (completion.tag as u32, (completion.tag >> 32) as u32);
            let (status, detail) = Status::of_io(completion.status);
            if let (Status::Ok, Some(slot)) = (status, &completion.slot)
                && self.check != CheckMode::None
            {
                std::hint::black_box(check(self.check, slot.bytes(len as usize)));
                now = clock.now();
            }
            if let Some(slot) = completion.slot {
                self.slots.release(slot);
            }
            out.push(Finished {
                token,
                at: now,
                failed: (status != Status::Ok).then_some(Failed::Status(status as u16, detail)),
                bytes: if status == Status::Ok { len } else { 0 },
                commands: completion.commands.into(),
                queued_ns: 0,
                drive_ns: reaped - self.starts[token as usize],
                check_ns: now - reaped,
            });
        }
        Ok(Some(Polled { found: reaped, after: now }))
    }
}
