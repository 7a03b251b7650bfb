//! NVMe controllers under the kernel's driver: who they are and which block devices they carry
//! (/sys/bus/pci/devices/ADDRESS/nvme).

use super::Root;
use super::block;
use super::pci::{self, Address};

/// A controller that the kernel's nvme driver has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// `nvme0`.
    pub name: String,
    /// Serial number without the padding; `None` until the driver has read it.
    pub serial: Option<String>,
    /// Model without the padding.
    pub model: String,
    /// Block devices of its namespaces, sorted by name; under native multipath the head device.
    pub namespaces: Vec<Disk>,
}

/// A namespace's block device.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Disk {
    /// `nvme0n1`.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Names of its partitions, sorted.
    pub partitions: Vec<String>,
    /// Number that the controller knows the namespace by, where the kernel tells it.
    #[serde(default)]
    pub nsid: Option<u32>,
}

impl Disk {
    /// Its name and those of its partitions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.partitions.iter().map(String::as_str))
    }
}

/// The controller at `address`, if the kernel's driver has it and it is far enough to name itself.
pub fn controller(root: &Root, address: Address) -> Option<Controller> {
    let folder = format!("{}/nvme", pci::dir(address));
    let name = root.list(&folder).ok()?.into_iter().find(|n| instance(n).is_some())?;
    let entries = root.list(format!("{folder}/{name}")).ok()?;
    let read = |what: &str| root.read(format!("{folder}/{name}/{what}")).unwrap_or_default();
    let mut heads: Vec<String> = entries.iter().filter_map(|entry| head(entry)).collect();
    heads.sort();
    heads.dedup();
    let namespaces = heads.into_iter().filter_map(|name| disk(root, name)).collect();
    Some(Controller {
        serial: serial(&read("serial")),
        model: read("model").trim().to_owned(),
        name,
        namespaces,
    })
}

/// Before the driver has identified the controller, the kernel formats a string that it does not
/// have yet, as `(efault)` or `(null)`: seen on 6.1 for some milliseconds after a probe.
fn serial(text: &str) -> Option<String> {
    let text = text.trim();
    (!matches!(text, "(efault)" | "(null)")).then(|| text.to_owned())
}

/// The disk of this name with its partitions.
pub fn disk(root: &Root, name: String) -> Option<Disk> {
    let folder = format!("/sys/block/{name}");
    let sectors = root.read_number(format!("{folder}/size")).ok()?;
    let mut partitions = root.list(&folder).ok()?;
    partitions.retain(|entry| root.exists(format!("{folder}/{entry}/partition")));
    // The unit of this file is 512 bytes whatever the block size (Documentation/ABI/stable/
    // sysfs-block).
    let nsid = block::namespace_id(root, &name);
    Some(Disk { name, size: sectors * 512, partitions, nsid })
}

/// N of `nvmeN`.
fn instance(name: &str) -> Option<u32> {
    name.strip_prefix("nvme")?.parse().ok()
}

/// The block device to use for an entry of a controller's folder: `nvme0n1` is itself; a path
/// device of native multipath `nvme0c1n1` is hidden and stands for its head `nvme0n1`.
fn head(entry: &str) -> Option<String> {
    let (rest, namespace) = entry.strip_prefix("nvme")?.rsplit_once('n')?;
    let subsystem = rest.split_once('c').map_or(rest, |(subsystem, _)| subsystem);
    let number = |text: &str| text.parse::<u32>().ok();
    Some(format!("nvme{}n{}", number(subsystem)?, number(namespace)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_that_is_not_read_yet_is_none() {
        assert_eq!(serial("mill0               \n").as_deref(), Some("mill0"));
        assert_eq!(serial("(efault)            "), None);
    }

    #[test]
    fn path_devices_lead_to_their_head() {
        assert_eq!(head("nvme0n1").as_deref(), Some("nvme0n1"));
        assert_eq!(head("nvme2c5n31").as_deref(), Some("nvme2n31"));
        for other in ["ng0n1", "nvme0", "hwmon1", "nvme0n1p1", "numa_node"] {
            assert_eq!(head(other), None, "{other}");
        }
    }
}
