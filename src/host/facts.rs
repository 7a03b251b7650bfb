//! The facts about a host that every result carries, before and after a run.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Root;

/// What a host is and how it is set. A fact that cannot be read is `None`: never a guess.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Facts {
    /// /proc/sys/kernel/hostname.
    pub hostname: Option<String>,
    /// Kernel release.
    pub kernel: Option<String>,
    /// Boot parameters.
    pub cmdline: Option<String>,
    /// CPU model of the first processor in /proc/cpuinfo.
    pub cpu_model: Option<String>,
    /// CPUs online, as the kernel writes them.
    pub cpus_online: Option<String>,
    /// NUMA nodes online, as the kernel writes them.
    pub nodes_online: Option<String>,
    /// True where the CPU says that it runs under a hypervisor.
    pub virtualised: Option<bool>,
    /// Frequency governor of CPU 0.
    pub governor: Option<String>,
    /// Clock source in use.
    pub clocksource: Option<String>,
    /// Load average over 1, 5 and 15 minutes.
    pub load_average: Option<String>,
    /// Free hugepages by size.
    pub free_hugepages: BTreeMap<String, u64>,
    /// Transparent hugepages setting.
    pub transparent_hugepages: Option<String>,
    /// Jiffies of steal time of all CPUs since boot: what a hypervisor took away.
    pub steal_jiffies: Option<u64>,
    /// TLB shootdown interrupts received by all CPUs since boot.
    pub tlb_shootdowns: Option<u64>,
    /// Time in microseconds that all CPUs spent in each idle state since boot.
    pub idle_state_us: BTreeMap<String, u64>,
}

impl Facts {
    /// Reads them below `root`.
    pub fn read(root: &Root) -> Self {
        let text = |path: &str| root.read(path).ok();
        let cpuinfo = text("/proc/cpuinfo");
        let field = |name: &str| {
            let line = cpuinfo.as_deref()?.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        Self {
            hostname: text("/proc/sys/kernel/hostname"),
            kernel: text("/proc/sys/kernel/osrelease"),
            cmdline: text("/proc/cmdline"),
            cpu_model: field("model name"),
            cpus_online: text("/sys/devices/system/cpu/online"),
            nodes_online: text("/sys/devices/system/node/online"),
            virtualised: field("flags").map(|flags| flags.split(' ').any(|f| f == "hypervisor")),
            governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            clocksource: text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            load_average: text("/proc/loadavg"),
            free_hugepages: free_hugepages(root),
            transparent_hugepages: text("/sys/kernel/mm/transparent_hugepage/enabled"),
            steal_jiffies: text("/proc/stat").as_deref().and_then(steal),
            tlb_shootdowns: text("/proc/interrupts").as_deref().and_then(tlb_shootdowns),
            idle_state_us: idle_states(root),
        }
    }
}

fn free_hugepages(root: &Root) -> BTreeMap<String, u64> {
    let folder = "/sys/kernel/mm/hugepages";
    let pools = root.list(folder).unwrap_or_default();
    pools
        .into_iter()
        .filter_map(|pool| {
            let free = root.read_number(format!("{folder}/{pool}/free_hugepages")).ok()?;
            Some((pool.trim_start_matches("hugepages-").to_owned(), free))
        })
        .collect()
}

/// The eighth figure of the `cpu` line (proc_stat(5)).
fn steal(stat: &str) -> Option<u64> {
    stat.lines().next()?.split_ascii_whitespace().nth(8)?.parse().ok()
}

/// The sum of the `TLB:` row of /proc/interrupts.
fn tlb_shootdowns(interrupts: &str) -> Option<u64> {
    let row = interrupts.lines().find_map(|line| line.trim_start().strip_prefix("TLB:"))?;
    Some(row.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok()).sum())
}

fn idle_states(root: &Root) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for cpu in root.list("/sys/devices/system/cpu").unwrap_or_default() {
        let folder = format!("/sys/devices/system/cpu/{cpu}/cpuidle");
        for state in root.list(&folder).unwrap_or_default() {
            let name = root.read(format!("{folder}/{state}/name"));
            let time = root.read_number(format!("{folder}/{state}/time"));
            if let (Ok(name), Ok(time)) = (name, time) {
                *sums.entry(name).or_default() += time;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_proc_are_read() {
        assert_eq!(steal("cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 1"), Some(88));
        let text = "           CPU0       CPU1\n TLB:        3          4   TLB shootdowns\n";
        assert_eq!(tlb_shootdowns(text), Some(7));
        assert_eq!(tlb_shootdowns(""), None);
    }

    #[test]
    fn an_empty_tree_gives_no_facts_and_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let facts = Facts::read(&Root::at(dir.path()));
        assert_eq!(facts.kernel, None);
        assert!(facts.free_hugepages.is_empty());
    }

    #[test]
    fn this_host_has_facts() {
        let facts = Facts::read(&Root::system());
        assert!(facts.kernel.is_some());
        assert!(facts.cpus_online.is_some());
    }
}
