//! SPDK's environment (DPDK's EAL): once per process, for its life.
//!
//! DPDK cannot be initialised a second time after a failure, and memory in it may be in use until
//! the process ends, so it is never torn down. It leaves nothing behind: hugepage files are
//! unlinked as they are made, and there is no shared configuration and no telemetry socket.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, MutexGuard, OnceLock};

use spdk_sys as sys;

use super::options::IovaMode;
use crate::error::{Error, Kind, Result};
use crate::host::pci::Address;
use crate::host::{Root, hugepages};

/// Proof that the environment is up. SPDK's functions may be called while one exists, which is
/// from the first success on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Env(());

/// Taken around everything that may send a message to a vfio-user target: register access, and
/// memory that is mapped or unmapped, which includes queue pairs. SPDK has one socket for each such
/// controller and no lock on it, so two threads would take each other's answers.
pub(super) fn exclusive() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Log lines kept for error texts.
const RECENT: usize = 16;

static RECENT_ERRORS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

fn recent_errors() -> MutexGuard<'static, VecDeque<String>> {
    RECENT_ERRORS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Forgets the error lines so far.
pub(super) fn forget_errors() {
    recent_errors().clear();
}

/// What SPDK and DPDK have said in error lines since [`forget_errors`]: the cause of a failed
/// call, most of which answer with a null pointer only.
pub(super) fn errors() -> Option<String> {
    let lines = recent_errors();
    (!lines.is_empty()).then(|| lines.iter().cloned().collect::<Vec<_>>().join("; "))
}

/// Takes a log line of SPDK or DPDK, on any thread.
unsafe extern "C" fn log_line(dpdk: bool, level: c_int, text: *const c_char, len: usize) {
    // SAFETY: shim.c passes the text and its length for the time of this call.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    let text = String::from_utf8_lossy(bytes);
    // SPDK_LOG_ERROR is 0 and DPDK's RTE_LOG_ERR 4. What is "notice" to them is progress to us.
    let (target, level) = match (dpdk, level) {
        (false, level) if level == sys::SPDK_LOG_ERROR => ("spdk", log::Level::Error),
        (false, level) if level == sys::SPDK_LOG_WARN => ("spdk", log::Level::Warn),
        (false, _) => ("spdk", log::Level::Debug),
        (true, ..=4) => ("dpdk", log::Level::Error),
        (true, 5) => ("dpdk", log::Level::Warn),
        (true, _) => ("dpdk", log::Level::Debug),
    };
    if level == log::Level::Error {
        let mut lines = recent_errors();
        if lines.len() == RECENT {
            lines.pop_front();
        }
        lines.push_back(text.to_string());
    }
    log::log!(target: target, level, "{text}");
}

/// Brings the environment up, once per process; `allowed` are the only PCI functions that DPDK may
/// touch. Later calls add theirs and share what is there.
///
/// # Errors
///
/// With the remedy where hugepages, their mount or rights are missing. The first failure is final
/// for this process, but for what is checked before DPDK is called.
pub(super) fn init(iova: IovaMode, allowed: &[Address]) -> Result<Env> {
    static DONE: OnceLock<Mutex<Option<std::result::Result<(), String>>>> = OnceLock::new();
    let done = DONE.get_or_init(|| Mutex::new(None));
    let mut done = done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    match &*done {
        Some(Ok(())) => {
            for address in allowed {
                let mut address = pci_addr(*address);
                // SAFETY: the environment is up; SPDK copies the address.
                let answer = unsafe { sys::spdk_pci_device_allow(&mut address) };
                if answer != 0 {
                    log::debug!("spdk_pci_device_allow: {answer}");
                }
            }
            return Ok(Env(()));
        }
        Some(Err(text)) => {
            return Err(Error::new(Kind::Resource, text.clone())
                .remedy("mend what the first error named and start the program again"));
        }
        None => {}
    }
    check(&Root::system())?;
    let started = start(iova, allowed);
    *done = Some(match &started {
        Ok(()) => Ok(()),
        Err(e) => Err(format!("SPDK's environment failed to start before: {}", e.what())),
    });
    started.map(|()| Env(()))
}

/// What DPDK needs, checked first because its own errors do not say what to do.
fn check(root: &Root) -> Result<()> {
    let mounts = root.read("/proc/mounts")?;
    if !mounts.lines().any(|line| line.split(' ').nth(2) == Some("hugetlbfs")) {
        return Err(hugepages::no_mount());
    }
    let size = hugepages::default_size(root)?;
    let need = hugepages::spdk_base(size);
    let free = hugepages::free(root, size, None)?;
    if free < need {
        return Err(hugepages::shortage(size, need, free, None));
    }
    Ok(())
}

pub(super) fn pci_addr(address: Address) -> sys::spdk_pci_addr {
    sys::spdk_pci_addr {
        domain: address.domain,
        bus: address.bus,
        dev: address.device,
        func: address.function,
    }
}

fn start(iova: IovaMode, allowed: &[Address]) -> Result<()> {
    // SAFETY: log_line takes what shim.c passes, on any thread, and never unwinds but for a
    // logger that panics, which ends the process at the C frame.
    let answer = unsafe { sys::shim_log_open(Some(log_line)) };
    if answer != 0 {
        log::warn!("SPDK's log lines go to standard error: error {}", -answer);
    }
    let affinity = Affinity::current()?;
    // One EAL thread, the caller's, on the CPU where it is now. DPDK numbers it 0 whatever the
    // CPU is, since its own numbers end at 127. More are not wanted: workers are not EAL's.
    let cores = CString::new(format!("--lcores=0@{}", affinity.now)).expect("no NUL in digits");
    // Hugepages as memfd, not as files below a mount: nothing is left behind, however the process
    // ends, and vfio-user can still hand them on.
    let arguments = CString::new("--in-memory").expect("no NUL");
    let mut allowed: Vec<_> = allowed.iter().map(|address| pci_addr(*address)).collect();
    if allowed.is_empty() {
        // An allow-list of none would allow all: DPDK would open every function on vfio-pci.
        allowed.push(sys::spdk_pci_addr { domain: 0xFFFF, bus: 0xFF, dev: 0x1F, func: 7 });
    }
    let options = sys::shim_env_opts {
        name: c"millrace".as_ptr(),
        core_mask: cores.as_ptr(),
        iova_mode: match iova {
            IovaMode::Auto => std::ptr::null(),
            IovaMode::Virtual => c"va".as_ptr(),
            IovaMode::Physical => c"pa".as_ptr(),
        },
        eal_arguments: arguments.as_ptr(),
        allowed: allowed.as_mut_ptr(),
        allowed_count: allowed.len(),
    };
    forget_errors();
    // SAFETY: all strings and the array live until the call has returned; SPDK copies them. It is
    // the first and only call in this process (the caller holds the lock on that).
    let answer = unsafe { sys::shim_env_init(&options) };
    affinity.restore();
    if answer == 0 {
        // SAFETY: DPDK is up; the answer is a terminated string of its own that never changes.
        let folder = unsafe { CStr::from_ptr(sys::shim_runtime_dir()) };
        // DPDK makes it for every process and has nothing in it here. Where something is in it
        // after all, it stays: remove_dir takes empty folders only.
        if let Err(e) = std::fs::remove_dir(folder.to_string_lossy().as_ref()) {
            log::debug!("{folder:?} stays: {e}");
        }
        log::info!("SPDK {} is up on CPU {}", sys::VERSION, affinity.now);
        return Ok(());
    }
    let mut error = Error::new(Kind::Resource, "SPDK's environment (DPDK) did not start");
    if let Some(lines) = errors() {
        error = error.caused_by(lines);
    }
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    Err(error.remedy(if root {
        "see the lines above; free hugepages of the default size and a hugetlbfs mount are needed"
    } else {
        "run as root, or grant this user /dev/hugepages, the /dev/vfio group of the drive and an \
         unlimited `ulimit -l`"
    }))
}

/// The CPUs that a thread may run on, which DPDK narrows down to one.
struct Affinity {
    set: libc::cpu_set_t,
    now: usize,
}

impl Affinity {
    fn current() -> Result<Self> {
        // SAFETY: a cpu_set_t is plain bits; the kernel fills in at most its size.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: as above; 0 is the calling thread.
        let answer = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
        if answer != 0 {
            return Err(Error::new(Kind::Resource, "cannot read this thread's CPU affinity")
                .caused_by(std::io::Error::last_os_error()));
        }
        // SAFETY: no preconditions.
        let now = unsafe { libc::sched_getcpu() };
        Ok(Self { set, now: usize::try_from(now).unwrap_or(0) })
    }

    fn restore(&self) {
        // SAFETY: the set is what the kernel gave.
        let answer = unsafe { libc::sched_setaffinity(0, size_of_val(&self.set), &self.set) };
        if answer != 0 {
            log::warn!(
                "this thread stays on CPU {}: {}",
                self.now,
                std::io::Error::last_os_error()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(mounts: &str, free: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/mounts", mounts),
            ("proc/meminfo", "Hugepagesize:       2048 kB\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", free),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "0\n"),
        ] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn what_is_missing_is_named_with_its_command() {
        let mount = "none /dev/hugepages hugetlbfs rw 0 0\n";
        let dir = tree("proc /proc proc rw 0 0\n", "99\n");
        let error = check(&Root::at(dir.path())).unwrap_err();
        assert!(error.report().contains("mount -t hugetlbfs"), "{}", error.report());
        let dir = tree(mount, "3\n");
        let error = check(&Root::at(dir.path())).unwrap_err();
        assert_eq!(error.what(), "16 hugepages of 2MiB needed, 3 free");
        assert!(error.report().contains("+ 13"), "{}", error.report());
        let dir = tree(mount, "16\n");
        check(&Root::at(dir.path())).unwrap();
    }
}
