//! The IOMMU as it really is, not as the kernel's command line asks for it: groups in
//! /sys/kernel/iommu_groups (Documentation/ABI/testing/sysfs-kernel-iommu_groups) and the modules
//! of VFIO.

use serde::Serialize;

use super::Root;
use super::pci::{self, Address};

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

/// How to switch the IOMMU on, for this machine's processor.
pub fn remedy(root: &Root) -> &'static str {
    let cpus = root.read("/proc/cpuinfo").unwrap_or_default();
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

/// Kernel lockdown as the kernel says it: `none`, `integrity`, `confidentiality`; `None` where the
/// kernel has no lockdown or securityfs is not mounted.
pub fn lockdown(root: &Root) -> Option<String> {
    let text = root.read("/sys/kernel/security/lockdown").ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}
