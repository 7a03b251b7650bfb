//! Drives through the kernel: io_uring with O_DIRECT.
//!
//! ```text
//!   UringStorage   opens the drives, knows their geometry       open.rs, geometry.rs
//!   UringQueue     one ring over all drives, one per worker     queue.rs: commands and their slots
//!                                                               ring.rs:  ring, system calls
//!   UringOptions   which of the kernel's shortcuts are taken    options.rs
//! ```
//!
//! Every switch of [`UringOptions`] is really on or really off, so that each can be measured by
//! itself; one that cannot be had is an error at start-up.

mod geometry;
mod open;
mod options;
mod queue;
mod ring;

use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use crate::host::uring::setup_error;
pub use options::UringOptions;
pub use queue::{UringQueue, leaked_rings};

use super::{DriveInfo, DriveName, OpenMode, Storage, check_depth};
use crate::error::{Error, Result};
use crate::host::Root;
use crate::limits::MAX_DRIVES;
use crate::memory::Arena;

/// The opened drives; queues keep them open.
#[derive(Debug)]
struct Drives {
    infos: Vec<DriveInfo>,
    files: Vec<OwnedFd>,
    mode: OpenMode,
}

/// Drives opened through the kernel.
#[derive(Debug, Clone)]
pub struct UringStorage {
    drives: Arc<Drives>,
    options: UringOptions,
}

impl UringStorage {
    /// Opens drives by path or PCI address, and checks that the options can be had.
    ///
    /// # Errors
    ///
    /// With the name of the drive, what is wrong, and the remedy: a missing, empty or unreadable
    /// drive, a directory, a character device, a drive bound to another driver, a block device in
    /// use that is opened to be written, a file system without O_DIRECT, an option that this
    /// drive or kernel does not have, or a kernel that refuses io_uring.
    pub fn open(names: &[DriveName], mode: OpenMode, options: UringOptions) -> Result<Self> {
        Self::open_at(&Root::system(), names, mode, options)
    }

    /// As [`UringStorage::open`], with the facts of /sys read below `root`.
    pub fn open_at(
        root: &Root,
        names: &[DriveName],
        mode: OpenMode,
        options: UringOptions,
    ) -> Result<Self> {
        if names.is_empty() || names.len() > MAX_DRIVES {
            return Err(Error::usage(format!("{} drives", names.len()))
                .remedy(format!("name 1 to {MAX_DRIVES} with --device")));
        }
        options.check(mode)?;
        let mut drives = Drives { infos: Vec::new(), files: Vec::new(), mode };
        for name in names {
            let (info, file) = open::open(root, name, mode, options)?;
            drives.infos.push(info);
            drives.files.push(file);
        }
        // A kernel that refuses io_uring is told here, before arenas are mapped.
        drop(ring::Ring::new(1, options)?);
        Ok(Self { drives: Arc::new(drives), options })
    }

    /// The options that are in force: those that were asked for.
    pub fn options(&self) -> UringOptions {
        self.options
    }
}

impl Storage for UringStorage {
    type Queue = UringQueue;

    fn drives(&self) -> &[DriveInfo] {
        &self.drives.infos
    }

    fn name(&self) -> &'static str {
        "uring"
    }

    fn queue(&self, arena: &Arc<Arena>, depth: u32) -> Result<UringQueue> {
        check_depth(depth)?;
        UringQueue::new(Arc::clone(&self.drives), Arc::clone(arena), depth, self.options)
    }
}
