//! Simulated drives with a store, and what tests ask of it.

use millrace::memory::Pages;
use millrace::storage::OpenMode;
use millrace::storage::sim::{SimSpec, SimStorage};
use millrace::store::{
    CreateOptions, Created, IoOptions, OpenOptions, Progress, Store, VerifyReport, create, list,
    open, verify,
};
use millrace::{Error, Result};

/// Longest object of the tests' stores.
pub const LIMIT: u32 = 8192;

/// Distance of slots.
pub const STRIDE: u64 = 4096 + LIMIT as u64;

pub const IO: IoOptions = IoOptions { depth: 8, pages: Pages::Base, node: None };

/// A generator of numbers that a failing test can be repeated with (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Drives of so many slots each, with whatever a new simulated drive has on it.
pub fn blank(slots: &[u64]) -> Vec<Vec<u8>> {
    let drives = slots.iter().map(|slots| slots * STRIDE + 8192).collect();
    SimStorage::open(SimSpec { drives, ..SimSpec::default() }).unwrap().images()
}

pub fn drives(images: &[Vec<u8>], mode: OpenMode, spec: SimSpec) -> SimStorage {
    SimStorage::with_images(SimSpec { mode, ..spec }, images).unwrap()
}

/// A folder for locks: the build's own, so that nothing of the machine is touched.
pub fn lock_dir() -> std::path::PathBuf {
    env!("CARGO_TARGET_TMPDIR").into()
}

pub fn create_on(storage: &SimStorage) -> Result<Created> {
    let force = storage.drives_by_name();
    let options = CreateOptions { object_limit: LIMIT.into(), force, io: IO, lock_dir: lock_dir() };
    create(storage, &options)
}

/// Makes a store on images.
pub fn created(images: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let storage = drives(images, OpenMode::ReadWrite, SimSpec::default());
    create_on(&storage).unwrap_or_else(|e| panic!("{}", e.report()));
    storage.images()
}

pub fn open_on(storage: &SimStorage, writable: bool, members: usize) -> Result<Store> {
    let options =
        OpenOptions { writable, members, cores: Vec::new(), io: IO, lock_dir: lock_dir() };
    open(storage, &options, &Progress::default())
}

/// Opens images to be read.
pub fn opened(images: &[Vec<u8>]) -> Result<(SimStorage, Store)> {
    let storage = drives(images, OpenMode::Read, SimSpec::default());
    let store = open_on(&storage, false, 1)?;
    Ok((storage, store))
}

/// What `millrace store verify` finds.
pub fn verified(images: &[Vec<u8>]) -> VerifyReport {
    let (storage, store) = opened(images).unwrap_or_else(|e| panic!("{}", e.report()));
    verify(&storage, &store, &IO, &Progress::default(), &mut |_| {})
        .unwrap_or_else(|e| panic!("{}", e.report()))
}

/// What `millrace store ls` lists: keys in order.
pub fn listed(images: &[Vec<u8>]) -> Vec<String> {
    let (storage, store) = opened(images).unwrap();
    let mut keys = Vec::new();
    let nameless = list(&storage, &store, &IO, &Progress::default(), &mut |object| {
        keys.push(object.key.to_string());
        Ok(())
    })
    .unwrap();
    assert_eq!(nameless, 0);
    keys.sort();
    keys
}

/// The report of the error that must come.
pub fn refused<T>(outcome: Result<T>) -> Error {
    let Err(error) = outcome else { panic!("it must be refused") };
    assert!(error.remedy_text().is_some(), "{}", error.report());
    error
}

/// Names of a storage's drives.
pub trait Names {
    fn drives_by_name(&self) -> Vec<String>;
}

impl<S: millrace::storage::Storage> Names for S {
    fn drives_by_name(&self) -> Vec<String> {
        self.drives().iter().map(|info| info.name.clone()).collect()
    }
}
