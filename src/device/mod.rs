//! Moving NVMe drives between the kernel's driver and vfio-pci, and back.
//!
//! ```text
//! list     survey ──────────────────────────────► table, JSON
//! bind     survey ─► plan (refuses) ─► modules, pool ─► journal ─► switch ─► verify
//!                                                             └─ on failure: switch back
//! restore  journal ─► survey (refuses) ─► switch ─► wait for the serial ─► journal
//! ```
//!
//! Everything is read through [`Root`] and changed through [`Kernel`], so that tests run the whole
//! of it on made trees with faults after any step. Nothing here is on the data path.

mod bind;
mod journal;
mod kernel;
mod list;
mod plan;
mod pool;
mod restore;
mod switch;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use bind::bind;
pub use journal::{DEFAULT_JOURNAL, Entry, Journal, JournalFile};
pub use kernel::{Kernel, Step, System};
pub use list::{json, table};
pub use plan::{BindRequest, Plan, plan};
pub use restore::{RestoreRequest, preview, restore};

use serde::Serialize;

use crate::error::{Error, Kind, Result};
use crate::host::Root;
use crate::host::iommu::{self, Peer};
use crate::host::nvme::{self, Disk};
use crate::host::pci::{self, Address, Link};
use crate::host::signature;
use crate::host::usage::{self, OpenFile, Use};

/// The driver that userspace drivers work through. uio_pci_generic is not offered: it needs the
/// IOMMU off or in passthrough, gives the drive all of memory, and mixes physical with virtual
/// addresses when both are in use.
pub const VFIO: &str = "vfio-pci";

/// The kernel's own driver.
pub const NVME: &str = "nvme";

/// Something found on a drive by its magic bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Content {
    /// Block device: the drive's or a partition's.
    pub device: String,
    /// What it is: `ext4`, `LVM2 member`, `GPT`, or why it could not be read.
    pub what: String,
}

/// The other end of a drive's PCIe link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Upstream {
    /// The port.
    pub address: Address,
    /// The best that the port can do.
    pub link_best: Option<Link>,
}

/// All that is known of one NVMe drive (a controller with its namespaces).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Drive {
    /// PCI address.
    pub address: Address,
    /// Serial number; of a drive that the kernel's driver does not have, from the journal.
    pub serial: Option<String>,
    /// Model, likewise.
    pub model: Option<String>,
    /// Bytes of all namespaces, likewise.
    pub size: Option<u64>,
    /// True where serial, model and size are the journal's.
    pub from_journal: bool,
    /// Driver now.
    pub driver: Option<String>,
    /// The only driver that the drive may be bound to, where somebody has set one.
    pub driver_override: Option<String>,
    /// The kernel's name for the controller: `nvme0`.
    pub controller: Option<String>,
    /// Block devices.
    pub disks: Vec<Disk>,
    /// What it is used for now.
    pub uses: Vec<Use>,
    /// What it holds.
    pub holds: Vec<Content>,
    /// NUMA node.
    pub numa_node: Option<u32>,
    /// PCIe link now; an idle link may have been slowed down.
    pub link_now: Option<Link>,
    /// The best that the drive can do.
    pub link_best: Option<Link>,
    /// The port above it.
    pub upstream: Option<Upstream>,
    /// IOMMU group.
    pub iommu_group: Option<u32>,
    /// The other members of the group.
    pub iommu_peers: Vec<Peer>,
}

impl Drive {
    /// The drive in a few words: address, block devices, serial.
    pub fn title(&self) -> String {
        let mut parts: Vec<String> = self.disks.iter().map(|disk| disk.name.clone()).collect();
        if let Some(serial) = self.serial.as_ref().filter(|serial| !serial.is_empty()) {
            parts.push(format!("serial {serial}"));
        }
        match parts.is_empty() {
            true => self.address.to_string(),
            false => format!("{} ({})", self.address, parts.join(", ")),
        }
    }

    /// What a person quotes to say that this drive is meant: the serial, or the address of a drive
    /// that has none.
    pub fn token(&self) -> String {
        match self.serial.as_deref() {
            None | Some("") => self.address.to_string(),
            Some(serial) => serial.to_owned(),
        }
    }

    /// The driver, in words.
    pub fn driver_name(&self) -> &str {
        self.driver.as_deref().unwrap_or("no driver")
    }

    /// A `driver_override` that will keep the drive from its way home, or from the driver that
    /// the next hot reset should give it.
    pub fn leftover_override(&self) -> Option<&str> {
        self.driver_override.as_deref().filter(|name| *name != NVME)
    }
}

/// Every NVMe drive of the machine, whatever its driver, by address. Takes a moment: reads up to
/// 3 MiB of each block device. Without root's rights, content and foreign processes stay unknown.
pub fn survey(root: &Root, journal: &Journal) -> Result<Vec<Drive>> {
    let open = usage::open_files(root);
    let controllers = pci::nvme_controllers(root)?;
    Ok(controllers.into_iter().map(|address| look(root, journal, &open, address)).collect())
}

/// One drive as it is now.
fn look_again(root: &Root, journal: &Journal, address: Address) -> Drive {
    look(root, journal, &usage::open_files(root), address)
}

fn look(root: &Root, journal: &Journal, open: &[OpenFile], address: Address) -> Drive {
    let controller = nvme::controller(root, address);
    let group = iommu::group(root, address);
    let mut drive = Drive {
        address,
        serial: None,
        model: None,
        size: None,
        from_journal: false,
        driver: pci::driver(root, address),
        driver_override: pci::driver_override(root, address),
        controller: None,
        disks: Vec::new(),
        uses: Vec::new(),
        holds: Vec::new(),
        numa_node: pci::numa_node(root, address),
        link_now: pci::link_now(root, address),
        link_best: pci::link_best(root, address),
        upstream: pci::upstream(root, address)
            .map(|port| Upstream { address: port, link_best: pci::link_best(root, port) }),
        iommu_group: group,
        iommu_peers: iommu::peers(root, address),
    };
    if let Some(controller) = controller {
        drive.size = Some(controller.namespaces.iter().map(|disk| disk.size).sum());
        drive.serial = controller.serial;
        drive.model = Some(controller.model);
        drive.controller = Some(controller.name);
        drive.disks = controller.namespaces;
    } else if let Some(entry) = journal.of(address).filter(|e| e.boot_id == boot_id(root)) {
        drive.from_journal = true;
        drive.serial = Some(entry.serial.clone());
        drive.model = Some(entry.model.clone());
        drive.size = Some(entry.disks.iter().map(|disk| disk.size).sum());
    }
    for disk in &drive.disks {
        drive.uses.extend(usage::of_disk(root, disk));
        drive.holds.extend(disk.names().flat_map(|device| contents(root, device)));
    }
    let (paths, numbers) = nodes(root, &drive);
    drive.uses.extend(usage::of_nodes(open, &paths, &numbers));
    drive
}

fn contents(root: &Root, device: &str) -> Vec<Content> {
    let content = |what: String| Content { device: device.to_owned(), what };
    match signature::probe(root, device) {
        Ok(found) => found.into_iter().map(|what| content(what.to_owned())).collect(),
        Err(error) => vec![content(format!("unknown content ({})", error.report()))],
    }
}

/// Device nodes through which a process can have the drive: paths, and numbers of block devices.
fn nodes(root: &Root, drive: &Drive) -> (Vec<String>, Vec<String>) {
    let mut paths: Vec<String> = Vec::new();
    let mut numbers: Vec<String> = Vec::new();
    paths.extend(drive.controller.iter().map(|name| format!("/dev/{name}")));
    for disk in &drive.disks {
        paths.extend(disk.names().map(|name| format!("/dev/{name}")));
        paths.push(format!("/dev/{}", disk.name.replacen("nvme", "ng", 1)));
        let parts = disk.partitions.iter().map(|part| format!("{}/{part}", disk.name));
        for folder in std::iter::once(disk.name.clone()).chain(parts) {
            let number = root.read(format!("/sys/block/{folder}/dev"));
            numbers.extend(number.map(|number| format!("b{number}")));
        }
    }
    let folder = pci::dir(drive.address);
    // A group in use by a process stays that process's: none joins it, none leaves it.
    paths.extend(drive.iommu_group.map(|group| format!("/dev/vfio/{group}")));
    // The newer interface: one node for each device (Documentation/driver-api/vfio.rst).
    let devices = root.list(format!("{folder}/vfio-dev")).unwrap_or_default();
    paths.extend(devices.iter().map(|name| format!("/dev/vfio/devices/{name}")));
    let uio = root.list(format!("{folder}/uio")).unwrap_or_default();
    paths.extend(uio.iter().map(|name| format!("/dev/{name}")));
    (paths, numbers)
}

/// The drive that a person means by `name`: a PCI address, a block device or controller with or
/// without `/dev/` (or a link to one, as in /dev/disk/by-id), or a serial number.
pub fn find<'a>(root: &Root, drives: &'a [Drive], name: &str) -> Result<&'a Drive> {
    if let Ok(address) = name.parse::<Address>() {
        return drives.iter().find(|drive| drive.address == address).ok_or_else(|| {
            let what = format!("there is no NVMe drive at {address}");
            Error::new(Kind::NotFound, what).remedy("millrace device list shows the drives")
        });
    }
    let node = match name.starts_with("/dev/") {
        true => std::fs::canonicalize(root.path(name)).ok(),
        false => None,
    };
    let node = node.as_deref().and_then(|path| path.file_name()).and_then(|n| n.to_str());
    let node = node.unwrap_or(name.strip_prefix("/dev/").unwrap_or(name));
    for drive in drives {
        if drive.disks.iter().any(|disk| disk.partitions.iter().any(|part| part == node)) {
            let what = format!("{name} is a partition, and a drive can only be moved as a whole");
            return Err(Error::usage(what).remedy(format!("name the drive: {}", drive.address)));
        }
    }
    let named = |drive: &&Drive| {
        drive.controller.as_deref() == Some(node)
            || drive.disks.iter().any(|disk| disk.name == node)
            || drive.serial.as_deref() == Some(name)
    };
    let found: Vec<&Drive> = drives.iter().filter(named).collect();
    match found[..] {
        [one] => Ok(one),
        [] => Err(Error::new(Kind::NotFound, format!("there is no NVMe drive \"{name}\""))
            .remedy("name it by PCI address, /dev/nvmeXnY or serial; see millrace device list")),
        [..] => {
            let addresses: Vec<String> = found.iter().map(|d| d.address.to_string()).collect();
            let what = format!("\"{name}\" names several drives: {}", addresses.join(", "));
            Err(Error::usage(what).remedy("name it by its PCI address"))
        }
    }
}

/// The kernel's mark of this boot (Documentation/admin-guide/sysctl/kernel.rst, `random`).
fn boot_id(root: &Root) -> String {
    root.read("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}
