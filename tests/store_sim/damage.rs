//! Every kind of damage is found, named, and never given out; the rest stays.

use std::sync::Arc;

use millrace::object::{BLOCK, Damage, KeyName, Objects, Recheck, content};
use millrace::storage::OpenMode;
use millrace::storage::sim::{Fault, FaultAt, SimSpec, SimStorage};
use millrace::store::{FillOptions, Finding, Progress, Puts, What, fill, verify};
use proptest::prelude::*;

use crate::rig::{IO, LIMIT, STRIDE, blank, created, drives, open_on, opened, verified};

const OBJECTS: u64 = 6;

/// Length of the tests' objects: the last logical block is not full.
const LENGTH: usize = 5000;

fn options() -> FillOptions {
    FillOptions {
        count: OBJECTS,
        first: 0,
        sizes: Some(LENGTH.to_string().parse().unwrap()),
        seed: 3,
        prefix: "o".into(),
    }
}

fn key(number: u64) -> KeyName {
    options().key(number).unwrap()
}

/// Two drives with six objects, in the first three slots of each.
fn filled() -> Vec<Vec<u8>> {
    let storage = drives(&created(&blank(&[4, 4])), OpenMode::ReadWrite, SimSpec::default());
    let store = open_on(&storage, true, 1).unwrap();
    let mut puts = Puts::new(&storage, &store.objects, &IO).unwrap();
    let report = fill(&mut puts, LIMIT, &options(), &Progress::default(), &mut |_, _| {}).unwrap();
    assert_eq!((report.stored, report.failed), (OBJECTS, 0));
    storage.images()
}

/// Where an object is: drive and byte offset of its slot.
fn place_of(images: &[Vec<u8>], number: u64) -> (usize, usize) {
    let (_, store) = opened(images).unwrap();
    let entry = store.objects.index().get(&key(number).digest()).unwrap();
    let (drive, offset) = store.objects.layout().locate(entry.slot);
    (drive.into(), offset as usize)
}

/// What a server would answer to a GET, with the checks that it makes.
fn get(storage: &SimStorage, objects: &Arc<Objects>, key: &KeyName) -> Result<Vec<u8>, Damage> {
    let mut member = objects.join().unwrap();
    let (ticket, entry) = member.begin_read(&key.digest()).expect("it is in the index");
    let (drive, offset) = objects.layout().locate(entry.slot);
    let image = &storage.images()[usize::from(drive)];
    let len = objects.layout().transfer_len(entry.length) as usize;
    let bytes = &image[offset as usize..offset as usize + len];
    let place = objects.place(entry.slot);
    let header = millrace::object::Header::first(bytes).and_then(|header| {
        let digest = key.digest();
        header.expect(objects.store(), place, &digest, entry.sequence, entry.length)?;
        Ok(header)
    });
    member.end_read(ticket);
    let header = header.inspect_err(|_| {
        assert_eq!(member.recheck(&key.digest(), &entry), Recheck::Damaged);
    })?;
    let data = &bytes[BLOCK..BLOCK + entry.length as usize];
    let whole = millrace::check::crc(data) == header.data_crc();
    if whole { Ok(data.to_vec()) } else { Err(Damage::Data) }
}

fn expected(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH];
    content::fill(3, key(number).bytes(), &mut bytes);
    bytes
}

/// All objects but one are served as they are; that one as `hurt` says.
fn served(images: &[Vec<u8>], hurt: u64, as_what: Result<(), Damage>) {
    let (storage, store) = opened(images).unwrap();
    for number in 0..OBJECTS {
        let answer = get(&storage, &store.objects, &key(number));
        let right =
            if number == hurt { as_what.map(|()| expected(number)) } else { Ok(expected(number)) };
        assert!(answer == right, "object {number}: {:?}", answer.map(|bytes| bytes.len()));
    }
}

fn damage(found: &Finding) -> Damage {
    let What::Damage(damage) = found.what else { panic!("{found:?}") };
    damage
}

#[test]
fn a_fill_is_whole_and_as_it_can_be_computed() {
    let images = filled();
    let report = verified(&images);
    assert_eq!((report.objects, report.bytes), (OBJECTS, OBJECTS * LENGTH as u64));
    assert_eq!((report.findings, report.stopped), (vec![], false));
    served(&images, 0, Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_flipped_bit_of_an_object_is_named_and_not_served(
        number in 0..OBJECTS,
        place in prop_oneof![(0..512_usize), (4096..4096 + LENGTH)],
        bit in 0..8_u32,
    ) {
        let mut images = filled();
        let (drive, offset) = place_of(&images, number);
        images[drive][offset + place] ^= 1 << bit;
        let what = if place < 512 { Damage::Header } else { Damage::Data };
        let report = verified(&images);
        prop_assert_eq!(report.objects, OBJECTS - 1);
        prop_assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
        let found = &report.findings[0];
        prop_assert_eq!(found.key, Some(key(number)), "by its key");
        prop_assert_eq!(damage(found), what);
        prop_assert_eq!(found.offset as usize, offset);
        // What a server says of a header whose magic is hit is "missing".
        let said = if place < 8 { Damage::Missing } else { what };
        served(&images, number, Err(said));
    }

    #[test]
    fn a_flipped_bit_of_a_headers_copy_is_named_and_the_object_served(
        number in 0..OBJECTS,
        place in 2048..2560_usize,
        bit in 0..8_u32,
    ) {
        let mut images = filled();
        let (drive, offset) = place_of(&images, number);
        images[drive][offset + place] ^= 1 << bit;
        let report = verified(&images);
        prop_assert_eq!(report.findings.len(), 1);
        prop_assert_eq!(report.findings[0].key, Some(key(number)));
        prop_assert_eq!(damage(&report.findings[0]), Damage::Copy);
        served(&images, number, Ok(()));
    }

    #[test]
    fn a_flipped_bit_of_a_superblock_is_named_and_the_store_served(
        drive in 0..2_usize,
        second in any::<bool>(),
        place in 0..4096_usize,
        bit in 0..8_u32,
    ) {
        let mut images = filled();
        let offset = if second { images[drive].len() - 4096 } else { 0 };
        images[drive][offset + place] ^= 1 << bit;
        let (_, store) = opened(&images).unwrap();
        prop_assert_eq!(store.warnings.len(), 1);
        prop_assert_eq!(store.warnings[0].offset as usize, offset);
        prop_assert_eq!(store.objects.tally().objects, OBJECTS);
        drop(store);
        served(&images, 0, Ok(()));
    }
}

#[test]
fn both_headers_damaged_are_named_by_drive_and_offset() {
    let mut images = filled();
    let (drive, offset) = place_of(&images, 2);
    images[drive][offset + 100] ^= 1;
    images[drive][offset + 2048 + 200] ^= 1;
    let report = verified(&images);
    assert_eq!((report.objects, report.findings.len()), (OBJECTS - 1, 1));
    let found = &report.findings[0];
    assert_eq!((found.key, damage(found), found.offset as usize), (None, Damage::Header, offset));
    // Its slot is not written over, so that it can be looked at.
    let storage = drives(&images, OpenMode::ReadWrite, SimSpec::default());
    let store = open_on(&storage, true, 1).unwrap();
    let tally = store.objects.tally();
    assert_eq!((tally.free, tally.objects, tally.set_aside), (2, OBJECTS - 1, 1));
    assert_eq!(storage.images(), images);
}

#[test]
fn a_header_of_another_slot_is_named_and_not_served() {
    let mut images = filled();
    let (from, to) = (place_of(&images, 0), place_of(&images, 1));
    let copied = images[from.0][from.1..from.1 + STRIDE as usize].to_vec();
    images[to.0][to.1..to.1 + STRIDE as usize].copy_from_slice(&copied);
    let report = verified(&images);
    assert_eq!(report.findings.len(), 1);
    assert_eq!(damage(&report.findings[0]), Damage::Place);
    assert_eq!(report.findings[0].offset as usize, to.1);
    assert_eq!(report.objects, OBJECTS - 1);
}

#[test]
fn an_older_version_does_not_take_the_place_of_a_damaged_one() {
    let mut images = filled();
    let (drive, offset) = place_of(&images, 0);
    let old = images[drive][offset..offset + STRIDE as usize].to_vec();
    // Overwritten; then the older header is there again, as if it had never been cleared.
    let storage = drives(&images, OpenMode::ReadWrite, SimSpec::default());
    let store = open_on(&storage, true, 1).unwrap();
    let mut puts = Puts::new(&storage, &store.objects, &IO).unwrap();
    let once = FillOptions { count: 1, seed: 4, ..options() };
    fill(&mut puts, LIMIT, &once, &Progress::default(), &mut |_, _| {}).unwrap();
    drop((puts, store));
    images = storage.images();
    let (new_drive, new_offset) = place_of(&images, 0);
    assert_ne!((drive, offset), (new_drive, new_offset));
    images[drive][offset..offset + STRIDE as usize].copy_from_slice(&old);
    images[new_drive][new_offset + 300] ^= 1;
    served(&images, 0, Err(Damage::Header));
    let report = verified(&images);
    assert_eq!((report.objects, report.findings[0].key), (OBJECTS - 1, Some(key(0))));
    // Put again, it is whole.
    let storage = drives(&images, OpenMode::ReadWrite, SimSpec::default());
    let store = open_on(&storage, true, 1).unwrap();
    assert_eq!(store.report.superseded, 1);
    let mut puts = Puts::new(&storage, &store.objects, &IO).unwrap();
    fill(&mut puts, LIMIT, &FillOptions { seed: 3, ..once }, &Progress::default(), &mut |_, _| {})
        .unwrap();
    drop((puts, store));
    assert_eq!(verified(&storage.images()).findings, []);
    served(&storage.images(), 0, Ok(()));
}

#[test]
fn what_a_drive_does_not_give_is_named_and_the_rest_is_there() {
    let images = filled();
    let (drive, offset) = place_of(&images, 1);
    let error = millrace::error::IoStatus::Nvme { sct: 2, sc: 0x81 };
    // The header; and the data behind it.
    for (at, known) in [(offset, false), (offset + 4096, true)] {
        let range = at as u64..at as u64 + 1;
        let fault = FaultAt { drive: drive as u16, range, fault: Fault::Status(error) };
        let spec = SimSpec { faults: vec![fault], ..SimSpec::default() };
        let storage = drives(&images, OpenMode::Read, spec);
        let store = open_on(&storage, false, 1).unwrap();
        let report = verify(&storage, &store, &IO, &Progress::default(), &mut |_| {}).unwrap();
        assert_eq!(report.objects, OBJECTS - 1);
        assert_eq!(report.findings.len(), 1);
        assert_eq!(report.findings[0].what, What::Unreadable(error));
        assert_eq!(report.findings[0].offset as usize, offset);
        assert_eq!(store.objects.tally().objects, OBJECTS - u64::from(!known));
    }
}

#[test]
fn a_drive_that_is_gone_is_no_empty_store() {
    let images = filled();
    let spec = SimSpec { gone_after: Some((1, 6)), ..SimSpec::default() };
    let storage = drives(&images, OpenMode::Read, spec);
    let error = open_on(&storage, false, 1).map(drop).unwrap_err();
    assert_eq!(error.kind(), millrace::error::Kind::Device, "{}", error.report());
}
