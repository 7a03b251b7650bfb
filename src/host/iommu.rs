//! The IOMMU as it really is, not as the kernel's command line asks for it: groups in
//! /sys/kernel/iommu_groups (Documentation/ABI/testing/sysfs-kernel-iommu_groups) and the modules
//! of VFIO.

use serde::Serialize;

use super::Root;
use super::pci::{self, Address};
use crate::error::{Error, Kind};

/// A function that shares an IOMMU group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its address.
    pub address: Address,
    /// Its class code.
    pub class: u32,
    /// Its driver now.
    pub driver: Option<String>,
}

impl Peer {
    /// True where the group can be given to userspace with this member as it is
    /// (Documentation/driver-api/vfio.rst: bridges, functions without a driver, and those on a VFIO
    /// driver or pci-stub).
    pub fn is_viable(&self) -> bool {
        let driver = self.driver.as_deref();
        pci::is_bridge(self.class) || matches!(driver, None | Some("vfio-pci" | "pci-stub"))
    }
}

/// True where the kernel has put at least one device behind an IOMMU.
pub fn is_on(root: &Root) -> bool {
    root.list("/sys/kernel/iommu_groups").is_ok_and(|groups| !groups.is_empty())
}

/// Number of the group that the function is in.
pub fn group(root: &Root, address: Address) -> Option<u32> {
    let link = root.link(format!("{}/iommu_group", pci::dir(address))).ok()?;
    link.file_name()?.to_str()?.parse().ok()
}

/// True for a group that VFIO made up for a device without an IOMMU.
pub fn is_noiommu(root: &Root, group: u32) -> bool {
    root.read(format!("/sys/kernel/iommu_groups/{group}/name")).is_ok_and(|n| n == "vfio-noiommu")
}

/// True where VFIO would take devices without an IOMMU (its parameter
/// `enable_unsafe_noiommu_mode`).
pub fn noiommu_allowed(root: &Root) -> bool {
    let parameter = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
    root.read(parameter).is_ok_and(|value| value == "Y")
}

/// The other members of the function's group, sorted by address.
pub fn peers(root: &Root, address: Address) -> Vec<Peer> {
    let Some(group) = group(root, address) else { return Vec::new() };
    let names = root.list(format!("/sys/kernel/iommu_groups/{group}/devices")).unwrap_or_default();
    let mut members: Vec<Address> = names.iter().filter_map(|name| name.parse().ok()).collect();
    members.sort();
    members.retain(|member| *member != address);
    members
        .into_iter()
        .map(|address| Peer {
            address,
            class: pci::class(root, address).unwrap_or(0),
            driver: pci::driver(root, address),
        })
        .collect()
}

/// Maker of the processors, as /proc/cpuinfo says it.
pub fn cpu_vendor(root: &Root) -> Option<String> {
    let text = root.read("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("vendor_id"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// How to switch the IOMMU on, for processors of this maker.
pub fn remedy(vendor: Option<&str>) -> &'static str {
    let cpus = vendor.unwrap_or_default();
    if cpus.contains("GenuineIntel") {
        "switch VT-d on in the firmware, add intel_iommu=on to the kernel's command line and \
         reboot; then ls /sys/kernel/iommu_groups must not be empty"
    } else if cpus.contains("AuthenticAMD") {
        "switch IOMMU (AMD-Vi) on in the firmware, remove amd_iommu=off from the kernel's command \
         line and reboot; then ls /sys/kernel/iommu_groups must not be empty"
    } else {
        "switch the IOMMU (SMMU) on in the firmware and reboot; then ls /sys/kernel/iommu_groups \
         must not be empty"
    }
}

/// The error of a machine without an IOMMU.
pub fn off(vendor: Option<&str>) -> Error {
    Error::new(Kind::Unsupported, "the IOMMU is off: /sys/kernel/iommu_groups is empty")
        .remedy(remedy(vendor))
}

/// The error of a function in no group, on a machine that has some.
pub fn no_group(address: Address) -> Error {
    let what = format!("{address} is in no IOMMU group, though this machine has some");
    Error::new(Kind::Unsupported, what).remedy(
        "move the drive to a slot behind the IOMMU, or leave it to the kernel's driver (--backend \
         uring)",
    )
}

/// The error of a VFIO that would do without an IOMMU.
pub fn noiommu(vendor: Option<&str>) -> Error {
    Error::new(
        Kind::Unsupported,
        "VFIO is in no-IOMMU mode, in which the drive could write anywhere in memory: millrace \
         does not use it",
    )
    .remedy(format!(
        "echo N > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode; {}",
        remedy(vendor)
    ))
}

/// The error of a group that cannot go to userspace as a whole: of its first member that stays.
pub fn not_viable(group: u32, address: Address, peer: &Peer) -> Error {
    let driver = peer.driver.as_deref().unwrap_or("no driver");
    let what = format!(
        "IOMMU group {group} is not viable: its member {} (class {:06x}) has the driver {driver}",
        peer.address, peer.class
    );
    Error::new(Kind::Busy, what).remedy(match driver {
        "nvme" => {
            format!("name that drive too: millrace device bind {address} {}", peer.address)
        }
        _ => format!(
            "if nobody needs it: echo {0} > /sys/bus/pci/drivers/{driver}/unbind; or move the \
             drive to a slot with a group of its own",
            peer.address
        ),
    })
}

/// Kernel lockdown as the kernel says it: `none`, `integrity`, `confidentiality`; `None` where the
/// kernel has no lockdown or securityfs is not mounted.
pub fn lockdown(root: &Root) -> Option<String> {
    let text = root.read("/sys/kernel/security/lockdown").ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}
