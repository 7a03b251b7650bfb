use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::client::ClientOptions;
use crate::error::{Error, Kind};
use crate::fabric::{Arrival, Channel};
use crate::memory::{Arena, ArenaSpec, Pages, Slot, SlotPool};
use crate::wire::{ANY_WORKER, CheckMode, Completion, Request, Status, Welcome};

/// What the test lets a connection do.
#[derive(Default)]
struct Script {
    /// Answers these many of the oldest requests at the next poll.
    answer: usize,
    /// Fails at the next poll, after those answers.
    fail: bool,
}

struct Scripted {
    welcome: Welcome,
    asked: VecDeque<(Request, Slot)>,
    script: Arc<Mutex<Script>>,
}

impl Channel for Scripted {
    fn submit(&mut self, request: Request, slot: Slot) -> std::result::Result<(), Slot> {
        self.asked.push_back((request, slot));
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Arrival>) -> Result<usize> {
        let mut script = self.script.lock().unwrap();
        let count = std::mem::take(&mut script.answer).min(self.asked.len());
        for (request, slot) in self.asked.drain(..count) {
            let mut record = Completion::new(request.id.get(), Status::Ok, 0);
            record.length = request.length;
            out.push(Arrival { slot: Some(slot), record });
        }
        if script.fail {
            return Err(Error::new(Kind::Network, "the server is gone"));
        }
        Ok(count)
    }

    fn abandon(&mut self) -> Vec<(u64, Option<Slot>)> {
        Vec::new()
    }

    fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    fn in_flight(&self) -> u32 {
        self.asked.len() as u32
    }

    fn is_in_flight(&self, id: u64) -> bool {
        self.asked.iter().any(|(request, _)| request.id.get() == id)
    }
}

const CREDITS: u16 = 4;

fn lane(deadline: u64) -> (Lane, Arc<Mutex<Script>>) {
    let welcome = Welcome::new("mem", CheckMode::None, 0, 0, 4096, CREDITS, 0);
    let count = usize::from(CREDITS);
    let spec = ArenaSpec { bytes: 4096 * count, pages: Pages::Base, node: None };
    let slots = SlotPool::new(Arc::new(Arena::map(&spec).unwrap()), 4096, count).unwrap();
    let script = Arc::new(Mutex::new(Script::default()));
    let channel: Box<dyn Channel + Send> =
        Box::new(Scripted { welcome, asked: VecDeque::new(), script: Arc::clone(&script) });
    let client = Client::new(channel, slots, Duration::from_secs(1)).unwrap();
    // Nobody listens there: it stays away.
    let connector = Connector::start("tcp://127.0.0.1:1", ClientOptions::default()).unwrap();
    (
        Lane::new(client, connector, LaneOptions { deadline, local: None, worker: ANY_WORKER }),
        script,
    )
}

fn read(tag: u64) -> Read {
    Read { drive: 0, offset: 0, len: 512, tag }
}

/// Tags of the answered ones and of the lost ones, in order.
fn ends(lane: &mut Lane, now: u64) -> (Vec<u64>, Vec<(u64, Lost)>) {
    let mut out = Vec::with_capacity(8);
    lane.poll(now, &mut out);
    let (mut done, mut lost) = (Vec::new(), Vec::new());
    for answer in out {
        match answer {
            Answer::Done(answer) => {
                done.push(answer.tag);
                lane.recycle(answer);
            }
            Answer::Lost { tag, why } => lost.push((tag, why)),
        }
    }
    lost.sort_unstable();
    (done, lost)
}

#[test]
fn each_request_ends_once_also_when_the_connection_fails() {
    let (mut lane, script) = lane(1000);
    for tag in [70, 71, 72, 73] {
        assert_eq!(lane.submit(read(tag), 0).unwrap(), Sent::Queued);
    }
    assert_eq!(lane.submit(read(74), 0).unwrap(), Sent::Busy);
    script.lock().unwrap().answer = 1;
    assert_eq!(ends(&mut lane, 1), (vec![70], vec![]));
    *script.lock().unwrap() = Script { answer: 1, fail: true };
    let connection = |tag| (tag, Lost::Connection);
    assert_eq!(ends(&mut lane, 2), (vec![71], vec![connection(72), connection(73)]));
    assert_eq!(lane.in_flight(), 0);
    assert_eq!(lane.submit(read(75), 3).unwrap(), Sent::Away);
    assert_eq!(lane.away_ns(10), 8);
    assert_eq!(ends(&mut lane, 11), (vec![], vec![]));
}

#[test]
fn a_request_without_an_answer_ends_its_connection_at_the_deadline() {
    let (mut lane, script) = lane(1000);
    lane.submit(read(1), 0).unwrap();
    lane.submit(read(2), 900).unwrap();
    lane.tick(1000);
    assert!(lane.client().is_some(), "it is on time still");
    lane.tick(1001);
    assert!(lane.client().is_none());
    assert_eq!(lane.submit(read(3), 1001).unwrap(), Sent::Away);
    // Whatever the old connection has to say comes too late.
    script.lock().unwrap().answer = 2;
    let deadline = |tag| (tag, Lost::Deadline);
    assert_eq!(ends(&mut lane, 1002), (vec![], vec![deadline(1), deadline(2)]));
}

#[test]
fn lost_ones_are_reported_as_there_is_room() {
    let (mut lane, _script) = lane(10);
    (0..4).for_each(|tag| assert_eq!(lane.submit(read(tag), 0).unwrap(), Sent::Queued));
    lane.tick(11);
    let mut seen = Vec::new();
    let mut out = Vec::with_capacity(1);
    while lane.in_flight() > 0 {
        lane.poll(12, &mut out);
        let Some(Answer::Lost { tag, .. }) = out.pop() else { panic!("one at a time") };
        seen.push(tag);
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3]);
}
