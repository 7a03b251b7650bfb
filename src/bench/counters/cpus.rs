//! The CPUs on which the reading threads run, and the links of the drives: idle states,
//! frequency, interrupts, TLB shootdowns, and who else had the CPUs.

use std::collections::BTreeMap;

use super::{CpuReading, LinkReading, Totals};
use crate::host::Root;
use crate::host::pci::Address;
use crate::host::sample::Sample;
use crate::host::task::{CpuTime, cpu_time};

pub(super) struct Cpus {
    cpus: Vec<usize>,
    functions: Vec<Address>,
    before: Option<(Sample, Vec<Option<CpuTime>>)>,
}

impl Cpus {
    pub(super) fn open(cpus: Vec<usize>, functions: Vec<Address>) -> Self {
        Self { cpus, functions, before: None }
    }

    fn read(&self, root: &Root) -> (Sample, Vec<Option<CpuTime>>) {
        let sample = Sample::read(root, &self.cpus, &self.functions);
        (sample, self.cpus.iter().map(|cpu| cpu_time(root, *cpu)).collect())
    }

    pub(super) fn begin(&mut self, root: &Root) {
        self.before = Some(self.read(root));
    }

    /// `own`: nanoseconds that threads of the observed process had, by CPU.
    pub(super) fn end(&self, root: &Root, totals: &mut Totals, own: &BTreeMap<usize, u64>) {
        let Some((sample, times)) = &self.before else { return };
        let (now, times_now) = self.read(root);
        let seconds = totals.seconds;
        let interval = now.since_in(sample, seconds);
        for ((cpu, before), after) in self.cpus.iter().zip(times).zip(&times_now) {
            let busy = before.zip(*after).map(|(old, new)| new.busy_ns.saturating_sub(old.busy_ns));
            let own = own.get(cpu).copied().unwrap_or(0);
            let others =
                |busy: u64| (busy.saturating_sub(own) as f64 / 1e9 / seconds).clamp(0.0, 1.0);
            let reading = interval.cpus.get(cpu).cloned().unwrap_or_default();
            totals.cpus.push(CpuReading {
                cpu: *cpu,
                mhz: reading.khz.map(|khz| khz as f64 / 1e3),
                idle: reading.idle,
                slow_idle: reading.deep,
                device_interrupts_per_sec: reading.device_interrupts,
                tlb_shootdowns_per_sec: reading.tlb_shootdowns,
                steal: reading.steal,
                throttles: reading.throttles,
                others: busy.map(others),
            });
        }
        for (address, function) in &interval.functions {
            totals.links.push(LinkReading {
                address: address.to_string(),
                gigatransfers: function.link.map(|link| link.gigatransfers),
                width: function.link.map(|link| link.width),
            });
        }
        self.plain(totals);
    }

    /// The worst CPU stands for all of them.
    fn plain(&self, totals: &mut Totals) {
        let cpus = &totals.cpus;
        let most = |of: &dyn Fn(&CpuReading) -> Option<f64>, why: &str| {
            cpus.iter().filter_map(of).max_by(f64::total_cmp).ok_or_else(|| why.to_owned())
        };
        let idle = |c: &CpuReading| (!c.idle.is_empty()).then_some(c.slow_idle);
        let mhz = cpus.iter().filter_map(|c| c.mhz).min_by(f64::total_cmp);
        let interrupts = "/proc/interrupts has no such row";
        let figures = [
            ("steal_share", most(&|c| c.steal, "/proc/stat has no steal time of these CPUs")),
            ("others_share", most(&|c| c.others, "/proc/stat does not have these CPUs")),
            (
                "slow_idle_share",
                most(&idle, "the kernel shows no idle states here (guests often have none)"),
            ),
            ("mhz", mhz.ok_or_else(|| "the kernel shows no frequency here".to_owned())),
            ("tlb_shootdowns_per_sec", most(&|c| c.tlb_shootdowns_per_sec, interrupts)),
            ("device_interrupts_per_sec", most(&|c| c.device_interrupts_per_sec, interrupts)),
            (
                "throttles",
                most(&|c| c.throttles.map(|n| n as f64), "the kernel counts no throttling here"),
            ),
        ];
        totals.plain.extend(figures);
    }
}
