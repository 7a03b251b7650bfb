//! Watching a host under load: what moved from one look to the next, and what changed over all.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::host::pci::{Address, Link};
use crate::host::sample::Interval;

/// One line for a person about an interval.
pub fn line(interval: &Interval) -> String {
    let cpus = || interval.cpus.values();
    let most = |values: Vec<f64>| {
        values
            .into_iter()
            .fold(None, |most: Option<f64>, value| Some(most.map_or(value, |most| most.max(value))))
    };
    let shown = |value: Option<f64>, unit: &str| match value {
        Some(value) => format!("{value:.0}{unit}"),
        None => "?".to_owned(),
    };
    let khz: Vec<u64> = cpus().filter_map(|cpu| cpu.khz).collect();
    let mhz = match (khz.iter().min(), khz.iter().max()) {
        (Some(least), Some(most)) => format!("{}-{} MHz", least / 1000, most / 1000),
        _ => "? MHz".to_owned(),
    };
    let deep = most(cpus().map(|cpu| cpu.deep * 100.0).collect());
    let rate = |get: fn(&crate::host::sample::CpuInterval) -> Option<f64>| {
        most(cpus().filter_map(get).collect())
    };
    let throttles: u64 = cpus().filter_map(|cpu| cpu.throttles).sum();
    let mut text = format!(
        "{mhz}  deep sleep {}  TLB {}  interrupts {}  ticks {}  steal {}  throttled {throttles}",
        shown(deep, " %"),
        shown(rate(|cpu| cpu.tlb_shootdowns), "/s"),
        shown(rate(|cpu| cpu.device_interrupts), "/s"),
        shown(rate(|cpu| cpu.ticks), "/s"),
        shown(rate(|cpu| cpu.steal).map(|share| share * 100.0), " %"),
    );
    let mut links: BTreeMap<String, usize> = BTreeMap::new();
    for link in interval.functions.values().filter_map(|function| function.link) {
        *links.entry(link.to_string()).or_default() += 1;
    }
    for (link, count) in links {
        let _ = write!(text, "  {count}x {link}");
    }
    text
}

/// The highest and lowest that was seen.
#[derive(Debug, Clone, Default)]
pub struct Peaks {
    cpus: BTreeMap<usize, CpuPeaks>,
    links: BTreeMap<Address, (Link, Link)>,
    correctable: BTreeMap<Address, u64>,
    uncorrectable: BTreeMap<Address, u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct CpuPeaks {
    khz: Option<(u64, u64)>,
    deep: f64,
    tlb: f64,
    interrupts: f64,
    steal: f64,
    throttles: u64,
}

impl Peaks {
    /// Takes an interval in.
    pub fn add(&mut self, interval: &Interval) {
        for (number, cpu) in &interval.cpus {
            let peaks = self.cpus.entry(*number).or_default();
            if let Some(khz) = cpu.khz {
                let (least, most) = peaks.khz.unwrap_or((khz, khz));
                peaks.khz = Some((least.min(khz), most.max(khz)));
            }
            peaks.deep = peaks.deep.max(cpu.deep);
            peaks.tlb = peaks.tlb.max(cpu.tlb_shootdowns.unwrap_or(0.0));
            peaks.interrupts = peaks.interrupts.max(cpu.device_interrupts.unwrap_or(0.0));
            peaks.steal = peaks.steal.max(cpu.steal.unwrap_or(0.0));
            peaks.throttles += cpu.throttles.unwrap_or(0);
        }
        for (address, function) in &interval.functions {
            if let Some(link) = function.link {
                let (least, most) = self.links.entry(*address).or_insert((link, link));
                if link.bits_per_sec() < least.bits_per_sec() {
                    *least = link;
                }
                if link.bits_per_sec() > most.bits_per_sec() {
                    *most = link;
                }
            }
            *self.correctable.entry(*address).or_default() += function.correctable.0.unwrap_or(0);
            *self.uncorrectable.entry(*address).or_default() +=
                function.uncorrectable.0.unwrap_or(0);
        }
    }
}

/// Shares and rates from which on a person wants to know.
const DEEP: f64 = 0.01;
const SHOOTDOWNS: f64 = 100.0;
const STEAL: f64 = 0.01;
const SLOWER: f64 = 0.9;

/// What changed while it was watched, one line each; that nothing did, where nothing did.
pub fn changes(peaks: &Peaks) -> String {
    let mut text = String::new();
    for (number, cpu) in &peaks.cpus {
        if let Some((least, most)) = cpu.khz
            && (least as f64) < most as f64 * SLOWER
        {
            let _ = writeln!(text, "CPU {number}: {} to {} MHz", least / 1000, most / 1000);
        }
        if cpu.deep >= DEEP {
            let share = cpu.deep * 100.0;
            let _ = writeln!(text, "CPU {number}: up to {share:.0} % of a second in deep sleep");
        }
        if cpu.tlb >= SHOOTDOWNS {
            let _ = writeln!(text, "CPU {number}: up to {:.0} TLB shootdowns/s", cpu.tlb);
        }
        if cpu.interrupts >= SHOOTDOWNS {
            let rate = cpu.interrupts;
            let _ = writeln!(text, "CPU {number}: up to {rate:.0} device interrupts/s");
        }
        if cpu.steal >= STEAL {
            let share = cpu.steal * 100.0;
            let _ = writeln!(text, "CPU {number}: up to {share:.0} % of a second was stolen");
        }
        if cpu.throttles > 0 {
            let _ = writeln!(text, "CPU {number}: slowed down for heat {} times", cpu.throttles);
        }
    }
    for (address, (least, most)) in &peaks.links {
        if least != most {
            let _ = writeln!(text, "{address}: link from {least} to {most}");
        }
    }
    for (counts, what) in [(&peaks.correctable, "mended"), (&peaks.uncorrectable, "not mended")] {
        for (address, count) in counts.iter().filter(|(_, count)| **count > 0) {
            let _ = writeln!(text, "{address}: {count} errors of the link, {what}");
        }
    }
    match text.is_empty() {
        true => "nothing changed\n".to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::aer::Count;
    use crate::host::sample::{CpuInterval, FunctionInterval};

    fn interval(khz: u64, deep: f64, tlb: f64, width: u32, errors: u64) -> Interval {
        let cpu = CpuInterval {
            khz: Some(khz),
            deep,
            tlb_shootdowns: Some(tlb),
            steal: Some(0.0),
            ..CpuInterval::default()
        };
        let function = FunctionInterval {
            link: Some(Link { gigatransfers: 16.0, width }),
            correctable: Count(Some(errors)),
            uncorrectable: Count(None),
        };
        Interval {
            seconds: 1.0,
            cpus: [(3, cpu)].into(),
            functions: [("5e:00.0".parse().unwrap(), function)].into(),
        }
    }

    #[test]
    fn what_changed_is_named_with_its_figures() {
        let mut peaks = Peaks::default();
        peaks.add(&interval(3_000_000, 0.0, 5.0, 4, 0));
        assert_eq!(changes(&peaks), "nothing changed\n");
        peaks.add(&interval(1_200_000, 0.4, 9500.0, 2, 7));
        let text = changes(&peaks);
        for expected in [
            "CPU 3: 1200 to 3000 MHz",
            "CPU 3: up to 40 % of a second in deep sleep",
            "CPU 3: up to 9500 TLB shootdowns/s",
            "0000:5e:00.0: link from 16GT/s x2 to 16GT/s x4",
            "0000:5e:00.0: 7 errors of the link, mended",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }

    #[test]
    fn a_line_has_each_figure_or_a_question_mark() {
        let text = line(&interval(2_500_000, 0.25, 12.0, 4, 0));
        let expected = concat!(
            "2500-2500 MHz  deep sleep 25 %  TLB 12/s  interrupts ?  ticks ?  steal 0 %  ",
            "throttled 0  1x 16GT/s x4",
        );
        assert_eq!(text, expected);
    }
}
