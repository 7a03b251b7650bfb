//! Why the kernel refuses io_uring: the causes look alike, the remedies do not.

use std::io;

use crate::error::{Error, Kind};
use crate::units::format_size;

/// The file that switches io_uring off (Documentation/admin-guide/sysctl/kernel.rst; since 6.6).
pub(super) const SYSCTL: &str = "/proc/sys/kernel/io_uring_disabled";

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
pub(super) fn memlock_error(need: u64, limit: Option<u64>, cause: io::Error) -> Error {
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
    fn short_locked_memory_says_need_and_limit() {
        let cause = || io::Error::from_raw_os_error(libc::ENOMEM);
        let report = memlock_error(64 << 20, Some(8 << 20), cause()).report();
        assert!(report.contains("locks 64MiB") && report.contains("is 8MiB"), "{report}");
        assert!(report.contains("65536 KiB"), "{report}");
        let report = memlock_error(64 << 20, None, cause()).report();
        assert!(!report.contains("ulimit"), "{report}");
    }
}
