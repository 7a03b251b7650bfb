//! The few ways in which drives are moved: writes to sysfs, loading modules, exclusive claims.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::time::Duration;

use crate::host::Root;

/// Points between which a crash or a fault may fall, in the order of a bind. A restore passes
/// `Override` to `Clear` on its way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The journal names the drive, on disk.
    Journal,
    /// `driver_override` is set.
    Override,
    /// The drive has left its driver.
    Unbind,
    /// The kernel was told to look for a driver.
    Probe,
    /// The driver's link was seen to be right.
    Verify,
    /// `driver_override` is empty again.
    Clear,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Step; 6] =
        [Step::Journal, Step::Override, Step::Unbind, Step::Probe, Step::Verify, Step::Clear];

    /// The name by which `MILLRACE_CRASH_AFTER` knows it.
    pub fn name(self) -> &'static str {
        match self {
            Step::Journal => "journal",
            Step::Override => "override",
            Step::Unbind => "unbind",
            Step::Probe => "probe",
            Step::Verify => "verify",
            Step::Clear => "clear",
        }
    }
}

/// What changes the machine. [`System`] is the real one; tests put a made tree in its place.
pub trait Kernel {
    /// Where everything is read.
    fn root(&self) -> &Root;

    /// Writes `text` to an attribute of sysfs in one write(2). May block for as long as a driver
    /// takes to bind or unbind.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;

    /// Loads a module, or with `dry_run` only tells whether it could be. The error is modprobe's
    /// own text.
    fn load(&self, module: &str, dry_run: bool) -> std::result::Result<(), String>;

    /// Opens /dev/`device` so that nobody can mount or stack on it until the file is dropped;
    /// fails with `EBUSY` where the kernel has given it to somebody already.
    fn claim(&self, device: &str) -> io::Result<File>;

    /// Waits for 50 ms, between two looks at something that takes time.
    fn pause(&self);

    /// Called after each step; a test may end the process here.
    fn reached(&self, step: Step);
}

const PAUSE: Duration = Duration::from_millis(50);

/// The running machine.
#[derive(Debug)]
pub struct System {
    root: Root,
    crash_after: Option<String>,
}

impl System {
    /// The running machine. A debug build aborts after the step named by the environment's
    /// `MILLRACE_CRASH_AFTER` (see [`Step::name`]), so that tests can show what a crash leaves
    /// behind; a release build does not look at it.
    pub fn new() -> Self {
        let hook = if cfg!(debug_assertions) {
            std::env::var("MILLRACE_CRASH_AFTER")
        } else {
            Err(std::env::VarError::NotPresent)
        };
        Self { root: Root::system(), crash_after: hook.ok() }
    }
}

impl Default for System {
    fn default() -> Self {
        Self::new()
    }
}

impl Kernel for System {
    fn root(&self) -> &Root {
        &self.root
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        File::options().write(true).open(self.root.path(path))?.write_all(text.as_bytes())
    }

    fn load(&self, module: &str, dry_run: bool) -> std::result::Result<(), String> {
        let mut command = Command::new("modprobe");
        if dry_run {
            command.arg("--dry-run");
        }
        let output = match command.arg("--").arg(module).output() {
            Ok(output) => output,
            Err(e) => return Err(format!("cannot run modprobe: {e}")),
        };
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }

    fn claim(&self, device: &str) -> io::Result<File> {
        // O_EXCL without O_CREAT is the kernel's exclusive claim of a block device (open(2)).
        let path = self.root.path(format!("/dev/{device}"));
        File::options().read(true).custom_flags(libc::O_EXCL).open(path)
    }

    fn pause(&self) {
        std::thread::sleep(PAUSE);
    }

    fn reached(&self, step: Step) {
        if self.crash_after.as_deref() == Some(step.name()) {
            eprintln!("MILLRACE_CRASH_AFTER={}: aborting", step.name());
            std::process::abort();
        }
    }
}
