//! Controllers: attached once, shared by all queues, and the protocol by which everybody lets go
//! of one before it is reset or given up.
//!
//! SPDK wants an I/O queue pair to be touched by one thread, and a controller that is being reset
//! by nobody but the thread that resets it. So each controller has a phase word. The housekeeping
//! thread advances it; each worker looks at it once a poll (one load of a line that is shared and
//! hardly ever written), does what the phase asks for with its own queue pair, and acknowledges.
//!
//! ```text
//!            ask_reset            all acknowledged,             all acknowledged,
//!                                 controller disabled           controller enabled again
//!   Running ----------> Quiesce ----------------------> Release ------------------> Running
//!      |                   |    not to be disabled         |  not to be enabled
//!      |  function gone    +----------------> Lost <-------+
//!      +----------------------> Removed
//! ```
//!
//! - Quiesce: no queue is submitted to or polled any more.
//! - Release: the controller is disabled (CC.EN 0, CSTS.RDY 0 read back), so it does not reach into
//!   memory any more. Each worker frees its queue pair: SPDK ends every command in it, which is
//!   the proof that its slot may be used again.
//! - Removed: the function has left the bus. As Release, and for good.
//! - Lost: nobody knows what the controller still does. Its queue pairs, its memory and the slots
//!   in flight are leaked and counted.

use std::ffi::CString;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use spdk_sys as sys;

use super::env::{self, Env};
use super::resolve::Target;
use crate::error::{Error, Kind, Result};

/// Keep-alive of controllers that have it: a third of it is the interval of the commands.
const KEEP_ALIVE_MS: u32 = 10_000;

/// Bound for commands of initialisation. The 120 s that SPDK has would hold up a reset, and with
/// it the requests that wait for it, for as long.
const ADMIN_TIMEOUT_MS: u32 = 15_000;

/// Bound for attaching a controller: above what CAP.TO of drives and a few slow commands take.
const ATTACH_TIMEOUT_MS: u32 = 60_000;

/// Abort commands on their way at once. SPDK takes two of the admin queue's 32 requests for each,
/// and a drive that hangs is not helped by more.
const MAX_ABORTS: u32 = 4;

/// Largest I/O queue asked for; SPDK lowers it to what the controller has (CAP.MQES).
const MAX_QUEUE: u32 = 4096;

/// What a phase word says. See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    Quiesce,
    Release,
    Removed,
    Lost,
}

impl Phase {
    const BITS: u32 = 3;

    pub(super) fn of(word: u32) -> Self {
        match word & ((1 << Self::BITS) - 1) {
            0 => Phase::Running,
            1 => Phase::Quiesce,
            2 => Phase::Release,
            3 => Phase::Removed,
            _ => Phase::Lost,
        }
    }

    /// The word of this phase when it follows `word`: never equal to an earlier one, short of
    /// 2^29 changes.
    fn after(self, word: u32) -> u32 {
        ((word >> Self::BITS).wrapping_add(1) << Self::BITS) | self as u32
    }

    /// True for phases that are never left.
    pub(super) fn is_final(self) -> bool {
        matches!(self, Phase::Removed | Phase::Lost)
    }
}

/// One queue's part in the protocol.
#[derive(Debug, Default)]
pub(super) struct Member {
    acknowledged: AtomicU32,
}

impl Member {
    /// Says that the phase of `word` is complied with.
    pub(super) fn acknowledge(&self, word: u32) {
        self.acknowledged.store(word, Ordering::Release);
    }
}

/// How a controller is reached, as far as faults and buffers differ by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kin {
    /// A PCI function.
    Pci,
    /// A function that another process plays.
    VfioUser,
    /// Over a network: once a connection is closed nothing reaches into memory any more.
    Fabric,
}

/// An attached controller.
#[derive(Debug)]
pub(super) struct Controller {
    raw: NonNull<sys::spdk_nvme_ctrlr>,
    /// Name of the first drive that was given on it.
    pub name: String,
    pub trid: String,
    pub kin: Kin,
    pub serial: Option<String>,
    pub model: Option<String>,
    pub node: Option<u32>,
    /// Entries of its largest I/O queue.
    pub queue_size: u32,
    word: AtomicU32,
    reset_wanted: AtomicBool,
    detached: AtomicBool,
    /// Abort commands on their way.
    aborts: AtomicU32,
    /// SPDK's connection to a vfio-user target, a second time.
    socket: Mutex<Option<UnixStream>>,
    members: Mutex<Vec<Arc<Member>>>,
}

// SAFETY: spdk_nvme_ctrlr has a lock of its own, and its functions may be called from any thread
// ("can be called from any thread" or "this function takes the controller lock" in
// spdk/nvme.h); the two that must not meet others (reset and detach) are called by the
// housekeeping thread under the phase protocol.
unsafe impl Send for Controller {}
// SAFETY: as above.
unsafe impl Sync for Controller {}

impl Controller {
    /// Attaches the controller of `target`.
    ///
    /// # Errors
    ///
    /// `Unsupported` where this SPDK was built without the transport; `Device` where it does not
    /// answer, with SPDK's own lines as the cause.
    pub(super) fn attach(_: Env, target: &Target) -> Result<Self> {
        let text = CString::new(target.trid.clone())
            .map_err(|_| Error::usage(format!("a NUL in the name {:?}", target.name)))?;
        // SAFETY: plain integers and characters; all zero is SPDK's empty transport id.
        let mut trid: sys::spdk_nvme_transport_id = unsafe { std::mem::zeroed() };
        env::forget_errors();
        // SAFETY: both pointers are valid for the call.
        if unsafe { sys::spdk_nvme_transport_id_parse(&mut trid, text.as_ptr()) } != 0 {
            return Err(with_lines(Error::usage(format!(
                "\"{}\" is not an SPDK transport id",
                target.name
            )))
            .remedy("write it like \"trtype:PCIe traddr:0000:5e:00.0\""));
        }
        // SAFETY: spdk_nvme_transport_id_parse has filled in a terminated name.
        if !unsafe { sys::spdk_nvme_transport_available_by_name(trid.trstring.as_ptr()) } {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "SPDK {} here was built without the transport of {}",
                    sys::VERSION,
                    target.name
                ),
            )
            .remedy(
                "build SPDK with it (--with-rdma, --with-vfio-user) and millrace against that",
            ));
        }
        let kin = match trid.trtype {
            sys::SPDK_NVME_TRANSPORT_PCIE => Kin::Pci,
            sys::SPDK_NVME_TRANSPORT_VFIOUSER => Kin::VfioUser,
            _ => Kin::Fabric,
        };
        let options = sys::shim_ctrlr_opts {
            io_queue_size: MAX_QUEUE,
            keep_alive_timeout_ms: KEEP_ALIVE_MS,
            admin_timeout_ms: ADMIN_TIMEOUT_MS,
            attach_timeout_ms: ATTACH_TIMEOUT_MS,
            // A line for each failed command would be written by the worker.
            error_logging: false,
        };
        let lock = env::exclusive();
        // SAFETY: the environment is up (`Env`); both structs live through the call.
        let raw = unsafe { sys::shim_connect(&trid, &options) };
        drop(lock);
        let raw = NonNull::new(raw).ok_or_else(|| {
            with_lines(Error::new(Kind::Device, format!("{} does not attach", target.name))).remedy(
                match kin {
                    Kin::Pci => "millrace doctor --for spdk checks binding, IOMMU and limits",
                    Kin::VfioUser | Kin::Fabric => {
                        "check that the target runs, listens there, and has no other host on it"
                    }
                },
            )
        })?;
        // SAFETY: all integers and arrays of them.
        let mut identity: sys::shim_identity = unsafe { std::mem::zeroed() };
        // SAFETY: attached just now.
        unsafe { sys::shim_identify(raw.as_ptr(), &mut identity) };
        Ok(Self {
            raw,
            name: target.name.clone(),
            trid: target.trid.clone(),
            kin,
            serial: text_of(&identity.serial),
            model: text_of(&identity.model),
            node: u32::try_from(identity.node).ok(),
            queue_size: identity.io_queue_size,
            word: AtomicU32::new(0),
            reset_wanted: AtomicBool::new(false),
            detached: AtomicBool::new(false),
            aborts: AtomicU32::new(0),
            socket: Mutex::new((kin == Kin::VfioUser).then(|| socket_of(&trid)).flatten()),
            members: Mutex::new(Vec::new()),
        })
    }

    /// SPDK's handle. Not to be used in a final phase.
    pub(super) fn raw(&self) -> *mut sys::spdk_nvme_ctrlr {
        self.raw.as_ptr()
    }

    /// The phase word, for the look that each poll takes.
    #[inline]
    pub(super) fn word(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    pub(super) fn phase(&self) -> Phase {
        Phase::of(self.word())
    }

    /// Asks the housekeeping thread for a reset. Returns at once.
    pub(super) fn ask_reset(&self) {
        self.reset_wanted.store(true, Ordering::Release);
    }

    pub(super) fn take_reset_wish(&self) -> bool {
        self.reset_wanted.swap(false, Ordering::AcqRel)
    }

    fn members(&self) -> MutexGuard<'_, Vec<Arc<Member>>> {
        self.members.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes a queue's part, and its queue pair by `make`, while the phase cannot change.
    ///
    /// # Errors
    ///
    /// `Busy` while it is being reset, `Device` once it is gone; and what `make` says.
    pub(super) fn join<T>(
        &self,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<(Arc<Member>, u32, T)> {
        let mut members = self.members();
        let word = self.word();
        match Phase::of(word) {
            Phase::Running => {}
            Phase::Quiesce | Phase::Release => {
                return Err(Error::new(Kind::Busy, format!("{} is being reset", self.name))
                    .remedy("try again in a few seconds"));
            }
            Phase::Removed | Phase::Lost => {
                return Err(Error::new(Kind::Device, format!("{} is gone", self.name))
                    .remedy("check the drive, and start the program again"));
            }
        }
        let made = make()?;
        let member = Arc::new(Member::default());
        member.acknowledge(word);
        members.push(Arc::clone(&member));
        Ok((member, word, made))
    }

    /// Ends a queue's part: it has no queue pair any more, or has leaked it.
    pub(super) fn leave(&self, member: &Arc<Member>) {
        self.members().retain(|known| !Arc::ptr_eq(known, member));
    }

    /// Goes from the phase of `from` to `to`. False where it is in a final phase by now.
    pub(super) fn advance(&self, from: u32, to: Phase) -> Option<u32> {
        let _members = self.members();
        let word = to.after(from);
        let done = self.word.compare_exchange(from, word, Ordering::AcqRel, Ordering::Acquire);
        done.ok().map(|_| word)
    }

    /// Gives the controller up, from any thread and whatever is going on.
    pub(super) fn give_up(&self) {
        let mut word = self.word();
        while !Phase::of(word).is_final() {
            let lost = Phase::Lost.after(word);
            match self.word.compare_exchange(word, lost, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    log::error!("{} is given up: it does not answer", self.name);
                    self.cut();
                    return;
                }
                Err(now) => word = now,
            }
        }
    }

    /// Ends the connection to a vfio-user target. SPDK waits without a bound for its answers, with
    /// the lock of [`env::exclusive`] held; this ends such a wait with an error. It proves nothing
    /// about memory, which the target has mapped.
    pub(super) fn cut(&self) {
        let socket = self.socket.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(socket) = &*socket
            && let Err(e) = socket.shutdown(std::net::Shutdown::Both)
        {
            log::debug!("{}: shutdown: {e}", self.name);
        }
    }

    /// Room for an abort command: the counter that its end has to lower, or `None` where
    /// [`MAX_ABORTS`] are on their way.
    pub(super) fn begin_abort(&self) -> Option<*mut std::ffi::c_void> {
        let room = |n| (n < MAX_ABORTS).then_some(n + 1);
        self.aborts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        Some((&raw const self.aborts).cast_mut().cast())
    }

    /// Takes back [`Controller::begin_abort`] where SPDK did not take the command.
    pub(super) fn abort_not_sent(&self) {
        self.aborts.fetch_sub(1, Ordering::Relaxed);
    }

    /// True when every queue complies with the phase of `word`.
    pub(super) fn all_acknowledged(&self, word: u32) -> bool {
        self.members().iter().all(|m| m.acknowledged.load(Ordering::Acquire) == word)
    }

    /// Detaches it, once. Only when no queue has a queue pair on it any more.
    pub(super) fn detach(&self) {
        if self.phase() == Phase::Lost || self.detached.swap(true, Ordering::AcqRel) {
            return;
        }
        let _lock = env::exclusive();
        // SAFETY: attached once, detached once (the flag), by the last user: the caller says that
        // all queue pairs are freed. Phase Removed or the drop of the storage keep others away.
        let answer = unsafe { sys::spdk_nvme_detach(self.raw()) };
        // The target sees that its host has left when the last descriptor is closed.
        drop(self.socket.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take());
        if answer != 0 {
            log::warn!("detaching {}: error {answer}", self.name);
        }
    }
}

/// The socket that SPDK has to the vfio-user target of `trid`, duplicated. SPDK tells nobody its
/// descriptor; it is the one whose peer is the target's address.
fn socket_of(trid: &sys::spdk_nvme_transport_id) -> Option<UnixStream> {
    let folder = text_of(&trid.traddr)?;
    let wanted = std::path::Path::new(&folder).join("cntrl");
    let of_peer = |entry: std::io::Result<std::fs::DirEntry>| {
        let number = entry.ok()?.file_name().to_str()?.parse().ok()?;
        // SAFETY: borrowed for the duplication only, which fails where it was closed meanwhile.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        let socket = UnixStream::from(borrowed.try_clone_to_owned().ok()?);
        // Fails for what is no Unix socket.
        (socket.peer_addr().ok()?.as_pathname() == Some(&wanted)).then_some(socket)
    };
    let found = std::fs::read_dir("/proc/self/fd").ok()?.find_map(of_peer);
    if found.is_none() {
        log::warn!(
            "no socket to {} found: a target that hangs would hold all up",
            wanted.display()
        );
    }
    found
}

/// Adds SPDK's latest error lines as the cause.
fn with_lines(error: Error) -> Error {
    match env::errors() {
        Some(lines) => error.caused_by(lines),
        None => error,
    }
}

/// Text of an identify field: ASCII, filled up with blanks.
fn text_of(field: &[std::ffi::c_char]) -> Option<String> {
    let bytes: Vec<u8> = field.iter().map(|c| *c as u8).take_while(|b| *b != 0).collect();
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_their_phase_and_never_repeat() {
        let mut word = 0;
        let mut seen = vec![word];
        for phase in [Phase::Quiesce, Phase::Release, Phase::Running, Phase::Quiesce, Phase::Lost] {
            word = phase.after(word);
            assert_eq!(Phase::of(word), phase);
            assert!(!seen.contains(&word));
            seen.push(word);
        }
        assert_eq!(Phase::of(Phase::Removed.after(u32::MAX)), Phase::Removed);
    }

    #[test]
    fn identify_text_loses_its_blanks() {
        let field = b"MILL0  \0".map(|b| b as std::ffi::c_char);
        assert_eq!(text_of(&field).as_deref(), Some("MILL0"));
        assert_eq!(text_of(&[b' ' as std::ffi::c_char; 4]), None);
    }
}
