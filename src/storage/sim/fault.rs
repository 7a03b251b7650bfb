//! Faults tied to places, as a worn or broken drive has them.

use std::ops::Range;

use crate::error::IoStatus;
use crate::storage::Command;

/// What happens to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It ends with this status, and no byte is transferred.
    Status(IoStatus),
    /// The transfer ends where the range begins, and gives nothing more:
    /// [`IoStatus::Short`].
    End,
    /// It never ends.
    Stuck,
}

/// A fault of each command that touches a range of a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultAt {
    /// Number of the drive.
    pub drive: u16,
    /// Bytes of the drive.
    pub range: Range<u64>,
    /// What happens.
    pub fault: Fault,
}

impl FaultAt {
    /// Whether a command touches the range. A sync touches none.
    pub(super) fn hits(&self, command: &Command) -> bool {
        let end = command.offset + u64::from(command.len);
        command.drive == self.drive && command.offset < self.range.end && self.range.start < end
    }
}
