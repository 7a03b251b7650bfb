//! Is rdma-core there, and thin owners of protection domains and completion queues.
//!
//! The bindings load `libibverbs.so.1` and `librdmacm.so.1` at program start if they exist. A
//! function of a library that was not found sets `errno` to `EOPNOTSUPP`.

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as sys;

use super::cm::CmId;
use super::device::{self, Device};
use crate::error::{Context as _, Error, Kind, Result};
use crate::host::Root;

/// A work completion as the library writes it.
pub(super) type Wc = sys::ibv_wc;

/// Turns the result of a verb that returns 0 or an errno into an `io::Result`.
pub(super) fn verb(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        // librdmacm returns -1 and sets errno, libibverbs returns the errno.
        -1 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}

/// The error of a library function that was not found.
pub(super) fn is_absent(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EOPNOTSUPP)
}

/// The error that says that a library of rdma-core is missing.
pub(super) fn absent(library: &str, debian: &str, fedora: &str) -> Error {
    Error::new(Kind::Unsupported, format!("{library} is not installed: RDMA needs it")).remedy(
        format!("apt install {debian} (Debian, Ubuntu) or dnf install {fedora} (Fedora, RHEL)"),
    )
}

/// Checks that RDMA can be used at all: libraries, kernel modules, a device. Returns the devices.
///
/// # Errors
///
/// `Unsupported` with what is missing and the command that brings it.
pub fn available(root: &Root) -> Result<Vec<Device>> {
    let mut count = 0;
    // SAFETY: writes the count through a valid pointer; returns an array or null.
    let list = unsafe { sys::ibv_get_device_list(&mut count) };
    if list.is_null() {
        let e = io::Error::last_os_error();
        if is_absent(&e) {
            return Err(absent("libibverbs", "libibverbs1 ibverbs-providers", "libibverbs"));
        }
    } else {
        // SAFETY: `list` is the array returned above, given back once and not used after.
        unsafe { sys::ibv_free_device_list(list) };
    }
    let devices = device::list(root)?;
    if devices.is_empty() {
        return Err(device::none_here(root));
    }
    if list.is_null() || count == 0 {
        let names: Vec<_> = devices.iter().map(|d| d.name.as_str()).collect();
        return Err(Error::new(
            Kind::Unsupported,
            format!("the kernel has RDMA devices ({}), libibverbs opens none", names.join(", ")),
        )
        .remedy(
            "load the kernel module ib_uverbs (modprobe ib_uverbs) and install the provider: \
             apt install ibverbs-providers, or dnf install libibverbs",
        ));
    }
    if !root.exists("/dev/infiniband/rdma_cm") {
        return Err(Error::new(
            Kind::Unsupported,
            "/dev/infiniband/rdma_cm does not exist: connections cannot be set up",
        )
        .remedy("modprobe rdma_ucm"));
    }
    Ok(devices)
}

/// What a device can do, as far as millrace asks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Work requests of one queue of a QP.
    pub max_qp_wr: u32,
    /// RDMA READs that a QP of this device can have under way, and that it can serve.
    pub reads: u8,
    pub reads_served: u8,
    /// MTU that the port runs with now, in verbs' code (1 is 256 bytes, 5 is 4,096).
    pub active_mtu: u32,
}

/// Bytes of an MTU given in verbs' code.
pub(super) fn mtu_bytes(code: u32) -> u32 {
    128 << code.clamp(1, 5)
}

/// A protection domain on the device that an rdma_cm id is bound to. The id keeps the device open.
#[derive(Debug)]
pub(super) struct Pd {
    ptr: NonNull<sys::ibv_pd>,
    id: Arc<CmId>,
}

// SAFETY: libibverbs is thread-safe (ibv_* may be called from any thread on any object); the
// object lives until Drop, which runs once.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    pub fn new(id: &Arc<CmId>) -> Result<Arc<Self>> {
        let device = id.device_name().unwrap_or_default();
        // SAFETY: `verbs` is the open device of a bound id (or null, which `context` excludes),
        // kept open by `id`.
        let ptr = unsafe { sys::ibv_alloc_pd(id.context()?.as_ptr()) };
        let ptr = NonNull::new(ptr)
            .ok_or_else(io::Error::last_os_error)
            .context(|| format!("cannot allocate a protection domain on {device}"))?;
        Ok(Arc::new(Self { ptr, id: Arc::clone(id) }))
    }

    pub fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.ptr.as_ptr()
    }

    /// The id whose device this is on.
    pub fn id(&self) -> &Arc<CmId> {
        &self.id
    }

    /// What the device and the id's port can do.
    pub fn limits(&self) -> Result<Limits> {
        let context = self.id.context()?.as_ptr();
        // SAFETY: plain C structs of integers, for which zero is a value.
        let (mut device, mut port) = unsafe {
            (std::mem::zeroed::<sys::ibv_device_attr>(), std::mem::zeroed::<sys::ibv_port_attr>())
        };
        let name = || format!("cannot query {}", self.id.device_name().unwrap_or_default());
        // SAFETY: an open context and a struct to write to.
        verb(unsafe { sys::ibv_query_device(context, &mut device) }).context(name)?;
        // SAFETY: as above.
        verb(unsafe { sys::ibv_query_port(context, self.id.port(), &mut port) }).context(name)?;
        Ok(Limits {
            max_cqe: device.max_cqe.max(0) as u32,
            max_qp_wr: device.max_qp_wr.max(0) as u32,
            reads: device.max_qp_init_rd_atom.clamp(0, u8::MAX.into()) as u8,
            reads_served: device.max_qp_rd_atom.clamp(0, u8::MAX.into()) as u8,
            active_mtu: port.active_mtu,
        })
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; CQs, QPs and MRs hold an Arc of it, so none is left.
        if let Err(e) = verb(unsafe { sys::ibv_dealloc_pd(self.ptr.as_ptr()) }) {
            log::warn!("a protection domain is leaked: {e}");
        }
    }
}

/// A completion queue. Its QPs hold an Arc of it.
#[derive(Debug)]
pub(super) struct Cq {
    ptr: NonNull<sys::ibv_cq>,
    entries: u32,
    _pd: Arc<Pd>,
}

// SAFETY: as for Pd; `poll` takes the provider's own lock.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// A queue of at least `entries`, without event channel: it is polled.
    pub fn new(pd: &Arc<Pd>, entries: u32) -> Result<Arc<Self>> {
        // SAFETY: an open context; null for "no event channel" and "no user pointer" is allowed.
        let ptr = unsafe {
            sys::ibv_create_cq(
                pd.id.context()?.as_ptr(),
                entries as i32,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0,
            )
        };
        let ptr = NonNull::new(ptr).ok_or_else(io::Error::last_os_error).context(|| {
            format!("cannot create a completion queue of {entries} entries on {}", pd.id.label())
        })?;
        // SAFETY: a live CQ; the field is set at creation and never changed without a resize.
        let entries = unsafe { ptr.as_ref().cqe }.max(0) as u32;
        Ok(Arc::new(Self { ptr, entries, _pd: Arc::clone(pd) }))
    }

    pub fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.ptr.as_ptr()
    }

    /// Entries that it really has.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Takes up to `into.len()` completions; returns how many.
    pub fn poll(&self, into: &mut [Wc]) -> Result<usize> {
        // SAFETY: a live CQ, and room for as many completions as are asked for.
        let got =
            unsafe { sys::ibv_poll_cq(self.ptr.as_ptr(), into.len() as i32, into.as_mut_ptr()) };
        usize::try_from(got).map_err(|_| {
            Error::new(Kind::Device, format!("polling the completion queue fails ({got})"))
        })
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: created in `new`; every QP on it holds an Arc of it, so none is left.
        if let Err(e) = verb(unsafe { sys::ibv_destroy_cq(self.ptr.as_ptr()) }) {
            log::warn!("a completion queue is leaked: {e}");
        }
    }
}

/// Room for completions.
pub(super) fn completions<const N: usize>() -> [Wc; N] {
    // SAFETY: a C struct of integers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// True for a completion without error; only then more than `wr_id` and `status` is defined.
pub(super) fn succeeded(wc: &Wc) -> bool {
    wc.status == sys::ibv_wc_status::IBV_WC_SUCCESS
}

/// The library's text for a completion's status.
pub(super) fn status_text(status: u32) -> String {
    // SAFETY: takes any value; returns null (library absent) or a static string.
    let text = unsafe { sys::ibv_wc_status_str(status) };
    if text.is_null() {
        return format!("status {status}");
    }
    // SAFETY: not null, so a static string that ends with a zero byte.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Waits until one of `fds` is readable, at most `ms` milliseconds.
pub(super) fn wait_readable<const N: usize>(fds: [RawFd; N], ms: i32) {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: an array of N entries. A failure (EINTR) is as good as a timeout.
    unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, ms) };
}

/// What a device reports by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AsyncEvent {
    /// A completion queue lost completions.
    CqError,
    /// The QP with this [`super::qp::Qp::key`] failed.
    QpFatal(usize),
    /// The device failed.
    DeviceFatal,
    /// A port went down.
    PortDown(i32),
    /// A port came up.
    PortUp(i32),
    /// Nothing to act on.
    Other,
}

impl Pd {
    /// Makes reads of the device's asynchronous events non-blocking; returns their descriptor.
    pub fn watch(&self) -> Result<RawFd> {
        let context = self.id.context()?;
        // SAFETY: an open context; the field never changes.
        let fd = unsafe { context.as_ref().async_fd };
        // SAFETY: fcntl on a descriptor that is open as long as the context.
        verb(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) })
            .context(|| "cannot make the device's events non-blocking".into())?;
        Ok(fd)
    }

    /// The next asynchronous event, if one is there. [`Pd::watch`] must have been called.
    pub fn async_event(&self) -> Option<AsyncEvent> {
        let context = self.id.context().ok()?.as_ptr();
        let mut event = std::mem::MaybeUninit::<sys::ibv_async_event>::zeroed();
        // SAFETY: an open context and a struct to write to.
        verb(unsafe { sys::ibv_get_async_event(context, event.as_mut_ptr()) }).ok()?;
        let raw = event.as_mut_ptr();
        // Read as an integer: a newer library may know types that the bindings' enum does not.
        // SAFETY: the struct is initialised, and the enum has the size of a u32.
        let kind = unsafe { (&raw const (*raw).event_type).cast::<u32>().read() };
        use sys::ibv_event_type as t;
        const QP_FATAL: u32 = t::IBV_EVENT_QP_FATAL as u32;
        const QP_REQ_ERR: u32 = t::IBV_EVENT_QP_REQ_ERR as u32;
        const QP_ACCESS_ERR: u32 = t::IBV_EVENT_QP_ACCESS_ERR as u32;
        const CQ_ERR: u32 = t::IBV_EVENT_CQ_ERR as u32;
        const DEVICE_FATAL: u32 = t::IBV_EVENT_DEVICE_FATAL as u32;
        const PORT_ERR: u32 = t::IBV_EVENT_PORT_ERR as u32;
        const PORT_ACTIVE: u32 = t::IBV_EVENT_PORT_ACTIVE as u32;
        // SAFETY: the union is initialised; which member is meant follows from the kind.
        let (qp, port) = unsafe { ((*raw).element.qp as usize, (*raw).element.port_num) };
        let event = match kind {
            CQ_ERR => AsyncEvent::CqError,
            QP_FATAL | QP_REQ_ERR | QP_ACCESS_ERR => AsyncEvent::QpFatal(qp),
            DEVICE_FATAL => AsyncEvent::DeviceFatal,
            PORT_ERR => AsyncEvent::PortDown(port),
            PORT_ACTIVE => AsyncEvent::PortUp(port),
            _ => AsyncEvent::Other,
        };
        // SAFETY: an event from ibv_get_async_event, acknowledged once. Until that, destroying
        // its QP or CQ would block.
        unsafe { sys::ibv_ack_async_event(raw) };
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes() {
        assert_eq!((mtu_bytes(1), mtu_bytes(3), mtu_bytes(5)), (256, 1024, 4096));
    }

    #[test]
    fn absence_names_the_package() {
        let error = absent("librdmacm", "librdmacm1", "librdmacm");
        assert!(error.report().contains("apt install librdmacm1"), "{}", error.report());
    }
}
