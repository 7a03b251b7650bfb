//! What the userspace path may be told.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::storage::OpenMode;

/// Which kind of address the drives are given for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize)]
pub enum IovaMode {
    /// SPDK looks at the IOMMU: virtual addresses where it is wide enough, else physical.
    #[default]
    Auto,
    /// Virtual addresses. Needs an IOMMU of 48 bits or more.
    Virtual,
    /// Physical addresses. Needs root.
    Physical,
}

/// Options of [`SpdkStorage::open`](super::SpdkStorage::open).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpdkOptions {
    /// What the drives are opened for.
    pub mode: OpenMode,
    /// How long a command may take before it is aborted. Where the abort does not end it within
    /// the same time again, the controller is reset; where that fails, the drive is given up.
    pub timeout: Duration,
    /// Kind of address. Of effect in the first call of a process only.
    pub iova: IovaMode,
    /// Doorbells are rung once for all commands of a turn, not for each command.
    pub batch_doorbells: bool,
}

impl Default for SpdkOptions {
    /// Reading; 10 s, which is above what a healthy drive needs for its own error recovery and
    /// below the 30 s of the kernel's driver; batched doorbells.
    fn default() -> Self {
        Self {
            mode: OpenMode::Read,
            timeout: Duration::from_secs(10),
            iova: IovaMode::Auto,
            batch_doorbells: true,
        }
    }
}

impl SpdkOptions {
    pub(super) fn check(&self) -> Result<()> {
        let most = Duration::from_secs(3600);
        if self.timeout < Duration::from_millis(10) || self.timeout > most {
            return Err(Error::usage(format!("a command timeout of {:?}", self.timeout))
                .remedy("choose 10ms to 3600s"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_checked() {
        assert!(SpdkOptions::default().check().is_ok());
        let bad = SpdkOptions { timeout: Duration::ZERO, ..SpdkOptions::default() };
        assert!(bad.check().unwrap_err().report().contains("3600s"));
    }
}
