//! rdma_cm: event channels, ids, and the events of connection set-up.
//!
//! An event is copied and acknowledged at once, because `rdma_destroy_id` blocks until every event
//! of its id has been acknowledged.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as sys;
use sys::rdma_cm_event_type as event;

use super::ffi::{absent, is_absent, verb};
use crate::error::{Context as _, Error, Kind, Result};

/// Times that a lost packet is sent again before the peer is given up. Not 7, the most that fits:
/// soft-RoCE takes that for "for ever" (rxe_comp.c), and a peer that is gone is never found out.
pub(super) const RETRIES: u8 = 6;

/// Times that a send is repeated after "receiver not ready". 7 would mean for ever, which hides a
/// missing receive behind seconds of latency; credits make it impossible, so few are enough.
pub(super) const RNR_RETRIES: u8 = 6;

/// Longest private data of an event (that of a connection response).
const PRIVATE_MAX: usize = 196;

/// What an event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Address resolved.
    AddrResolved,
    /// Route resolved.
    RouteResolved,
    /// A client asks for a connection.
    ConnectRequest,
    /// The server accepted.
    ConnectResponse,
    /// The connection is up.
    Established,
    /// The server refused; the private data says why.
    Rejected,
    /// The peer closed, or is being closed.
    Disconnected,
    /// The device is going away.
    DeviceRemoval,
    /// The address moved to another device.
    AddrChange,
    /// Set-up failed; the code is the event's own.
    Failed(u32),
    /// Nothing that matters here (the id's time-wait is over).
    Other,
}

/// One event.
pub(super) struct CmEvent {
    pub what: What,
    /// Which id it is for, as an identity only.
    pub key: usize,
    /// The id of a [`What::ConnectRequest`], which the receiver of the event owns.
    pub new_id: Option<CmId>,
    /// Negative errno, or the reason of a refusal.
    pub status: i32,
    private: [u8; PRIVATE_MAX],
    private_len: usize,
}

impl CmEvent {
    /// The private data, possibly with zeros behind it.
    pub fn private(&self) -> &[u8] {
        &self.private[..self.private_len]
    }

    /// The event as an error of setting up a connection.
    pub fn failure(&self, doing: &str) -> Error {
        let errno = self.status.unsigned_abs();
        let cause = match self.what {
            What::Rejected => format!("refused (reason {})", self.status),
            What::Failed(code) if errno == 0 => event_name(code),
            What::Failed(code) => {
                format!("{}: {}", event_name(code), io::Error::from_raw_os_error(errno as i32))
            }
            what => format!("unexpected event {what:?}"),
        };
        let remedy = match self.what {
            What::Rejected => "check that a millrace server listens there with --fabric rdma",
            What::Failed(event::RDMA_CM_EVENT_ADDR_ERROR) => {
                "choose an address in the network of one of this host's RDMA devices; \
                 `rdma link` and `ip addr` show them"
            }
            _ => "check cabling, routes and, on RoCE, that UDP port 4791 is not filtered",
        };
        Error::new(Kind::Network, format!("{doing}: {cause}")).remedy(remedy)
    }
}

fn event_name(code: u32) -> String {
    // SAFETY: takes any value; returns null (library absent) or a static string.
    let text = unsafe { sys::rdma_event_str(code) };
    if text.is_null() {
        return format!("event {code}");
    }
    // SAFETY: not null, so a static string that ends with a zero byte.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Where events of ids arrive.
#[derive(Debug)]
pub(super) struct EventChannel(NonNull<sys::rdma_event_channel>);

// SAFETY: librdmacm is thread-safe; the channel is one file descriptor that lives until Drop.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// A channel whose reads do not block.
    pub fn new() -> Result<Arc<Self>> {
        // SAFETY: no preconditions.
        let ptr = unsafe { sys::rdma_create_event_channel() };
        let Some(ptr) = NonNull::new(ptr) else {
            let e = io::Error::last_os_error();
            if is_absent(&e) {
                return Err(absent("librdmacm", "librdmacm1", "librdmacm"));
            }
            return Err(Error::new(Kind::Unsupported, "rdma_cm gives no event channel")
                .caused_by(e)
                .remedy("modprobe rdma_ucm"));
        };
        let channel = Self(ptr);
        // SAFETY: fcntl on the channel's own descriptor.
        let done = unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        verb(done).context(|| "cannot make rdma_cm's channel non-blocking".into())?;
        Ok(Arc::new(channel))
    }

    pub fn fd(&self) -> RawFd {
        // SAFETY: a live channel; the field never changes.
        unsafe { self.0.as_ref().fd }
    }

    /// The next event, if one is there.
    pub fn next(&self) -> Result<Option<CmEvent>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a live channel and a pointer to write to.
        if let Err(e) = verb(unsafe { sys::rdma_get_cm_event(self.0.as_ptr(), &mut raw) }) {
            return match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(e).context(|| "cannot read an rdma_cm event".into()),
            };
        }
        // SAFETY: rdma_get_cm_event succeeded, so `raw` is an event until it is acknowledged.
        let seen = unsafe { &*raw };
        let mut private = [0; PRIVATE_MAX];
        // SAFETY: ids of port space TCP use the `conn` part; both parts start alike.
        let (data, len) =
            unsafe { (seen.param.conn.private_data, seen.param.conn.private_data_len) };
        let private_len = if data.is_null() { 0 } else { usize::from(len).min(PRIVATE_MAX) };
        // SAFETY: the event's private data has `len` bytes; it ends before `private` does.
        unsafe { std::ptr::copy_nonoverlapping(data.cast(), private.as_mut_ptr(), private_len) };
        let what = match seen.event {
            event::RDMA_CM_EVENT_ADDR_RESOLVED => What::AddrResolved,
            event::RDMA_CM_EVENT_ROUTE_RESOLVED => What::RouteResolved,
            event::RDMA_CM_EVENT_CONNECT_REQUEST => What::ConnectRequest,
            event::RDMA_CM_EVENT_CONNECT_RESPONSE => What::ConnectResponse,
            event::RDMA_CM_EVENT_ESTABLISHED => What::Established,
            event::RDMA_CM_EVENT_REJECTED => What::Rejected,
            event::RDMA_CM_EVENT_DISCONNECTED => What::Disconnected,
            event::RDMA_CM_EVENT_DEVICE_REMOVAL => What::DeviceRemoval,
            event::RDMA_CM_EVENT_ADDR_CHANGE => What::AddrChange,
            event::RDMA_CM_EVENT_ADDR_ERROR
            | event::RDMA_CM_EVENT_ROUTE_ERROR
            | event::RDMA_CM_EVENT_CONNECT_ERROR
            | event::RDMA_CM_EVENT_UNREACHABLE => What::Failed(seen.event),
            _ => What::Other,
        };
        let new_id = (what == What::ConnectRequest).then_some(seen.id).and_then(NonNull::new);
        let copied = (seen.id as usize, seen.status);
        // SAFETY: `raw` came from rdma_get_cm_event and is acknowledged once; `seen` and `data`
        // are not used any more.
        if let Err(e) = verb(unsafe { sys::rdma_ack_cm_event(raw) }) {
            log::warn!("rdma_ack_cm_event: {e}");
        }
        let (key, status) = copied;
        let new_id = new_id.map(|ptr| CmId { ptr, channel: None });
        Ok(Some(CmEvent { what, key, new_id, status, private, private_len }))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: created in `new`; ids hold an Arc of it (those of connect requests: their
        // listener's holder does), so none is left.
        unsafe { sys::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// An rdma_cm id: an endpoint of the connection manager. The QP is made apart from it.
#[derive(Debug)]
pub(super) struct CmId {
    ptr: NonNull<sys::rdma_cm_id>,
    channel: Option<Arc<EventChannel>>,
}

// SAFETY: librdmacm is thread-safe for calls on an id; it lives until Drop, which runs once.
unsafe impl Send for CmId {}
// SAFETY: as above. The fields read through `&self` are written by calls that complete before
// the id is shared (bind, resolve, the event that made it).
unsafe impl Sync for CmId {}

impl CmId {
    /// A fresh id with reliable connections as its port space.
    pub fn new(channel: &Arc<EventChannel>) -> Result<Self> {
        let mut ptr = std::ptr::null_mut();
        // SAFETY: a live channel, a pointer to write to, no user context.
        let done = unsafe {
            sys::rdma_create_id(
                channel.0.as_ptr(),
                &mut ptr,
                std::ptr::null_mut(),
                sys::rdma_port_space::RDMA_PS_TCP,
            )
        };
        verb(done).context(|| "cannot create an rdma_cm id".into())?;
        let ptr = NonNull::new(ptr).expect("rdma_create_id succeeded");
        Ok(Self { ptr, channel: Some(Arc::clone(channel)) })
    }

    /// Keeps `channel` for as long as this id; for ids that came with an event.
    pub fn kept_by(mut self, channel: &Arc<EventChannel>) -> Self {
        self.channel = Some(Arc::clone(channel));
        self
    }

    /// Identity, as in [`CmEvent::key`].
    pub fn key(&self) -> usize {
        self.ptr.as_ptr() as usize
    }

    pub fn as_ptr(&self) -> *mut sys::rdma_cm_id {
        self.ptr.as_ptr()
    }

    /// The open device that the id is bound to.
    pub fn context(&self) -> Result<NonNull<sys::ibv_context>> {
        // SAFETY: a live id; see `Sync` for the field.
        NonNull::new(unsafe { self.ptr.as_ref().verbs })
            .ok_or_else(|| Error::new(Kind::Network, "the address is bound to no RDMA device"))
    }

    /// Name of the device that the id is bound to.
    pub fn device_name(&self) -> Option<String> {
        let context = self.context().ok()?;
        // SAFETY: an open context has a device; its name is a string with a zero byte in 64.
        let name = unsafe { std::ffi::CStr::from_ptr((*context.as_ref().device).name.as_ptr()) };
        Some(name.to_string_lossy().into_owned())
    }

    /// Device and port that the id is bound to.
    pub fn place(&self) -> Option<(String, u8)> {
        Some((self.device_name()?, self.port()))
    }

    /// Device and port for messages.
    pub fn label(&self) -> String {
        format!("{} port {}", self.device_name().unwrap_or_else(|| "no device".into()), self.port())
    }

    /// Port of the device, from 1.
    pub fn port(&self) -> u8 {
        // SAFETY: a live id; see `Sync` for the field.
        unsafe { self.ptr.as_ref().port_num }
    }

    /// The local address.
    pub fn local_addr(&self) -> SocketAddr {
        // SAFETY: a live id; the union is plain bytes, large enough for any address.
        let raw = unsafe { self.ptr.as_ref().route.addr.src_addr_union.src_storage };
        from_raw(&raw)
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        // SAFETY: as above.
        let raw = unsafe { self.ptr.as_ref().route.addr.dst_addr_union.dst_storage };
        from_raw(&raw)
    }

    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let mut raw = to_raw(addr);
        // SAFETY: a live id; the address is read during the call.
        verb(unsafe { sys::rdma_bind_addr(self.as_ptr(), (&raw mut raw).cast()) })
    }

    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: a live, bound id.
        verb(unsafe { sys::rdma_listen(self.as_ptr(), backlog) })
    }

    /// Starts to resolve `to`, from the address `local` where one is given.
    pub fn resolve_addr(&self, local: Option<IpAddr>, to: SocketAddr, ms: i32) -> io::Result<()> {
        let mut from = local.map(|ip| to_raw(SocketAddr::new(ip, 0)));
        let from = from.as_mut().map_or(std::ptr::null_mut(), |raw| (&raw mut *raw).cast());
        let mut to = to_raw(to);
        // SAFETY: a live id; the addresses are read during the call; null means any source.
        verb(unsafe { sys::rdma_resolve_addr(self.as_ptr(), from, (&raw mut to).cast(), ms) })
    }

    pub fn resolve_route(&self, ms: i32) -> io::Result<()> {
        // SAFETY: a live id whose address is resolved.
        verb(unsafe { sys::rdma_resolve_route(self.as_ptr(), ms) })
    }

    /// `served` READs of the peer and `own` of this side may be under way at once. Some devices
    /// refuse 0, so at least 1 of each is said.
    fn parameters(qp: u32, private: &[u8], served: u8, own: u8) -> sys::rdma_conn_param {
        sys::rdma_conn_param {
            private_data: private.as_ptr().cast(),
            private_data_len: private.len() as u8,
            responder_resources: served.max(1),
            initiator_depth: own.max(1),
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RNR_RETRIES,
            srq: 0,
            qp_num: qp,
        }
    }

    /// Asks the peer for a connection to QP number `qp`, from which it may `reads` at once.
    pub fn connect(&self, qp: u32, private: &[u8], reads: u8) -> io::Result<()> {
        let mut parameters = Self::parameters(qp, private, reads, 0);
        // SAFETY: a live id with a route; the parameters are read during the call.
        verb(unsafe { sys::rdma_connect(self.as_ptr(), &mut parameters) })
    }

    /// Accepts a connection to QP number `qp`, on which this side will have up to `reads` READs
    /// under way at once.
    pub fn accept(&self, qp: u32, private: &[u8], reads: u8) -> io::Result<()> {
        let mut parameters = Self::parameters(qp, private, 0, reads);
        // SAFETY: a live id of a connect request; the parameters are read during the call.
        verb(unsafe { sys::rdma_accept(self.as_ptr(), &mut parameters) })
    }

    /// Tells the server that the client's QP is ready.
    pub fn establish(&self) -> io::Result<()> {
        // SAFETY: a live id that has got its response.
        verb(unsafe { sys::rdma_establish(self.as_ptr()) })
    }

    pub fn reject(&self, private: &[u8]) -> io::Result<()> {
        // SAFETY: a live id of a connect request; the data is read during the call.
        verb(unsafe {
            sys::rdma_reject(self.as_ptr(), private.as_ptr().cast(), private.len() as u8)
        })
    }

    /// Tells the peer that the connection is over. Fails where it is already.
    pub fn disconnect(&self) -> io::Result<()> {
        // SAFETY: a live id.
        verb(unsafe { sys::rdma_disconnect(self.as_ptr()) })
    }

    /// What a QP of this connection must be set to on its way to `state`.
    pub fn qp_attributes(&self, state: u32) -> io::Result<(sys::ibv_qp_attr, i32)> {
        // SAFETY: a C struct of integers, for which zero is a value.
        let mut attributes: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = state;
        let mut mask = 0;
        // SAFETY: a live id, and structs to write to.
        verb(unsafe { sys::rdma_init_qp_attr(self.as_ptr(), &mut attributes, &mut mask) })?;
        Ok((attributes, mask))
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: the id is owned and destroyed once. Its events are acknowledged as they are
        // read, so this does not block on one; objects on its device hold an Arc of the id.
        if let Err(e) = verb(unsafe { sys::rdma_destroy_id(self.ptr.as_ptr()) }) {
            log::warn!("rdma_destroy_id: {e}");
        }
    }
}

/// Borrows what [`CmId::place`] returns.
pub(super) fn as_place(place: &(String, u8)) -> (&str, u8) {
    (&place.0, place.1)
}

fn to_raw(addr: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: C structs of integers, for which zero is a value.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match addr {
        SocketAddr::V4(addr) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is at least as large and as aligned as sockaddr_in.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
        }
        SocketAddr::V6(addr) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: addr.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                sin6_scope_id: addr.scope_id(),
            };
            // SAFETY: as above, for sockaddr_in6.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
        }
    }
    storage
}

fn from_raw(storage: &libc::sockaddr_storage) -> SocketAddr {
    if i32::from(storage.ss_family) == libc::AF_INET6 {
        // SAFETY: the family says what the storage holds; it is large and aligned enough.
        let raw = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
        let port = u16::from_be(raw.sin6_port);
        return (std::net::Ipv6Addr::from(raw.sin6_addr.s6_addr), port).into();
    }
    // SAFETY: as above; storage of no family is zeros, which is the address 0.0.0.0:0.
    let raw = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
    let ip = std::net::Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
    (ip, u16::from_be(raw.sin_port)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_trip() {
        for text in ["10.77.0.1:4420", "[fe80::aff:fe4d:1]:7471", "0.0.0.0:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(from_raw(&to_raw(addr)), addr);
        }
    }
}
