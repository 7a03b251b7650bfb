//! Errors of PCI Express functions (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats).

use serde::Serialize;

use super::Root;
use super::fact::Fact;
use super::pci::{self, Address};

/// A count, or that there is none: the function has no AER, or the kernel does not own it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Count(pub Option<u64>);

impl Count {
    /// How much it has grown since `earlier`.
    pub fn minus(&self, earlier: &Count) -> Count {
        Count(self.0.and_then(|now| Some(now.saturating_sub(earlier.0?))))
    }

    fn plus(self, other: Count) -> Count {
        match (self.0, other.0) {
            (None, None) => Count(None),
            (a, b) => Count(Some(a.unwrap_or(0) + b.unwrap_or(0))),
        }
    }
}

/// The counts of a function since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Errors {
    /// Mended by the link itself, at the cost of a repeat.
    pub correctable: Count,
    /// Lost transactions.
    pub nonfatal: Count,
    /// Lost links.
    pub fatal: Count,
}

impl Errors {
    /// Those that were not mended.
    pub fn uncorrectable(&self) -> Count {
        self.nonfatal.plus(self.fatal)
    }
}

/// The counts of a function now.
pub fn errors(root: &Root, address: Address) -> Errors {
    Errors {
        correctable: Count(correctable(root, address).copied()),
        nonfatal: Count(total(root, address, "nonfatal", "TOTAL_ERR_NONFATAL").copied()),
        fatal: Count(total(root, address, "fatal", "TOTAL_ERR_FATAL").copied()),
    }
}

/// Errors that were mended, with the file that says so.
pub fn correctable(root: &Root, address: Address) -> Fact<u64> {
    total(root, address, "correctable", "TOTAL_ERR_COR")
}

/// Errors that were not, with the file that says so.
pub fn nonfatal(root: &Root, address: Address) -> Fact<u64> {
    total(root, address, "nonfatal", "TOTAL_ERR_NONFATAL")
}

/// Errors that ended the link, with the file that says so.
pub fn fatal(root: &Root, address: Address) -> Fact<u64> {
    total(root, address, "fatal", "TOTAL_ERR_FATAL")
}

fn total(root: &Root, address: Address, kind: &str, name: &str) -> Fact<u64> {
    Fact::parse(root, format!("{}/aer_dev_{kind}", pci::dir(address)), |text| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name))?;
        line.trim().parse().ok()
    })
}
