//! Partitions: the tables are read once, when the drives are opened, through a queue as any other.

use std::sync::Arc;

use super::{Shared, SpdkQueue, Target, dma};
use crate::error::{Error, Kind, Result};
use crate::limits::SLOT_ALIGN;
use crate::memory::SlotPool;
use crate::storage::partition::{self, Disk, Partition};
use crate::storage::{Command, Completion, Operation, Queue, Submit};

/// Bytes of one read. Every namespace's block fits in.
const CHUNK: usize = 64 << 10;

const _: () = assert!(CHUNK.is_multiple_of(SLOT_ALIGN));

/// Narrows each drive that was named with a partition down to it.
///
/// # Errors
///
/// What the table says (see [`partition::find`]), or `Device` where it cannot be read.
pub(super) fn apply(mut shared: Arc<Shared>, targets: &[Target]) -> Result<Arc<Shared>> {
    if targets.iter().all(|target| target.partition.is_none()) {
        return Ok(shared);
    }
    let mut reader = Reader::new(&shared)?;
    let mut found = Vec::new();
    for (drive, target) in targets.iter().enumerate() {
        if let Some(number) = target.partition {
            found.push((drive, reader.find(&shared, drive, number)?));
        }
    }
    drop(reader);
    let Some(owned) = Arc::get_mut(&mut shared) else {
        // A controller was lost meanwhile, and its queue leaked with what it has.
        return Err(Error::new(Kind::Device, format!("{} is gone", targets[0].name))
            .remedy("check the drive, and start the program again"));
    };
    for (drive, Partition { number, start, bytes }) in found {
        let info = &mut owned.infos[drive];
        log::info!("{}: partition {number} is bytes {start}+{bytes}", info.name);
        (info.start, info.capacity) = (start, bytes);
    }
    Ok(shared)
}

/// A queue of depth 1.
struct Reader {
    // Before the pool: it has the slot while a command is in flight.
    queue: SpdkQueue,
    pool: SlotPool,
    out: Vec<Completion>,
}

impl Reader {
    fn new(shared: &Arc<Shared>) -> Result<Self> {
        let arena = dma::scratch(shared.env, SlotPool::bytes_needed(CHUNK, 1))?;
        let pool = SlotPool::new(Arc::clone(&arena), CHUNK, 1)?;
        let queue = SpdkQueue::new(Arc::clone(shared), arena, 1)?;
        Ok(Self { queue, pool, out: Vec::with_capacity(1) })
    }

    fn find(&mut self, shared: &Shared, drive: usize, number: u32) -> Result<Partition> {
        let info = &shared.infos[drive];
        let mut read = |offset: u64, buffer: &mut [u8]| {
            for (part, chunk) in (0..).zip(buffer.chunks_mut(CHUNK)) {
                let offset = offset + part * CHUNK as u64;
                self.read(drive as u16, offset, chunk).map_err(|why| {
                    let what = format!("cannot read the partition table of {}", info.name);
                    Error::new(Kind::Device, what).caused_by(why)
                })?;
            }
            Ok(())
        };
        partition::find(
            &mut Disk {
                name: &info.name,
                block_size: info.block_size,
                bytes: info.capacity,
                read: &mut read,
            },
            number,
        )
    }

    /// Reads whole blocks. Ends in bounded time, as every command of the queue does.
    fn read(
        &mut self,
        drive: u16,
        offset: u64,
        into: &mut [u8],
    ) -> std::result::Result<(), String> {
        let slot = self.pool.acquire().ok_or("its memory was lost with an earlier read")?;
        let (operation, len) = (Operation::Read, into.len() as u32);
        match self.queue.submit(Command { slot, drive, operation, offset, len, tag: 0 }) {
            Submit::Queued => {}
            Submit::Busy(_) => return Err("its queue takes no command".into()),
        }
        loop {
            self.queue.flush().map_err(|e| e.report())?;
            self.queue.poll(&mut self.out);
            let Some(done) = self.out.pop() else { continue };
            let slot = done.slot.ok_or_else(|| done.status.to_string())?;
            if done.status.is_ok() {
                into.copy_from_slice(slot.bytes(into.len()));
            }
            self.pool.release(slot);
            let failed = format!("bytes {offset}+{len}: {}", done.status);
            return if done.status.is_ok() { Ok(()) } else { Err(failed) };
        }
    }
}
