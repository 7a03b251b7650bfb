//! Memory registrations, and the registered region that messages are sent from and received into.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use rdma_sys as sys;
use sys::ibv_access_flags;

use super::ffi::{Pd, verb};
use super::private::{PROBE_BYTES, ProbeWord};
use crate::error::{Error, Kind, Result};
use crate::fabric::handshake::Message;
use crate::limits::MESSAGE_SIZE;
use crate::memory::{Arena, ArenaSpec, Pages};
use crate::units::format_size;

/// Who may access a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// This host's own work requests alone.
    Local,
    /// The peer too, by RDMA WRITE; never by READ or atomics.
    RemoteWrite,
    /// The peer by RDMA READ, and nobody else by this registration.
    RemoteRead,
}

impl Access {
    /// In verbs' flags.
    fn flags(self) -> u32 {
        match self {
            Access::Local => ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
            Access::RemoteWrite => {
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
                    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            }
            Access::RemoteRead => ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
        }
    }
}

/// A registration of a whole arena: pinned, never on demand. The arena stays mapped while it
/// exists, since it is deregistered before its Arc goes.
#[derive(Debug)]
pub(super) struct Mr {
    ptr: NonNull<sys::ibv_mr>,
    lkey: u32,
    rkey: u32,
    arena: Arc<Arena>,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs is thread-safe; the registration lives until Drop, which runs once.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers `arena`; logs how long that takes.
    ///
    /// # Errors
    ///
    /// `Resource` where the limit of locked memory is too low, with the limit and the need.
    pub fn register(pd: &Arc<Pd>, arena: &Arc<Arena>, access: Access) -> Result<Self> {
        let flags = access.flags();
        let started = Instant::now();
        // SAFETY: the arena's mapping is `len` bytes from `base` and outlives the registration.
        // What the hardware does to those bytes is governed by Slot and Lent.
        let ptr =
            unsafe { sys::ibv_reg_mr(pd.as_ptr(), arena.base().cast(), arena.len(), flags as i32) };
        let ptr = NonNull::new(ptr).ok_or_else(|| {
            refused(arena.len() as u64, memlock_limit(), io::Error::last_os_error())
        })?;
        log::debug!(
            "registered {} on {} in {:.1} ms",
            format_size(arena.len() as u64),
            pd.id().label(),
            started.elapsed().as_secs_f64() * 1e3
        );
        // SAFETY: a live registration; its keys never change.
        let (lkey, rkey) = unsafe { (ptr.as_ref().lkey, ptr.as_ref().rkey) };
        Ok(Self { ptr, lkey, rkey, arena: Arc::clone(arena), _pd: Arc::clone(pd) })
    }

    /// Key for this host's work requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Key for the peer.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// True if `len` bytes from `addr` are registered.
    #[inline]
    pub fn contains(&self, addr: *const u8, len: usize) -> bool {
        let offset = (addr as usize).wrapping_sub(self.arena.base() as usize);
        offset <= self.arena.len() && len <= self.arena.len() - offset
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: registered in `register`, deregistered once; work that names its key is over
        // or fails. If it fails, the pages stay pinned, and the arena must stay mapped.
        if let Err(e) = verb(unsafe { sys::ibv_dereg_mr(self.ptr.as_ptr()) }) {
            log::warn!("a memory registration is leaked, with its arena: {e}");
            std::mem::forget(Arc::clone(&self.arena));
        }
    }
}

/// The process's soft limit of locked memory in bytes; `None` for no limit.
fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the struct.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (done == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn refused(need: u64, limit: Option<u64>, cause: io::Error) -> Error {
    let need_text = format_size(need);
    let error = match limit {
        Some(limit) if cause.raw_os_error() == Some(libc::ENOMEM) || limit < need => Error::new(
            Kind::Resource,
            format!(
                "cannot register {need_text} for RDMA: this process may lock {} in all",
                format_size(limit)
            ),
        )
        .remedy(
            "ulimit -l unlimited in the shell that starts it, or LimitMEMLOCK=infinity in its \
             systemd unit; /etc/security/limits.conf takes effect at the next login only",
        ),
        _ => Error::new(Kind::Resource, format!("cannot register {need_text} for RDMA"))
            .remedy("free memory, or use fewer --depth or a smaller --slot-size"),
    };
    error.caused_by(cause)
}

/// A registered array of messages of 64 bytes. Each is either the CPU's or posted to hardware;
/// accesses are volatile, so a broken peer or device can at worst spoil a message's contents,
/// which are validated after they were copied out.
#[derive(Debug)]
pub(super) struct Messages {
    mr: Mr,
    count: usize,
}

/// The word of a client that the server writes to where the connection is silent: memory of its
/// own, so that its key opens nothing else.
#[derive(Debug)]
pub(super) struct Probed(Mr);

impl Probed {
    /// Maps and registers it.
    pub fn new(pd: &Arc<Pd>) -> Result<Self> {
        let spec = ArenaSpec { bytes: PROBE_BYTES as usize, pages: Pages::Base, node: None };
        let arena = Arena::map(&spec)
            .map_err(|e| Error::new(e.kind(), "no memory for the probe word").caused_by(e))?;
        Mr::register(pd, &Arc::new(arena), Access::RemoteWrite).map(Self)
    }

    /// What the server is told.
    pub fn word(&self) -> ProbeWord {
        ProbeWord { addr: self.0.arena.base() as u64, rkey: self.0.rkey }
    }

    /// True once something was written to it.
    #[cfg(test)]
    pub fn was_written(&self) -> bool {
        // SAFETY: the arena has these 8 bytes, aligned to a page and zeroed by the kernel. No Rust
        // reference to them exists.
        unsafe { self.0.arena.base().cast::<u64>().read_volatile() != 0 }
    }
}

impl Messages {
    /// Maps and registers room for `count` messages.
    pub fn new(pd: &Arc<Pd>, count: usize, node: Option<u32>) -> Result<Arc<Self>> {
        let spec = ArenaSpec { bytes: count * MESSAGE_SIZE, pages: Pages::Base, node };
        let arena = Arena::map(&spec)
            .map_err(|e| Error::new(e.kind(), "no memory for message buffers").caused_by(e))?;
        let mr = Mr::register(pd, &Arc::new(arena), Access::Local)?;
        Ok(Arc::new(Self { mr, count }))
    }

    fn slot(&self, index: usize) -> *mut [u64; MESSAGE_SIZE / 8] {
        assert!(index < self.count, "message {index} of {}", self.count);
        // SAFETY: index is below count, and the arena has count * 64 bytes.
        unsafe { self.mr.arena.base().add(index * MESSAGE_SIZE).cast() }
    }

    /// Scatter/gather entry of a message.
    pub fn entry(&self, index: usize) -> sys::ibv_sge {
        let addr = self.slot(index) as u64;
        sys::ibv_sge { addr, length: MESSAGE_SIZE as u32, lkey: self.mr.lkey }
    }

    /// Copies a message out.
    pub fn read(&self, index: usize) -> Message {
        // SAFETY: within the arena, initialised by the kernel, aligned to 64 bytes. No Rust
        // reference to these bytes exists anywhere.
        let words = unsafe { self.slot(index).read_volatile() };
        let mut message = [0; MESSAGE_SIZE];
        for (to, word) in message.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        message
    }

    /// Copies a message in.
    pub fn write(&self, index: usize, message: &Message) {
        let mut words = [0u64; MESSAGE_SIZE / 8];
        for (word, from) in words.iter_mut().zip(message.chunks_exact(8)) {
            *word = u64::from_ne_bytes(from.try_into().expect("chunks of 8"));
        }
        // SAFETY: as for `read`.
        unsafe { self.slot(index).write_volatile(words) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_memlock_limit_is_named_with_the_need() {
        let cause = io::Error::from_raw_os_error(libc::ENOMEM);
        let report = refused(64 << 20, Some(8 << 20), cause).report();
        assert!(report.contains("register 64MiB"), "{report}");
        assert!(report.contains("may lock 8MiB"), "{report}");
        assert!(report.contains("LimitMEMLOCK"), "{report}");
        let cause = io::Error::from_raw_os_error(libc::ENOMEM);
        assert!(!refused(1 << 20, None, cause).report().contains("ulimit"));
    }
}
