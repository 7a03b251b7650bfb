//! Whether a comparison can be believed: facts of all runs, weighed.

use serde::{Deserialize, Serialize};

use super::facts::PLACES;
use super::matrix::Matrix;
use super::record::{Header, Run};

/// How far the figures can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// Nothing speaks against them.
    Valid,
    /// They hold with what the reasons say in mind.
    Qualified,
    /// They must not be quoted.
    Invalid,
}

/// One thing that speaks against them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// How much it weighs.
    pub trust: Trust,
    /// A short name, for programs.
    pub id: String,
    /// The fact, with its figures, and what it does to the comparison.
    pub text: String,
}

/// The verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fairness {
    /// The worst of the reasons.
    pub verdict: Trust,
    /// Worst first.
    pub reasons: Vec<Reason>,
}

/// Shares of a CPU that others may have had, and that a hypervisor may have taken, before a
/// comparison is qualified, and before it is invalid.
const OTHERS: (f64, f64) = (0.03, 0.25);
const STEAL: (f64, f64) = (0.01, 0.10);
/// Lowest frequency of a CPU as a share of its highest over all runs.
const FREQUENCY: f64 = 0.90;
/// Spread of the baseline's throughput, greatest to least, from which the machine is not steady.
const DRIFT: f64 = 1.5;

/// Weighs what is known of all runs.
pub fn judge(header: &Header, runs: &[Run], debug_build: bool) -> Fairness {
    let mut list = Reasons(Vec::new());
    let matrix = &header.matrix;
    if debug_build {
        let text = "the program was built without optimisation: its figures mean nothing";
        list.add(Trust::Invalid, "debug-build", text.into());
    }
    let rounds = runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
    if rounds < Matrix::FEW_ROUNDS {
        list.add(
            Trust::Qualified,
            "few-rounds",
            format!(
                "{rounds} rounds; from {} on, an interval can tell a difference",
                Matrix::FEW_ROUNDS
            ),
        );
    }
    let failed: u64 = runs.iter().map(|run| run.summary.errors).sum();
    if failed > 0 {
        list.add(Trust::Invalid, "errors", format!("{failed} reads failed or were wrong"));
    }
    contents(header, &mut list);
    polling(matrix, &mut list);
    others(runs, &mut list);
    frequency(runs, &mut list);
    for run in runs {
        places(run, &mut list);
    }
    drift(runs, &mut list);
    list.0.sort_by_key(|reason| std::cmp::Reverse(reason.trust));
    let verdict = list.0.first().map_or(Trust::Valid, |reason| reason.trust);
    Fairness { verdict, reasons: list.0 }
}

struct Reasons(Vec<Reason>);

impl Reasons {
    /// One of each kind is enough: the first has the figures.
    fn add(&mut self, trust: Trust, id: &str, text: String) {
        match self.0.iter_mut().find(|reason| reason.id == id) {
            Some(known) if known.trust >= trust => {}
            Some(known) => (known.trust, known.text) = (trust, text),
            None => self.0.push(Reason { trust, id: id.into(), text }),
        }
    }
}

fn contents(header: &Header, list: &mut Reasons) {
    match header.zeros {
        Some(zeros) if zeros * 4 > PLACES => list.add(
            Trust::Invalid,
            "unwritten",
            format!(
                "{zeros} of {PLACES} random places of the drives hold zeros only: a drive answers \
                 for blocks that were never written, or were discarded, without reading them; fill \
                 them first"
            ),
        ),
        Some(zeros) if zeros > 0 => list.add(
            Trust::Qualified,
            "unwritten",
            format!("{zeros} of {PLACES} random places of the drives hold zeros only"),
        ),
        Some(_) => {}
        None if header.matrix.devices.iter().all(|name| name.starts_with("mem:")) => {}
        None => list.add(
            Trust::Qualified,
            "contents-unknown",
            "whether the drives were written could not be looked at through the kernel".into(),
        ),
    }
}

fn polling(matrix: &Matrix, list: &mut Reasons) {
    let spin = |n: &usize| matrix.variants[*n].switches.polls_drive();
    let all = 0..matrix.variants.len();
    let (polling, others): (Vec<usize>, Vec<usize>) = all.partition(spin);
    let names = |list: &[usize]| {
        list.iter().map(|n| matrix.variants[*n].name.clone()).collect::<Vec<_>>().join(", ")
    };
    if !polling.is_empty() && !others.is_empty() {
        list.add(
            Trust::Qualified,
            "polling",
            format!(
                "{} poll the drive for completions, {} take interrupts: that difference is part of \
                 the ratio",
                names(&polling),
                names(&others)
            ),
        );
    }
}

fn others(runs: &[Run], list: &mut Reasons) {
    let most = |name: &str| {
        let shares = runs.iter().filter_map(|run| run.counters.as_ref()?.get(name));
        shares.max_by(f64::total_cmp)
    };
    for (id, name, (some, much), who) in [
        ("other-load", "others_share", OTHERS, "other programs and interrupts had"),
        ("steal", "steal_share", STEAL, "the hypervisor took"),
    ] {
        let Some(share) = most(name).filter(|share| *share > some) else { continue };
        let trust = if share > much { Trust::Invalid } else { Trust::Qualified };
        let text = format!("{who} up to {:.1} % of a worker's CPU in a run", share * 100.0);
        list.add(trust, id, text);
    }
}

fn frequency(runs: &[Run], list: &mut Reasons) {
    let counters = || runs.iter().filter_map(|run| run.counters.as_ref());
    let mhz: Vec<f64> = counters().filter_map(|c| c.get("mhz")).collect();
    let least = mhz.iter().copied().min_by(f64::total_cmp);
    let most = mhz.iter().copied().max_by(f64::total_cmp);
    if let (Some(least), Some(most)) = (least, most)
        && least < most * FREQUENCY
    {
        list.add(
            Trust::Qualified,
            "frequency",
            format!("the workers' CPUs ran at {least:.0} to {most:.0} MHz from run to run"),
        );
    }
    let throttles: f64 = counters().filter_map(|c| c.get("throttles")).sum();
    if throttles > 0.0 {
        let text = format!("CPUs were slowed down for heat {throttles} times during the runs");
        list.add(Trust::Invalid, "throttling", text);
    }
}

fn places(run: &Run, list: &mut Reasons) {
    let facts = &run.facts;
    for drive in &facts.drives {
        if let Some(node) = drive.node.filter(|_| !facts.core_nodes.is_empty())
            && facts.core_nodes.iter().any(|own| *own != node)
        {
            list.add(
                Trust::Qualified,
                "numa",
                format!(
                    "{} is on NUMA node {node}, workers run on {:?}: data crosses between nodes",
                    drive.name, facts.core_nodes
                ),
            );
        }
        if let Some((now, best)) = drive.link_now.zip(drive.link_best)
            && now < best * 0.99
        {
            list.add(
                Trust::Qualified,
                "link",
                format!(
                    "the link of {} ran at {} under load: its slot or its partner is the limit",
                    drive.name,
                    drive.link.as_deref().unwrap_or("less than its best")
                ),
            );
        }
        if drive.iommu.as_deref() == Some("DMA") {
            list.add(
                Trust::Qualified,
                "iommu-strict",
                format!(
                    "{} is in a strict IOMMU domain (type DMA): every unmap of the kernel's path \
                     waits for the IOMMU, SPDK's path maps once",
                    drive.name
                ),
            );
        }
    }
    if let Some(node) = facts.memory_node
        && facts.core_nodes.iter().any(|own| *own != node)
    {
        let text = format!(
            "memory was asked for on NUMA node {node}, workers run on {:?}",
            facts.core_nodes
        );
        list.add(Trust::Qualified, "memory-node", text);
    }
}

fn drift(runs: &[Run], list: &mut Reasons) {
    let loads = runs.iter().map(|run| run.load + 1).max().unwrap_or(0);
    let spread = |load: usize| {
        let own = runs.iter().filter(|run| (run.load, run.variant) == (load, 0));
        let iops: Vec<f64> = own.map(|run| run.summary.iops).collect();
        let least = iops.iter().copied().min_by(f64::total_cmp)?;
        Some(iops.iter().copied().max_by(f64::total_cmp)? / least)
    };
    let worst = (0..loads).filter_map(spread).max_by(f64::total_cmp);
    if let Some(worst) = worst.filter(|worst| *worst > DRIFT) {
        list.add(
            Trust::Qualified,
            "drift",
            format!(
                "the baseline's fastest run has {worst:.2} times the throughput of its slowest: \
                 the machine is not steady; ratios hold, absolute figures do not"
            ),
        );
    }
}

#[cfg(test)]
#[path = "fairness_tests.rs"]
mod tests;
