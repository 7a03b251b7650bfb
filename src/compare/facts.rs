//! What decides whether a comparison is fair: read around each run.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

use super::stats::Random;
use crate::host::Root;
use crate::host::block::BlockDevice;
use crate::host::fact::Fact;
use crate::host::pci::{self, Address, Link};
use crate::host::{iommu, numa};

/// Facts about one run: of its time, and of the host around it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunFacts {
    /// Seconds since 1970 at its start.
    pub started: f64,
    /// NUMA nodes of the workers' CPUs.
    pub core_nodes: Vec<usize>,
    /// NUMA node that the memory was asked to be on, where one was named.
    pub memory_node: Option<usize>,
    /// By drive.
    pub drives: Vec<DriveFacts>,
    /// Bytes per second of all RDMA ports together, where there are any.
    pub nic_bytes_per_sec: Option<f64>,
    /// Load average over a minute, before and after.
    pub load_average: (Option<f64>, Option<f64>),
}

/// One drive during a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DriveFacts {
    /// Name on the command line.
    pub name: String,
    /// PCI address.
    pub address: Option<String>,
    /// NUMA node.
    pub node: Option<usize>,
    /// Type of its IOMMU domain, in the kernel's words: `identity`, `DMA-FQ`, `DMA`; of the
    /// kernel's driver only.
    pub iommu: Option<String>,
    /// Bytes per second that its link carries as it runs now, under load.
    pub link_now: Option<f64>,
    /// And at best.
    pub link_best: Option<f64>,
    /// Both in words.
    pub link: Option<String>,
}

/// Payload of a link in bytes per second: rate by lanes, less the encoding (8b/10b up to 5 GT/s,
/// 128b/130b above), less 12 % for headers and flow control of 256-byte packets (PCI Express Base
/// Specification 5.0, 2.2 and 4.2).
pub fn link_bytes(link: Link) -> f64 {
    let encoding = if link.gigatransfers > 5.0 { 128.0 / 130.0 } else { 0.8 };
    link.gigatransfers * 1e9 / 8.0 * f64::from(link.width) * encoding * 0.88
}

/// Where a drive is on the PCI bus; `None` for files on nothing, memory and SPDK transports.
pub fn address_of(root: &Root, name: &str) -> Option<Address> {
    if let Ok(address) = name.split(' ').next()?.parse() {
        return Some(address);
    }
    device_of(root, name)?.pci
}

fn device_of(root: &Root, name: &str) -> Option<BlockDevice> {
    let node = std::fs::canonicalize(root.path(name)).ok()?;
    BlockDevice::by_name(root, node.file_name()?.to_str()?).ok()
}

/// The parts of [`RunFacts`] that hold for a drive now.
pub fn drive(root: &Root, name: &str, address: Option<Address>) -> DriveFacts {
    let mut facts = DriveFacts { name: name.to_owned(), ..DriveFacts::default() };
    facts.node = device_of(root, name).and_then(|device| device.node).map(|node| node as usize);
    let Some(address) = address else { return facts };
    facts.address = Some(address.to_string());
    facts.node = pci::numa_node(root, address).map(|node| node as usize);
    let group = iommu::group(root, address);
    facts.iommu = group.and_then(|group| {
        Fact::text(root, format!("/sys/kernel/iommu_groups/{group}/type")).get().cloned()
    });
    let (now, best) = (pci::link_now(root, address), pci::link_best(root, address));
    facts.link_now = now.map(link_bytes);
    facts.link_best = best.map(link_bytes);
    facts.link = now.zip(best).map(|(now, best)| format!("{now} of {best}"));
    facts
}

/// Nodes of CPUs.
pub fn nodes_of(root: &Root, cpus: &[usize]) -> Vec<usize> {
    let nodes = numa::nodes(root);
    let mut found: Vec<usize> = nodes
        .get()
        .into_iter()
        .flatten()
        .filter(|node| node.cpus.get().is_some_and(|own| own.iter().any(|c| cpus.contains(c))))
        .map(|node| node.number)
        .collect();
    found.dedup();
    found
}

/// The rates of all RDMA ports in bytes per second: "100 Gb/sec (4X EDR)". A soft-RoCE device has
/// one too, which is not its own, so it does not count.
pub fn nic_bytes(root: &Root) -> Option<f64> {
    const CLASS: &str = "/sys/class/infiniband";
    let mut sum = None;
    for device in root.list(CLASS).unwrap_or_default() {
        if device.starts_with("rxe") || device.starts_with("siw") {
            continue;
        }
        for port in root.list(format!("{CLASS}/{device}/ports")).unwrap_or_default() {
            let rate = root.read(format!("{CLASS}/{device}/ports/{port}/rate")).ok();
            let gigabits = rate.as_deref().and_then(|text| text.split(' ').next()?.parse().ok());
            if let Some(gigabits) = gigabits {
                let gigabits: f64 = gigabits;
                *sum.get_or_insert(0.0) += gigabits * 1e9 / 8.0;
            }
        }
    }
    sum
}

/// Load average over a minute.
pub fn load_average(root: &Root) -> Option<f64> {
    root.read("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Places that [`zeros`] looks at, over all drives.
pub const PLACES: usize = 64;

/// How many of [`PLACES`] random places of the drives hold nothing but zeros: a drive that was
/// never written answers from no flash, faster than it ever reads. `None` where a drive cannot be
/// read through the kernel.
pub fn zeros(names: &[String], seed: u64) -> Option<usize> {
    const BLOCK: u64 = 4096;
    let mut random = Random(seed);
    let mut zeros = 0;
    for number in 0..PLACES {
        let name = &names[number % names.len()];
        let file = std::fs::File::open(name).ok()?;
        let size = std::io::Seek::seek(&mut &file, std::io::SeekFrom::End(0)).ok()?;
        let blocks = usize::try_from(size / BLOCK).ok().filter(|blocks| *blocks > 0)?;
        let mut block = [0u8; BLOCK as usize];
        file.read_exact_at(&mut block, random.below(blocks) as u64 * BLOCK).ok()?;
        zeros += usize::from(block.iter().all(|byte| *byte == 0));
    }
    Some(zeros)
}

/// Serials by drive, for the report.
pub fn serials(root: &Root, names: &[String]) -> BTreeMap<String, Option<String>> {
    names
        .iter()
        .map(|name| (name.clone(), device_of(root, name).and_then(|device| device.serial)))
        .collect()
}
