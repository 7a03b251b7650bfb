//! The drives of a comparison: to the driver that the next variant needs, and always back.

use std::path::{Path, PathBuf};

use super::facts::address_of;
use crate::device::{
    BindRequest, Journal, JournalFile, Kernel, RestoreRequest, System, bind, restore,
};
use crate::error::{Error, Kind, Result};
use crate::host::Root;
use crate::host::pci::Address;

/// Gives the drives back when it is dropped: at the end, after an error, in a panic. Whatever ends
/// this process without that (a power cut, SIGKILL) leaves them in the journal, from which
/// `millrace device restore` and the next comparison take them back.
pub struct Drives<'a> {
    kernel: &'a dyn Kernel,
    journal: PathBuf,
    names: Vec<String>,
    meant: Vec<String>,
    addresses: Vec<Option<Address>>,
    away: bool,
}

impl Drives<'static> {
    /// Those of this machine. Drives that the journal knows to be away are given back first.
    pub fn of_system(journal: &Path, names: &[String], meant: &[String]) -> Result<Self> {
        // Lives as long as the program: one small struct.
        Self::new(Box::leak(Box::new(System::new())), journal, names, meant)
    }
}

impl<'a> Drives<'a> {
    /// The same on any kernel: tests have their own.
    pub fn new(
        kernel: &'a dyn Kernel,
        journal: &Path,
        names: &[String],
        meant: &[String],
    ) -> Result<Self> {
        let root = kernel.root();
        let mut drives = Self {
            kernel,
            journal: journal.to_owned(),
            names: names.to_vec(),
            meant: meant.to_vec(),
            addresses: Vec::new(),
            away: false,
        };
        let left = drives.left_away(root)?;
        if !left.is_empty() {
            log::info!("given back to the kernel first: {}", left.join(", "));
            let mut journal = JournalFile::open(&drives.journal)?;
            let request = RestoreRequest { drives: left };
            restore(kernel, &mut journal, &request, &mut |text| log::info!("{text}"))?;
        }
        drives.addresses = names.iter().map(|name| address_of(root, name)).collect();
        Ok(drives)
    }

    /// Addresses of those that an earlier comparison, or `device bind`, has left with vfio-pci.
    fn left_away(&self, root: &Root) -> Result<Vec<String>> {
        let journal = Journal::read(&self.journal)?;
        let mut left = Vec::new();
        for entry in &journal.entries {
            let disk = |name: &str| {
                let node = name.strip_prefix("/dev/").unwrap_or(name);
                entry.disks.iter().any(|disk| disk.names().any(|own| own == node))
            };
            let named = self.names.iter().any(|name| {
                disk(name) && !root.exists(name)
                    || name.split(' ').next().and_then(|n| n.parse().ok()) == Some(entry.address)
            });
            if named {
                left.push(entry.address.to_string());
            }
        }
        Ok(left)
    }

    /// PCI addresses, in the order of the names.
    pub fn addresses(&self) -> &[Option<Address>] {
        &self.addresses
    }

    /// Sees to it that the drives have the driver that a backend needs.
    ///
    /// # Errors
    ///
    /// Those of `millrace device`; `Unsupported` for what is no NVMe drive of this machine's bus.
    pub fn ready_for(&mut self, spdk: bool) -> Result<()> {
        match (spdk, self.away) {
            (true, false) => self.bind(),
            (false, true) => self.give_back(),
            _ => Ok(()),
        }
    }

    fn bind(&mut self) -> Result<()> {
        // A transport of SPDK has no driver of this machine to be bound to.
        if self.names.iter().all(|name| name.starts_with("trtype:")) {
            return Ok(());
        }
        let mut drives = Vec::new();
        for (name, address) in self.names.iter().zip(&self.addresses) {
            let Some(address) = address else {
                let what = format!("{name} is no NVMe drive, and SPDK's driver is for those");
                return Err(Error::new(Kind::Unsupported, what)
                    .remedy("name an NVMe drive: millrace device list shows them"));
            };
            let address = address.to_string();
            if !drives.contains(&address) {
                drives.push(address);
            }
        }
        let request = BindRequest { drives, meant: self.meant.clone(), hugepages: None };
        let mut journal = JournalFile::open(&self.journal)?;
        // Set first: should it fail half-way, what has moved is given back all the same.
        self.away = true;
        bind(self.kernel, &mut journal, &request, &mut |text| log::debug!("{text}"))
    }

    /// Gives all of them back to the driver that they came from.
    pub fn give_back(&mut self) -> Result<()> {
        let entries = Journal::read(&self.journal)?.entries;
        let own = |address: &Address| self.addresses.contains(&Some(*address));
        let drives: Vec<String> = entries
            .iter()
            .filter(|entry| own(&entry.address))
            .map(|entry| entry.address.to_string())
            .collect();
        if !drives.is_empty() {
            let mut journal = JournalFile::open(&self.journal)?;
            let request = RestoreRequest { drives };
            restore(self.kernel, &mut journal, &request, &mut |text| log::debug!("{text}"))?;
        }
        self.away = false;
        Ok(())
    }
}

impl Drop for Drives<'_> {
    fn drop(&mut self) {
        if self.away
            && let Err(error) = self.give_back()
        {
            log::error!("the drives are not back; millrace device restore: {}", error.report());
        }
    }
}
