use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;

fn digest(number: u32) -> Digest {
    Digest::of(&number.to_le_bytes())
}

fn offered(slot: u32, sequence: u64) -> Entry {
    Entry { slot, length: slot + 1, sequence, damaged: false }
}

#[test]
fn newer_entries_win_whatever_comes_first() {
    let index = Index::new(4);
    let key = digest(1);
    assert_eq!(index.offer(&key, offered(0, 5)), Offer::New);
    assert_eq!(index.offer(&key, offered(1, 4)), Offer::Older(offered(0, 5)));
    assert_eq!(index.offer(&key, offered(2, 6)), Offer::Newer(offered(0, 5)));
    assert_eq!(index.get(&key), Some(offered(2, 6)));
    assert_eq!((index.len(), index.at(0), index.at(1)), (1, None, None));
    assert_eq!(index.at(2), Some((key, offered(2, 6))));
    assert_eq!(index.remove(&key, 0), None, "it is in another slot");
    assert_eq!(index.remove(&key, 2), Some(offered(2, 6)));
    assert_eq!((index.get(&key), index.is_empty()), (None, true));
}

#[test]
fn every_slot_can_have_an_object() {
    for slots in [1, 2, 3, 100, 5000] {
        let index = Index::new(slots);
        for slot in 0..slots {
            assert_eq!(index.offer(&digest(slot), offered(slot, 1)), Offer::New);
        }
        assert!((0..slots).all(|slot| index.get(&digest(slot)) == Some(offered(slot, 1))));
        assert_eq!(index.get(&digest(slots)), None);
        assert_eq!(index.len(), u64::from(slots));
    }
}

#[test]
fn damage_is_remembered_beside_the_length() {
    let index = Index::new(1);
    let damaged = Entry { slot: 0, length: 64 << 20, sequence: 1, damaged: true };
    index.offer(&digest(0), damaged);
    assert_eq!(index.get(&digest(0)), Some(damaged));
    assert_eq!(damaged.damage(), Some(Damage::Header));
}

#[test]
fn an_entry_takes_48_bytes() {
    let fixed = MOST_STRIPES * 64;
    assert_eq!(Index::new(10_000).memory(), 10_000 * 48 + fixed);
}

#[test]
#[should_panic(expected = "slot 0 is taken")]
fn a_slot_has_one_object() {
    let index = Index::new(2);
    index.offer(&digest(0), offered(0, 1));
    index.offer(&digest(1), offered(0, 2));
}

proptest! {
    #[test]
    fn it_is_a_map(steps in prop::collection::vec((0..3_u8, 0..12_u32), 1..300)) {
        let index = Index::new(16);
        let mut model: HashMap<u32, Entry> = HashMap::new();
        let mut free: Vec<u32> = (0..16).collect();
        for (sequence, (what, key)) in (1..).zip(steps) {
            let there = model.get(&key).copied();
            match what {
                0 => prop_assert_eq!(index.get(&digest(key)), there),
                1 => {
                    let new = offered(free.pop().unwrap(), sequence);
                    let outcome = index.offer(&digest(key), new);
                    prop_assert_eq!(outcome, there.map_or(Offer::New, Offer::Newer));
                    free.extend(there.map(|old| old.slot));
                    model.insert(key, new);
                }
                _ => {
                    let slot = there.map_or(3, |entry| entry.slot);
                    prop_assert_eq!(index.remove(&digest(key), slot), there);
                    free.extend(model.remove(&key).map(|old| old.slot));
                }
            }
            prop_assert_eq!(index.len(), model.len() as u64);
        }
        for key in 0..12 {
            prop_assert_eq!(index.get(&digest(key)), model.get(&key).copied());
        }
    }
}

/// Keys that are always there are always found, with values that belong together, while others
/// come, move and go in the same buckets.
#[test]
fn readers_never_miss_and_never_see_a_mixture() {
    const KEYS: u32 = 8;
    const SLOTS: u32 = 3 * KEYS;
    let index = Index::new(SLOTS);
    for key in 0..KEYS {
        index.offer(&digest(key), offered(key, u64::from(key) + 1));
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = [0; KEYS as usize];
                while !stop.load(Ordering::Relaxed) {
                    for key in 0..KEYS {
                        let entry = index.get(&digest(key)).expect("it is always there");
                        assert_eq!(entry.length, entry.slot + 1, "of one slot");
                        assert!(entry.sequence >= last[key as usize], "time goes on");
                        last[key as usize] = entry.sequence;
                        // These come and go; what is found has to belong together too.
                        if let Some(entry) = index.get(&digest(KEYS + key)) {
                            assert_eq!(entry.length, entry.slot + 1);
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            // Freed slots are taken again at once, which the epochs forbid elsewhere: the index
            // by itself is right even so.
            let mut free: Vec<u32> = (KEYS..SLOTS).collect();
            for sequence in 100..60_100_u64 {
                let key = (sequence * 7 % u64::from(2 * KEYS)) as u32;
                let there = index.get(&digest(key));
                if key >= KEYS
                    && let Some(entry) = there
                {
                    index.remove(&digest(key), entry.slot).expect("it was there");
                    free.insert(0, entry.slot);
                } else {
                    let slot = free.pop().expect("three slots a key");
                    index.offer(&digest(key), offered(slot, sequence));
                    free.extend(there.map(|entry| entry.slot));
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}
