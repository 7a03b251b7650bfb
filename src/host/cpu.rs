//! Processors: what they are, their frequency, and how deep they may sleep.
//! (Documentation/ABI/testing/sysfs-devices-system-cpu, Documentation/admin-guide/pm/{cpufreq,
//! cpuidle,intel_pstate}.rst of the kernel.)

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Root;
use super::fact::{Fact, Unread, list_text, why};

const FOLDER: &str = "/sys/devices/system/cpu";

/// Deepest exit latency in microseconds that counts as shallow: that of C1 and C1E on current
/// server processors is 1 to 10; the next deeper state begins well above.
pub const SHALLOW_US: u64 = 10;

/// An idle state of one CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IdleState {
    /// N of `stateN`.
    pub index: u32,
    /// `POLL`, `C1`, `C6`, ...
    pub name: String,
    /// Time in microseconds to leave it.
    pub latency_us: u64,
    /// How often it was entered since boot.
    pub usage: u64,
    /// Time in microseconds that was spent in it since boot.
    pub time_us: u64,
    /// True where it may not be entered.
    pub disabled: bool,
}

impl IdleState {
    /// True where leaving it takes longer than [`SHALLOW_US`] and it may be entered.
    pub fn is_deep(&self) -> bool {
        !self.disabled && self.latency_us > SHALLOW_US
    }
}

/// One CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cpu {
    /// Its number.
    pub number: usize,
    /// NUMA node.
    pub node: Option<usize>,
    /// Frequency governor.
    pub governor: Fact<String>,
    /// Frequency driver.
    pub driver: Fact<String>,
    /// Energy-performance preference, where the processor governs itself.
    pub preference: Fact<String>,
    /// Highest frequency in kHz that it can have.
    pub best_khz: Fact<u64>,
    /// Highest frequency in kHz that it may have.
    pub limit_khz: Fact<u64>,
    /// CPUs of the same core, itself among them.
    pub siblings: Fact<Vec<usize>>,
    /// How often the core was slowed down for heat since boot.
    pub core_throttles: Fact<u64>,
    /// How often the package was.
    pub package_throttles: Fact<u64>,
    /// Idle states, from shallow to deep.
    pub idle: Fact<Vec<IdleState>>,
}

/// All CPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cpus {
    /// `GenuineIntel`, `AuthenticAMD`.
    pub vendor: Fact<String>,
    /// Model name.
    pub model: Fact<String>,
    /// Flags of the first CPU.
    pub flags: Fact<BTreeSet<String>>,
    /// CPUs online.
    pub online: Fact<Vec<usize>>,
    /// CPUs that this process may run on.
    pub allowed: Fact<Vec<usize>>,
    /// CPUs that the scheduler leaves alone (`isolcpus`).
    pub isolated: Fact<Vec<usize>>,
    /// CPUs without a tick while they run one task (`nohz_full`).
    pub nohz_full: Fact<Vec<usize>>,
    /// Idle driver.
    pub idle_driver: Fact<String>,
    /// Idle governor.
    pub idle_governor: Fact<String>,
    /// intel_idle's own limit, from the boot parameter.
    pub max_cstate: Fact<u64>,
    /// 1 where turbo is switched off (intel_pstate).
    pub no_turbo: Fact<u64>,
    /// 0 where boost is switched off (other drivers).
    pub boost: Fact<u64>,
    /// CPU by CPU, ascending.
    #[serde(serialize_with = "grouped")]
    pub each: Vec<Cpu>,
}

impl Cpus {
    /// Reads them below `root`.
    pub fn read(root: &Root) -> Self {
        let cpuinfo = || Fact::text(root, "/proc/cpuinfo");
        let field =
            |name: &'static str| cpuinfo().and_then(|text| Some(field_of(&text, name)?.to_owned()));
        let online = Fact::list(root, format!("{FOLDER}/online"));
        let nodes = nodes(root);
        let numbers = online.get().cloned().unwrap_or_default();
        let each = numbers.iter().map(|n| cpu(root, *n, nodes.get(n).copied())).collect();
        Self {
            vendor: field("vendor_id"),
            model: field("model name"),
            flags: field("flags")
                .and_then(|flags| Some(flags.split_whitespace().map(str::to_owned).collect())),
            online,
            allowed: Fact::parse(root, "/proc/self/status", |text| {
                let line = text.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
                super::affinity::parse_list(line.trim()).ok()
            }),
            isolated: Fact::list(root, format!("{FOLDER}/isolated")),
            nohz_full: Fact::list(root, format!("{FOLDER}/nohz_full")),
            idle_driver: Fact::text(root, format!("{FOLDER}/cpuidle/current_driver")),
            idle_governor: Fact::text(root, format!("{FOLDER}/cpuidle/current_governor")),
            max_cstate: Fact::number(root, "/sys/module/intel_idle/parameters/max_cstate"),
            no_turbo: Fact::number(root, format!("{FOLDER}/intel_pstate/no_turbo")),
            boost: Fact::number(root, format!("{FOLDER}/cpufreq/boost")),
            each,
        }
    }

    /// True where the processor has this flag; `None` where its flags are unknown.
    pub fn has(&self, flag: &str) -> Option<bool> {
        Some(self.flags.get()?.contains(flag))
    }

    /// The CPU of this number.
    pub fn of(&self, number: usize) -> Option<&Cpu> {
        self.each.iter().find(|cpu| cpu.number == number)
    }
}

/// What CPUs of a kind have in common, for results: everything but number and counters.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Alike {
    node: Option<usize>,
    governor: Option<String>,
    driver: Option<String>,
    preference: Option<String>,
    best_khz: Option<u64>,
    limit_khz: Option<u64>,
    /// Name, exit latency in microseconds, and whether it may be entered.
    idle: Vec<(String, u64, bool)>,
}

/// Writes CPUs that are alike as one.
fn grouped<S: serde::Serializer>(each: &[Cpu], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Group {
        cpus: String,
        #[serde(flatten)]
        alike: Alike,
    }
    let mut groups: Vec<(Alike, Vec<usize>)> = Vec::new();
    for cpu in each {
        let idle = cpu.idle.get().map(Vec::as_slice).unwrap_or_default();
        let alike = Alike {
            node: cpu.node,
            governor: cpu.governor.get().cloned(),
            driver: cpu.driver.get().cloned(),
            preference: cpu.preference.get().cloned(),
            best_khz: cpu.best_khz.copied(),
            limit_khz: cpu.limit_khz.copied(),
            idle: idle.iter().map(|s| (s.name.clone(), s.latency_us, !s.disabled)).collect(),
        };
        match groups.iter_mut().find(|(kind, _)| *kind == alike) {
            Some((_, numbers)) => numbers.push(cpu.number),
            None => groups.push((alike, vec![cpu.number])),
        }
    }
    let group = |(alike, numbers): (Alike, Vec<usize>)| Group { cpus: list_text(&numbers), alike };
    serializer.collect_seq(groups.into_iter().map(group))
}

fn field_of<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim())
}

/// Node of each CPU, by the lists that the nodes have.
fn nodes(root: &Root) -> BTreeMap<usize, usize> {
    let mut found = BTreeMap::new();
    for node in super::numa::online(root).get().cloned().unwrap_or_default() {
        let cpus = Fact::list(root, format!("/sys/devices/system/node/node{node}/cpulist"));
        found.extend(cpus.get().into_iter().flatten().map(|cpu| (*cpu, node)));
    }
    found
}

fn cpu(root: &Root, number: usize, node: Option<usize>) -> Cpu {
    let folder = format!("{FOLDER}/cpu{number}");
    let freq = |file: &str| format!("{folder}/cpufreq/{file}");
    let heat = |file: &str| format!("{folder}/thermal_throttle/{file}");
    Cpu {
        number,
        node,
        governor: Fact::text(root, freq("scaling_governor")),
        driver: Fact::text(root, freq("scaling_driver")),
        preference: Fact::text(root, freq("energy_performance_preference")),
        best_khz: Fact::number(root, freq("cpuinfo_max_freq")),
        limit_khz: Fact::number(root, freq("scaling_max_freq")),
        siblings: Fact::list(root, format!("{folder}/topology/thread_siblings_list")),
        core_throttles: Fact::number(root, heat("core_throttle_count")),
        package_throttles: Fact::number(root, heat("package_throttle_count")),
        idle: idle(root, &folder),
    }
}

/// The idle states of the CPU with this folder, sorted by number.
pub fn idle(root: &Root, folder: &str) -> Fact<Vec<IdleState>> {
    let path = format!("{folder}/cpuidle");
    let names = match root.list(&path) {
        Ok(names) => names,
        Err(e) => return Fact { value: Err(why(&e)), path },
    };
    let mut states = Vec::new();
    for name in names {
        let Some(index) = name.strip_prefix("state").and_then(|n| n.parse().ok()) else { continue };
        let number = |file: &str| Fact::number(root, format!("{path}/{name}/{file}"));
        let (latency, usage, time) = (number("latency"), number("usage"), number("time"));
        // Older kernels have no such file, and then the state can be entered.
        let disable = number("disable");
        let title = Fact::text(root, format!("{path}/{name}/name"));
        let (Some(latency_us), Some(usage), Some(time_us), Some(title)) =
            (latency.copied(), usage.copied(), time.copied(), title.get())
        else {
            let reasons = [latency, usage, time].into_iter().filter_map(|fact| fact.why_unread());
            let text = reasons.chain(title.why_unread()).next();
            let text = text.unwrap_or_else(|| format!("{path}/{name} is not complete"));
            return Fact { path, value: Err(Unread::Failed(text)) };
        };
        let disabled = disable.copied() == Some(1);
        states.push(IdleState { index, name: title.clone(), latency_us, usage, time_us, disabled });
    }
    states.sort_by_key(|state| state.index);
    match states.is_empty() {
        true => Fact::absent(path),
        false => Fact::known(path, states),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        };
        put("proc/cpuinfo", "vendor_id\t: GenuineIntel\nmodel name\t: A CPU\nflags\t\t: fpu arat");
        put("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-1");
        put("sys/devices/system/cpu/online", "0-1");
        put("sys/devices/system/cpu/isolated", "");
        put("sys/devices/system/cpu/nohz_full", "(null)");
        put("sys/devices/system/node/online", "0-1");
        for cpu in 0..2 {
            let folder = format!("sys/devices/system/cpu/cpu{cpu}");
            put(&format!("sys/devices/system/node/node{cpu}/cpulist"), &cpu.to_string());
            put(&format!("{folder}/cpufreq/scaling_governor"), "powersave");
            for (index, name, latency) in [(0, "POLL", 0), (1, "C1", 2), (10, "C6", 133)] {
                let state = format!("{folder}/cpuidle/state{index}");
                put(&format!("{state}/name"), name);
                put(&format!("{state}/latency"), &latency.to_string());
                put(&format!("{state}/usage"), "5");
                put(&format!("{state}/time"), "700");
                put(&format!("{state}/disable"), "0");
            }
        }
        dir
    }

    #[test]
    fn cpus_are_read_with_their_states() {
        let dir = tree();
        let cpus = Cpus::read(&Root::at(dir.path()));
        assert_eq!(cpus.vendor.as_deref(), Some("GenuineIntel"));
        assert_eq!(cpus.has("arat"), Some(true));
        assert_eq!(cpus.has("hwp"), Some(false));
        assert_eq!(cpus.nohz_full.get(), Some(&vec![]));
        assert_eq!(cpus.allowed.get(), Some(&vec![0, 1]));
        assert_eq!(cpus.of(1).unwrap().node, Some(1));
        let idle = cpus.of(0).unwrap().idle.get().unwrap();
        assert_eq!(idle.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["POLL", "C1", "C6"]);
        assert_eq!(idle.iter().map(IdleState::is_deep).collect::<Vec<_>>(), [false, false, true]);
        // All facts of a CPU but its number and node are the other's.
        let json = serde_json::to_value(&cpus).unwrap();
        assert_eq!(json["each"].as_array().unwrap().len(), 2);
        assert_eq!(json["each"][0]["idle"][2], serde_json::json!(["C6", 133, true]));
    }

    #[test]
    fn a_state_that_cannot_be_read_is_said() {
        let dir = tree();
        let file = "sys/devices/system/cpu/cpu0/cpuidle/state1/latency";
        std::fs::write(dir.path().join(file), "?").unwrap();
        let cpus = Cpus::read(&Root::at(dir.path()));
        let why = cpus.of(0).unwrap().idle.why_unread().unwrap();
        assert!(why.contains("state1/latency"), "{why}");
    }
}
