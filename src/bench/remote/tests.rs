use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::client::{Client, ClientOptions, Connector, Lane, LaneOptions};
use crate::fabric::{Arrival, Channel};
use crate::memory::{Arena, ArenaSpec, Pages, Slot, SlotPool};
use crate::wire::{ANY_WORKER, CheckMode, Completion, Request, Welcome};

/// A server that leaves out the last block, and says that all is well.
struct Short {
    welcome: Welcome,
    asked: Vec<(Request, Slot)>,
}

impl Channel for Short {
    fn submit(&mut self, request: Request, slot: Slot) -> std::result::Result<(), Slot> {
        self.asked.push((request, slot));
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Arrival>) -> Result<usize> {
        let before = out.len();
        for (request, slot) in self.asked.drain(..) {
            let mut record = Completion::new(request.id.get(), Status::Ok, 0);
            record.length = (request.length.get() - 512).into();
            out.push(Arrival { slot: Some(slot), record });
        }
        Ok(out.len() - before)
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

fn client() -> Client {
    // Without drives nothing is asked when it connects.
    let welcome = Welcome::new("mem", CheckMode::None, 0, 0, 4096, 4, 0);
    let spec = ArenaSpec { bytes: 16_384, pages: Pages::Base, node: None };
    let slots = SlotPool::new(Arc::new(Arena::map(&spec).unwrap()), 4096, 4).unwrap();
    let channel: Box<dyn Channel + Send> = Box::new(Short { welcome, asked: Vec::new() });
    Client::new(channel, slots, Duration::from_secs(1)).unwrap()
}

#[test]
fn a_short_answer_is_no_success() {
    let error = client().read(0, 0, 4096).unwrap_err();
    assert!(error.what().contains("3584 bytes for a read of 4096"), "{error}");
    let clock = Clock::start();
    let connector = Connector::start("tcp://127.0.0.1:1", ClientOptions::default()).unwrap();
    let options = LaneOptions { deadline: u64::MAX, local: None, worker: ANY_WORKER };
    let lane = Lane::new(client(), connector, options);
    let mut target = RemoteTarget::new(Cluster::of(vec![None], vec![(0, lane)], clock), false, 0);
    let op = Op { token: 0, drive: 0, offset: 0, len: 4096, at: 0 };
    assert_eq!(target.submit(0, op).unwrap(), Taken::Queued);
    let error = target.poll(&clock, &mut Vec::new()).unwrap_err();
    assert!(error.what().contains("3584 bytes for a read of 4096"), "{error}");
}
