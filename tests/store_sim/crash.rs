//! Losses of power at any moment of puts, overwrites and deletes.

use std::collections::HashMap;

use millrace::storage::OpenMode;
use millrace::storage::sim::{Latency, SimSpec};

use crate::rig::{Random, blank, created, drives, listed, open_on, verified};
use crate::world::{History, KEYS, Model, Value, Worker, contents, data, key};

/// Rounds; each ends with a loss of power.
const ROUNDS: u64 = 1000;

/// Slots of the two drives: so few that freed ones are used again soon.
const SLOTS: [u64; 2] = [7, 5];

#[test]
fn after_a_loss_of_power_every_key_holds_what_was_acknowledged() {
    let mut random = Random(1);
    let mut images = created(&blank(&SLOTS));
    let mut values: HashMap<u64, Value> = (0..KEYS).map(|key| (key, None)).collect();
    let (mut puts, mut unacknowledged) = (0, [0_u64; 2]);
    let (mut reads, mut moved, mut acknowledged, mut failed) = (0, 0, 0, 0);
    for round in 0..ROUNDS {
        // In some rounds the drives also fail writes now and then.
        let error_rate = if round % 4 == 3 { 0.03 } else { 0.0 };
        let spec = SimSpec {
            seed: round,
            volatile: true,
            latency: Latency::Turns(0, 5),
            short_rate: 0.1,
            ..SimSpec::default()
        };
        let storage = drives(&images, OpenMode::ReadWrite, spec.clone());
        let store = open_on(&storage, true, 2).unwrap_or_else(|e| panic!("{}", e.report()));
        check(round, &values, &contents(&storage, &store.objects));
        drop(store);

        let storage = drives(&storage.images(), OpenMode::ReadWrite, spec.clone());
        let store = open_on(&storage, true, 2).unwrap();
        assert_eq!((store.report.torn, store.report.superseded), (0, 0), "put right once");
        // From here on, on drives that may fail: opening them is another test's matter.
        let storage = match error_rate > 0.0 {
            true => drives(&storage.images(), OpenMode::ReadWrite, SimSpec { error_rate, ..spec }),
            false => storage,
        };
        let mut model: Model =
            values.iter().map(|(key, value)| (*key, History::new(*value))).collect();
        let mut workers = [(); 2].map(|()| Worker::new(&storage, &store.objects));
        let turns = 20 + random.below(60);
        for _ in 0..turns {
            for worker in &mut workers {
                for _ in 0..random.below(3) {
                    worker.begin(&mut random, &mut model, &mut puts);
                }
                worker.turn(&mut model);
            }
        }
        // Some rounds end with nothing in flight: then all of it must be there.
        let quiet = round % 5 == 0;
        while quiet && workers.iter().any(|worker| !worker.is_idle()) {
            workers.iter_mut().for_each(|worker| worker.turn(&mut model));
        }
        for worker in &workers {
            reads += worker.reads;
            moved += worker.moved;
            acknowledged += worker.acknowledged;
            failed += worker.failed;
        }
        images = storage.crash(random.next());
        drop((workers, store));

        // Before anything is put right, `store verify` and `store ls` agree with it already.
        let report = verified(&images);
        assert_eq!(report.findings, [], "round {round}: a crash is no damage");
        let left = settle(round, &model, &images, &mut unacknowledged);
        let there = left.values().filter(|value| value.is_some()).count() as u64;
        assert_eq!(report.objects, there, "round {round}");
        let mut keys: Vec<String> = left
            .iter()
            .filter(|(_, value)| value.is_some())
            .map(|(number, _)| key(*number).to_string())
            .collect();
        keys.sort();
        assert_eq!(listed(&images), keys, "round {round}");
        values = left;
    }
    println!(
        "{acknowledged} changes acknowledged, {failed} failed, {reads} reads, {moved} looked \
         again; in flight at a loss of power: {unacknowledged:?} absent and there"
    );
    // What was tried is what was meant to be tried.
    assert!(acknowledged > 4 * ROUNDS && reads > 4 * ROUNDS && moved > 100 && failed > 100);
    assert!(unacknowledged.iter().all(|count| *count > 100), "{unacknowledged:?}");
}

/// Which of its possible values each key has after the loss of power.
fn settle(
    round: u64,
    model: &Model,
    images: &[Vec<u8>],
    unacknowledged: &mut [u64; 2],
) -> HashMap<u64, Value> {
    let storage = drives(images, OpenMode::ReadWrite, SimSpec::default());
    let store = open_on(&storage, true, 1).unwrap_or_else(|e| panic!("{}", e.report()));
    let tally = store.objects.tally();
    assert_eq!(tally.objects + tally.free, SLOTS.iter().sum::<u64>(), "no slot is lost");
    let mut found = contents(&storage, &store.objects);
    let mut values = HashMap::new();
    for (number, history) in model {
        let there = found.remove(&key(*number).digest());
        let possible = history.possible();
        let value = match &there {
            None => possible.iter().position(|value| value.is_none()),
            Some(bytes) => {
                possible.iter().position(|value| value.is_some_and(|put| data(put) == *bytes))
            }
        };
        let at = value.unwrap_or_else(|| {
            panic!("round {round}: {} holds none of {possible:?}", key(*number))
        });
        if possible.len() > 1 {
            unacknowledged[usize::from(at > 0)] += 1;
        }
        values.insert(*number, possible[at]);
    }
    assert!(found.is_empty(), "round {round}: objects that nobody has put");
    values
}

fn check(
    round: u64,
    values: &HashMap<u64, Value>,
    found: &HashMap<millrace::object::Digest, Vec<u8>>,
) {
    for (number, value) in values {
        let there = found.get(&key(*number).digest());
        assert_eq!(there.cloned(), value.map(data), "round {round}: {}", key(*number));
    }
}
