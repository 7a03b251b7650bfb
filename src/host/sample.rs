//! What moves while a host works, at one moment, and what happened between two: per CPU the idle
//! states, frequency, interrupts, TLB shootdowns, steal time and throttling; per PCI function the
//! link and its errors.
//!
//! One look at 8 CPUs takes below a millisecond. Everything is read; nothing is written.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use super::Root;
use super::aer::{self, Errors};
use super::cpu;
use super::fact::Fact;
use super::interrupts::Table;
use super::pci::{self, Address, Link};

/// Counters of one CPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CpuSample {
    /// Frequency in kHz now.
    pub khz: Option<u64>,
    /// Time in microseconds in each idle state since boot, by name, with the state's latency.
    pub idle_us: BTreeMap<String, (u64, u64)>,
    /// Device interrupts taken since boot.
    pub device_interrupts: Option<u64>,
    /// TLB shootdowns taken since boot.
    pub tlb_shootdowns: Option<u64>,
    /// Timer ticks taken since boot.
    pub ticks: Option<u64>,
    /// Jiffies taken away by a hypervisor since boot.
    pub steal: Option<u64>,
    /// How often core and package were slowed down for heat since boot.
    pub throttles: Option<u64>,
}

/// A PCI function at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionSample {
    /// Its link; `None` where it has none, or sleeps.
    pub link: Option<Link>,
    /// Its errors.
    pub errors: Errors,
}

/// A moment.
#[derive(Debug, Clone)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// The CPUs that were asked for.
    pub cpus: BTreeMap<usize, CpuSample>,
    /// The functions that were asked for.
    pub functions: BTreeMap<Address, FunctionSample>,
}

impl Sample {
    /// Looks at these CPUs and PCI functions.
    pub fn read(root: &Root, cpus: &[usize], functions: &[Address]) -> Self {
        let table = Table::read(root);
        let stat = root.read("/proc/stat").unwrap_or_default();
        let cpus = cpus.iter().map(|number| (*number, cpu_now(root, *number, &table, &stat)));
        let function = |address: &Address| {
            // To read the link of a function that sleeps would wake it.
            let link = (!pci::is_asleep(root, *address)).then(|| pci::link_now(root, *address));
            (*address, FunctionSample { link: link.flatten(), errors: aer::errors(root, *address) })
        };
        Self {
            at: Instant::now(),
            cpus: cpus.collect(),
            functions: functions.iter().map(function).collect(),
        }
    }

    /// What happened from `earlier` to this one.
    pub fn since(&self, earlier: &Sample) -> Interval {
        let seconds = self.at.duration_since(earlier.at).as_secs_f64();
        self.since_in(earlier, seconds)
    }

    /// The same, `seconds` after it.
    pub fn since_in(&self, earlier: &Sample, seconds: f64) -> Interval {
        let cpus = self.cpus.iter().filter_map(|(number, now)| {
            let before = earlier.cpus.get(number)?;
            Some((*number, CpuInterval::between(before, now, seconds)))
        });
        let functions = self.functions.iter().filter_map(|(address, now)| {
            let before = earlier.functions.get(address)?;
            let interval = FunctionInterval {
                link: now.link,
                correctable: now.errors.correctable.minus(&before.errors.correctable),
                uncorrectable: now.errors.uncorrectable().minus(&before.errors.uncorrectable()),
            };
            Some((*address, interval))
        });
        Interval { seconds, cpus: cpus.collect(), functions: functions.collect() }
    }
}

/// What happened on one CPU. A rate that cannot be known is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CpuInterval {
    /// Frequency in kHz at the end.
    pub khz: Option<u64>,
    /// Share of the time in each idle state, 0 to 1.
    pub idle: BTreeMap<String, f64>,
    /// Share of the time in idle states that take long to leave ([`cpu::SHALLOW_US`]).
    pub deep: f64,
    /// Device interrupts per second.
    pub device_interrupts: Option<f64>,
    /// TLB shootdowns per second.
    pub tlb_shootdowns: Option<f64>,
    /// Timer ticks per second.
    pub ticks: Option<f64>,
    /// Share of the time that a hypervisor took away.
    pub steal: Option<f64>,
    /// Throttling events.
    pub throttles: Option<u64>,
}

/// Jiffies per second of /proc/stat (USER_HZ, which is 100 on every x86-64 and arm64 kernel).
const JIFFIES: f64 = 100.0;

impl CpuInterval {
    fn between(before: &CpuSample, now: &CpuSample, seconds: f64) -> Self {
        let span = seconds.max(1e-9);
        let grown = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let rate = |now, before| Some(grown(now, before)? as f64 / span);
        let mut idle = BTreeMap::new();
        let mut deep = 0.0;
        for (name, (time, latency)) in &now.idle_us {
            let Some((past, _)) = before.idle_us.get(name) else { continue };
            let share = (time.saturating_sub(*past) as f64 / 1e6 / span).min(1.0);
            if *latency > cpu::SHALLOW_US {
                deep += share;
            }
            idle.insert(name.clone(), share);
        }
        Self {
            khz: now.khz,
            idle,
            deep: deep.min(1.0),
            device_interrupts: rate(now.device_interrupts, before.device_interrupts),
            tlb_shootdowns: rate(now.tlb_shootdowns, before.tlb_shootdowns),
            ticks: rate(now.ticks, before.ticks),
            steal: rate(now.steal, before.steal).map(|jiffies| (jiffies / JIFFIES).min(1.0)),
            throttles: grown(now.throttles, before.throttles),
        }
    }
}

/// What happened to a PCI function.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FunctionInterval {
    /// Its link at the end.
    pub link: Option<Link>,
    /// Errors that were mended on the way.
    pub correctable: aer::Count,
    /// Errors that were not.
    pub uncorrectable: aer::Count,
}

/// What happened between two moments.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Interval {
    /// Its length.
    pub seconds: f64,
    /// By CPU.
    pub cpus: BTreeMap<usize, CpuInterval>,
    /// By PCI function.
    #[serde(serialize_with = "by_text")]
    pub functions: BTreeMap<Address, FunctionInterval>,
}

fn by_text<S: serde::Serializer>(
    functions: &BTreeMap<Address, FunctionInterval>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(functions.iter().map(|(address, value)| (address.to_string(), value)))
}

fn cpu_now(root: &Root, number: usize, table: &Fact<Table>, stat: &str) -> CpuSample {
    let folder = format!("/sys/devices/system/cpu/cpu{number}");
    let read = |file: &str| Fact::number(root, format!("{folder}/{file}")).copied();
    let throttles =
        ["core", "package"].map(|what| read(&format!("thermal_throttle/{what}_throttle_count")));
    let idle = cpu::idle(root, &folder);
    let table = table.get();
    CpuSample {
        khz: read("cpufreq/scaling_cur_freq"),
        idle_us: idle
            .get()
            .into_iter()
            .flatten()
            .map(|state| (state.name.clone(), (state.time_us, state.latency_us)))
            .collect(),
        device_interrupts: table.and_then(|table| table.devices_of_cpu(number)),
        tlb_shootdowns: table.and_then(|table| table.of_cpu("TLB", number)),
        ticks: table.and_then(|table| table.of_cpu("LOC", number)),
        steal: steal_of(stat, number),
        throttles: match throttles {
            [None, None] => None,
            [core, package] => Some(core.unwrap_or(0) + package.unwrap_or(0)),
        },
    }
}

/// The eighth figure of the CPU's line in /proc/stat (proc_stat(5)).
fn steal_of(stat: &str, number: usize) -> Option<u64> {
    let name = format!("cpu{number}");
    let line = stat.lines().find(|line| line.split(' ').next() == Some(&name))?;
    line.split_ascii_whitespace().nth(8)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(tlb: u64, c6_us: u64, steal: u64, correctable: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        };
        let interrupts =
            format!("  CPU0 CPU1\n 24: 5 100 PCI-MSIX nvme0q1\nTLB: 0 {tlb}\nLOC: 1 2");
        put("proc/interrupts", &interrupts);
        put("proc/stat", &format!("cpu  0 0 0 0 0 0 0 9 0 0\ncpu1 0 0 0 0 0 0 0 {steal} 0 0"));
        let state = "sys/devices/system/cpu/cpu1/cpuidle/state3";
        put(&format!("{state}/name"), "C6");
        put(&format!("{state}/latency"), "133");
        put(&format!("{state}/usage"), "1");
        put(&format!("{state}/time"), &c6_us.to_string());
        let function = "sys/bus/pci/devices/0000:5e:00.0";
        put(&format!("{function}/current_link_speed"), "16.0 GT/s PCIe");
        put(&format!("{function}/current_link_width"), "4");
        let total = format!("RxErr {correctable}\nTOTAL_ERR_COR {correctable}");
        put(&format!("{function}/aer_dev_correctable"), &total);
        dir
    }

    #[test]
    fn an_interval_has_rates_and_shares() {
        let functions = ["5e:00.0".parse().unwrap()];
        let look = |dir: &tempfile::TempDir| Sample::read(&Root::at(dir.path()), &[1], &functions);
        let (first, second) = (look(&tree(100, 0, 10, 1)), look(&tree(4100, 500_000, 60, 4)));
        let interval = second.since_in(&first, 2.0);
        let cpu = &interval.cpus[&1];
        assert_eq!(cpu.tlb_shootdowns, Some(2000.0));
        assert_eq!(cpu.device_interrupts, Some(0.0));
        assert!((cpu.deep - 0.25).abs() < 1e-9, "{}", cpu.deep);
        assert_eq!(cpu.steal, Some(0.25));
        assert_eq!((cpu.khz, cpu.throttles), (None, None));
        let function = &interval.functions[&functions[0]];
        assert_eq!(function.correctable, aer::Count(Some(3)));
        assert_eq!(function.link.unwrap().to_string(), "16GT/s x4");
        serde_json::to_string(&interval).unwrap();
    }
}
