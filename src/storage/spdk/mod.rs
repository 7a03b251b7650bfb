//! The userspace path: SPDK's NVMe driver, polled by the worker.
//!
//! ```text
//!   SpdkStorage                             SpdkQueue (one per worker, its thread's alone)
//!     controllers, attached once      <----   one I/O queue pair per controller
//!     housekeeping thread: admin queues,      table of commands in flight; SPDK's callback
//!     keep-alive, hot-plug, resets            marks one done, poll() hands it out
//! ```
//!
//! Submission and completion make no system call and no allocation. See [`controller`] for how a
//! controller is reset or given up under load, and docs/SPDK.md for the decisions.

mod controller;
mod dma;
mod drive;
mod env;
mod housekeeping;
mod op;
mod options;
mod parts;
mod queue;
mod recover;
mod resolve;
mod status;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};

use spdk_sys as sys;

pub use drive::{Expected, SpdkDrive};
pub use options::{IovaMode, SpdkOptions};
pub use queue::SpdkQueue;

use self::controller::Controller;
use self::env::Env;
use self::housekeeping::Housekeeping;
use self::resolve::Target;
use super::{DriveInfo, Storage, check_depth};
use crate::error::{Error, Kind, Result};
use crate::host::Root;
use crate::limits::MAX_DRIVES;
use crate::memory::{Arena, ArenaSpec};

/// Release of the SPDK that this program is built with, such as `26.05`.
pub const SPDK_VERSION: &str = sys::VERSION;

/// Alignment in bytes that SPDK's driver needs of a buffer: PRP entries and SGL descriptors name
/// dwords (NVM Express Base Specification 2.0, section 4.1.1).
const MEMORY_ALIGN: u32 = 4;

/// Transport ids that are attached: a controller has one owner in a process, since two would each
/// reset it under the other.
static ATTACHED: Mutex<Option<HashSet<String>>> = Mutex::new(None);

fn attached() -> MutexGuard<'static, Option<HashSet<String>>> {
    ATTACHED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A namespace of a controller, as a drive.
#[derive(Debug, Clone, Copy)]
struct Place {
    controller: usize,
    namespace: u32,
    /// Largest transfer in bytes of one command.
    max_transfer: u32,
    /// Boundary in bytes at which SPDK splits commands; 0 for none.
    boundary: u32,
}

/// What all queues share. Dropped with the last of them: the controllers are detached then.
#[derive(Debug)]
struct Shared {
    env: Env,
    options: SpdkOptions,
    infos: Vec<DriveInfo>,
    places: Vec<Place>,
    controllers: Vec<Arc<Controller>>,
    /// Taken first on drop: it polls what is detached next.
    housekeeping: Option<Housekeeping>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        drop(self.housekeeping.take());
        let mut attached = attached();
        for controller in &self.controllers {
            controller.detach();
            if let Some(attached) = attached.as_mut() {
                attached.remove(&controller.trid);
            }
        }
    }
}

/// Drives through SPDK.
#[derive(Debug, Clone)]
pub struct SpdkStorage(Arc<Shared>);

impl SpdkStorage {
    /// As [`SpdkStorage::open_drives`], by name: a PCI address, or an SPDK transport id; ` ns:N`
    /// after either chooses a namespace (else the first one), ` part:N` a partition of it.
    pub fn open(devices: &[String], options: SpdkOptions) -> Result<Self> {
        let drives = devices.iter().map(|name| name.parse()).collect::<Result<Vec<_>>>()?;
        Self::open_drives(&drives, options)
    }

    /// Attaches the controllers of `devices` and opens their namespaces and partitions.
    ///
    /// # Errors
    ///
    /// With the remedy: names that are none; drives that the kernel's driver has; missing rights,
    /// hugepages or transports; namespaces formatted with metadata, which are never reformatted;
    /// controllers that do not answer, or are open in this process already; another drive than the
    /// expected one; a partition that is not there, or a table that does not add up.
    pub fn open_drives(devices: &[SpdkDrive], options: SpdkOptions) -> Result<Self> {
        options.check()?;
        if devices.is_empty() || devices.len() > MAX_DRIVES {
            return Err(Error::usage(format!("{} drives", devices.len()))
                .remedy(format!("name 1 to {MAX_DRIVES} with --device")));
        }
        let root = Root::system();
        let targets = devices.iter().map(|drive| resolve::resolve(&root, &drive.name, &drive.at));
        let targets = targets.collect::<Result<Vec<_>>>()?;
        let functions: Vec<_> = targets.iter().filter_map(|target| target.pci).collect();
        let mut shared = Shared {
            env: env::init(options.iova, &functions)?,
            options,
            infos: Vec::new(),
            places: Vec::new(),
            controllers: Vec::new(),
            housekeeping: None,
        };
        for (target, drive) in targets.iter().zip(devices) {
            let known = shared.controllers.iter().position(|c| c.trid == target.trid);
            let index = match known {
                Some(index) => index,
                None => {
                    let controller = attach(shared.env, target)?;
                    shared.controllers.push(Arc::new(controller));
                    shared.controllers.len() - 1
                }
            };
            let (info, place) = open_namespace(&shared.controllers[index], index, target)?;
            if let Some(expected) = &drive.expected {
                expected.check(&info.name, info.serial.as_deref(), info.capacity)?;
            }
            log::info!(
                "{}: {} {}, {} blocks of {}",
                info.name,
                info.model.as_deref().unwrap_or("unknown model"),
                info.serial.as_deref().unwrap_or("without serial number"),
                info.capacity / u64::from(info.block_size),
                info.block_size
            );
            shared.infos.push(info);
            shared.places.push(place);
        }
        shared.housekeeping = Some(Housekeeping::start(shared.controllers.clone())?);
        Ok(Self(parts::apply(Arc::new(shared), &targets)?))
    }

    /// Resets the controller of drive number `drive`, also under load, and waits for the outcome.
    /// Commands in flight on it are sent again afterwards; each ends once. Every queue has to be
    /// polled meanwhile, each by its own thread.
    ///
    /// # Errors
    ///
    /// `Busy` where a queue is not being polled (nothing was reset then); `Device` where the
    /// controller does not come back: the drive is given up.
    pub fn reset(&self, drive: u16) -> Result<()> {
        let place = self.0.places.get(usize::from(drive));
        let place = place.ok_or_else(|| Error::usage(format!("no drive number {drive}")))?;
        let housekeeping = self.0.housekeeping.as_ref().expect("present until drop");
        housekeeping.reset(place.controller)
    }
}

fn attach(env: Env, target: &Target) -> Result<Controller> {
    // Held through the attaching, so that two openers cannot both find it free.
    let mut attached = attached();
    let attached = attached.get_or_insert_default();
    if attached.contains(&target.trid) {
        return Err(Error::new(
            Kind::Busy,
            format!("the controller of {} is open in this process already", target.name),
        )
        .remedy("name all drives of one controller in one call"));
    }
    let controller = Controller::attach(env, target)?;
    attached.insert(target.trid.clone());
    Ok(controller)
}

/// Reads geometry and format of a namespace.
fn open_namespace(
    controller: &Controller,
    index: usize,
    target: &Target,
) -> Result<(DriveInfo, Place)> {
    let raw = controller.raw();
    let namespace = match target.namespace {
        Some(number) => number,
        // SAFETY: attached; nobody resets it before its housekeeping starts.
        None => unsafe { sys::spdk_nvme_ctrlr_get_first_active_ns(raw) },
    };
    let mut active = Vec::new();
    // SAFETY: as above; both walk the list of namespaces under the controller's lock.
    let mut next = unsafe { sys::spdk_nvme_ctrlr_get_first_active_ns(raw) };
    while next != 0 {
        active.push(next);
        // SAFETY: as above.
        next = unsafe { sys::spdk_nvme_ctrlr_get_next_active_ns(raw, next) };
    }
    if namespace == 0 || !active.contains(&namespace) {
        return Err(Error::new(
            Kind::NotFound,
            format!("{} has no namespace {namespace}; active are {active:?}", target.name),
        )
        .remedy("choose one with ns:N after the name"));
    }
    if target.namespace.is_none() && active.len() > 1 {
        log::info!("{}: namespace {namespace} of {active:?}", target.name);
    }
    // SAFETY: as above. An active namespace has its handle as long as the controller is not reset.
    let ns = unsafe { sys::spdk_nvme_ctrlr_get_ns(raw, namespace) };
    // SAFETY: `ns` is the handle of an active namespace; these read its fields.
    let (blocks, block_size, metadata, extended, max_transfer, boundary) = unsafe {
        (
            sys::spdk_nvme_ns_get_num_sectors(ns),
            sys::spdk_nvme_ns_get_sector_size(ns),
            sys::spdk_nvme_ns_get_md_size(ns),
            sys::spdk_nvme_ns_supports_extended_lba(ns),
            sys::spdk_nvme_ns_get_max_io_xfer_size(ns),
            sys::spdk_nvme_ns_get_optimal_io_boundary(ns),
        )
    };
    if metadata != 0 {
        return Err(metadata_error(target, namespace, block_size, metadata, extended));
    }
    if !block_size.is_power_of_two() || blocks == 0 {
        let what = format!("{}: {blocks} blocks of {block_size} bytes", target.name);
        return Err(Error::new(Kind::Unsupported, what)
            .remedy("check the namespace's format: nvme id-ns -H"));
    }
    let info = DriveInfo {
        name: target.name.clone(),
        serial: controller.serial.clone(),
        model: controller.model.clone(),
        capacity: blocks * u64::from(block_size),
        block_size,
        memory_align: MEMORY_ALIGN,
        max_transfer: Some(u64::from(max_transfer)),
        start: 0,
        node: controller.node,
    };
    let boundary = boundary.saturating_mul(block_size);
    Ok((info, Place { controller: index, namespace, max_transfer, boundary }))
}

/// Why a format with metadata is refused. It is never changed: that would erase the drive.
fn metadata_error(
    target: &Target,
    namespace: u32,
    block_size: u32,
    metadata: u32,
    extended: bool,
) -> Error {
    let how = if extended { "at the end of each block" } else { "in a buffer of its own" };
    Error::new(
        Kind::Unsupported,
        format!(
            "{}: namespace {namespace} is formatted with {metadata} bytes of metadata for each \
             block of {block_size}, {how}; millrace serves blocks without metadata only",
            target.name
        ),
    )
    .remedy(
        "use another namespace, or --backend uring where the kernel serves it; a reformat \
         (nvme format --lbaf) would erase it, so millrace never does that",
    )
}

impl Storage for SpdkStorage {
    type Queue = SpdkQueue;

    fn drives(&self) -> &[DriveInfo] {
        &self.0.infos
    }

    fn name(&self) -> &'static str {
        "spdk"
    }

    /// From DPDK's hugepages: without a node in `spec`, on that of the drives where all agree.
    fn arena(&self, spec: &ArenaSpec) -> Result<Arc<Arena>> {
        let mut nodes = self.0.infos.iter().map(|info| info.node);
        let first = nodes.next().flatten();
        let common = first.filter(|_| nodes.all(|node| node == first));
        dma::arena(self.0.env, &ArenaSpec { node: spec.node.or(common), ..*spec })
    }

    fn queue(&self, arena: &Arc<Arena>, depth: u32) -> Result<SpdkQueue> {
        check_depth(depth)?;
        SpdkQueue::new(Arc::clone(&self.0), Arc::clone(arena), depth)
    }
}
