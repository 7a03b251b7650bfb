//! Whether the kernel gives this process io_uring.

use super::Family;
use crate::doctor::case::Case;
use crate::doctor::check::Check;
use crate::doctor::ruling::{Ruling, do_it};
use crate::host::uring::{Probe, setup_error};

/// CAP_SYS_ADMIN (capabilities(7)).
const CAP_SYS_ADMIN: u32 = 21;

/// The oldest kernel that has what a worker's ring asks for.
const OLDEST: (u32, u32) = (6, 1);

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "uring-sysctl",
        family: Family::Uring,
        why: "A switch of the kernel can forbid io_uring, which then looks like an old kernel.",
        rule: sysctl,
    },
    Check {
        id: "uring-seccomp",
        family: Family::Uring,
        why: "Container runtimes filter io_uring out, with the same error as the kernel's switch.",
        rule: seccomp,
    },
    Check {
        id: "uring-kernel",
        family: Family::Uring,
        why: "A worker's ring needs single issuers and deferred work, which came with Linux 6.1.",
        rule: kernel,
    },
];

const ALLOW: &str = "sysctl -w kernel.io_uring_disabled=0";

const ONLY: &str = "only for --for uring";

fn sysctl(case: &Case) -> Ruling {
    if !case.job.uring {
        return Ruling::skip(ONLY);
    }
    let mut ruling = Ruling::new();
    let disabled = &case.machine.uring.disabled;
    match ruling.read(disabled) {
        Some(0) => ruling.fine(&disabled.path, 0),
        Some(1) => {
            let capabilities = case.machine.process.capabilities.copied().unwrap_or(0);
            let given = matches!(case.machine.uring.probe, Probe::Given { .. });
            if given || capabilities >> CAP_SYS_ADMIN & 1 == 1 {
                let text = "this user may use it, others may not (kernel.io_uring_disabled = 1)";
                let mend = do_it("sysctl -w kernel.io_uring_disabled=0, if others shall");
                ruling.loses(0.01, &disabled.path, 1, text, vec![mend]);
            } else {
                ruling.stops(&disabled.path, 1, &setup_error(libc::EPERM, Some(1)));
                ruling.mended_by(ALLOW);
            }
        }
        Some(value) => {
            ruling.stops(&disabled.path, value, &setup_error(libc::EPERM, Some(2)));
            ruling.mended_by(ALLOW);
        }
        None if disabled.why_unread().is_none() => {
            ruling.fine(&disabled.path, "no such switch before Linux 6.6");
        }
        None => {}
    }
    ruling
}

fn seccomp(case: &Case) -> Ruling {
    if !case.job.uring {
        return Ruling::skip(ONLY);
    }
    let mut ruling = Ruling::new();
    let allowed = matches!(case.machine.uring.disabled.copied(), None | Some(0));
    match case.machine.uring.probe {
        Probe::Given { .. } => ruling.fine("io_uring_setup(2)", "given"),
        Probe::Refused { errno: libc::EPERM } if allowed => {
            let seccomp = case.machine.process.seccomp.copied();
            let value = match seccomp {
                Some(mode) => format!("EPERM; Seccomp: {mode} in /proc/self/status"),
                None => "EPERM".to_owned(),
            };
            ruling.stops("io_uring_setup(2)", value, &setup_error(libc::EPERM, None));
        }
        Probe::Refused { .. } => return Ruling::skip("io_uring is refused for another reason"),
        Probe::Unasked => ruling.unread("the kernel was not asked for a ring"),
    }
    ruling
}

fn kernel(case: &Case) -> Ruling {
    if !case.job.uring {
        return Ruling::skip(ONLY);
    }
    let mut ruling = Ruling::new();
    let release = &case.machine.kernel.release;
    let Some(text) = ruling.read(release) else { return ruling };
    match (case.machine.uring.probe.clone(), case.machine.kernel.version()) {
        (Probe::Refused { errno: errno @ (libc::ENOSYS | libc::EINVAL) }, _) => {
            ruling.stops("io_uring_setup(2)", text, &setup_error(errno, None));
        }
        (_, Some(version)) if version < OLDEST => {
            ruling.stops(&release.path, text, &setup_error(libc::EINVAL, None));
        }
        (Probe::Given { read_fixed: false }, _) => {
            let what = "this kernel's io_uring does not read into registered buffers";
            let mend = do_it("use --regbufs off, or run a distribution's kernel");
            ruling.loses(0.2, &release.path, text, what, vec![mend]);
        }
        (_, Some(_)) => ruling.fine(&release.path, text),
        (_, None) => ruling.unread(format!("{}: \"{text}\" is no release", release.path)),
    }
    ruling
}
