//! What a worker does for ranges of drives.

use zerocopy::IntoBytes;

use super::objects::Task;
use super::{Active, Pending, Times, Worker};
use crate::check::check;
use crate::fabric::Endpoint;
use crate::memory::Slot;
use crate::storage::{Command, Completion, Operation, Queue};
use crate::wire::{self, CheckMode, DriveRecord, Status};

impl<Q: Queue, E: Endpoint> Worker<Q, E> {
    pub(super) fn start_read(&mut self, slot: Slot, pending: Pending, now: u64) {
        let place = slot.index() as usize;
        let command = Command {
            slot,
            drive: pending.request.drive.get(),
            operation: Operation::Read,
            offset: pending.request.offset.get(),
            len: pending.request.length.get(),
            tag: place as u64,
        };
        let task = Task::Read;
        self.active[place] = Some(Active { pending, task, submitted: now, answered: false });
        self.submit(command);
    }

    pub(super) fn describe(&mut self, mut slot: Slot, pending: Pending) {
        let drive = &self.drives[usize::from(pending.request.drive.get())];
        let serial = drive.serial.as_deref().unwrap_or("");
        let record = DriveRecord::new(drive.capacity, drive.block_size, serial, &drive.name);
        let len = size_of::<DriveRecord>();
        slot.bytes_mut(len).copy_from_slice(record.as_bytes());
        let mut answer = wire::Completion::new(pending.request.id.get(), Status::Ok, 0);
        answer.length = (len as u32).into();
        if let Some(crc) = check(self.options.check, slot.bytes(len)) {
            answer = answer.with_crc(crc);
        }
        self.answer(pending.conn, &pending.request, Some(slot), 0, answer);
    }

    /// Answers one read. Returns the time at its end, which is when the next one's turn comes.
    pub(super) fn finish_read(
        &mut self,
        active: Active,
        completion: Completion,
        times: Times,
    ) -> u64 {
        let Times { reaped, now } = times;
        if active.answered {
            self.free(completion.slot);
            return now;
        }
        let request = active.pending.request;
        let (status, detail) = Status::of_io(completion.status);
        let mut record = wire::Completion::new(request.id.get(), status, detail);
        let mut end = now;
        let mut slot = completion.slot;
        if status == Status::Ok {
            let len = request.length.get();
            let filled = slot.as_ref().expect("a whole read gives its slot back");
            if let Some(crc) = check(self.options.check, filled.bytes(len as usize)) {
                record = record.with_crc(crc);
            }
            record.length = len.into();
            if self.options.check != CheckMode::None {
                end = self.stamp();
            }
        } else {
            let (drive, offset) = (completion.drive, request.offset.get());
            self.report_failure(completion.status, "a read", drive, offset, now);
            self.free(slot.take());
        }
        record.commands = u32::from(completion.commands).into();
        self.note(&mut record, &active, completion.drive, reaped, end);
        self.answer(active.pending.conn, &request, slot, 0, record);
        end
    }
}
