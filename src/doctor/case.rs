//! What is judged: the machine's facts, the drives and NICs that are meant, and the job.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::host::Root;
use crate::host::cpu::Cpu;
use crate::host::drive::{self, Drive};
use crate::host::fact::{Fact, list_text};
use crate::host::function::Function;
use crate::host::machine::Machine;
use crate::host::nic::Nic;
use crate::host::uring::Probe;
use crate::limits::{DEFAULT_DEPTH, DEFAULT_SLOT_SIZE, SLOTS_PER_DEPTH};
use crate::memory::Pages;

/// What the host is to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Job {
    /// Through the kernel.
    pub uring: bool,
    /// Through SPDK.
    pub spdk: bool,
    /// To clients over RDMA.
    pub rdma: bool,
    /// Drives by name; `None`: every NVMe drive of the host.
    pub devices: Option<Vec<String>>,
    /// RDMA device, or the interface of one; none: all.
    pub nic: Option<String>,
    /// CPUs of the workers; none: it is open which.
    pub cores: Vec<usize>,
    /// Bytes of a read.
    pub io_size: u64,
    /// Bytes of slots of one worker.
    pub arena_bytes: u64,
    /// Pages of the slots.
    pub pages: Pages,
    /// True where the slots are registered with io_uring.
    pub registered: bool,
    /// True where completions are to be polled for.
    pub iopoll: bool,
    /// Files that the job has open: connections, drives, rings.
    pub files: u64,
}

impl Job {
    /// A server's default, with no path chosen.
    pub fn server() -> Self {
        Self {
            uring: false,
            spdk: false,
            rdma: false,
            devices: None,
            nic: None,
            cores: Vec::new(),
            io_size: DEFAULT_SLOT_SIZE as u64,
            arena_bytes: DEFAULT_SLOT_SIZE as u64
                * u64::from(DEFAULT_DEPTH)
                * SLOTS_PER_DEPTH as u64,
            pages: Pages::Auto,
            registered: true,
            iopoll: false,
            files: 256,
        }
    }

    /// Workers: one for each core, one where no core is named.
    pub fn workers(&self) -> u64 {
        self.cores.len().max(1) as u64
    }
}

/// The NICs that are meant.
pub type Nics = Vec<Nic>;

/// All that checks look at.
#[derive(Debug, Clone, Serialize)]
pub struct Case {
    /// The job.
    pub job: Job,
    /// The machine.
    pub machine: Machine,
    /// The drives that are meant.
    pub drives: Vec<Drive>,
    /// The NICs that are meant; empty where RDMA is not.
    pub nics: Nics,
}

impl Case {
    /// Reads the facts below `root`; `probe` is the kernel's answer to a ring.
    pub fn read(root: &Root, job: Job, probe: Probe) -> Self {
        let machine = Machine::read(root, probe);
        let drives = match &job.devices {
            None => drive::all(root, &machine.interrupts),
            Some(names) => {
                names.iter().map(|name| Drive::read(root, name, &machine.interrupts)).collect()
            }
        };
        let all = machine.nics.get().map(Vec::as_slice).unwrap_or_default();
        let meant = |nic: &&Nic| match &job.nic {
            None => true,
            Some(name) => {
                nic.device.name == *name || nic.interfaces.iter().any(|i| i.name == *name)
            }
        };
        let nics = match job.rdma {
            true => all.iter().filter(meant).cloned().collect(),
            false => Vec::new(),
        };
        Self { job, machine, drives, nics }
    }

    /// Chooses the paths for a job that names none: io_uring, unless every drive is on vfio-pci;
    /// SPDK where one is; RDMA where there is a device for it.
    pub fn choose_paths(&mut self) {
        let away = |drive: &Drive| {
            let function = drive.function.as_ref();
            function.is_some_and(|function| function.driver.as_deref() == Some("vfio-pci"))
        };
        self.job.spdk = self.drives.iter().any(away);
        self.job.uring = self.drives.is_empty() || !self.drives.iter().all(away);
        self.job.rdma = !self.nics.is_empty();
    }

    /// True where the job is named drives only, none of which is on PCI: vfio-user targets.
    pub fn is_off_pci(&self) -> bool {
        self.job.devices.is_some() && self.functions().next().is_none()
    }

    /// The CPUs that workers may run on: those named, else those that this process may use, else
    /// those online.
    pub fn worker_cpus(&self) -> Vec<&Cpu> {
        let cpus = &self.machine.cpus;
        let numbers = match self.job.cores.is_empty() {
            false => Some(&self.job.cores),
            true => cpus.allowed.get().or(cpus.online.get()),
        };
        let numbers = numbers.map(Vec::as_slice).unwrap_or_default();
        numbers.iter().filter_map(|number| cpus.of(*number)).collect()
    }

    /// Drives with a PCI function.
    pub fn functions(&self) -> impl Iterator<Item = (&Drive, &Function)> {
        self.drives.iter().filter_map(|drive| Some((drive, drive.function.as_ref()?)))
    }

    /// Functions of drives and NICs, with a name for people.
    pub fn all_functions(&self) -> Vec<(String, &Function)> {
        let drives = self.functions().map(|(drive, function)| (drive.title(), function));
        let nics = self
            .nics
            .iter()
            .filter_map(|nic| Some((nic.device.name.clone(), nic.function.as_ref()?)));
        drives.chain(nics).collect()
    }

    /// Nodes of the named cores, of the NICs, and of the drives, each where known.
    pub fn nodes_of_cores(&self) -> BTreeSet<usize> {
        let cores = self.job.cores.iter();
        cores.filter_map(|n| self.machine.cpus.of(*n)?.node).collect()
    }

    /// Nodes of the NICs.
    pub fn nodes_of_nics(&self) -> BTreeSet<usize> {
        self.nics.iter().filter_map(Nic::numa_node).collect()
    }

    /// Nodes of the drives.
    pub fn nodes_of_drives(&self) -> BTreeSet<usize> {
        self.drives.iter().filter_map(Drive::node).collect()
    }

    /// Page size in bytes that the slots will have: what was asked for, or what `auto` finds.
    /// `None` where the pool cannot be read.
    pub fn page_size(&self) -> Option<u64> {
        match self.job.pages {
            Pages::Base => Some(4096),
            Pages::Huge2M => Some(2 << 20),
            Pages::Huge1G => Some(1 << 30),
            Pages::Auto => {
                let size = self.machine.memory.default_hugepage.copied()?;
                let free = self.free_pages(size)?;
                let need = self.job.arena_bytes.div_ceil(size) * self.job.workers();
                Some(if free >= need { size } else { 4096 })
            }
        }
    }

    /// Pages of this size that nobody has or has been promised.
    pub fn free_pages(&self, size: u64) -> Option<u64> {
        let pools = self.machine.memory.pools.get()?;
        let pool = pools.iter().find(|pool| pool.size as u64 == size)?;
        Some(pool.free.copied()?.saturating_sub(pool.reserved.copied().unwrap_or(0)))
    }
}

/// CPUs that have the same value of a fact, with the first one's fact. Those that have none of the
/// kind are left out.
pub fn alike<'a, T: PartialEq>(
    cpus: &[&'a Cpu],
    fact: impl Fn(&'a Cpu) -> &'a Fact<T>,
) -> Vec<(String, &'a Fact<T>)> {
    let mut groups: Vec<(Vec<usize>, &Fact<T>)> = Vec::new();
    for cpu in cpus {
        let own = fact(cpu);
        match groups.iter_mut().find(|(_, first)| first.value == own.value) {
            Some((numbers, _)) => numbers.push(cpu.number),
            None => groups.push((vec![cpu.number], own)),
        }
    }
    groups.into_iter().map(|(numbers, fact)| (list_text(&numbers), fact)).collect()
}
