use super::*;
use crate::object::{Found, Layout, State, StoreId, Superblock};

const STORE: StoreId = StoreId([9; 16]);
const LIMIT: u32 = 8192;
const OK: IoStatus = IoStatus::Ok;
const BAD: IoStatus = IoStatus::Nvme { sct: 2, sc: 0x80 };

/// A store of one drive in memory.
struct Rig {
    objects: Arc<Objects>,
    drive: Vec<u8>,
    memory: Vec<u8>,
}

fn rig(slots: u64) -> (Rig, Member) {
    let superblock = Superblock {
        state: State::Ready,
        store: STORE,
        drive: 0,
        drives: 1,
        object_limit: LIMIT,
        slots,
        bytes: 0,
        created: 0,
    };
    let layout = Layout::new(&[superblock], 512).unwrap();
    let objects = Arc::new(Objects::new(STORE, layout, 2, true));
    (0..slots as u32).rev().for_each(|slot| objects.give(slot));
    let drive = vec![0xA5; (slots as usize + 2) * 12288];
    let member = objects.join().unwrap();
    (Rig { objects, drive, memory: vec![0; 12288] }, member)
}

impl Rig {
    fn write(&mut self, at: WriteAt) {
        let (offset, len) = (at.offset as usize, at.len as usize);
        self.drive[offset..offset + len].copy_from_slice(&self.memory[..len]);
    }

    fn start_put(&mut self, member: &mut Member, key: &[u8], data: &[u8]) -> Start {
        self.memory.fill(0xEE);
        self.memory[BLOCK..BLOCK + data.len()].copy_from_slice(data);
        let key = KeyName::new(key).unwrap();
        let crc = crate::check::crc(data);
        member.start_put(&key, &key.digest(), data.len() as u32, crc, &mut self.memory)
    }

    /// Carries a mutation out, with the outcome of each write in turn; the last of them stays.
    /// Returns the answer and how many writes there were before it and in all.
    fn carry_out(
        &mut self,
        member: &mut Member,
        start: Start,
        outcomes: &[IoStatus],
    ) -> (Result<(), IoStatus>, usize, usize) {
        let Start::Go(mut mutation, mut write) = start else { panic!("{start:?}") };
        let (mut writes, mut answer) = (0, None);
        loop {
            let outcome = *outcomes.get(writes).unwrap_or(outcomes.last().unwrap());
            if outcome.is_ok() {
                self.write(write);
            }
            writes += 1;
            let step = member.advance(&mut mutation, outcome, &mut self.memory);
            if let Some(said) = step.answer {
                assert!(answer.replace((said, writes)).is_none(), "two answers");
            }
            match step.write {
                Some(next) => write = next,
                None => break,
            }
        }
        let (answer, before) = answer.expect("an answer");
        (answer, before, writes)
    }

    fn put(&mut self, member: &mut Member, key: &[u8], data: &[u8]) {
        let start = self.start_put(member, key, data);
        assert_eq!(self.carry_out(member, start, &[OK]).0, Ok(()));
    }

    fn found(&self, slot: u32) -> Found<'_> {
        let (_, offset) = self.objects.layout().locate(slot);
        let block = self.drive[offset as usize..].first_chunk().unwrap();
        Header::classify(block, STORE, self.objects.place(slot))
    }
}

fn turns(member: &mut Member) {
    (0..3).for_each(|_| member.turn());
}

#[test]
fn a_put_writes_data_then_header_then_answers() {
    let (mut rig, mut member) = rig(2);
    let Start::Go(mut put, write) = rig.start_put(&mut member, b"k", &[1; 5000]) else { panic!() };
    assert_eq!(write, WriteAt { drive: 0, offset: 4096, len: 4096 + 5120 });
    rig.write(write);
    assert_eq!(rig.found(0), Found::Free, "no header yet");
    assert_eq!(rig.drive[4096..8192], [0; 4096]);
    assert_eq!(rig.drive[8192..13192], [1; 5000]);
    assert_eq!(rig.drive[13192..13312], [0; 120], "nothing of the memory's past");
    let digest = Digest::of(b"k");
    assert!(member.begin_read(&digest).is_none());
    let step = member.advance(&mut put, OK, &mut rig.memory);
    let header = WriteAt { drive: 0, offset: 4096, len: 4096 };
    assert_eq!(step, Step { answer: None, write: Some(header) });
    rig.write(header);
    assert!(member.begin_read(&digest).is_none(), "not yet durable");
    assert_eq!(member.advance(&mut put, OK, &mut rig.memory), Step::end(Some(Ok(()))));
    let (ticket, entry) = member.begin_read(&digest).unwrap();
    assert_eq!((entry.slot, entry.length, entry.sequence), (0, 5000, 1));
    member.end_read(ticket);
    let Found::Object { header, copy: None } = rig.found(0) else { panic!() };
    assert_eq!(
        (header.key().bytes(), header.data_crc()),
        (&b"k"[..], crate::check::crc(&[1; 5000]))
    );
}

#[test]
fn an_overwrite_answers_before_the_old_header_is_cleared_and_frees_the_slot_after_reads() {
    let (mut rig, mut member) = rig(2);
    rig.put(&mut member, b"k", &[1; 10]);
    let (ticket, old) = member.begin_read(&Digest::of(b"k")).unwrap();
    let start = rig.start_put(&mut member, b"k", &[2; 20]);
    assert_eq!(rig.carry_out(&mut member, start, &[OK]), (Ok(()), 2, 3));
    assert_eq!(rig.found(old.slot), Found::Free);
    let digest = Digest::of(b"k");
    let Recheck::Moved(new) = member.recheck(&digest, &old) else { panic!() };
    assert_eq!((new.length, member.recheck(&digest, &new)), (20, Recheck::Damaged));
    turns(&mut member);
    assert_eq!((rig.objects.tally().free, rig.objects.tally().retired), (0, 1));
    // Nothing is free, but something will be.
    assert!(matches!(rig.start_put(&mut member, b"x", &[1]), Start::Later));
    member.end_read(ticket);
    turns(&mut member);
    assert_eq!((rig.objects.tally().free, rig.objects.tally().retired), (1, 0));
    rig.put(&mut member, b"x", &[1]);
    let full = rig.start_put(&mut member, b"y", &[1]);
    assert!(matches!(full, Start::Refused(Refusal::NoSpace)), "{full:?}");
}

#[test]
fn a_delete_answers_when_the_header_is_cleared() {
    let (mut rig, mut member) = rig(1);
    let digest = Digest::of(b"k");
    let none = member.start_delete(&digest, &mut rig.memory);
    assert!(matches!(none, Start::Refused(Refusal::NotFound)));
    rig.put(&mut member, b"k", &[1; 10]);
    let (ticket, entry) = member.begin_read(&digest).unwrap();
    let Start::Go(mut delete, write) = member.start_delete(&digest, &mut rig.memory) else {
        panic!()
    };
    assert_eq!(member.recheck(&digest, &entry), Recheck::Later);
    rig.write(write);
    assert_eq!(rig.found(0), Found::Free);
    assert_eq!(member.advance(&mut delete, OK, &mut rig.memory), Step::end(Some(Ok(()))));
    assert_eq!(member.recheck(&digest, &entry), Recheck::Gone);
    member.end_read(ticket);
    turns(&mut member);
    rig.put(&mut member, b"other", &[1; 10]);
}

#[test]
fn changes_of_one_key_come_one_after_the_other() {
    let (mut rig, mut one) = rig(4);
    let mut two = rig.objects.join().unwrap();
    assert!(rig.objects.join().is_none(), "made for two");
    let first = rig.start_put(&mut one, b"k", &[1; 10]);
    assert!(matches!(rig.start_put(&mut two, b"k", &[2; 10]), Start::Later));
    assert!(matches!(two.start_delete(&Digest::of(b"k"), &mut [0; 4096]), Start::Later));
    rig.memory[BLOCK..BLOCK + 10].fill(1);
    assert_eq!(rig.carry_out(&mut one, first, &[OK]).0, Ok(()));
    rig.put(&mut two, b"k", &[2; 10]);
    assert_eq!((one.changes_in_flight(), two.changes_in_flight()), (0, 0));
}

#[test]
fn a_failed_data_write_leaves_the_old_object_and_uses_another_slot_next() {
    let (mut rig, mut member) = rig(3);
    rig.put(&mut member, b"k", &[1; 10]);
    let start = rig.start_put(&mut member, b"k", &[2; 10]);
    assert_eq!(rig.carry_out(&mut member, start, &[BAD]), (Err(BAD), 1, 1));
    let (ticket, entry) = member.begin_read(&Digest::of(b"k")).unwrap();
    member.end_read(ticket);
    assert_eq!((entry.slot, rig.objects.tally().set_aside), (0, 1));
    rig.put(&mut member, b"k", &[3; 10]);
    let (ticket, entry) = member.begin_read(&Digest::of(b"k")).unwrap();
    member.end_read(ticket);
    assert_eq!(entry.slot, 2);
}

#[test]
fn a_failed_header_write_is_undone_before_the_key_is_free() {
    let (mut rig, mut member) = rig(3);
    let start = rig.start_put(&mut member, b"k", &[2; 10]);
    assert_eq!(rig.carry_out(&mut member, start, &[OK, BAD, OK]), (Err(BAD), 2, 3));
    assert!(member.begin_read(&Digest::of(b"k")).is_none());
    rig.put(&mut member, b"k", &[3; 10]);
    assert_eq!(rig.objects.tally().stuck, 0);
}

#[test]
fn a_header_that_cannot_be_cleared_keeps_its_key_from_changes() {
    // The undo fails; and the clearing of a replaced header fails.
    for (puts, outcomes) in [(0, [OK, BAD, BAD]), (1, [OK, OK, BAD])] {
        let (mut rig, mut member) = rig(4);
        (0..puts).for_each(|_| rig.put(&mut member, b"k", &[1; 10]));
        let start = rig.start_put(&mut member, b"k", &[2; 10]);
        let _ = rig.carry_out(&mut member, start, &outcomes);
        let stuck = rig.start_put(&mut member, b"k", &[3; 10]);
        assert!(matches!(stuck, Start::Refused(Refusal::Stuck)), "{stuck:?}");
        let stuck = member.start_delete(&Digest::of(b"k"), &mut rig.memory);
        assert!(matches!(stuck, Start::Refused(Refusal::Stuck)), "{stuck:?}");
        let read = member.begin_read(&Digest::of(b"k"));
        assert_eq!(read.is_some(), puts == 1, "reads go on");
        rig.put(&mut member, b"other", &[1; 10]);
        let tally = rig.objects.tally();
        assert_eq!((tally.stuck, tally.set_aside), (1, 1));
    }
}

#[test]
fn a_failed_delete_can_be_tried_again() {
    let (mut rig, mut member) = rig(1);
    rig.put(&mut member, b"k", &[1; 10]);
    let start = member.start_delete(&Digest::of(b"k"), &mut rig.memory);
    assert_eq!(rig.carry_out(&mut member, start, &[BAD]).0, Err(BAD));
    let start = member.start_delete(&Digest::of(b"k"), &mut rig.memory);
    assert_eq!(rig.carry_out(&mut member, start, &[OK]).0, Ok(()));
}

#[test]
fn lengths_and_modes_are_checked() {
    let (mut rig, mut member) = rig(1);
    let key = KeyName::new(b"k").unwrap();
    for length in [0, LIMIT + 1] {
        let start = member.start_put(&key, &key.digest(), length, 0, &mut rig.memory);
        assert!(matches!(start, Start::Refused(Refusal::Length(LIMIT))), "{start:?}");
    }
    let objects = Objects::new(STORE, rig.objects.layout().clone(), 1, false);
    let mut member = Arc::new(objects).join().unwrap();
    let start = rig.start_put(&mut member, b"k", &[1]);
    assert!(matches!(start, Start::Refused(Refusal::ReadOnly)), "{start:?}");
}

#[test]
fn an_abandoned_change_keeps_its_key() {
    let (mut rig, mut member) = rig(2);
    let Start::Go(put, _) = rig.start_put(&mut member, b"k", &[1]) else { panic!() };
    member.abandon(put);
    assert_eq!(member.changes_in_flight(), 0);
    let stuck = rig.start_put(&mut member, b"k", &[1]);
    assert!(matches!(stuck, Start::Refused(Refusal::Stuck)), "{stuck:?}");
}
