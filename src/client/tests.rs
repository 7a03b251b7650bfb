use super::*;
use crate::wire::{Status, Welcome};

/// A server that answers when it is told to, and not before.
struct Slow {
    welcome: Welcome,
    asked: Vec<(Request, Slot)>,
    answers: bool,
}

impl Channel for Slow {
    fn submit(&mut self, request: Request, slot: Slot) -> std::result::Result<(), Slot> {
        assert!(!self.is_in_flight(request.id.get()));
        self.asked.push((request, slot));
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Arrival>) -> Result<usize> {
        let before = out.len();
        while self.answers
            && let Some((request, slot)) = self.asked.pop()
        {
            let mut record = Completion::new(request.id.get(), Status::Ok, 0);
            record.length = request.length;
            out.push(Arrival { slot: Some(slot), record });
        }
        Ok(out.len() - before)
    }

    fn abandon(&mut self) -> Vec<(u64, Option<Slot>)> {
        self.asked.drain(..).map(|(request, slot)| (request.id.get(), Some(slot))).collect()
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

fn client() -> Client<Slow> {
    // Without drives nothing is asked when it connects.
    let welcome = Welcome::new("mem", CheckMode::None, 0, 0, 4096, 4, 0);
    let spec = ArenaSpec { bytes: 16_384, pages: Pages::Base, node: None };
    let slots = SlotPool::new(Arc::new(Arena::map(&spec).unwrap()), 4096, 4).unwrap();
    let channel = Slow { welcome, asked: Vec::new(), answers: false };
    Client::new(channel, slots, Duration::from_millis(20)).unwrap()
}

#[test]
fn after_an_overdue_answer_every_use_says_that_the_connection_was_given_up() {
    let mut client = client();
    let error = client.read(0, 0, 4096).unwrap_err();
    assert!(error.what().contains("no answer within 20ms"), "{error}");
    // Whatever the server says now is for nobody.
    client.channel.answers = true;
    let next = Read { drive: 0, offset: 4096, len: 4096, tag: 0 };
    let mut done = Vec::with_capacity(4);
    for error in [
        client.read(0, 4096, 4096).unwrap_err(),
        client.submit(next).unwrap_err(),
        client.flush().unwrap_err(),
        client.poll(&mut done).unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Network);
        assert!(error.what().contains("given up"), "{error}");
        assert!(error.remedy_text().is_some());
    }
    assert!(done.is_empty());
    assert_eq!(client.slots.available(), client.slots.count(), "the landing slots are back");
}

#[test]
fn a_tag_that_is_in_flight_is_refused_and_harms_nothing() {
    let mut client = client();
    let read = Read { drive: 0, offset: 0, len: 4096, tag: 7 };
    assert_eq!(client.submit(read).unwrap(), Submitted::Queued);
    let error = client.submit(read).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
    assert!(error.what().contains("read 7"), "{error}");
    assert_eq!(client.submit(Read { tag: 8, ..read }).unwrap(), Submitted::Queued);
    client.channel.answers = true;
    let mut done = Vec::with_capacity(4);
    assert_eq!(client.poll(&mut done).unwrap(), 2);
    // Answered: the tag is free again.
    assert_eq!(client.submit(read).unwrap(), Submitted::Queued);
}
