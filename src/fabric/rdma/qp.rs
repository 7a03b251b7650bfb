//! Queue pairs and chains of work requests.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_sys as sys;
use sys::{ibv_access_flags, ibv_qp_attr_mask as mask, ibv_qp_state as state, ibv_send_flags};

use super::cm::{CmId, RETRIES, RNR_RETRIES};
use super::ffi::{Cq, Pd, verb};
use super::mr::Messages;
use super::private::{PROBE_BYTES, ProbeWord};
use crate::error::{Context as _, Result};
use crate::limits::MESSAGE_SIZE;

/// Time until a packet that was not acknowledged is sent again: 4.096 us * 2^17 = 537 ms, of
/// which devices may wait up to four times as long (InfiniBand Architecture Specification,
/// volume 1, "Transport Timer"). With [`RETRIES`] a dead peer is noticed in 4 to 15 seconds.
/// Much shorter, and a loaded soft-RoCE peer is sent everything twice.
const ACK_TIMEOUT: u8 = 17;

/// Pause that a sender keeps after "receiver not ready": code 14 is 1.28 ms. rdma_cm's own
/// value is 0, which means 655 ms.
const RNR_TIMER: u8 = 14;

/// Sizes of a QP.
#[derive(Debug, Clone, Copy)]
pub(super) struct QpSpec {
    /// Work requests of the send queue.
    pub sends: u32,
    /// Receives.
    pub receives: u32,
    /// Who the peer is, and so what it may do with memory of the QP's protection domain.
    pub peer: Peer,
    /// RDMA READs that may be under way at once: by this side where the peer is a client.
    pub reads: u8,
}

/// Who the peer of a QP is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// A client, which reaches no memory.
    Client,
    /// A server, which writes to and reads from what is registered for that.
    Server,
}

/// A queue pair of a reliable connection. It holds what its work requests need: the CQ and the
/// messages' registration. Destroyed when the last holder drops it.
#[derive(Debug)]
pub(super) struct Qp {
    ptr: NonNull<sys::ibv_qp>,
    inline: bool,
    spec: QpSpec,
    peer_left: AtomicBool,
    gone: bool,
    messages: Arc<Messages>,
    _cq: Arc<Cq>,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs is thread-safe: posting takes the provider's lock of the queue, so one
// thread may post while another modifies. The QP lives until Drop, which needs the last Arc.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Qp {
    /// A QP in the state RESET, both queues of which complete to `cq`.
    pub fn new(pd: &Arc<Pd>, cq: &Arc<Cq>, messages: &Arc<Messages>, spec: QpSpec) -> Result<Self> {
        let mut attributes = sys::ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: std::ptr::null_mut(),
            cap: sys::ibv_qp_cap {
                max_send_wr: spec.sends,
                max_recv_wr: spec.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: MESSAGE_SIZE as u32,
            },
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: a live PD and CQ of one device; the attributes are read and written back.
        let mut ptr = unsafe { sys::ibv_create_qp(pd.as_ptr(), &mut attributes) };
        if ptr.is_null() {
            // A device that cannot send 64 bytes inline: the records go out of registered memory.
            attributes.cap.max_inline_data = 0;
            // SAFETY: as above.
            ptr = unsafe { sys::ibv_create_qp(pd.as_ptr(), &mut attributes) };
        }
        let ptr = NonNull::new(ptr).ok_or_else(io::Error::last_os_error).context(|| {
            format!(
                "cannot create a queue pair of {} sends and {} receives on {}",
                spec.sends,
                spec.receives,
                pd.id().label()
            )
        })?;
        Ok(Self {
            ptr,
            inline: attributes.cap.max_inline_data >= MESSAGE_SIZE as u32,
            spec,
            peer_left: AtomicBool::new(false),
            gone: false,
            messages: Arc::clone(messages),
            _cq: Arc::clone(cq),
            _pd: Arc::clone(pd),
        })
    }

    /// Number of the QP.
    pub fn number(&self) -> u32 {
        // SAFETY: a live QP; the number never changes.
        unsafe { self.ptr.as_ref().qp_num }
    }

    /// Identity, as asynchronous events name it.
    pub fn key(&self) -> usize {
        self.ptr.as_ptr() as usize
    }

    /// Notes that it was the peer who ended the connection.
    pub fn note_peer_left(&self) {
        self.peer_left.store(true, Ordering::Relaxed);
    }

    /// True if the peer ended the connection.
    pub fn peer_left(&self) -> bool {
        self.peer_left.load(Ordering::Relaxed)
    }

    fn modify(&self, mut to: sys::ibv_qp_attr, what: i32) -> io::Result<()> {
        // SAFETY: a live QP; the attributes named by the mask are set.
        verb(unsafe { sys::ibv_modify_qp(self.ptr.as_ptr(), &mut to, what) })
    }

    /// RESET to INIT: receives may be posted.
    pub fn initialise(&self, id: &CmId) -> io::Result<()> {
        let (mut to, what) = id.qp_attributes(state::IBV_QPS_INIT)?;
        to.qp_access_flags = match self.spec.peer {
            Peer::Client => 0,
            Peer::Server => {
                ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
                    | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
            }
        };
        self.modify(to, what | mask::IBV_QP_ACCESS_FLAGS.0 as i32)
    }

    /// INIT to RTS, with a path MTU of at most `mtu` (verbs' code). Returns the MTU chosen, and how
    /// many RDMA READs this side may have under way: what the peer bears, and at most what was
    /// asked for.
    pub fn make_ready(&self, id: &CmId, mtu: u32) -> io::Result<(u32, u8)> {
        let (mut to, what) = id.qp_attributes(state::IBV_QPS_RTR)?;
        to.path_mtu = to.path_mtu.min(mtu);
        to.min_rnr_timer = RNR_TIMER;
        let explicit = mask::IBV_QP_PATH_MTU.0 | mask::IBV_QP_MIN_RNR_TIMER.0;
        let chosen = to.path_mtu;
        self.modify(to, what | explicit as i32)?;
        let (mut to, what) = id.qp_attributes(state::IBV_QPS_RTS)?;
        to.timeout = ACK_TIMEOUT;
        to.retry_cnt = RETRIES;
        to.rnr_retry = RNR_RETRIES;
        let reads = to.max_rd_atomic.min(self.spec.reads);
        to.max_rd_atomic = reads.max(1);
        let explicit = mask::IBV_QP_TIMEOUT.0
            | mask::IBV_QP_RETRY_CNT.0
            | mask::IBV_QP_RNR_RETRY.0
            | mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
        self.modify(to, what | explicit as i32)?;
        Ok((chosen, reads))
    }

    /// Moves the QP to ERR: everything posted completes, nothing more is sent or received.
    pub fn fail(&self) -> io::Result<()> {
        // SAFETY: a C struct of integers, for which zero is a value.
        let mut to: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        to.qp_state = state::IBV_QPS_ERR;
        self.modify(to, mask::IBV_QP_STATE.0 as i32)
    }

    /// Posts a receive into message `index`.
    pub fn post_receive(&self, index: usize, wr_id: u64) -> io::Result<()> {
        let mut entry = self.messages.entry(index);
        let mut request =
            sys::ibv_recv_wr { wr_id, next: std::ptr::null_mut(), sg_list: &mut entry, num_sge: 1 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live QP; the request is read during the call. The hardware writes into the
        // messages' arena, which this QP keeps registered and which is accessed volatile only.
        verb(unsafe { sys::ibv_post_recv(self.ptr.as_ptr(), &mut request, &mut bad) })
    }

    /// Destroys the QP. When that succeeds, the hardware does nothing for it any more.
    pub fn destroy(mut self) -> io::Result<()> {
        self.gone = true;
        // SAFETY: created in `new`, owned, destroyed once: `gone` keeps Drop from it.
        verb(unsafe { sys::ibv_destroy_qp(self.ptr.as_ptr()) })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        // SAFETY: created in `new`, destroyed once: `destroy` was not called.
        if let Err(e) = verb(unsafe { sys::ibv_destroy_qp(self.ptr.as_ptr()) }) {
            log::warn!("a queue pair is leaked: {e}");
        }
    }
}

/// A chain of sends that is posted by one call: one doorbell. Its arrays are made once.
pub(super) struct Chain {
    requests: Vec<sys::ibv_send_wr>,
    entries: Vec<sys::ibv_sge>,
}

// SAFETY: the pointers inside point into the chain's own arrays, and are set anew at each post.
unsafe impl Send for Chain {}

impl Chain {
    /// Room for `capacity` work requests.
    pub fn new(capacity: usize) -> Self {
        Self { requests: Vec::with_capacity(capacity), entries: Vec::with_capacity(capacity) }
    }

    /// Work requests that still fit.
    pub fn room(&self) -> usize {
        self.requests.capacity() - self.requests.len()
    }

    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    fn push(&mut self, wr_id: u64, opcode: u32, flags: u32, entry: sys::ibv_sge) -> &mut sys::wr_t {
        assert!(self.room() > 0, "the chain is full");
        // SAFETY: a C struct of integers and pointers, for which zero is a value.
        let mut request: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
        request.wr_id = wr_id;
        request.opcode = opcode;
        request.send_flags = flags;
        request.num_sge = 1;
        self.entries.push(entry);
        self.requests.push(request);
        &mut self.requests.last_mut().expect("pushed above").wr
    }

    /// Appends an RDMA WRITE, unsignalled, of `entry` to `remote_addr` under `rkey`.
    pub fn push_write(&mut self, wr_id: u64, entry: sys::ibv_sge, remote_addr: u64, rkey: u32) {
        let target = self.push(wr_id, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0, entry);
        target.rdma = sys::rdma_t { remote_addr, rkey };
    }

    /// Appends an RDMA READ, signalled, from `remote_addr` under `rkey` into `entry`.
    pub fn push_read(&mut self, wr_id: u64, entry: sys::ibv_sge, remote_addr: u64, rkey: u32) {
        let flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        let source = self.push(wr_id, sys::ibv_wr_opcode::IBV_WR_RDMA_READ, flags, entry);
        source.rdma = sys::rdma_t { remote_addr, rkey };
    }

    /// Appends a signalled RDMA WRITE of the first bytes of message `index` to a probe word.
    pub fn push_probe(&mut self, qp: &Qp, wr_id: u64, index: usize, word: ProbeWord) {
        let mut flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        if qp.inline {
            flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let entry = sys::ibv_sge { length: PROBE_BYTES, ..qp.messages.entry(index) };
        let target = self.push(wr_id, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, flags, entry);
        target.rdma = sys::rdma_t { remote_addr: word.addr, rkey: word.rkey };
    }

    /// Appends a SEND of message `index`.
    pub fn push_send(&mut self, qp: &Qp, wr_id: u64, index: usize, signalled: bool) {
        let mut flags = 0;
        if signalled {
            flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if qp.inline {
            flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let entry = qp.messages.entry(index);
        self.push(wr_id, sys::ibv_wr_opcode::IBV_WR_SEND, flags, entry);
    }

    /// Posts the chain and empties it. Where the device takes only the start of it, `refused` is
    /// called with the id of each request that was not taken, and the cause is returned.
    ///
    /// # Safety
    ///
    /// The memory of every WRITE must be registered and stay lent to the hardware until the
    /// completion of a later SEND on this QP has been polled, or the QP has been destroyed; that
    /// of a READ until its own completion has been polled, or the QP has been destroyed.
    pub unsafe fn post(&mut self, qp: &Qp, mut refused: impl FnMut(u64)) -> io::Result<()> {
        let count = self.requests.len();
        if count == 0 {
            return Ok(());
        }
        let (requests, entries) = (self.requests.as_mut_ptr(), self.entries.as_mut_ptr());
        for at in 0..count {
            // SAFETY: `at` is below the length of both arrays, which are not moved before the
            // call below returns.
            unsafe {
                (*requests.add(at)).sg_list = entries.add(at);
                (*requests.add(at)).next =
                    if at + 1 < count { requests.add(at + 1) } else { std::ptr::null_mut() };
            }
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live QP and a linked list of requests, read during the call; the memory that
        // they name stays valid: messages by the QP's own Arc, payload by the caller's promise.
        let done = verb(unsafe { sys::ibv_post_send(qp.ptr.as_ptr(), requests, &mut bad) });
        if done.is_err() {
            let first = self.requests.iter().position(|r| std::ptr::eq(r, bad)).unwrap_or(0);
            self.requests[first..].iter().for_each(|request| refused(request.wr_id));
        }
        self.requests.clear();
        self.entries.clear();
        done
    }
}
