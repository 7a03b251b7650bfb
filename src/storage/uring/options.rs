//! Which of the kernel's shortcuts a ring takes.

use crate::error::{Error, Kind, Result};
use crate::storage::OpenMode;

/// One switch per shortcut, each really on or really off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
pub struct UringOptions {
    /// The arena is registered, and commands are READ_FIXED and WRITE_FIXED: the kernel pins and
    /// looks up the pages once, not for each command.
    pub regbufs: bool,
    /// The drives are in the ring's table of files: no reference is taken for each command.
    pub regfiles: bool,
    /// The ring is entered through the task's table of rings, not through its file descriptor.
    pub regring: bool,
    /// Completions are polled for on the drive's poll queues: no interrupts. Reading only.
    pub iopoll: bool,
    /// A thread of the kernel takes the commands: no system call to submit, one more busy CPU.
    pub sqpoll: bool,
}

impl Default for UringOptions {
    /// What is fastest on every machine: all that is registered, nothing that needs poll queues or
    /// another CPU.
    fn default() -> Self {
        Self { regbufs: true, regfiles: true, regring: true, iopoll: false, sqpoll: false }
    }
}

impl UringOptions {
    /// Checks what excludes each other whatever the machine is.
    pub(super) fn check(self, mode: OpenMode) -> Result<()> {
        if self.iopoll && mode.is_writable() {
            return Err(Error::new(
                Kind::Unsupported,
                "--iopoll on, for drives opened to be written: a ring that polls has no fsync",
            )
            .remedy("use --iopoll off to write"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polled_ring_does_not_write() {
        let polled = UringOptions { iopoll: true, ..UringOptions::default() };
        assert!(polled.check(OpenMode::Read).is_ok());
        assert!(polled.check(OpenMode::ReadWrite).unwrap_err().report().contains("--iopoll off"));
    }
}
