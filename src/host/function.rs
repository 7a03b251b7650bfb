//! A PCI function with all that decides how fast it can be: node, link and the ports above it,
//! errors, IOMMU, interrupts, power.

use serde::Serialize;

use super::Root;
use super::aer;
use super::fact::{Fact, why};
use super::interrupts::{self, Interrupt, Table};
use super::iommu::{self, Peer};
use super::pci::{self, Address, Link};

/// A port above a function: a root port, or a port of a switch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Port {
    /// Its address.
    pub address: Address,
    /// The best that it can do.
    pub best: Fact<Link>,
    /// What it does now.
    pub now: Fact<Link>,
    /// Errors that were mended, since boot.
    pub correctable: Fact<u64>,
}

/// A PCI function.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Function {
    /// Its address.
    pub address: Address,
    /// Vendor id.
    pub vendor: Fact<u64>,
    /// Its driver; absent where it has none.
    pub driver: Fact<String>,
    /// The only driver that it may have, where somebody has set one.
    pub driver_override: Fact<Option<String>>,
    /// NUMA node; -1 where the firmware names none.
    pub node: Fact<i64>,
    /// True where it is suspended: then its link is not read, which would wake it.
    pub asleep: bool,
    /// `on`, or `auto` where it may be suspended.
    pub power_control: Fact<String>,
    /// Its link now. An idle link may have been slowed down.
    pub link: Fact<Link>,
    /// The best that its end of the link can do.
    pub best: Fact<Link>,
    /// 1 where its link may go to the state L1.
    pub l1: Fact<u64>,
    /// The ports above it, nearest first.
    pub ports: Vec<Port>,
    /// Errors of its end of the link since boot, mended by a repeat.
    pub correctable: Fact<u64>,
    /// Errors that lost a transaction.
    pub nonfatal: Fact<u64>,
    /// Errors that lost the link.
    pub fatal: Fact<u64>,
    /// IOMMU group; absent without an IOMMU.
    pub group: Option<u32>,
    /// Type of the group's domain: `identity`, `DMA` (strict), `DMA-FQ` (lazy), `unmanaged`.
    pub domain: Fact<String>,
    /// The other members of the group.
    pub peers: Vec<Peer>,
    /// Bits of an address that it can reach.
    pub dma_bits: Fact<u64>,
    /// Address width in bits of the IOMMU above it.
    pub iommu_bits: Fact<u64>,
    /// Its message interrupts.
    pub interrupts: Vec<Interrupt>,
}

impl Function {
    /// Reads the function at `address`; `None` where there is none.
    pub fn read(root: &Root, address: Address, table: &Fact<Table>) -> Option<Self> {
        let folder = pci::dir(address);
        if !root.exists(&folder) {
            return None;
        }
        let file = |name: &str| format!("{folder}/{name}");
        let asleep = pci::is_asleep(root, address);
        let group = iommu::group(root, address);
        let path = file("driver");
        Some(Self {
            address,
            vendor: hex(root, file("vendor")),
            driver: match root.link(&path) {
                Ok(link) => match link.file_name() {
                    Some(name) => Fact::known(path, name.to_string_lossy().into_owned()),
                    None => Fact::failed(path, "the link has no end"),
                },
                Err(e) => Fact { path, value: Err(why(&e)) },
            },
            driver_override: Fact::parse(root, file("driver_override"), |text| {
                let name = text.trim();
                Some((!matches!(name, "" | "(null)")).then(|| name.to_owned()))
            }),
            node: Fact::parse(root, file("numa_node"), |text| text.trim().parse().ok()),
            asleep,
            power_control: Fact::text(root, file("power/control")),
            link: match asleep {
                true => Fact::absent(file("current_link_width")),
                false => link(root, address, "current"),
            },
            best: link(root, address, "max"),
            l1: Fact::number(root, file("link/l1_aspm")),
            ports: ports(root, address),
            correctable: aer::correctable(root, address),
            nonfatal: aer::nonfatal(root, address),
            fatal: aer::fatal(root, address),
            group,
            domain: match group {
                Some(n) => Fact::text(root, format!("/sys/kernel/iommu_groups/{n}/type")),
                None => Fact::absent(file("iommu_group")),
            },
            peers: iommu::peers(root, address),
            dma_bits: Fact::number(root, file("dma_mask_bits")),
            iommu_bits: iommu_bits(root, &folder),
            interrupts: interrupts::of_function(root, address, table),
        })
    }

    /// The best that both ends of its link can do; `None` where either is unknown.
    pub fn possible(&self) -> Option<Link> {
        let own = self.best.copied()?;
        Some(match self.ports.first().and_then(|port| port.best.copied()) {
            Some(port) => own.least(port),
            None => own,
        })
    }
}

fn hex(root: &Root, path: String) -> Fact<u64> {
    Fact::parse(root, path, |text| {
        u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    })
}

/// The link's state with the file of its width. "Unknown", and width 0, is a function without a
/// link, such as one that is emulated.
fn link(root: &Root, address: Address, which: &str) -> Fact<Link> {
    let folder = pci::dir(address);
    let speed = Fact::text(root, format!("{folder}/{which}_link_speed"));
    let width = Fact::number(root, format!("{folder}/{which}_link_width"));
    let path = width.path.clone();
    if let Some(why) = speed.why_unread() {
        return Fact::failed(speed.path, why);
    }
    let width = match width.value {
        Ok(width) => width,
        Err(value) => return Fact { path, value: Err(value) },
    };
    let Some(speed) = speed.get() else { return Fact::absent(path) };
    // "8.0 GT/s PCIe".
    let rate = speed.split_whitespace().next().and_then(|word| word.parse().ok());
    match (rate, width) {
        (Some(gigatransfers), 1..64) => {
            Fact::known(path, Link { gigatransfers, width: width as u32 })
        }
        _ => Fact::absent(path),
    }
}

fn ports(root: &Root, address: Address) -> Vec<Port> {
    let mut ports = Vec::new();
    let mut below = address;
    // A real hierarchy is a few levels deep; the bound is against a tree that is none.
    while let Some(address) = pci::upstream(root, below).filter(|_| ports.len() < 16) {
        ports.push(Port {
            address,
            best: link(root, address, "max"),
            now: match pci::is_asleep(root, address) {
                true => Fact::absent(format!("{}/current_link_width", pci::dir(address))),
                false => link(root, address, "current"),
            },
            correctable: aer::correctable(root, address),
        });
        below = address;
    }
    ports
}

/// Width of the addresses that the IOMMU above a function translates. Intel's units tell it in
/// their capability register (Intel VT-d specification, 11.4.2: SAGAW, bits 12:8): 39, 48 or 57
/// bits. AMD's page tables grow to 64 bits, and their units tell nothing of the kind.
fn iommu_bits(root: &Root, folder: &str) -> Fact<u64> {
    let capability = hex(root, format!("{folder}/iommu/intel-iommu/cap"));
    capability.and_then(|cap| {
        let supported = cap >> 8 & 0x1F;
        [(3, 57), (2, 48), (1, 39)]
            .into_iter()
            .find_map(|(bit, width)| (supported >> bit & 1 == 1).then_some(width))
    })
}
