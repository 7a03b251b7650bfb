//! The client's way to a connection: from an address to a QP that is ready to send.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use super::cm::{CmEvent, CmId, EventChannel, What, as_place};
use super::conn::{Work, WorkId};
use super::device;
use super::ffi::{Cq, Pd, available, mtu_bytes, wait_readable};
use super::mr::{Access, Messages, Mr, Probed};
use super::private::Sizes;
use super::qp::{Peer, Qp, QpSpec};
use super::sizing::{MAX_READS, client_sends};
use crate::error::{Context as _, Error, Kind, Result};
use crate::fabric::handshake::ClientHandshake;
use crate::fabric::{ConnId, ConnectConfig};
use crate::host::Root;
use crate::limits::{MAX_CREDITS, MESSAGE_SIZE};
use crate::memory::Arena;

/// Receives beyond the credits: the handshake's welcome and proof come at once.
pub(super) const SPARE_RECEIVES: u16 = 2;

/// The client's work requests need no connection's number.
pub(super) const SELF: ConnId = ConnId { index: 0, generation: 0 };

/// What an RDMA client needs beyond a [`ConnectConfig`].
#[derive(Debug, Clone, Copy, Default)]
pub struct RdmaConfig {
    /// Local address, which chooses the NIC; `None` leaves it to the routing table.
    pub local: Option<IpAddr>,
}

fn time_left(deadline: Instant) -> i32 {
    let left = deadline.saturating_duration_since(Instant::now());
    left.as_millis().clamp(1, i32::MAX as u128) as i32
}

/// Waits for the event `what`; any other is a failure.
fn await_event(
    events: &EventChannel,
    what: What,
    deadline: Instant,
    doing: &str,
) -> Result<CmEvent> {
    loop {
        match events.next()? {
            Some(event) if event.what == what => return Ok(event),
            Some(event) if event.what == What::Other => {}
            Some(event) if event.what == What::Rejected => {
                // A server of ours says why, in the private data.
                let mut handshake = ClientHandshake::new(None, 1, 0)?;
                let said = event.private().get(..MESSAGE_SIZE).unwrap_or_default();
                return match handshake.receive(said) {
                    Err(refusal) if refusal.kind() == Kind::Denied => Err(refusal),
                    _ => Err(event.failure(doing)),
                };
            }
            Some(event) => return Err(event.failure(doing)),
            None if Instant::now() >= deadline => {
                return Err(Error::new(Kind::Network, format!("{doing}: no answer in time"))
                    .remedy("check that the server runs, and that UDP port 4791 is not filtered"));
            }
            None => wait_readable([events.fd()], time_left(deadline).min(50)),
        }
    }
}

/// A connection before its handshake. Its parts are dropped in this order.
pub(super) struct Dialled {
    pub credits: u16,
    pub qp: Qp,
    pub mr: Mr,
    pub probed: Probed,
    pub pd: Arc<Pd>,
    pub messages: Arc<Messages>,
    pub cq: Arc<Cq>,
    pub id: Arc<CmId>,
    pub events: Arc<EventChannel>,
}

impl Dialled {
    /// Resolves, registers, connects; the queues are sized for what `config` asks for.
    pub fn dial(
        address: SocketAddr,
        config: &ConnectConfig,
        rdma: RdmaConfig,
        arena: &Arc<Arena>,
        deadline: Instant,
    ) -> Result<Self> {
        if config.credits == 0 || config.credits > MAX_CREDITS {
            return Err(Error::usage(format!(
                "{} requests in flight; 1 to {MAX_CREDITS} are possible",
                config.credits
            )));
        }
        let devices = available(&Root::system())?;
        if let Some(local) = rdma.local {
            let probe = CmId::new(&EventChannel::new()?)?;
            let bound = probe.bind(SocketAddr::new(local, 0));
            device::choose_bound(&devices, local, probe.place().as_ref().map(as_place))?;
            bound.context(|| format!("rdma_cm cannot use the address {local}"))?;
        }
        let events = EventChannel::new()?;
        let id = CmId::new(&events)?;
        let doing = format!("cannot connect to {address} by rdma_cm");
        let unreachable = |e: Error| {
            e.remedy(format!(
                "check the route to {address}; RDMA devices here:{}",
                device::table(&devices)
            ))
        };
        id.resolve_addr(rdma.local, address, time_left(deadline))
            .context(|| doing.clone())
            .map_err(unreachable)?;
        await_event(&events, What::AddrResolved, deadline, &doing)?;
        id.resolve_route(time_left(deadline)).context(|| doing.clone())?;
        await_event(&events, What::RouteResolved, deadline, &doing)?;
        let (local, place) = (id.local_addr().ip(), id.place());
        let choice = device::choose_bound(&devices, local, place.as_ref().map(as_place))?;
        let id = Arc::new(id);
        let pd = Pd::new(&id)?;
        let limits = pd.limits()?;

        let credits = config.credits;
        let receives = u32::from(credits) + u32::from(SPARE_RECEIVES);
        let sends = client_sends(credits);
        if receives + sends > limits.max_cqe || sends > limits.max_qp_wr {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "{credits} requests in flight need {} completion queue entries and {sends} \
                     sends; {} has {} and {}",
                    receives + sends,
                    choice.device,
                    limits.max_cqe,
                    limits.max_qp_wr
                ),
            )
            .remedy("use a smaller --depth"));
        }
        let cq = Cq::new(&pd, receives + sends)?;
        let mr = Mr::register(&pd, arena, Access::RemoteWrite)?;
        let probed = Probed::new(&pd)?;
        // Receives first, then one record per request, then the handshake's.
        let count = receives as usize + usize::from(credits) + 1;
        let messages = Messages::new(&pd, count, arena.node())?;
        let spec = QpSpec { sends, receives, peer: Peer::Server, reads: 0 };
        let qp = Qp::new(&pd, &cq, &messages, spec)?;
        qp.initialise(&id).context(|| doing.clone())?;
        for entry in 0..receives {
            let work = WorkId::of(SELF, Work::Receive, entry as u16).pack();
            qp.post_receive(entry as usize, work).context(|| doing.clone())?;
        }
        let (max_payload, mtu) = (config.max_payload, limits.active_mtu as u8);
        let (worker, probe) = (config.worker, probed.word());
        let asked = Sizes { credits, max_payload, mtu, worker, probe };
        let reads = limits.reads_served.min(MAX_READS);
        id.connect(qp.number(), &asked.encode(), reads).context(|| doing.clone())?;
        let response = await_event(&events, What::ConnectResponse, deadline, &doing)?;
        let granted = Sizes::decode(response.private()).map_err(|reason| {
            Error::new(Kind::Protocol, format!("{doing}: {reason}"))
                .remedy("check that host and port are those of a millrace server")
        })?;
        let mtu = limits.active_mtu.min(granted.mtu.into());
        let (mtu, _) = qp.make_ready(&id, mtu).context(|| doing.clone())?;
        id.establish().context(|| doing.clone())?;
        log::debug!("connected to {address} by {choice}, path MTU {}", mtu_bytes(mtu));

        Ok(Self { credits, qp, mr, probed, pd, messages, cq, id, events })
    }
}
