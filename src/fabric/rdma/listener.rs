//! The listener: one address, one device, its control thread.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::cm::{CmId, EventChannel, as_place};
use super::conn::messages_per_conn;
use super::control::{Control, Port, WorkerSide};
use super::device::{self, Choice};
use super::endpoint::RdmaEndpoint;
use super::ffi::{Cq, Pd, available, mtu_bytes, wait_readable};
use super::mailbox::Mailbox;
use super::mr::{Access, Messages, Mr};
use super::sizing;
use crate::error::{Context as _, Error, Kind, Result};
use crate::fabric::address::FabricKind;
use crate::fabric::{EndpointConfig, Listener};
use crate::host::Root;
use crate::limits::{MAX_CONNECTIONS, MAX_CREDITS};
use crate::memory::Arena;

/// Connection requests that may wait for the control thread.
const BACKLOG: i32 = 256;

/// Longest pause between two looks at the stop flag, in milliseconds.
const LOOK_MS: i32 = 50;

/// Listens by rdma_cm on one address of one RDMA device.
pub struct RdmaListener {
    control: Arc<Control>,
    /// `None` once it was stopped: the kernel then refuses new connections.
    listening: Mutex<Option<CmId>>,
    local: SocketAddr,
    choice: Choice,
}

impl std::fmt::Debug for RdmaListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaListener")
            .field("local", &self.local)
            .field("choice", &self.choice)
            .finish_non_exhaustive()
    }
}

impl RdmaListener {
    /// Listens on `address`; port 0 lets the system choose one. The unspecified address stands
    /// for that of the machine's only RDMA device. Logs the devices and the choice.
    ///
    /// # Errors
    ///
    /// `Unsupported` where RDMA is not there (library, module, device: it says which);
    /// `NotFound` where no RDMA device has the address; `Network` where its link is down;
    /// `Resource` where the port is taken.
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let devices = available(&Root::system())?;
        log::info!("RDMA devices:{}", device::table(&devices));
        let ip = match address.ip().is_unspecified() {
            true => device::only_address(&devices)?,
            false => address.ip(),
        };
        let channel = EventChannel::new()?;
        // The anchor keeps the device open beyond the listening id.
        let anchor = Arc::new(CmId::new(&channel)?);
        let bound = anchor.bind(SocketAddr::new(ip, 0));
        // Says more than rdma_cm does about an address that no device has.
        let choice = device::choose_bound(&devices, ip, anchor.place().as_ref().map(as_place))?;
        bound.context(|| format!("rdma_cm cannot use the address {ip}"))?;
        let pd = Pd::new(&anchor)?;
        let listening = CmId::new(&channel)?;
        let taken = |e: Error| {
            e.remedy(
                "choose another port, or end the program that has it: rdma resource show cm_id",
            )
        };
        let doing = || format!("cannot listen on {address} by rdma_cm");
        listening.bind(address).context(doing).map_err(taken)?;
        listening.listen(BACKLOG).context(doing).map_err(taken)?;
        let local = listening.local_addr();
        let limits = pd.limits()?;
        log::info!(
            "listening on {local}: {choice}, active MTU {}, max_cqe {}",
            mtu_bytes(limits.active_mtu),
            limits.max_cqe
        );
        let control = Control::new(&pd, &channel)?;
        Ok(Self { control, listening: Mutex::new(Some(listening)), local, choice })
    }

    /// The device, port and GID that serve the address.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// How often this device's port met "receiver not ready"; `None` where it does not count.
    pub fn rnr_count(&self) -> Option<u64> {
        device::rnr_count(&Root::system(), &self.choice.device, self.choice.port)
    }

    fn listening_key(&self) -> usize {
        let listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        listening.as_ref().map_or(0, CmId::key)
    }

    fn turn(&self, fds: [i32; 3], listening: usize) -> Result<()> {
        wait_readable(fds, LOOK_MS);
        while let Some(event) = self.control.channel.next()? {
            self.control.on_event(event, listening)?;
        }
        while let Some(event) = self.control.pd().async_event() {
            self.control.on_async(event)?;
        }
        self.control.serve();
        Ok(())
    }
}

impl Listener for RdmaListener {
    type Endpoint = RdmaEndpoint;

    fn endpoint(&self, config: EndpointConfig, arena: &Arc<Arena>) -> Result<RdmaEndpoint> {
        let (places, credits) = (config.max_connections, config.credits);
        if places == 0 || places > MAX_CONNECTIONS || credits == 0 || credits > MAX_CREDITS {
            return Err(Error::usage(format!(
                "{places} connections of {credits} credits; 1 to {MAX_CONNECTIONS} of 1 to \
                 {MAX_CREDITS} are possible"
            )));
        }
        let pd = self.control.pd();
        let limits = pd.limits()?;
        let reads = (config.pulls.min(sizing::MAX_READS.into()) as u8).min(limits.reads);
        if reads == 0 && config.pulls > 0 {
            let what = format!("{} can do no RDMA READ, by which puts come", self.choice.device);
            return Err(Error::new(Kind::Unsupported, what).remedy("serve without --writable"));
        }
        if sizing::server_sends(credits, reads) > limits.max_qp_wr {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "{credits} credits need {} work requests per queue pair, {} has {}",
                    sizing::server_sends(credits, reads),
                    self.choice.device,
                    limits.max_qp_wr
                ),
            )
            .remedy("use fewer --credits"));
        }
        let plan = sizing::plan(places, credits, reads, limits.max_cqe)?;
        if plan.connections < places {
            log::warn!(
                "worker {}: {} of {places} connections with {credits} credits fit into a \
                 completion queue of {} ({} entries each, max_cqe of {} is {}); more are refused",
                config.worker,
                plan.connections,
                plan.entries,
                sizing::server_completions(credits, reads),
                self.choice.device,
                limits.max_cqe
            );
        }
        let cq = Cq::new(pd, plan.entries)?;
        let mr = Mr::register(pd, arena, Access::Local)?;
        let messages = Messages::new(pd, places * messages_per_conn(credits), arena.node())?;
        let port = Arc::new(Port {
            // Each place: one new connection, one that comes back destroyed.
            mailbox: Mailbox::new(2 * places),
            closed: AtomicBool::new(false),
        });
        let worker = self.control.attach(WorkerSide {
            port: Arc::clone(&port),
            config: config.clone(),
            reads,
            cq: Arc::clone(&cq),
            messages: Arc::clone(&messages),
            places: (0..places as u32).rev().collect(),
            generations: vec![0; places],
            budget: cq.entries(),
        });
        Ok(RdmaEndpoint::new(&config, worker, port, cq, mr, messages, Arc::clone(&self.control)))
    }

    fn fabric(&self) -> FabricKind {
        FabricKind::Rdma
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn run(&self, stop: &AtomicBool) -> Result<()> {
        let control = &self.control;
        let fds = [control.channel.fd(), control.wake_fd(), control.pd().watch()?];
        let listening = self.listening_key();
        control.set_running(true);
        let mut outcome = Ok(());
        while outcome.is_ok() && !stop.load(Ordering::Relaxed) {
            outcome = self.turn(fds, listening);
        }
        drop(self.listening.lock().unwrap_or_else(PoisonError::into_inner).take());
        control.set_running(false);
        outcome
    }
}
