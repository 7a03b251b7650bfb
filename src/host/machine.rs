//! All facts of a machine that do not depend on which drives are meant.

use serde::Serialize;

use super::Root;
use super::cpu::Cpus;
use super::fact::Fact;
use super::interrupts::Table;
use super::nic::{self, Nic};
use super::numa::{self, Node};
use super::process::Process;
use super::rdma;
use super::system::{Kernel, Memory, Platform};
use super::uring::{Probe, Uring};
use super::vfio::Vfio;

/// A machine, as one process sees it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// The kernel.
    pub kernel: Kernel,
    /// What it runs on.
    pub platform: Platform,
    /// This process.
    pub process: Process,
    /// Processors.
    pub cpus: Cpus,
    /// NUMA nodes.
    pub nodes: Fact<Vec<Node>>,
    /// Memory settings.
    pub memory: Memory,
    /// Interrupts so far. Of these only the sums are in results, as `tlb_shootdowns`.
    #[serde(rename = "tlb_shootdowns", serialize_with = "shootdowns")]
    pub interrupts: Fact<Table>,
    /// RDMA devices.
    pub nics: Fact<Vec<Nic>>,
    /// Network interfaces but for `lo`.
    pub interfaces: Vec<String>,
    /// Policy of PCIe power saving: `default`, `performance`, `powersave`, `powersupersave`.
    pub aspm: Fact<String>,
    /// VFIO and the IOMMU.
    pub vfio: Vfio,
    /// io_uring.
    pub uring: Uring,
}

impl Machine {
    /// Reads all below `root`; `probe` is what the kernel said to [`super::uring::probe`].
    pub fn read(root: &Root, probe: Probe) -> Self {
        let kernel = Kernel::read(root);
        let interrupts = Table::read(root);
        Self {
            platform: Platform::read(root),
            process: Process::read(root),
            cpus: Cpus::read(root),
            nodes: numa::nodes(root),
            memory: Memory::read(root),
            nics: nic::all(root, &interrupts),
            interfaces: rdma::interfaces(root),
            aspm: Fact::choice(root, "/sys/module/pcie_aspm/parameters/policy"),
            vfio: Vfio::read(root, &kernel.release),
            uring: Uring::read(root, probe),
            interrupts,
            kernel,
        }
    }

    /// NUMA nodes, as many as are known.
    pub fn node_count(&self) -> usize {
        self.nodes.get().map_or(1, Vec::len)
    }

    /// True where the CPU says that it runs under a hypervisor.
    pub fn is_guest(&self) -> bool {
        self.cpus.has("hypervisor") == Some(true)
    }
}

fn shootdowns<S: serde::Serializer>(table: &Fact<Table>, serializer: S) -> Result<S::Ok, S::Error> {
    let sum = table.get().and_then(|table| Some(table.named.get("TLB")?.iter().sum::<u64>()));
    sum.serialize(serializer)
}
