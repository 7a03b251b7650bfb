//! What holds for simulated drives whatever their seed and faults are.

use std::collections::HashMap;

use millrace::error::IoStatus;
use millrace::storage::sim::{Fault, FaultAt, Latency, SimSpec, SimStorage};
use millrace::storage::{Command, Operation, Queue, Storage, Submit, mem};
use proptest::prelude::*;

use crate::suite::{Rig, SLOT};

fn spec() -> impl Strategy<Value = SimSpec> {
    let rates = (0.0..0.5_f64, 0.0..0.9_f64, 0.0..0.9_f64);
    (any::<u64>(), any::<bool>(), (0..4_u32, 0..20_u32), rates, proptest::option::of(0..300_u64))
        .prop_map(|(seed, reorder, (least, more), (error_rate, short_rate, busy_rate), gone)| {
            SimSpec {
                seed,
                drives: vec![256 << 10, 128 << 10],
                latency: Latency::Turns(least, least + more),
                tail_one_in: 10,
                reorder,
                error_rate,
                short_rate,
                busy_rate,
                faults: vec![FaultAt { drive: 1, range: 0..512, fault: Fault::End }],
                gone_after: gone.map(|after| (0, after)),
                ..SimSpec::default()
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_command_ends_once_with_its_bytes_or_an_error(
        spec in spec(),
        places in prop::collection::vec((any::<bool>(), 0..512_u64, 1..128_u32), 1..200),
    ) {
        let storage = SimStorage::open(spec).unwrap();
        let mut rig = Rig::new(&storage);
        let mut open = HashMap::new();
        let mut next = places.iter().enumerate().peekable();
        let mut buffer = vec![0; SLOT];
        let mut turns = 0;
        while next.peek().is_some() || !open.is_empty() {
            while let Some((tag, (second, block, blocks))) = next.peek().copied() {
                let drive = u16::from(*second);
                let last = storage.drives()[usize::from(drive)].capacity / 512;
                let block = block % last;
                let len = (u64::from(*blocks).min(last - block) * 512) as u32;
                let (offset, tag) = (block * 512, tag as u64);
                let Some(slot) = rig.pool.acquire() else { break };
                let command =
                    Command { slot, drive, operation: Operation::Read, offset, len, tag };
                match rig.queue.submit(command) {
                    Submit::Queued => {
                        open.insert(tag, (drive, offset, len));
                        next.next();
                    }
                    Submit::Busy(command) => {
                        prop_assert_eq!((command.tag, command.offset), (tag, offset));
                        rig.pool.release(command.slot);
                        break;
                    }
                }
            }
            prop_assert_eq!(rig.queue.in_flight() as usize, open.len());
            rig.turn();
            for done in std::mem::take(&mut rig.out) {
                let place = open.remove(&done.tag);
                prop_assert!(place.is_some(), "tag {} ended twice", done.tag);
                let (drive, offset, len) = place.unwrap();
                prop_assert_eq!(done.drive, drive);
                prop_assert!(done.commands >= 1);
                let slot = done.slot.expect("no command is stuck");
                match done.status {
                    IoStatus::Ok => {
                        mem::fill(drive, offset, &mut buffer[..len as usize]);
                        prop_assert!(slot.bytes(len as usize) == &buffer[..len as usize]);
                    }
                    IoStatus::Short => prop_assert!(drive == 1 && offset < 512),
                    IoStatus::Gone => prop_assert_eq!(drive, 0),
                    IoStatus::Nvme { sct: 2, sc: 0x81 } => {}
                    other => prop_assert!(false, "{other} was not asked for"),
                }
                rig.pool.release(slot);
            }
            rig.out.reserve_exact(16);
            turns += 1;
            prop_assert!(turns < 200_000, "{} commands do not end", open.len());
        }
        prop_assert_eq!(rig.pool.available(), rig.pool.count());
    }
}
