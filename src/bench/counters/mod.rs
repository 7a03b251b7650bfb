//! What a machine counted while a load ran: by thread, by drive, by CPU, by NIC.
//!
//! ```text
//! Probe::open     threads are there, nothing is measured yet: counters are opened
//! Probe::begin    first round begins
//! Probe::end      last round ends: Totals
//! Totals::per_read                 Counters, as in the result
//! ```
//!
//! A thread of its own does this, so the load's threads make no call for it.

mod cpus;
mod drives;
mod nics;
mod threads;

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::host::Root;

/// Names of the load's threads begin with this.
pub const LOAD_THREAD: &str = "load-";

/// What is observed.
#[derive(Debug, Clone, Default)]
pub struct Observe {
    /// The process whose threads read the drives; `None`: this one.
    pub pid: Option<u32>,
    /// Names of the drives, as on the command line.
    pub drives: Vec<String>,
    /// Count also what slows the load down while it is counted: system calls, requests that go to
    /// io-wq, and look-ups of files (fget). The throughput of such a run is not to be quoted.
    pub traced: bool,
}

/// One CPU during the rounds. What the kernel does not show is `null`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuReading {
    /// Number of the CPU.
    pub cpu: usize,
    /// Frequency at the end.
    pub mhz: Option<f64>,
    /// Share of the time in each idle state, by name; empty where the machine has none.
    pub idle: BTreeMap<String, f64>,
    /// Share of the time in those that take long to leave.
    pub slow_idle: f64,
    /// Interrupts of devices per second.
    pub device_interrupts_per_sec: Option<f64>,
    /// TLB shootdowns per second.
    pub tlb_shootdowns_per_sec: Option<f64>,
    /// Share of the time that a hypervisor took away.
    pub steal: Option<f64>,
    /// How often it was slowed down for heat.
    pub throttles: Option<u64>,
    /// Share of the time that threads of other processes, and interrupts, had.
    pub others: Option<f64>,
}

/// The PCIe link of a drive under load; `null` where it has none, as in a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkReading {
    /// PCI address.
    pub address: String,
    /// GT/s of a lane.
    pub gigatransfers: Option<f64>,
    /// Lanes.
    pub width: Option<u32>,
}

/// What was counted. A figure that this machine does not have is `null`, and `notes` says why.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Seconds between the two readings.
    pub seconds: f64,
    /// Whether tracing was on.
    pub traced: bool,
    /// Figures by name; docs/RESULTS.md has the list.
    pub values: BTreeMap<String, Option<f64>>,
    /// Why a figure is `null`, or what limits it.
    pub notes: BTreeMap<String, String>,
    /// The CPUs of the threads that read.
    pub cpus: Vec<CpuReading>,
    /// The drives' links, at the end of the rounds.
    pub links: Vec<LinkReading>,
}

impl Counters {
    /// The figure called `name`.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.values.get(name).copied().flatten()
    }
}

/// A figure, or why there is none.
type Figure = Result<f64, String>;

/// Figures of the time between the two readings.
#[derive(Debug, Default)]
pub struct Totals {
    seconds: f64,
    traced: bool,
    /// Sums, to be divided by the number of reads.
    sums: BTreeMap<&'static str, Figure>,
    /// Figures that stand for themselves.
    plain: BTreeMap<&'static str, Figure>,
    limits: BTreeMap<&'static str, String>,
    cpus: Vec<CpuReading>,
    links: Vec<LinkReading>,
}

impl Totals {
    /// The figures of a result with this many reads per second.
    pub fn per_read(self, iops: f64) -> Counters {
        let reads = iops * self.seconds;
        let mut counters =
            Counters { seconds: self.seconds, traced: self.traced, ..Counters::default() };
        counters.cpus = self.cpus;
        counters.links = self.links;
        let per_read = self.sums.into_iter().map(|(name, sum)| {
            let figure = sum.and_then(|sum| match reads > 0.0 {
                true => Ok(sum / reads),
                false => Err("no read ended well".to_owned()),
            });
            (format!("{name}_per_read"), figure)
        });
        let plain = self.plain.into_iter().map(|(name, figure)| (name.to_owned(), figure));
        for (name, figure) in per_read.chain(plain) {
            let value = match figure {
                Ok(value) => Some(value),
                Err(why) => {
                    counters.notes.insert(name.clone(), why);
                    None
                }
            };
            counters.values.insert(name, value);
        }
        for (name, limit) in self.limits {
            counters.notes.insert(format!("{name}_per_read"), limit);
        }
        counters
    }
}

/// Reads a machine before and after.
pub struct Probe {
    root: Root,
    threads: threads::Threads,
    drives: drives::Drives,
    nics: nics::Nics,
    cpus: cpus::Cpus,
    traced: bool,
    begun: Instant,
}

impl Probe {
    /// Opens what there is to open. The threads to observe are there already.
    pub fn open(root: &Root, observe: &Observe) -> Result<Self> {
        let pid = observe.pid.unwrap_or_else(std::process::id);
        let threads = threads::Threads::open(root, pid, observe.traced)?;
        let drives = drives::Drives::open(root, &observe.drives);
        Ok(Self {
            nics: nics::Nics::default(),
            cpus: cpus::Cpus::open(threads.cpus(), drives.functions()),
            drives,
            threads,
            traced: observe.traced,
            begun: Instant::now(),
            root: root.clone(),
        })
    }

    /// The beginning of what is measured.
    pub fn begin(&mut self) -> Result<()> {
        self.drives.begin(&self.root);
        self.nics.begin(&self.root);
        self.cpus.begin(&self.root);
        self.threads.begin(&self.root)?;
        self.begun = Instant::now();
        Ok(())
    }

    /// The end of it.
    pub fn end(mut self) -> Result<Totals> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let mut totals = Totals { seconds, traced: self.traced, ..Totals::default() };
        let run_by_cpu = self.threads.end(&self.root, &mut totals)?;
        self.drives.end(&self.root, &mut totals);
        self.nics.end(&self.root, &mut totals);
        self.cpus.end(&self.root, &mut totals, &run_by_cpu);
        Ok(totals)
    }
}

#[cfg(test)]
mod tests;
