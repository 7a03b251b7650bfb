//! Counters of one thread through perf_event_open(2): hardware events, software events, trace
//! points and kernel functions. A kernel or a machine without one of them says why.

use std::ffi::CString;
use std::fs::File;
use std::io::{Error as IoError, Read};
use std::os::fd::FromRawFd;

use super::Root;

/// What is counted. Numbers are those of the kernel's include/uapi/linux/perf_event.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// CPU cycles.
    Cycles,
    /// Instructions.
    Instructions,
    /// Loads whose translation was not in the data TLB.
    DtlbLoadMisses,
    /// Loads that missed the first-level data cache.
    L1dLoadMisses,
    /// Page faults.
    PageFaults,
    /// Context switches.
    ContextSwitches,
    /// A trace point, as `raw_syscalls/sys_enter`.
    TracePoint(&'static str),
    /// Calls of a function of the kernel, through the kprobe PMU.
    Calls(&'static str),
}

/// The first 72 bytes of `struct perf_event_attr` (PERF_ATTR_SIZE_VER1).
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
}

const _: () = assert!(size_of::<Attr>() == 72);

/// PERF_FORMAT_TOTAL_TIME_ENABLED and PERF_FORMAT_TOTAL_TIME_RUNNING.
const TIMES: u64 = 1 | 2;
/// The bits `exclude_kernel` and `exclude_hv` of the flags.
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

/// A running counter of one thread.
#[derive(Debug)]
pub struct Counter {
    file: File,
    /// True where the kernel does not let this user count what happens in the kernel.
    pub user_only: bool,
}

impl Counter {
    /// Counts `event` of the thread `tid` from now on, in user mode and in the kernel where that
    /// is allowed.
    ///
    /// # Errors
    ///
    /// The reason, in words, why this machine or this user has no such counter.
    pub fn open(root: &Root, tid: u32, event: Event) -> Result<Self, String> {
        let (kind, config) = match event {
            Event::Cycles => (0, 0),
            Event::Instructions => (0, 1),
            // Cache, operation and result: data TLB, read, miss; and L1D, read, miss.
            Event::DtlbLoadMisses => (3, 3 | 1 << 16),
            Event::L1dLoadMisses => (3, 1 << 16),
            Event::PageFaults => (1, 2),
            Event::ContextSwitches => (1, 3),
            Event::TracePoint(name) => (2, trace_point(root, name)?),
            Event::Calls(_) => (kprobe_type(root)?, 0),
        };
        let name = match event {
            Event::Calls(function) => Some(CString::new(function).map_err(|e| e.to_string())?),
            _ => None,
        };
        let mut attr = Attr {
            kind,
            size: size_of::<Attr>() as u32,
            config,
            config1: name.as_ref().map_or(0, |name| name.as_ptr() as u64),
            read_format: TIMES,
            flags: EXCLUDE_HV,
            ..Attr::default()
        };
        match open(&attr, tid) {
            Ok(file) => Ok(Self { file, user_only: false }),
            Err(e) if e.raw_os_error() == Some(libc::EACCES) => {
                attr.flags |= EXCLUDE_KERNEL;
                match open(&attr, tid) {
                    Ok(file) => Ok(Self { file, user_only: true }),
                    Err(e) => Err(explain(root, event, &e)),
                }
            }
            Err(e) => Err(explain(root, event, &e)),
        }
    }

    /// The count so far. Where events share the machine's counters, the count is scaled to the
    /// whole time; `None` where this one has had no counter at all yet.
    ///
    /// # Errors
    ///
    /// As read(2) has them.
    pub fn read(&mut self) -> Result<Option<f64>, IoError> {
        let mut bytes = [0u8; 24];
        self.file.read_exact(&mut bytes)?;
        let word =
            |n: usize| u64::from_ne_bytes(bytes[n * 8..n * 8 + 8].try_into().expect("eight bytes"));
        let (count, enabled, running) = (word(0), word(1), word(2));
        match running {
            0 if enabled > 0 => Ok(None),
            0 => Ok(Some(0.0)),
            _ => Ok(Some(count as f64 * (enabled as f64 / running as f64))),
        }
    }
}

fn open(attr: &Attr, tid: u32) -> Result<File, IoError> {
    // SAFETY: the kernel reads `size` bytes of the attributes, which are that long, and for a
    // kprobe the C string that config1 points to, which the caller keeps for this call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attr),
            tid as libc::pid_t,
            -1 as libc::c_int,
            -1 as libc::c_int,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(IoError::last_os_error());
    }
    // SAFETY: a new descriptor, which nothing else owns.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

fn explain(root: &Root, event: Event, error: &IoError) -> String {
    let paranoid = root.read("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => match event {
            Event::Calls(function) => format!("the kernel has no function {function} to probe"),
            _ => "this machine has no such hardware counter (guests often have none)".into(),
        },
        Some(libc::EACCES | libc::EPERM) => {
            format!("not allowed: run as root, or lower kernel.perf_event_paranoid from {paranoid}")
        }
        _ => format!("perf_event_open: {error}"),
    }
}

/// Number of a trace point (Documentation/trace/events.rst).
fn trace_point(root: &Root, name: &str) -> Result<u64, String> {
    let places = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
    let number = |place| root.read_number(format!("{place}/events/{name}/id")).ok();
    if let Some(number) = places.into_iter().find_map(number) {
        return Ok(number);
    }
    Err(match places.into_iter().any(|place| root.exists(format!("{place}/events"))) {
        true => format!("this kernel has no trace point {name}"),
        false => "no trace points: mount -t tracefs tracefs /sys/kernel/tracing, as root".into(),
    })
}

fn kprobe_type(root: &Root) -> Result<u32, String> {
    root.read_number("/sys/bus/event_source/devices/kprobe/type")
        .map(|number| number as u32)
        .map_err(|_| "this kernel has no kprobe events".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_faults_of_this_thread_are_counted() {
        // SAFETY: has no precondition.
        let tid = unsafe { libc::gettid() } as u32;
        let mut counter = match Counter::open(&Root::system(), tid, Event::PageFaults) {
            Ok(counter) => counter,
            Err(why) => return crate::skip::skip("page_faults_of_this_thread_are_counted", &why),
        };
        let before = counter.read().unwrap().unwrap();
        let fresh = vec![1u8; 64 << 20];
        std::hint::black_box(&fresh);
        assert!(counter.read().unwrap().unwrap() > before);
    }

    #[test]
    fn what_a_machine_lacks_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let empty = Root::at(dir.path());
        assert!(
            Counter::open(&empty, 0, Event::TracePoint("a/b")).unwrap_err().contains("tracefs")
        );
        assert!(Counter::open(&empty, 0, Event::Calls("fget")).unwrap_err().contains("kprobe"));
        let text = explain(&empty, Event::Cycles, &IoError::from_raw_os_error(libc::ENOENT));
        assert!(text.contains("no such hardware counter"), "{text}");
    }
}
