//! Opening a store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::host::lock::Lock;
use crate::object::{BLOCK, Layout, Objects, StoreId};
use crate::storage::Storage;

use super::Progress;
use super::io::{Io, IoOptions};
use super::scan::{self, ScanReport};
use super::set::{self, SetWarning};

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Whether objects will be put and deleted: the drives were opened to be written, and what a
    /// crash has left half done is put right.
    pub writable: bool,
    /// Workers that will join at most.
    pub members: usize,
    /// CPUs for the scan, one thread pinned to each; empty: one thread, not pinned.
    pub cores: Vec<usize>,
    /// How each thread of the scan reaches the drives.
    pub io: IoOptions,
    /// Where the locks of stores are.
    pub lock_dir: PathBuf,
}

/// An open store. The lock is held as long as this lives.
#[derive(Debug)]
pub struct Store {
    /// What the workers share.
    pub objects: Arc<Objects>,
    /// What the scan has found.
    pub report: ScanReport,
    /// Damaged superblocks, the others of which are used.
    pub warnings: Vec<SetWarning>,
    _lock: Lock,
}

impl Store {
    /// The store's identity.
    pub fn id(&self) -> StoreId {
        self.objects.store()
    }
}

/// The folder that system-wide locks are in: /run/lock where it is there, else that of temporary
/// files.
pub fn default_lock_dir() -> PathBuf {
    let run = Path::new("/run/lock");
    if run.is_dir() { run.to_owned() } else { std::env::temp_dir() }
}

/// Takes the lock of a store.
pub(super) fn take_lock(dir: &Path, store: StoreId) -> Result<Lock> {
    Lock::take(&dir.join(format!("millrace-store-{store}.lock")))
}

/// Opens the store on the drives of `storage`: checks their superblocks, locks the store, and
/// builds the index from the headers of all slots.
///
/// # Errors
///
/// See docs/FORMAT.md: drives that are not one whole store, each with the drive's name and what to
/// do; `Busy` with the PID where another process has it open; `Device` where a drive fails.
pub fn open<S: Storage>(storage: &S, options: &OpenOptions, progress: &Progress) -> Result<Store> {
    let infos = storage.drives();
    let mut io = Io::new(storage, BLOCK, &IoOptions { depth: 1, ..options.io })?;
    let before = set::read(&mut io, infos)?;
    let id = before.superblocks[0].store;
    let lock = take_lock(&options.lock_dir, id)?;
    // Once more: `store create` may have come between the first look and the lock.
    let set::Set { superblocks, warnings } = set::read(&mut io, infos)?;
    if superblocks[0].store != id {
        return Err(Error::new(
            crate::error::Kind::Busy,
            format!("store {id} was made anew while it was opened"),
        )
        .remedy("run the command again"));
    }
    for warning in &warnings {
        log::warn!("{}, byte {}: {}", warning.drive, warning.offset, warning.what);
    }
    let block_size = infos.iter().map(|info| info.block_size).max().expect("one drive at least");
    let layout = Layout::new(&superblocks, block_size).ok_or_else(|| {
        Error::usage(format!("store {id} has more than 2^32 - 2 slots"))
            .remedy("it was made by another program")
    })?;
    drop(io);
    let objects = Arc::new(Objects::new(id, layout, options.members, options.writable));
    let report = scan::scan(storage, &objects, options, progress)?;
    Ok(Store { objects, report, warnings, _lock: lock })
}
