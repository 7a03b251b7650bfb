//! Whether the kernel gives this process io_uring, and why not: the causes look alike, the
//! remedies do not.

use std::io;

use io_uring::{IoUring, Probe as Opcodes, opcode};
use serde::Serialize;

use super::Root;
use super::fact::Fact;
use crate::error::{Error, Kind};
use crate::units::format_size;

/// The file that switches io_uring off (Documentation/admin-guide/sysctl/kernel.rst; since 6.6).
pub const SYSCTL: &str = "/proc/sys/kernel/io_uring_disabled";

/// What came of asking the kernel for a ring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum Probe {
    /// The kernel refused, with this errno.
    Refused {
        /// errno of io_uring_setup(2).
        errno: i32,
    },
    /// It gave one with the flags that a worker's has.
    Given {
        /// True where reads into registered buffers are known.
        read_fixed: bool,
    },
    /// It was not asked: a captured tree answers no calls.
    Unasked,
}

/// Asks for the smallest ring of the kind that a worker has, and gives it back.
pub fn probe() -> Probe {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_submit_all().setup_defer_taskrun().setup_taskrun_flag();
    let ring: IoUring = match builder.dontfork().build(2) {
        Ok(ring) => ring,
        Err(e) => return Probe::Refused { errno: e.raw_os_error().unwrap_or(libc::EIO) },
    };
    let mut opcodes = Opcodes::new();
    let known = ring.submitter().register_probe(&mut opcodes).is_ok();
    Probe::Given { read_fixed: known && opcodes.is_supported(opcode::ReadFixed::CODE) }
}

/// The switches of io_uring, and what came of a probe.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Uring {
    /// kernel.io_uring_disabled: 0 for all, 1 for the privileged, 2 for nobody; since 6.6.
    pub disabled: Fact<u64>,
    /// kernel.io_uring_group: who may use it nevertheless where that is 1; -1 for nobody.
    pub group: Fact<i64>,
    /// What the kernel said.
    pub probe: Probe,
}

impl Uring {
    /// Reads the switches below `root`; `probe` is the kernel's answer.
    pub fn read(root: &Root, probe: Probe) -> Self {
        let group = "/proc/sys/kernel/io_uring_group";
        Self {
            disabled: Fact::number(root, SYSCTL),
            group: Fact::parse(root, group, |text| text.trim().parse().ok()),
            probe,
        }
    }
}

/// What an errno of io_uring_setup(2) means. `disabled` is the value of kernel.io_uring_disabled,
/// `None` where the kernel has no such file.
pub fn setup_error(errno: i32, disabled: Option<u64>) -> Error {
    let cause = io::Error::from_raw_os_error(errno);
    let error = match (errno, disabled) {
        (libc::ENOSYS, _) => Error::new(Kind::Unsupported, "this kernel has no io_uring")
            .remedy("run a kernel of 6.1 or later with CONFIG_IO_URING=y; or use --backend spdk"),
        (libc::EPERM, Some(2)) => Error::new(
            Kind::Denied,
            "io_uring is switched off for every process (kernel.io_uring_disabled = 2)",
        )
        .remedy("sysctl -w kernel.io_uring_disabled=0, and the same in /etc/sysctl.d"),
        (libc::EPERM, Some(1)) => Error::new(
            Kind::Denied,
            "io_uring is switched off for this user (kernel.io_uring_disabled = 1)",
        )
        .remedy(
            "run it as a member of the group in kernel.io_uring_group or with CAP_SYS_ADMIN; \
             or sysctl -w kernel.io_uring_disabled=0",
        ),
        (libc::EPERM, _) => Error::new(
            Kind::Denied,
            "io_uring is refused to this process, though the kernel allows it: \
             a seccomp filter or security module does that",
        )
        .remedy(
            "containers: allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp \
             profile (docker: --security-opt seccomp=FILE); systemd: SystemCallFilter=@io-uring",
        ),
        (libc::EINVAL, _) => Error::new(
            Kind::Unsupported,
            "this kernel's io_uring lacks single-issuer rings with deferred work, \
             or the ring's options exclude each other",
        )
        .remedy("run a kernel of 6.1 or later"),
        (libc::ENOMEM, _) => Error::new(Kind::Resource, "no memory for an io_uring")
            .remedy("raise the limit on locked memory (ulimit -l), or use a smaller --depth"),
        (libc::EMFILE | libc::ENFILE, _) => {
            Error::new(Kind::Resource, "no file descriptor for an io_uring")
                .remedy("raise the limit on open files: ulimit -n")
        }
        _ => Error::new(Kind::Device, "io_uring_setup failed"),
    };
    error.caused_by(cause)
}

/// What ENOMEM means on registering `need` bytes, when the process may lock `limit` bytes (`None`:
/// without limit).
pub fn memlock_error(need: u64, limit: Option<u64>, cause: io::Error) -> Error {
    let need_text = format_size(need);
    let error = match limit {
        Some(limit) if limit < u64::MAX => Error::new(
            Kind::Resource,
            format!(
                "registering buffers locks {need_text}, and the limit on locked memory of this \
                 process is {}; it counts for all processes of the user together",
                format_size(limit)
            ),
        )
        .remedy(format!(
            "ulimit -l unlimited; systemd: LimitMEMLOCK=infinity; or at least {} KiB for each \
             worker; or give CAP_IPC_LOCK; or use --regbufs off",
            need.div_ceil(1024)
        )),
        _ => Error::new(
            Kind::Resource,
            format!("the kernel has no memory to register buffers of {need_text}"),
        )
        .remedy("use a smaller --depth or --slot-size, or hugepages (--hugepages 2m)"),
    };
    error.caused_by(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_refusals_are_told_apart() {
        let old = setup_error(libc::ENOSYS, None);
        assert!(old.report().contains("6.1 or later"), "{}", old.report());
        for (value, who) in [(1, "this user"), (2, "every process")] {
            let error = setup_error(libc::EPERM, Some(value));
            assert!(error.what().contains(who), "{error}");
            assert!(error.report().contains("sysctl -w kernel.io_uring_disabled=0"));
        }
        for value in [None, Some(0)] {
            let error = setup_error(libc::EPERM, value);
            assert!(error.report().contains("seccomp"), "{error}");
            assert!(!error.report().contains("sysctl -w"), "{error}");
        }
    }

    #[test]
    fn this_kernel_is_asked() {
        // Whatever it says, it is one of the answers that have a text.
        match probe() {
            Probe::Given { read_fixed } => assert!(read_fixed),
            Probe::Refused { errno } => assert!(!setup_error(errno, None).what().is_empty()),
            Probe::Unasked => panic!("the kernel was asked"),
        }
    }

    #[test]
    fn short_locked_memory_says_need_and_limit() {
        let cause = || io::Error::from_raw_os_error(libc::ENOMEM);
        let report = memlock_error(64 << 20, Some(8 << 20), cause()).report();
        assert!(report.contains("locks 64MiB") && report.contains("is 8MiB"), "{report}");
        assert!(report.contains("65536 KiB"), "{report}");
        let report = memlock_error(64 << 20, None, cause()).report();
        assert!(!report.contains("ulimit"), "{report}");
    }
}
