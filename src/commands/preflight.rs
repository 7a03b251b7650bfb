//! The checks that a command makes before it starts.

#[cfg(feature = "spdk")]
use std::path::Path;

#[cfg(feature = "spdk")]
use super::names;
use super::options::{Backend, StorageArgs};
use crate::bench::HostChecks;
#[cfg(feature = "spdk")]
use crate::device::DEFAULT_JOURNAL;
use crate::doctor::{self, Case, Job};
use crate::error::{Error, Kind, Result};
use crate::host::finding::Checked;
use crate::host::{Root, uring};
#[cfg(feature = "spdk")]
use crate::storage::DriveName;

/// What a command is about to do, apart from its drives.
#[derive(Debug, Default)]
pub(super) struct Start<'a> {
    /// The drives, and how they are reached; none for a client.
    pub storage: Option<&'a StorageArgs>,
    /// True for RDMA.
    pub rdma: bool,
    /// CPUs of the workers; none: it is open which.
    pub cores: Vec<usize>,
    /// Bytes of a read.
    pub io_size: u64,
    /// Slots of one worker.
    pub slots: u64,
    /// Files that it will have open.
    pub files: u64,
}

impl Start<'_> {
    fn case(&self) -> Case {
        let defaults = Job::server();
        let backend = self.storage.map(|storage| storage.backend);
        let job = Job {
            uring: backend == Some(Backend::Uring),
            spdk: backend == Some(Backend::Spdk),
            rdma: self.rdma,
            devices: Some(self.storage.map(devices).unwrap_or_default()),
            cores: self.cores.clone(),
            io_size: self.io_size,
            arena_bytes: self.io_size * self.slots,
            pages: self.storage.map_or(defaults.pages, |storage| storage.hugepages),
            registered: self.storage.is_some_and(|storage| storage.regbufs.is_on()),
            iopoll: self.storage.is_some_and(|storage| storage.iopoll.is_on()),
            files: self.files,
            ..defaults
        };
        Case::read(&Root::system(), job, uring::probe())
    }
}

/// Runs the checks for each part of a command (the shards of a server): an error where something
/// would stop it; else what was found, for its result. What merely costs is logged, once.
pub(super) fn check(starts: &[Start<'_>]) -> Result<HostChecks> {
    let (mut all, mut facts) = (Vec::new(), Vec::new());
    for start in starts {
        let case = start.case();
        all.extend(doctor::preflight(&case)?);
        facts.push(serde_json::to_value(&case).map_err(|e| {
            Error::new(Kind::Data, "the facts of the host are no JSON").caused_by(e)
        })?);
    }
    doctor::log_findings(&all);
    let facts = match facts.len() {
        1 => facts.remove(0),
        _ => facts.into(),
    };
    Ok(HostChecks { checks: Checked::of(&all), facts })
}

/// The drives by names that sysfs knows.
fn devices(storage: &StorageArgs) -> Vec<String> {
    match storage.backend {
        Backend::Mem => Vec::new(),
        Backend::Uring => storage.devices.clone(),
        Backend::Spdk => storage.devices.iter().filter_map(|name| spdk_device(name)).collect(),
    }
}

/// The PCI address of a drive for SPDK, which may have left its kernel name behind; none for one
/// that is not on PCI, and for a name that opening it will complain of.
#[cfg(feature = "spdk")]
fn spdk_device(name: &str) -> Option<String> {
    let drive = names::for_spdk(&Root::system(), Path::new(DEFAULT_JOURNAL), name).ok()?;
    match drive.at {
        DriveName::Pci(address, _) => Some(address.to_string()),
        DriveName::Path(path) => Some(path.to_str()?.to_owned()),
        DriveName::Transport(..) | DriveName::Memory(_) => None,
    }
}

#[cfg(not(feature = "spdk"))]
fn spdk_device(_name: &str) -> Option<String> {
    None
}
