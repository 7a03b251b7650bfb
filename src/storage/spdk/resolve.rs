//! From the name of a drive to the controller and namespace that SPDK is to attach, with an error
//! that says what to do where the drive is not SPDK's to have.

use crate::error::{Error, Kind, Result};
use crate::host::Root;
use crate::host::block::BlockDevice;
use crate::host::pci::Address;
use crate::storage::{DriveName, Within};

/// What is to be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// The name as it was given.
    pub name: String,
    /// SPDK's transport id.
    pub trid: String,
    /// The PCI function, where it is one.
    pub pci: Option<Address>,
    /// Number of the namespace; `None` takes the first active one.
    pub namespace: Option<u32>,
    /// Number of the partition in it; `None` for all of it.
    pub partition: Option<u32>,
}

/// Drivers of the kernel that hand a function to user space.
const USERSPACE: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

/// Finds out what `at`, which is called `name`, stands for, and checks that its PCI function is
/// bound to a driver that SPDK can use it through. Reads /sys below `root`; touches no device.
///
/// # Errors
///
/// `Usage` for names that are none, or are another backend's; `NotFound`; `Busy` where the
/// kernel's driver has the drive, with the command that binds it.
pub(super) fn resolve(root: &Root, name: &str, at: &DriveName) -> Result<Target> {
    let target = |trid: String, pci, within: &Within| Target {
        name: name.to_owned(),
        trid,
        pci,
        namespace: within.namespace,
        partition: within.partition,
    };
    match at {
        DriveName::Pci(address, within) => {
            check_driver(root, name, *address)?;
            Ok(target(format!("trtype:PCIe traddr:{address}"), Some(*address), within))
        }
        DriveName::Transport(trid, within) => match pci_of(trid) {
            Some(address) => {
                let address = address.parse()?;
                check_driver(root, name, address)?;
                Ok(target(trid.clone(), Some(address), within))
            }
            None => Ok(target(trid.clone(), None, within)),
        },
        DriveName::Path(path) => {
            // A link of /dev/disk leads to it as well.
            let node = std::fs::canonicalize(root.path(path)).unwrap_or_else(|_| path.clone());
            let block = node
                .file_name()
                .and_then(|file| BlockDevice::by_name(root, &file.to_string_lossy()).ok());
            match block.and_then(|block| block.pci) {
                Some(address) => {
                    Err(bind(name, address, "the kernel's driver has it (it is a block device)"))
                }
                None => Err(Error::new(
                    Kind::NotFound,
                    format!("{name} is not an NVMe drive on the PCI bus, so SPDK cannot have it"),
                )
                .remedy(
                    "name the drive by its PCI address (millrace device list shows them), or use \
                     --backend uring",
                )),
            }
        }
        DriveName::Memory(_) => Err(Error::usage(format!("{name} is not a drive of SPDK's"))
            .remedy("use --backend mem for drives in memory")),
    }
}

/// The PCI address in a transport id of type PCIe.
fn pci_of(trid: &str) -> Option<String> {
    let value = |key: &str| {
        trid.split_ascii_whitespace().find_map(|word| {
            let (name, value) = word.split_once([':', '='])?;
            name.eq_ignore_ascii_case(key).then_some(value)
        })
    };
    value("trtype")?.eq_ignore_ascii_case("pcie").then(|| value("traddr").map(str::to_owned))?
}

fn bind(name: &str, address: Address, why: &str) -> Error {
    Error::new(Kind::Busy, format!("{name} cannot be used through SPDK: {why}"))
        .remedy(format!("millrace device bind {address}"))
}

fn check_driver(root: &Root, name: &str, address: Address) -> Result<()> {
    let device = format!("/sys/bus/pci/devices/{address}");
    if !root.exists(&device) {
        return Err(Error::new(Kind::NotFound, format!("no PCI function {address} ({name})"))
            .remedy("millrace device list shows the NVMe drives of this machine"));
    }
    // Class code 01 08 02: an NVM Express I/O controller.
    let class = root.read(format!("{device}/class")).unwrap_or_default();
    if !class.starts_with("0x0108") {
        return Err(Error::usage(format!("{address} is not an NVMe controller (class {class})"))
            .remedy("millrace device list shows the NVMe drives of this machine"));
    }
    let driver = root
        .link(format!("{device}/driver"))
        .ok()
        .and_then(|link| link.file_name().map(|file| file.to_string_lossy().into_owned()));
    match driver.as_deref() {
        Some(driver) if USERSPACE.contains(&driver) => check_group(root, name, address, driver),
        Some(driver) => Err(bind(name, address, &format!("it is bound to the driver {driver}"))),
        None => Err(bind(name, address, "it is bound to no driver")),
    }
}

/// Checks that this process may open the function's IOMMU group.
fn check_group(root: &Root, name: &str, address: Address, driver: &str) -> Result<()> {
    if driver != "vfio-pci" {
        return Ok(());
    }
    let link = root.link(format!("/sys/bus/pci/devices/{address}/iommu_group"));
    let Some(group) = link.ok().and_then(|l| l.file_name().map(|f| f.to_owned())) else {
        // Without an IOMMU vfio-pci works in its unsafe mode only, in which the group is made up.
        return Err(Error::new(
            Kind::Unsupported,
            format!("{name} is on vfio-pci, but in no IOMMU group"),
        )
        .remedy(
            "switch the IOMMU on (firmware, and intel_iommu=on or amd_iommu=on), \
             then run millrace doctor --for spdk",
        ));
    };
    let node = std::path::Path::new("/dev/vfio").join(&group);
    let open = std::fs::OpenOptions::new().read(true).write(true).open(root.path(&node));
    match open {
        Ok(_) => Ok(()),
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Err(Error::new(
            Kind::Busy,
            format!("the IOMMU group of {name} ({}) is open in another process", node.display()),
        )
        .remedy(format!("end that process: fuser -v {}", node.display()))
        .caused_by(e)),
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(Error::new(Kind::Denied, format!("no permission for {} ({name})", node.display()))
                .remedy(format!("run as root, or: chown $USER {}", node.display()))
                .caused_by(e))
        }
        Err(e) => Err(Error::new(Kind::Device, format!("cannot open {}", node.display()))
            .remedy("millrace doctor --for spdk checks modules and groups")
            .caused_by(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the storage does it.
    fn resolve(root: &Root, name: &str) -> Result<Target> {
        super::resolve(root, name, &name.parse()?)
    }

    fn tree(driver: Option<&str>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("sys/bus/pci/devices/0000:5e:00.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::create_dir_all(dir.path().join("dev/vfio")).unwrap();
        std::fs::write(device.join("class"), "0x010802\n").unwrap();
        std::fs::write(dir.path().join("dev/vfio/7"), "").unwrap();
        std::os::unix::fs::symlink("../../../kernel/iommu_groups/7", device.join("iommu_group"))
            .unwrap();
        if let Some(driver) = driver {
            let link = format!("../../../bus/pci/drivers/{driver}");
            std::os::unix::fs::symlink(link, device.join("driver")).unwrap();
        }
        dir
    }

    #[test]
    fn a_bound_function_is_found_with_its_namespace() {
        let dir = tree(Some("vfio-pci"));
        let target = resolve(&Root::at(dir.path()), "5e:00.0 ns:3 part:2").unwrap();
        assert_eq!(target.trid, "trtype:PCIe traddr:0000:5e:00.0");
        assert_eq!((target.namespace, target.partition), (Some(3), Some(2)));
        let target =
            resolve(&Root::at(dir.path()), "trtype:PCIe traddr:0000:5e:00.0 ns:1").unwrap();
        assert_eq!(target.pci.unwrap().bus, 0x5e);
    }

    #[test]
    fn the_kernels_drive_names_the_command_that_binds_it() {
        for (driver, word) in [(Some("nvme"), "driver nvme"), (None, "no driver")] {
            let dir = tree(driver);
            let error = resolve(&Root::at(dir.path()), "0000:5e:00.0").unwrap_err();
            assert_eq!(error.kind(), Kind::Busy);
            assert!(error.what().contains(word), "{error}");
            assert_eq!(error.remedy_text(), Some("millrace device bind 0000:5e:00.0"));
        }
    }

    #[test]
    fn other_names_are_explained() {
        let dir = tree(Some("vfio-pci"));
        let root = Root::at(dir.path());
        for (name, word) in [
            ("0000:5f:00.0", "no PCI function"),
            ("mem:1MiB", "--backend mem"),
            ("/dev/loop0", "--backend uring"),
            ("0000:5e:00.0 ns:0", "ns:1"),
            ("trtype:TCP", "traddr"),
        ] {
            let error = resolve(&root, name).expect_err(name);
            assert!(error.report().contains(word), "{name}: {}", error.report());
        }
        let id = "trtype:VFIOUSER traddr:/run/x subnqn:nqn.2026-01.io:y";
        let target = resolve(&root, &format!("{id} ns:2")).unwrap();
        assert_eq!((target.trid.as_str(), target.namespace, target.pci), (id, Some(2), None));
    }
}
