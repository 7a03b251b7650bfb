//! Every check, in the order in which a person should go through them: what stops a run, then the
//! walls that cost most, from the slot outward. docs/TUNING.md has the same order.

mod cpu;
mod drive;
mod iommu;
mod irq;
mod memory;
mod numa;
mod pcie;
mod rdma;
mod topology;
mod uring;

pub(super) use drive::split_of;
pub(super) use pcie::shared_ports;
pub(super) use rdma::rdma_mtu;

use std::sync::LazyLock;

use serde::Serialize;

use super::check::Check;

/// What a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// io_uring itself.
    Uring,
    /// The drives.
    Drive,
    /// IOMMU and VFIO.
    Iommu,
    /// RDMA.
    Rdma,
    /// PCI Express.
    Pcie,
    /// NUMA.
    Numa,
    /// Memory and its pages.
    Memory,
    /// Processors.
    Cpu,
    /// Interrupts.
    Irq,
}

/// All checks.
pub static ALL: LazyLock<Vec<&'static Check>> = LazyLock::new(|| {
    let families: [&[Check]; 10] = [
        uring::CHECKS,
        drive::CHECKS,
        iommu::CHECKS,
        rdma::CHECKS,
        pcie::CHECKS,
        numa::CHECKS,
        memory::CHECKS,
        cpu::CHECKS,
        topology::CHECKS,
        irq::CHECKS,
    ];
    families.into_iter().flatten().collect()
});
