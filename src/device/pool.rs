//! Growing the pool of 2 MiB hugepages on a drive's NUMA node. A pool is never made smaller:
//! others may count on it.

use super::kernel::Kernel;
use crate::error::{Context, Error, Kind, Result};
use crate::host::hugepages::pool;

const SIZE: usize = 2 << 20;

/// A pool that is to have `wanted` free pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// The node, or the whole system where the drive names none.
    pub node: Option<u32>,
    /// Free pages asked for.
    pub wanted: u64,
    /// Free pages now.
    pub free: u64,
}

impl Growth {
    /// Reads the pool. Free pages count, not the pool's size: other programs may have taken them.
    pub(super) fn new(kernel: &dyn Kernel, node: Option<u32>, wanted: u64) -> Result<Self> {
        let path = format!("{}/free_hugepages", pool(SIZE, node));
        let free = kernel.root().read_number(path).map_err(|e| {
            e.remedy("a kernel with CONFIG_HUGETLBFS and pages of 2 MiB is needed for --hugepages")
        })?;
        Ok(Self { node, wanted, free })
    }

    /// Pages that must be added.
    pub fn missing(&self) -> u64 {
        self.wanted.saturating_sub(self.free)
    }

    /// Which pool, in words.
    pub fn place(&self) -> String {
        self.node.map_or("the system".to_owned(), |node| format!("NUMA node {node}"))
    }

    /// Adds what is missing and reads back what was granted. The kernel grants what it finds
    /// contiguous: fewer pages are an error, and stay in the pool.
    pub(super) fn carry_out(&self, kernel: &dyn Kernel) -> Result<()> {
        if self.missing() == 0 {
            return Ok(());
        }
        let folder = pool(SIZE, self.node);
        let total = || kernel.root().read_number(format!("{folder}/nr_hugepages"));
        let before = total()?;
        let file = format!("{folder}/nr_hugepages");
        kernel
            .write(&file, &(before + self.missing()).to_string())
            .context(|| format!("cannot write {file}"))?;
        let granted = total()?.saturating_sub(before);
        let free = Self::new(kernel, self.node, self.wanted)?.free;
        if free >= self.wanted {
            return Ok(());
        }
        let what = format!(
            "{} granted {granted} of {} further hugepages of 2 MiB: {free} are free, {} were asked \
             for",
            self.place(),
            self.missing(),
            self.wanted
        );
        let at_boot = match self.node {
            Some(node) => format!("hugepages={node}:{}", before + self.missing()),
            None => format!("hugepages={}", before + self.missing()),
        };
        Err(Error::new(Kind::Resource, what).remedy(format!(
            "memory is too full or too fragmented; reserve them at boot, on the kernel's command \
             line: hugepagesz=2M {at_boot} (or try echo 1 > /proc/sys/vm/compact_memory, and ask \
             for fewer)"
        )))
    }
}
