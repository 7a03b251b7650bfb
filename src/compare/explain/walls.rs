//! Which resource is the wall: one rule for each, from measured evidence alone. A rule says that
//! it is, that it is not, or what to run to find out. docs/COMPARE.md has them as a table.

use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use crate::units::format_nanos;

/// What can hold a load up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wall {
    /// Others have the workers' CPUs.
    OtherLoad,
    /// The load asks for no more.
    OfferedLoad,
    /// CPUs sleep deeply and wake up late.
    SleepingCores,
    /// The drives' links.
    Pcie,
    /// The network: the NIC, or what is between the two sides.
    Nic,
    /// Data crosses between NUMA nodes.
    RemoteMemory,
    /// The workers' CPU time in the kernel.
    KernelCpu,
    /// Their CPU time in checks of the data.
    CheckCpu,
    /// Translation of addresses: TLB misses while data is looked at.
    AddressTranslation,
    /// The client's CPU time.
    ClientCpu,
    /// The drives.
    Drive,
}

impl Wall {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Wall::OtherLoad => "other load on the workers' CPUs",
            Wall::OfferedLoad => "the offered load",
            Wall::SleepingCores => "sleeping cores",
            Wall::Pcie => "the drives' PCIe link",
            Wall::Nic => "the network",
            Wall::RemoteMemory => "memory on another NUMA node",
            Wall::KernelCpu => "CPU time in the kernel",
            Wall::CheckCpu => "CPU time in checks",
            Wall::AddressTranslation => "address translation",
            Wall::ClientCpu => "the client's CPU",
            Wall::Drive => "the drive",
        }
    }
}

/// What a rule says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Says {
    /// It is the wall: why, with figures.
    Yes(String),
    /// It is not: why, with figures.
    No(String),
    /// This would tell.
    Ask(String),
}

/// One wall that was considered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Which.
    pub wall: Wall,
    /// The sentence.
    pub text: String,
}

/// What is said of one variant under one load.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The wall; `null` where the evidence does not suffice.
    pub wall: Option<Named>,
    /// What it is not.
    pub not: Vec<Named>,
    /// What to run next.
    pub next: Vec<String>,
}

/// A worker's CPU is taken for full from here on, and has time to spare below.
const FULL: f64 = 0.85;
const SPARE: f64 = 0.75;
/// Share of a ceiling from which on it is reached: what is left is framing and gaps.
const REACHED: f64 = 0.85;
/// Share of a ceiling above which it is none: an emulated link carries more than it says.
const BEYOND: f64 = 1.05;
/// Growth of throughput for twice the depth, below which more depth does not help.
const FLAT: f64 = 1.15;

type Rule = fn(&Evidence) -> Says;

/// In the order in which they are asked: the first Yes is the wall. What takes the CPU or the load
/// away comes before what the path does with it, and the drive is what is left behind the queue.
const RULES: [(Wall, Rule); 9] = [
    (Wall::OtherLoad, other_load),
    (Wall::SleepingCores, sleeping),
    (Wall::OfferedLoad, offered),
    (Wall::Pcie, pcie),
    (Wall::Nic, nic),
    (Wall::RemoteMemory, remote_memory),
    (Wall::KernelCpu, kernel_cpu),
    (Wall::CheckCpu, check_cpu),
    (Wall::Drive, drive),
];

/// Asks all rules.
pub fn explain(evidence: &Evidence) -> Finding {
    let mut finding = Finding::default();
    for (wall, rule) in RULES {
        match rule(evidence) {
            Says::Yes(text) if finding.wall.is_none() => {
                finding.wall = Some(Named { wall, text });
            }
            // One wall hides the next: a second is not named, and not denied.
            Says::Yes(_) => {}
            Says::No(text) => finding.not.push(Named { wall, text }),
            Says::Ask(text) => finding.next.push(text),
        }
    }
    if finding.wall.is_none() && client_is_full(evidence) {
        let idle = evidence.get("client_idle_share").unwrap_or(0.0);
        let text = format!("the client's threads had {} of their time to spare", percent(idle));
        finding.wall = Some(Named { wall: Wall::ClientCpu, text });
    }
    if finding.wall.is_some() {
        // Known is known: what was unclear about other walls is not worth a run.
        finding.next.clear();
    } else if finding.next.is_empty() {
        finding.next.push(
            "run it with --counters on, and a sweep of --depth, so that the rules have figures"
                .into(),
        );
    }
    finding
}

pub(super) fn percent(share: f64) -> String {
    let value = share * 100.0;
    if value != 0.0 && value.abs() < 9.95 {
        format!("{value:.1} %")
    } else {
        format!("{value:.0} %")
    }
}

fn nanos(value: f64) -> String {
    format_nanos(value.max(0.0) as u64)
}

fn rate(bytes: f64) -> String {
    format!("{:.2} GiB/s", bytes / f64::from(1 << 30))
}

fn other_load(e: &Evidence) -> Says {
    let wait = e.get("reader_wait_share");
    let others = e.get("others_share");
    let steal = e.get("steal_share");
    let worst = [wait, others, steal].into_iter().flatten().max_by(f64::total_cmp);
    let Some(worst) = worst else {
        return Says::Ask("run it with --counters on: who else had the CPUs is not known".into());
    };
    let part = |name: &str, share: Option<f64>| share.map(|s| format!("{name} {}", percent(s)));
    let parts = [
        part("the workers waited for a CPU", wait),
        part("others had", others),
        part("the hypervisor took", steal),
    ];
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join(", ") + " of the time";
    if worst >= 0.15 { Says::Yes(text) } else { Says::No(text) }
}

fn sleeping(e: &Evidence) -> Says {
    let Some(slow) = e.get("slow_idle_share") else {
        return Says::No("the kernel shows no idle states with a long way back".into());
    };
    // A core that spins never sleeps; one that waits is woken by the drive's interrupt.
    if slow >= 0.2 && e.get("busy_share").is_none_or(|busy| busy < SPARE) {
        return Says::Yes(format!(
            "the workers' CPUs were {} of the time in idle states that take more than 10 us to \
             leave, at a median latency of {}",
            percent(slow),
            nanos(e.get("latency_p50_ns").unwrap_or(0.0))
        ));
    }
    Says::No(format!("the workers' CPUs were in slow idle states {} of the time", percent(slow)))
}

/// Throughput at the next greater depth by throughput now, for twice the depth.
fn growth(e: &Evidence) -> Option<(f64, f64)> {
    let now = e.sweep.iter().find(|(depth, _)| *depth == e.depth)?;
    let next = e.sweep.iter().find(|(depth, _)| *depth > e.depth)?;
    Some((next.0, (next.1 / now.1).powf(1.0 / (next.0 / now.0).log2())))
}

/// The same from the next smaller depth to this one.
fn growth_before(e: &Evidence) -> Option<(f64, f64)> {
    let now = e.sweep.iter().find(|(depth, _)| *depth == e.depth)?;
    let before = e.sweep.iter().rev().find(|(depth, _)| *depth < e.depth)?;
    Some((before.0, (now.1 / before.1).powf(1.0 / (now.0 / before.0).log2())))
}

fn spare(e: &Evidence) -> bool {
    e.get("busy_share").is_some_and(|busy| busy < SPARE)
}

fn offered(e: &Evidence) -> Says {
    let iops = e.get("iops").unwrap_or(0.0);
    let in_flight = e.get("in_flight").unwrap_or(0.0);
    if let Some(wanted) = e.rate {
        let unstarted = e.get("unstarted").unwrap_or(0.0);
        if iops >= 0.97 * wanted && unstarted == 0.0 {
            return Says::Yes(format!(
                "{iops:.0} of the {wanted:.0} reads/s that were asked for were read, with \
                 {in_flight:.1} of {:.0} in flight (Little's law): it could do more",
                e.depth
            ));
        }
        return Says::No(format!(
            "{wanted:.0} reads/s were asked for, {iops:.0} were read, {unstarted:.0} not started"
        ));
    }
    match growth(e) {
        Some((depth, growth)) if growth >= FLAT => Says::Yes(format!(
            "with {in_flight:.1} reads in flight (Little's law) it reads {iops:.0}/s; for twice \
             the depth it reads {growth:.2} times as much (measured at depth {depth:.0})"
        )),
        Some((depth, growth)) => Says::No(format!(
            "twice the depth gives {growth:.2} times the throughput (measured at depth {depth:.0})"
        )),
        None => match growth_before(e) {
            Some((before, growth)) if growth < FLAT => Says::No(format!(
                "from depth {before:.0} on, twice the depth gives {growth:.2} times the throughput"
            )),
            // A full CPU is a wall of its own; with time to spare, more depth may give more.
            _ if e.get("busy_share").is_some_and(|busy| busy >= FULL) => {
                Says::No("the workers' CPUs are full at this depth".into())
            }
            _ => Says::Ask(format!("run it at twice the depth too: --depth {:.0}", 2.0 * e.depth)),
        },
    }
}

fn pcie(e: &Evidence) -> Says {
    let (Some(ceiling), Some(bytes)) = (e.pcie, e.get("bytes_per_sec")) else {
        return Says::No("the drives have no PCIe link that the kernel shows".into());
    };
    let link = e.link.as_deref().unwrap_or("a link");
    let text = format!(
        "{} of the {} that the link ({link}) carries, {}",
        rate(bytes),
        rate(ceiling),
        percent(bytes / ceiling)
    );
    match reached(bytes, ceiling) {
        Some(true) => Says::Yes(text),
        Some(false) => Says::No(text),
        None => Says::No(text + ": that is no limit of an emulated link"),
    }
}

/// Whether a ceiling is reached; `None` where it is passed, so that it is none.
fn reached(bytes: f64, ceiling: f64) -> Option<bool> {
    (bytes < BEYOND * ceiling).then_some(bytes >= REACHED * ceiling)
}

fn nic(e: &Evidence) -> Says {
    if e.local {
        return Says::No("no network takes part".into());
    }
    let bytes = e.get("bytes_per_sec").unwrap_or(0.0);
    if let Some(ceiling) = e.nic {
        let text = format!(
            "{} of the {} that the NIC carries, {}",
            rate(bytes),
            rate(ceiling),
            percent(bytes / ceiling)
        );
        if reached(bytes, ceiling) == Some(true) {
            return Says::Yes(text);
        }
    }
    let Some((fabric, mean)) = e.get("fabric_client_ns").zip(e.get("latency_mean_ns")) else {
        return Says::Ask("run it again: its stages are not known".into());
    };
    let retries = e.get("rdma_retries_per_read").unwrap_or(0.0);
    let share = fabric / mean.max(1.0);
    let text = format!(
        "{} of the mean {} are between server and client ({}), {} of the client's time is idle, \
         {retries:.3} RDMA retries per read",
        nanos(fabric),
        nanos(mean),
        percent(share),
        percent(e.get("client_idle_share").unwrap_or(0.0))
    );
    let client_waits = e.get("client_idle_share").is_some_and(|idle| idle >= 0.25);
    match (share >= 0.6, client_waits) {
        (true, true) => Says::Yes(text),
        _ => Says::No(text),
    }
}

fn client_is_full(e: &Evidence) -> bool {
    !e.local && e.get("client_idle_share").is_some_and(|idle| idle < 0.10)
}

fn remote_memory(e: &Evidence) -> Says {
    match &e.apart {
        Some(apart) if !spare(e) => Says::Yes(format!(
            "{apart}: every byte that a worker looks at crosses between the nodes, and its CPU is \
             {} busy",
            percent(e.get("busy_share").unwrap_or(1.0))
        )),
        Some(apart) => Says::No(format!("{apart}, but the workers have time to spare")),
        None if e.together => Says::No("workers, drives and memory are on one NUMA node".into()),
        None => Says::No("the kernel shows no NUMA nodes".into()),
    }
}

/// User and system time per read, and how busy the worker is; an error is what to run.
fn cpu(e: &Evidence) -> Result<(f64, f64, f64), String> {
    let busy = e.get("busy_share").ok_or("run it with --counters on: how busy workers are")?;
    let user = e.get("cpu_user_ns_per_read").ok_or("run it with --counters on: CPU time")?;
    let system = e.get("cpu_system_ns_per_read").ok_or("run it with --counters on: CPU time")?;
    Ok((busy, user, system))
}

fn kernel_cpu(e: &Evidence) -> Says {
    let (busy, user, system) = match cpu(e) {
        Ok(cpu) => cpu,
        Err(ask) => return Says::Ask(ask),
    };
    let text = format!(
        "workers are {} busy; {} of {} of CPU time per read is in the kernel ({})",
        percent(busy),
        nanos(system),
        nanos(user + system),
        percent(system / (user + system).max(1.0))
    );
    if busy >= FULL && system >= user { Says::Yes(text) } else { Says::No(text) }
}

fn check_cpu(e: &Evidence) -> Says {
    if e.check == "none" {
        return Says::No("nothing is checked".into());
    }
    let (busy, user, system) = match cpu(e) {
        Ok(cpu) => cpu,
        Err(ask) => return Says::Ask(ask),
    };
    let mut text = format!(
        "workers are {} busy; {} of {} of CPU time per read is outside of the kernel, where the \
         data is checked ({}: {})",
        percent(busy),
        nanos(user),
        nanos(user + system),
        e.check,
        percent(user / (user + system).max(1.0))
    );
    if let Some(misses) = e.get("dtlb_load_misses_per_read") {
        text += &format!(", with {misses:.0} dTLB misses per read");
    }
    if busy >= FULL && user > system { Says::Yes(text) } else { Says::No(text) }
}

fn drive(e: &Evidence) -> Says {
    let Some((drive, mean)) = e.get("drive_ns").zip(e.get("latency_mean_ns")) else {
        return Says::Ask("run it again: its stages are not known".into());
    };
    let share = drive / mean.max(1.0);
    let mut text = format!(
        "{} of the mean {} are on the drive ({}), with {:.1} reads in flight (Little's law)",
        nanos(drive),
        nanos(mean),
        percent(share),
        e.get("in_flight").unwrap_or(0.0)
    );
    if let Some(depth) = e.get("drive_queue_depth") {
        text += &format!("; the block layer counts {depth:.1} in its queue");
    }
    let Some(busy) = e.get("busy_share") else {
        // Behind a fabric, what the server's worker does besides polling is not known.
        return match share >= 0.6 && flat(e) {
            true => Says::Yes(text),
            false => Says::No(text),
        };
    };
    text += &format!("; workers are {} busy", percent(busy));
    if share < 0.5 || busy >= FULL {
        return Says::No(text);
    }
    match flat(e) {
        true => Says::Yes(text),
        // Whether more depth gives more is another rule's question.
        false => Says::Ask(format!("{text}; whether more depth gives more is to be measured")),
    }
}

/// True where more reads in flight are known to give no more throughput.
fn flat(e: &Evidence) -> bool {
    let grown = growth(e).or_else(|| growth_before(e));
    grown.is_some_and(|(_, growth)| growth < FLAT)
        || e.rate.is_some() && e.get("unstarted").is_some_and(|unstarted| unstarted > 0.0)
}
