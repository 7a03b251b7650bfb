//! Wrong drives, wrong sets, full stores: each is told what is wrong, and nothing is lost.

use millrace::error::Kind;
use millrace::object::{BLOCK, State, Superblock};
use millrace::storage::sim::SimSpec;
use millrace::storage::{OpenMode, Storage};
use millrace::store::{
    CreateOptions, FillOptions, Progress, PutOutcome, Puts, Sizes, create, fill,
};

use crate::rig::{
    IO, LIMIT, STRIDE, blank, create_on, created, drives, lock_dir, open_on, opened, refused,
    verified,
};

fn superblock(image: &[u8]) -> Superblock {
    Superblock::decode(image.first_chunk().unwrap()).unwrap()
}

/// Writes both superblocks of a drive.
fn rewrite(image: &mut [u8], superblock: Superblock) {
    let (bytes, end) = (superblock.encode(), superblock.bytes as usize);
    image[..BLOCK].copy_from_slice(&bytes);
    image[end - BLOCK..end].copy_from_slice(&bytes);
}

#[test]
fn drives_may_be_named_in_any_order() {
    let mut images = created(&blank(&[2, 3, 4]));
    let storage = drives(&images, OpenMode::ReadWrite, SimSpec::default());
    let store = open_on(&storage, true, 1).unwrap();
    let options = FillOptions { count: 9, first: 0, sizes: None, seed: 1, prefix: String::new() };
    let mut puts = Puts::new(&storage, &store.objects, &IO).unwrap();
    fill(&mut puts, LIMIT, &options, &Progress::default(), &mut |_, _| {}).unwrap();
    images = storage.images();
    drop((puts, store));
    images.rotate_left(1);
    images.swap(0, 1);
    let report = verified(&images);
    assert_eq!((report.objects, report.findings.len()), (9, 0));
}

#[test]
fn sets_that_are_not_one_store_are_refused_by_name() {
    let images = created(&blank(&[2, 3, 4]));
    let open = |images: &[Vec<u8>]| refused(opened(images).map(drop));

    let missing = open(&[images[0].clone(), images[2].clone()]);
    assert_eq!(missing.kind(), Kind::NotFound);
    assert!(
        missing.what().ends_with("has 3 drives; missing: number 1 (counted from 0)"),
        "{missing}"
    );

    let twice = open(&[images[0].clone(), images[1].clone(), images[1].clone(), images[2].clone()]);
    assert!(twice.what().contains("are both drive 1"), "{twice}");

    let other = created(&blank(&[3]));
    let mixed = open(&[images[0].clone(), other[0].clone(), images[2].clone()]);
    assert!(mixed.what().contains("of store"), "{mixed}");

    let none = open(&blank(&[2]));
    assert_eq!(none.kind(), Kind::NotFound);
    assert!(none.report().contains("store create"), "{}", none.report());

    let mut cut = images.clone();
    cut[1].truncate(images[1].len() - 4096);
    assert!(open(&cut).what().contains("was made on"), "the copy is gone with the end");
}

#[test]
fn a_drive_that_has_grown_is_used_in_its_old_size() {
    let mut images = created(&blank(&[2]));
    let grown = images[0].len() + 100 * 4096;
    images[0].resize(grown, 0);
    let (_, store) = opened(&images).unwrap();
    assert_eq!((store.warnings.len(), store.objects.tally().slots), (0, 2));
}

#[test]
fn stores_that_cannot_be_used_say_why() {
    let images = created(&blank(&[2, 2]));

    let mut later = images.clone();
    for at in [0, later[1].len() - BLOCK] {
        later[1][at + 8] = 2;
    }
    let error = refused(opened(&later).map(drop));
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.what().contains("version 2; this program reads 1"), "{error}");

    let mut lost = images.clone();
    for at in [0, lost[1].len() - BLOCK] {
        lost[1][at + 100] ^= 1;
    }
    let error = refused(opened(&lost).map(drop));
    assert!(error.what().contains("both superblocks are lost"), "{error}");

    // A creation that ended after any of its writes.
    let of = |image: &[u8], state| Superblock { state, ..superblock(image) };
    for last_ready in [None, Some(0)] {
        let mut half = images.clone();
        for (drive, image) in half.iter_mut().enumerate() {
            let ready = last_ready.is_some_and(|last| drive <= last);
            let state = if ready { State::Ready } else { State::Creating };
            let superblock = of(image, state);
            rewrite(image, superblock);
        }
        let error = refused(opened(&half).map(drop));
        assert!(error.report().contains("run `millrace store create` again"), "{}", error.report());
        // And it can be run again, without being forced to.
        let storage = drives(&half, OpenMode::ReadWrite, SimSpec::default());
        let options = CreateOptions {
            object_limit: LIMIT.into(),
            force: match last_ready {
                // The drive that is ready holds a store, as far as it knows.
                Some(0) => vec![storage.drives()[0].name.clone()],
                _ => Vec::new(),
            },
            io: IO,
            lock_dir: lock_dir(),
        };
        create(&storage, &options).unwrap();
        assert_eq!(verified(&storage.images()).objects, 0);
    }
    let mut within = images.clone();
    let creating = of(&within[0], State::Creating).encode();
    within[0][..BLOCK].copy_from_slice(&creating);
    assert!(refused(opened(&within).map(drop)).what().contains("cut short"));

    let mut differ = images.clone();
    let other = created(&blank(&[2]));
    let end = differ[0].len() - BLOCK;
    differ[0][end..].copy_from_slice(&other[0][..BLOCK]);
    assert!(refused(opened(&differ).map(drop)).what().contains("its two superblocks differ"));
}

#[test]
fn nothing_is_written_over_that_nobody_has_named() {
    let zeros = vec![vec![0; 2 * STRIDE as usize + 8192]; 2];
    let storage = |images: &[Vec<u8>]| drives(images, OpenMode::ReadWrite, SimSpec::default());
    let options = |force: &[&str]| CreateOptions {
        object_limit: LIMIT.into(),
        force: force.iter().map(|name| (*name).to_owned()).collect(),
        io: IO,
        lock_dir: lock_dir(),
    };
    create(&storage(&zeros), &options(&[])).unwrap();

    let mut used = zeros;
    used[1][0x52..0x5A].copy_from_slice(b"FAT32   ");
    let drive = storage(&used).drives()[1].name.clone();
    let it = storage(&used);
    let error = refused(create(&it, &options(&[])));
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.what().contains("vfat"), "{error}");
    assert!(error.report().contains(&format!("--force {drive}")), "{}", error.report());
    assert_eq!(it.images(), used, "nothing was written");
    create(&it, &options(&[&drive])).unwrap();

    // A store is one of the things that are not written over.
    let made = it.images();
    let it = storage(&made);
    let error = refused(create(&it, &options(&[])));
    assert!(error.what().contains("millrace store"), "{error}");
    assert_eq!(it.images(), made);

    let error = refused(create(&it, &options(&["nvme9"])));
    assert_eq!((error.kind(), it.images() == made), (Kind::Usage, true));
}

#[test]
fn limits_and_small_drives_are_refused() {
    let storage = drives(&blank(&[1]), OpenMode::ReadWrite, SimSpec::default());
    for limit in [0, 1, 4097, (64 << 20) - 4096 + 4096] {
        let options =
            CreateOptions { object_limit: limit, force: vec![], io: IO, lock_dir: lock_dir() };
        let error = refused(create(&storage, &options));
        assert!(error.report().contains("4KiB up to 65532KiB"), "{}", error.report());
    }
    let options =
        CreateOptions { object_limit: 12288, force: vec![], io: IO, lock_dir: lock_dir() };
    let error = refused(create(&storage, &options));
    assert!(error.what().contains("too small for one object of 12KiB"), "{error}");
}

#[test]
fn a_store_is_opened_once_and_not_made_anew_meanwhile() {
    let images = created(&blank(&[2]));
    let storage = drives(&images, OpenMode::ReadWrite, SimSpec::default());
    let store = open_on(&storage, true, 1).unwrap();
    let pid = format!("PID {}", std::process::id());
    for error in
        [refused(open_on(&storage, false, 1).map(drop)), refused(create_on(&storage).map(drop))]
    {
        assert_eq!(error.kind(), Kind::Busy);
        assert!(error.what().contains(&pid), "{error}");
    }
    drop(store);
    open_on(&storage, false, 1).unwrap();
}

#[test]
fn a_full_store_says_so_and_keeps_what_it_has() {
    let storage = drives(&created(&blank(&[2, 1])), OpenMode::ReadWrite, SimSpec::default());
    let store = open_on(&storage, true, 1).unwrap();
    let mut puts = Puts::new(&storage, &store.objects, &IO).unwrap();
    let options = FillOptions { count: 5, first: 0, sizes: None, seed: 1, prefix: "k".into() };
    let (mut stored, mut refused_keys) = (0, 0);
    let error =
        refused(fill(&mut puts, LIMIT, &options, &Progress::default(), &mut |_, outcome| {
            match outcome {
                PutOutcome::Stored => stored += 1,
                _ => refused_keys += 1,
            }
        }));
    assert_eq!(error.kind(), Kind::Resource);
    assert_eq!((stored, refused_keys), (3, 1));
    // Too large, and nothing is put then.
    let sizes = Some(Sizes { least: 1, most: u64::from(LIMIT) + 1 });
    let large = FillOptions { sizes, ..options.clone() };
    let error = refused(fill(&mut puts, LIMIT, &large, &Progress::default(), &mut |_, _| {}));
    assert!(error.what().contains("the store's limit is 8KiB"), "{error}");
    let long = FillOptions { prefix: "k".repeat(246), ..options };
    let error = refused(fill(&mut puts, LIMIT, &long, &Progress::default(), &mut |_, _| {}));
    assert!(error.what().contains("a key of 256 bytes"), "{error}");
    drop((puts, store));
    assert_eq!(verified(&storage.images()).objects, 3);
}

#[test]
fn a_job_that_is_stopped_leaves_whole_objects() {
    let storage = drives(&created(&blank(&[40])), OpenMode::ReadWrite, SimSpec::default());
    let store = open_on(&storage, true, 1).unwrap();
    let mut puts = Puts::new(&storage, &store.objects, &IO).unwrap();
    let options = FillOptions { count: 40, first: 0, sizes: None, seed: 1, prefix: "k".into() };
    let progress = Progress::default();
    let mut stored = 0;
    let report = fill(&mut puts, LIMIT, &options, &progress, &mut |_, _| {
        stored += 1;
        progress.stop.store(stored == 5, std::sync::atomic::Ordering::Relaxed);
    })
    .unwrap();
    assert!((5..40).contains(&report.stored), "{report:?}");
    drop((puts, store));
    let found = verified(&storage.images());
    assert_eq!((found.objects, found.findings.len()), (report.stored, 0));
}
