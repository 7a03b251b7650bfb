//! One io_uring and its system calls.
//!
//! A worker's loop is submit*, flush, poll; `flush` is the only one that enters the kernel, at
//! most once, and not at all when nothing is queued and nothing waits to be collected.
//!
//! Flags of the ring: with SINGLE_ISSUER + DEFER_TASKRUN the kernel posts completions only inside
//! the one enter of a turn, so they never interrupt the loop; TASKRUN_FLAG says in shared memory
//! whether that enter is needed. A ring with a submission thread (SQPOLL) excludes DEFER_TASKRUN.
//!
//! Measured: random reads of 4 KiB at depth 32 on a loop device over tmpfs, kernel 6.18, 2 cores
//! shared with other work, 7 interleaved rounds of 1 s, idle turns yield the CPU. Medians:
//! DEFER_TASKRUN 144 K IOPS, COOP_TASKRUN 98 K, neither 76 K. The rounds of one setting spread by
//! a factor of 8, so only the order within a round counts: deferred was ahead of COOP_TASKRUN in
//! 6 of 7, of neither in 7 of 7. CPU time per command, both waiting in the kernel instead of
//! polling (which holds still under other load): this queue 1.38 us, fio's io_uring engine with
//! the same batches and registrations 1.50 us, this queue with nothing registered 1.80 us.

use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use io_uring::types::{CancelBuilder, Timespec};
use io_uring::{EnterFlags, IoUring, squeue};

use super::options::UringOptions;
use crate::error::{Error, Kind, Result};
use crate::host::Root;
use crate::host::uring::{SYSCTL, memlock_error, setup_error};
use crate::limits::{MAX_FIXED_BUFFER, MAX_SLOT_SIZE};
use crate::memory::Arena;

/// Distance in bytes of the registered slices of an arena. Each slice is [`MAX_FIXED_BUFFER`]
/// long, so it overlaps the next by the largest slot: a slot that starts in the stride of a slice
/// lies in that slice as a whole, whatever the size of the slots is.
pub(super) const SLICE_STRIDE: usize = MAX_FIXED_BUFFER - MAX_SLOT_SIZE;

/// Milliseconds without work after which the thread of an SQPOLL ring sleeps. Long, because
/// whoever asks for the thread wants it awake.
const SQPOLL_IDLE_MS: u32 = 2000;

/// Operations of io_uring_register(2) on the task's table of rings (include/uapi/linux/io_uring.h).
const REGISTER_RING_FDS: libc::c_uint = 20;
const UNREGISTER_RING_FDS: libc::c_uint = 21;

/// `struct io_uring_rsrc_update` of the kernel.
#[repr(C)]
struct RingFdUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// A ring that belongs to the thread that made it.
pub(super) struct Ring {
    ring: ManuallyDrop<IoUring>,
    options: UringOptions,
    /// What io_uring_enter is given: the ring's descriptor, or its place in the task's table.
    enter_fd: RawFd,
    /// Flags of each enter.
    enter_flags: EnterFlags,
    /// Calls of io_uring_enter so far.
    enters: u64,
    /// Single-issuer rings and registered ring descriptors are of one thread.
    not_send: PhantomData<*const ()>,
}

impl Ring {
    /// Makes a ring for `depth` commands at once.
    pub fn new(depth: u32, options: UringOptions) -> Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_submit_all().dontfork();
        let mut entries = depth.next_power_of_two();
        if options.sqpoll {
            builder.setup_sqpoll(SQPOLL_IDLE_MS);
            // The thread may complete a command before it gives its entry back.
            entries *= 2;
        } else {
            builder.setup_defer_taskrun().setup_taskrun_flag();
        }
        if options.iopoll {
            builder.setup_iopoll();
        }
        let ring = builder.build(entries).map_err(|e| {
            setup_error(e.raw_os_error().unwrap_or(0), Root::system().read_number(SYSCTL).ok())
        })?;
        // At most `depth` commands are in flight, each with one completion: no overflow.
        assert!(ring.params().cq_entries() >= depth);
        let mut ring = Self {
            enter_fd: ring.as_raw_fd(),
            enter_flags: EnterFlags::empty(),
            ring: ManuallyDrop::new(ring),
            options,
            enters: 0,
            not_send: PhantomData,
        };
        if options.regring {
            ring.register_ring_fd()?;
        }
        Ok(ring)
    }

    /// Puts the ring in the task's table. The io-uring crate keeps the place in a short-lived
    /// `Submitter` only, hence the system calls here.
    fn register_ring_fd(&mut self) -> Result<()> {
        let data = self.ring.as_raw_fd() as u64;
        let mut update = RingFdUpdate { offset: u32::MAX, reserved: 0, data };
        self.update_ring_fd(REGISTER_RING_FDS, &mut update).map_err(|e| {
            Error::new(Kind::Unsupported, "--regring on: the ring's descriptor is not registered")
                .remedy("a thread has at most 16 such rings; use --regring off")
                .caused_by(e)
        })?;
        self.enter_fd = update.offset as RawFd;
        self.enter_flags |= EnterFlags::REGISTERED_RING;
        Ok(())
    }

    fn update_ring_fd(&self, operation: libc::c_uint, update: &mut RingFdUpdate) -> io::Result<()> {
        // SAFETY: io_uring_register(2) reads and writes one update at the address.
        let done = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.ring.as_raw_fd(),
                operation,
                &raw mut *update,
                1,
            )
        };
        match done {
            1 => Ok(()),
            0.. => Err(io::Error::from_raw_os_error(libc::EBUSY)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Registers the drives; their numbers become the numbers in the table.
    pub fn register_files(&self, files: &[OwnedFd]) -> Result<()> {
        let fds: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        self.ring.submitter().register_files(&fds).map_err(|e| {
            Error::new(Kind::Resource, format!("--regfiles on: {} drives not taken", fds.len()))
                .remedy("raise the limit on open files (ulimit -n), or use --regfiles off")
                .caused_by(e)
        })
    }

    /// Registers an arena in slices; see [`SLICE_STRIDE`].
    ///
    /// # Safety
    ///
    /// The arena must stay mapped as long as this ring exists.
    pub unsafe fn register_arena(&self, arena: &Arena) -> Result<()> {
        let slices: Vec<libc::iovec> = (0..arena.len())
            .step_by(SLICE_STRIDE)
            .map(|start| libc::iovec {
                iov_base: arena.base().wrapping_add(start).cast(),
                iov_len: MAX_FIXED_BUFFER.min(arena.len() - start),
            })
            .collect();
        // SAFETY: each slice lies in the arena's mapping, which the caller keeps.
        unsafe { self.ring.submitter().register_buffers(&slices) }.map_err(|e| {
            let need = slices.iter().map(|slice| slice.iov_len as u64).sum();
            if e.raw_os_error() == Some(libc::ENOMEM) {
                return memlock_error(need, memlock_limit(), e);
            }
            let place = format!("{need} bytes from {:?} on", arena.base());
            let what = format!(
                "--regbufs on: the kernel does not take the arena ({place}, {} slices)",
                slices.len()
            );
            Error::new(Kind::Unsupported, what).remedy("use --regbufs off").caused_by(e)
        })
    }

    /// Puts an entry in the batch; false where it is full.
    ///
    /// # Safety
    ///
    /// What the entry points to must stay valid until its completion was reaped.
    pub unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller's duty.
        unsafe { self.ring.submission().push(entry).is_ok() }
    }

    /// True where the batch takes no more.
    pub fn is_full(&mut self) -> bool {
        self.ring.submission().is_full()
    }

    /// Hands the batch over and has the kernel post what completed, in at most one system call;
    /// see the top of this file. `in_flight`: whether there is anything to wait for; `wait`: sleep
    /// until a completion is there.
    pub fn enter(&mut self, in_flight: bool, wait: bool) -> io::Result<()> {
        let batch = self.ring.submission();
        let (queued, overflow) = (batch.len(), batch.cq_overflow());
        let UringOptions { sqpoll, iopoll, .. } = self.options;
        let needed = if sqpoll {
            // need_wakeup orders the look at the flag after the batch's tail was published.
            overflow || queued > 0 && batch.need_wakeup()
        } else {
            overflow || queued > 0 || batch.taskrun() || iopoll && in_flight
        };
        drop(batch);
        let wait = wait && in_flight && self.ring.completion().is_empty();
        if !needed && !wait {
            return Ok(());
        }
        let mut flags = self.enter_flags;
        flags.set(EnterFlags::SQ_WAKEUP, sqpoll);
        flags.set(EnterFlags::GETEVENTS, !sqpoll || overflow || wait);
        self.enters += 1;
        // SAFETY: io_uring_enter(2) without an argument; what the entries point to is the duty of
        // `push`.
        let done = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                self.enter_fd,
                queued as libc::c_uint,
                libc::c_uint::from(wait),
                flags.bits(),
                std::ptr::null::<libc::c_void>(),
                0_usize,
            )
        };
        if done >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // No memory for a request right now, completions to be reaped first, or a signal:
            // what was not taken is still in the batch, and goes with the next turn.
            Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => Ok(()),
            _ => Err(error),
        }
    }

    /// Calls of io_uring_enter so far.
    pub fn enters(&self) -> u64 {
        self.enters
    }

    /// Passes completions to `each` (user data and result) until it returns false or none is left.
    pub fn reap(&mut self, mut each: impl FnMut(u64, i32) -> bool) {
        // Not consumed by the loop: what is not taken stays for the next time.
        let mut completions = self.ring.completion();
        for completion in &mut completions {
            if !each(completion.user_data(), completion.result()) {
                break;
            }
        }
    }

    /// Asks the kernel to cancel every command. What is on a drive already cannot be cancelled,
    /// and completes on its own.
    pub fn cancel_all(&self) {
        let now = Timespec::new();
        // In one call without an entry: a polled ring takes no entry of another kind.
        match self.ring.submitter().register_sync_cancel(Some(now), CancelBuilder::any().all()) {
            Ok(()) => {}
            // ENOENT: nothing to cancel; ETIME: it goes on in the background.
            Err(e) => log::debug!("cancelling commands of a ring: {e}"),
        }
    }

    /// Gives registered drives and memory back at once. The kernel closes a ring in the background
    /// (io_ring_exit_work in io_uring/io_uring.c): whoever opens the drive for itself next would
    /// find it in use, and hugepages would come back late.
    fn release(&self) {
        let submitter = self.ring.submitter();
        for done in [submitter.unregister_files(), submitter.unregister_buffers()] {
            match done {
                // ENXIO: none were registered.
                Err(e) if e.raw_os_error() != Some(libc::ENXIO) => {
                    log::warn!("a ring gives drives or memory back late: {e}");
                }
                _ => {}
            }
        }
    }

    /// Gives the ring up without closing it.
    pub fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.enter_flags.contains(EnterFlags::REGISTERED_RING) {
            // The table holds a reference, which would keep the ring for the life of the thread.
            let offset = self.enter_fd as u32;
            let mut update = RingFdUpdate { offset, reserved: 0, data: 0 };
            if let Err(e) = self.update_ring_fd(UNREGISTER_RING_FDS, &mut update) {
                log::warn!("a ring stays registered until its thread ends: {e}");
            }
        }
        self.release();
        // SAFETY: dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}

/// RLIMIT_MEMLOCK of this process in bytes; `None` for no limit.
fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit(2) writes one rlimit to the address.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (done == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests;
