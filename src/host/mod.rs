//! What this host is: read from /sys and /proc below an injectable root, so that tests read
//! captured trees.

pub mod aer;
pub mod affinity;
pub mod block;
pub mod child;
pub mod cpu;
pub mod diskstat;
pub mod drive;
pub mod fact;
pub mod facts;
pub mod finding;
pub mod function;
pub mod hugepages;
pub mod interrupts;
pub mod iommu;
pub mod lock;
pub mod machine;
pub mod net;
pub mod nic;
pub mod notify;
pub mod numa;
pub mod nvme;
pub mod pci;
pub mod perf;
pub mod process;
pub mod queue;
pub mod rdma;
pub mod sample;
pub mod signature;
pub mod socket;
pub mod split;
pub mod system;
pub mod task;
pub mod topology;
pub mod uring;
pub mod usage;
pub mod vfio;

use std::path::{Path, PathBuf};

use crate::error::{Context, Error, Kind, Result};

/// The root below which `/sys` and `/proc` are read.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

impl Root {
    /// The running system.
    pub fn system() -> Self {
        Self(PathBuf::from("/"))
    }

    /// A captured tree.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Where `path` (absolute, as on a running system) lies below this root.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file without the white space at its end.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        std::fs::read_to_string(self.path(path))
            .map(|text| text.trim_end().to_owned())
            .context(|| format!("cannot read {}", path.display()))
    }

    /// A file that holds one number.
    pub fn read_number(&self, path: impl AsRef<Path>) -> Result<u64> {
        let path = path.as_ref();
        let text = self.read(path)?;
        text.trim().parse().map_err(|_| {
            Error::new(Kind::Data, format!("{} holds \"{text}\", not a number", path.display()))
        })
    }

    /// True where the file or folder exists.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Names in a folder, sorted.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<String>> {
        let path = path.as_ref();
        let entries = std::fs::read_dir(self.path(path))
            .context(|| format!("cannot list {}", path.display()))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.context(|| format!("cannot list {}", path.display()))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    /// What the symbolic link at `path` points to, as written in it.
    pub fn link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        std::fs::read_link(self.path(path))
            .context(|| format!("cannot read the link {}", path.display()))
    }
}
