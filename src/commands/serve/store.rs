//! The store of a shard that serves objects.

use super::plan::{Plan, ShardPlan};
use crate::error::{Error, Result};
use crate::limits::SLOT_ALIGN;
use crate::storage::{OpenMode, Storage};
use crate::store::{IoOptions, OpenOptions, Progress, Store, default_lock_dir, open};

/// What the drives of a shard are opened for.
pub(super) fn mode(plan: &Plan) -> OpenMode {
    if plan.writable { OpenMode::ReadWrite } else { OpenMode::Read }
}

/// Opens the store on the drives of a shard and builds its index.
///
/// # Errors
///
/// As [`open`], with what to do where the drives hold no store.
pub(super) fn open_store<S: Storage>(plan: &Plan, shard: &ShardPlan, storage: &S) -> Result<Store> {
    let options = OpenOptions {
        writable: plan.writable,
        members: shard.cores.len(),
        cores: shard.cores.clone(),
        io: IoOptions {
            depth: shard.depth,
            pages: shard.storage.hugepages,
            node: shard.storage.node,
        },
        lock_dir: default_lock_dir(),
    };
    let store = open(storage, &options, &Progress::default()).map_err(|error| {
        let remedy = error.remedy_text().unwrap_or("see docs/FORMAT.md").to_owned();
        let remedy = format!("{remedy}; or serve ranges of the drives with --raw");
        Error::new(error.kind(), format!("{}{}", shard.place(), error.what())).remedy(remedy)
    })?;
    let (tally, report) = (store.objects.tally(), &store.report);
    let seconds = report.elapsed.as_secs_f64().max(1e-9);
    log::info!(
        "shard {}: store {}{}: {} objects in {} slots, read in {seconds:.2} s ({:.0} headers/s)",
        shard.name,
        store.id(),
        if plan.writable { "" } else { ", read-only" },
        tally.objects,
        tally.slots,
        report.slots as f64 / seconds
    );
    Ok(store)
}

/// Bytes of a slot of memory that holds any object of the store with its header.
pub(super) fn slot_size(store: &Store) -> usize {
    (store.objects.layout().slot_size() as usize).next_multiple_of(SLOT_ALIGN)
}
