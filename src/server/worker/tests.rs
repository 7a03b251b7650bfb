use std::collections::HashSet;

use super::*;
use crate::fabric::Closed;
use crate::memory::{Arena, ArenaSpec, Pages};
use crate::storage::sim::{Latency, SimSpec, SimStorage};
use crate::storage::{OpenMode, Storage, mem::MemStorage};

const CONN: ConnId = ConnId { index: 0, generation: 1 };
const LEN: u32 = 256 << 10;

/// A fabric that sends at once, and keeps the records.
#[derive(Debug, Default)]
struct Loopback {
    events: VecDeque<Event>,
    records: Vec<wire::Completion>,
    /// Numbers of the slots that the answers were in.
    slots: HashSet<u32>,
}

impl Endpoint for Loopback {
    fn poll(&mut self, out: &mut Vec<Event>) {
        while out.len() < out.capacity()
            && let Some(event) = self.events.pop_front()
        {
            out.push(event);
        }
    }

    fn respond(&mut self, conn: ConnId, response: Response) {
        let Response { slot, tag, record, .. } = response;
        self.records.push(record);
        self.slots.extend(slot.as_ref().map(Slot::index));
        self.events.push_back(Event::Sent { conn, tag, slot, delivered: true });
    }

    fn pull(&mut self, conn: ConnId, pull: crate::fabric::Pull) {
        let crate::fabric::Pull { slot, tag, .. } = pull;
        self.events.push_back(Event::Pulled { conn, tag, slot: Some(slot), ok: true });
    }

    fn flush(&mut self) {}

    fn close(&mut self, conn: ConnId) {
        self.events.push_back(Event::Closed(conn, Closed::ByUs));
    }

    fn refuse_new(&mut self) {}

    fn in_flight(&self) -> u32 {
        self.events.len() as u32
    }

    fn connections(&self) -> u32 {
        1
    }
}

/// What became of `count` reads that arrive together on drives of this depth.
fn serve<S: Storage>(storage: &S, depth: u32, count: u64) -> Loopback {
    let slots = 2 * depth as usize;
    let spec = ArenaSpec { bytes: slots * LEN as usize, pages: Pages::Base, node: None };
    let arena = Arc::new(Arena::map(&spec).unwrap());
    let queue = storage.queue(&arena, depth).unwrap();
    let pool = SlotPool::new(arena, LEN as usize, slots).unwrap();
    let options = WorkerOptions {
        check: CheckMode::Crc,
        deadline: Duration::from_secs(60),
        drain: Duration::from_secs(60),
        max_pending: 64,
    };
    let mut fabric = Loopback::default();
    let read = |id| Event::Request(CONN, Request::read(id, 0, 0, LEN));
    fabric.events.extend((0..count).map(read));
    let drives = Arc::from(storage.drives());
    let counters = Arc::new(Counters::new(storage.drives().len()));
    let mut worker = Worker::new(queue, fabric, pool, drives, options, Arc::clone(&counters));
    // The first turn takes everything in; asked to stop later, it finishes that.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            stop.store(true, Ordering::Relaxed);
        });
        worker.run(&stop).unwrap();
    });
    assert_eq!(worker.slots.available(), slots);
    worker.fabric
}

#[test]
fn a_read_that_waits_for_room_on_the_drive_is_queued_meanwhile() {
    let each = Duration::from_millis(20);
    let spec = SimSpec { latency: Latency::Time(each, each), ..SimSpec::default() };
    let records = serve(&SimStorage::open(spec).unwrap(), 1, 2).records;
    let each = Clock::nanos(each);
    assert!(records[0].queued_ns.get() < records[1].queued_ns.get());
    assert!(records[1].queued_ns.get() >= each, "{:?}", records[1]);
}

#[test]
fn checking_one_read_is_no_drive_time_of_the_next() {
    let storage = MemStorage::open(&[1 << 20], OpenMode::Read).unwrap();
    let records = serve(&storage, 4, 2).records;
    // They were submitted together and reaped together.
    assert_eq!(records[0].drive_ns, records[1].drive_ns);
    assert!(records[1].check_ns.get() > records[0].check_ns.get());
}

#[test]
fn reads_wait_in_line_while_more_of_them_would_only_hold_slots() {
    let storage = MemStorage::open(&[1 << 20], OpenMode::Read).unwrap();
    let served = serve(&storage, 16, 16);
    assert_eq!(served.records.len(), 16);
    // One poll of a drive in RAM carries out 1 MiB: four reads, in the same four slots each time.
    assert!(served.slots.len() <= 4, "{:?}", served.slots);
}
