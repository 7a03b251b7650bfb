//! Block devices as /sys shows them: Documentation/ABI/stable/sysfs-block of the kernel, and the
//! links of drivers/nvme/host/{pci,multipath}.c.

use std::path::PathBuf;

use super::Root;
use super::pci::Address;
use crate::error::{Context, Error, Kind, Result};

/// A block device or partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockDevice {
    /// The kernel's name: `nvme0n1`, `nvme0n1p2`, `loop0`.
    pub name: String,
    /// Name of the whole disk: the same where this is not a partition.
    pub disk: String,
    /// Where it starts on the disk, in bytes.
    pub start: u64,
    /// Alignment in bytes that the address of a buffer needs; `None` on kernels that do not say
    /// (before 6.0).
    pub memory_align: Option<u32>,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Largest request in bytes that the kernel sends to the drive.
    pub max_transfer: Option<u64>,
    /// Serial number.
    pub serial: Option<String>,
    /// Model.
    pub model: Option<String>,
    /// NUMA node.
    pub node: Option<u32>,
    /// PCI address of the controller.
    pub pci: Option<Address>,
}

impl BlockDevice {
    /// The device with this number (`st_rdev` of its node, or `st_dev` of a file on it).
    ///
    /// # Errors
    ///
    /// `NotFound` where no block device has it.
    pub fn by_number(root: &Root, major: u32, minor: u32) -> Result<Self> {
        Self::at(root, &format!("/sys/dev/block/{major}:{minor}"))
    }

    /// The device called `name`.
    ///
    /// # Errors
    ///
    /// `NotFound` where there is none.
    pub fn by_name(root: &Root, name: &str) -> Result<Self> {
        Self::at(root, &format!("/sys/class/block/{name}"))
    }

    fn at(root: &Root, link: &str) -> Result<Self> {
        let folder = real(root, link)?;
        let name = last(&folder);
        // A partition's folder lies in that of its disk.
        let partition = folder.join("partition").exists();
        let disk_folder =
            if partition { folder.parent().unwrap_or(&folder).to_owned() } else { folder };
        let disk = last(&disk_folder);
        let start = if partition {
            // The kernel counts in 512 bytes here, whatever the logical block size is.
            root.read_number(format!("/sys/class/block/{name}/start"))? * 512
        } else {
            0
        };
        let sys = format!("/sys/class/block/{disk}");
        let number = |file: &str| root.read_number(format!("{sys}/{file}")).ok();
        let text = |file: &str| {
            let text = root.read(format!("{sys}/{file}")).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        // nvme has these on the controller, SCSI on the device, virtio its serial on the disk.
        let serial = text("device/serial").or_else(|| text("serial"));
        let model = text("device/model");
        let node = ["device/numa_node", "device/device/numa_node"]
            .iter()
            .find_map(|file| text(file)?.parse().ok());
        let block_size = root.read_number(format!("{sys}/queue/logical_block_size"))? as u32;
        Ok(Self {
            start,
            memory_align: number("queue/dma_alignment").map(|mask| mask as u32 + 1),
            block_size,
            max_transfer: number("queue/max_sectors_kb").map(|kib| kib << 10),
            serial,
            model,
            node,
            pci: pci_of(&real(root, &sys)?),
            name,
            disk,
        })
    }

    /// Devices that this one is made of (dm, md, bcache): empty for a real drive.
    pub fn slaves(&self, root: &Root) -> Vec<String> {
        root.list(format!("/sys/class/block/{}/slaves", self.name)).unwrap_or_default()
    }

    /// Devices made of this one, or of its whole disk.
    pub fn holders(&self, root: &Root) -> Vec<String> {
        let mut holders =
            root.list(format!("/sys/class/block/{}/holders", self.name)).unwrap_or_default();
        if self.disk != self.name {
            holders.extend(
                root.list(format!("/sys/class/block/{}/holders", self.disk)).unwrap_or_default(),
            );
        }
        holders
    }

    /// Checks that completions of this device are truly polled for, not just spun on until an
    /// interrupt comes.
    ///
    /// # Errors
    ///
    /// `Unsupported`, with the reason and the remedy.
    pub fn check_polling(&self, root: &Root) -> Result<()> {
        let (disk, name) = (&self.disk, &self.name);
        let refuse = |what: String| Error::new(Kind::Unsupported, what);
        let below = self.slaves(root);
        if !below.is_empty() {
            return Err(refuse(format!("{name} is stacked on {}", below.join(", ")))
                .remedy("name the drive itself, or use --iopoll off"));
        }
        let above = self.holders(root);
        if !above.is_empty() {
            return Err(refuse(format!("{name} is part of {}", above.join(", ")))
                .remedy("use a drive that is in no array or volume, or --iopoll off"));
        }
        let poll = root.read(format!("/sys/class/block/{disk}/queue/io_poll")).unwrap_or_default();
        let nvme = disk.starts_with("nvme");
        let queues = root.read("/sys/module/nvme/parameters/poll_queues").unwrap_or_default();
        if nvme && queues.parse::<u32>().unwrap_or(0) == 0 {
            return Err(refuse(format!("{disk} has no poll queues")).remedy(
                "load the driver with some: options nvme poll_queues=4 in /etc/modprobe.d, or \
                 nvme.poll_queues=4 on the kernel's command line; then reboot; or use --iopoll off",
            ));
        }
        if poll != "1" {
            let file = format!("/sys/block/{disk}/queue/io_poll");
            let what = format!("{disk} does not poll for completions: {file} is \"{poll}\"");
            return Err(refuse(what).remedy(if nvme {
                // The number of poll queues is read when a controller is set up.
                "rescan the drive, so that the driver's poll_queues takes effect: reboot; \
                 or use --iopoll off"
            } else {
                "use --iopoll off: the driver of this device has no poll queues"
            }));
        }
        Ok(())
    }
}

/// What stands behind the PCI address of an NVMe controller: the disk of the namespace with this
/// number, or of the only one.
///
/// # Errors
///
/// `NotFound` without such a function or without that namespace; `Busy` where another driver than
/// the kernel's has it; `Usage` where it has several namespaces to choose from, with their names.
pub fn of_pci(root: &Root, address: Address, wanted: Option<u32>) -> Result<String> {
    let folder = format!("/sys/bus/pci/devices/{address}");
    if !root.exists(&folder) {
        return Err(no_function(address));
    }
    let driver = root.link(format!("{folder}/driver")).ok();
    match driver.as_deref().map(last).as_deref() {
        Some("nvme") => {}
        other => return Err(elsewhere(address, other)),
    }
    let mut disks = Vec::new();
    for controller in root.list(format!("{folder}/nvme")).unwrap_or_default() {
        for entry in root.list(format!("{folder}/nvme/{controller}")).unwrap_or_default() {
            disks.extend(namespace(&entry));
        }
    }
    disks.sort();
    if let Some(wanted) = wanted {
        let found = disks.iter().find(|disk| namespace_id(root, disk) == Some(wanted));
        return found.cloned().ok_or_else(|| {
            let ids: Vec<_> = disks.iter().filter_map(|disk| namespace_id(root, disk)).collect();
            Error::new(
                Kind::NotFound,
                format!("{address} has no namespace {wanted}; active are {ids:?}"),
            )
            .remedy("choose one with ns:N after the address")
        });
    }
    match disks.as_slice() {
        [disk] => Ok(disk.clone()),
        [] => Err(Error::new(Kind::NotFound, format!("{address} has no namespace"))
            .remedy("`nvme list-ns --all` shows what it has; attach or create one first")),
        several => Err(Error::usage(format!(
            "{address} has {} namespaces: {}",
            several.len(),
            several.join(", ")
        ))
        .remedy(format!("name one of them, such as /dev/{}", several[0]))),
    }
}

/// The error of an address without a PCI function.
pub fn no_function(address: Address) -> Error {
    Error::new(Kind::NotFound, format!("there is no PCI device {address}"))
        .remedy("`millrace device list` shows the drives, `lspci -D` all devices")
}

/// The error of a path without a drive.
pub fn no_drive(path: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no drive {path}"))
        .remedy("`millrace device list` shows the drives, and which driver has them")
}

/// The error of a drive that another driver than the kernel's has, or none.
pub fn elsewhere(address: Address, driver: Option<&str>) -> Error {
    match driver {
        Some(other) => Error::new(
            Kind::Busy,
            format!("{address} is bound to {other}, so the kernel has no block device of it"),
        )
        .remedy(format!("millrace device restore {address}; or use --backend spdk")),
        None => Error::new(Kind::NotFound, format!("{address} is bound to no driver"))
            .remedy(format!("millrace device restore {address}")),
    }
}

/// The block device of an entry in a controller's folder. `nvme0c1n2` is the path through
/// controller 1 to namespace 2 of subsystem 0, whose block device is `nvme0n2`.
fn namespace(entry: &str) -> Option<String> {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (head, namespace) = entry.strip_prefix("nvme")?.rsplit_once('n')?;
    let subsystem = head.split_once('c').map_or(head, |(subsystem, _)| subsystem);
    (number(subsystem) && number(namespace)).then(|| format!("nvme{subsystem}n{namespace}"))
}

/// The head of a path of native multipath: `nvme0n2` of `nvme0c1n2`; `None` for other names.
pub fn head_of_path(name: &str) -> Option<String> {
    let (controller, _) = name.strip_prefix("nvme")?.rsplit_once('n')?;
    controller.contains('c').then(|| namespace(name)).flatten()
}

/// Number that the controller knows the namespace of a disk by. The number in the disk's name is
/// only the kernel's count, though mostly the same.
pub fn namespace_id(root: &Root, disk: &str) -> Option<u32> {
    root.read(format!("/sys/class/block/{disk}/nsid")).ok()?.parse().ok()
}

/// Name of the block device of partition `number` of a disk.
///
/// # Errors
///
/// `NotFound` where the kernel has none of that number, with those that it has.
pub fn partition(root: &Root, disk: &str, number: u32) -> Result<String> {
    let folder = format!("/sys/class/block/{disk}");
    let mut numbers = Vec::new();
    for entry in root.list(&folder)? {
        let Ok(found) = root.read_number(format!("{folder}/{entry}/partition")) else { continue };
        if found == u64::from(number) {
            return Ok(entry);
        }
        numbers.push(found);
    }
    numbers.sort_unstable();
    let what = format!("the kernel has no partition {number} of {disk}; it has {numbers:?}");
    Err(Error::new(Kind::NotFound, what).remedy(format!(
        "choose another; or, where the drive has it, let the kernel look again: \
         partx --update /dev/{disk}"
    )))
}

/// The PCI function nearest to a device in its path below /sys/devices.
fn pci_of(folder: &std::path::Path) -> Option<Address> {
    folder.components().rev().find_map(|part| part.as_os_str().to_str()?.parse().ok())
}

fn real(root: &Root, path: &str) -> Result<PathBuf> {
    std::fs::canonicalize(root.path(path)).context(|| format!("no block device at {path}"))
}

fn last(path: &std::path::Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
