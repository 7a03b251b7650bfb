//! What is known of one variant under one load: all that the rules look at.

use std::collections::BTreeMap;

use crate::compare::analysis::Point;
use crate::compare::matrix::{LoadPoint, Matrix};
use crate::compare::record::Run;

/// Measured figures and computed ceilings. A figure that is not there is unknown, never 0.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// Figures by name, as in a [`Point`].
    pub figures: BTreeMap<String, f64>,
    /// Reads in flight that the load allows, all workers or connections together.
    pub depth: f64,
    /// Reads per second that an open loop wants; `None`: a closed loop.
    pub rate: Option<f64>,
    /// True without a network.
    pub local: bool,
    /// Value of the switch `check`.
    pub check: String,
    /// Value of the switch `wait`.
    pub wait: String,
    /// True where the drive is polled for completions.
    pub polls_drive: bool,
    /// Reads per second of the same variant and size at other depths, ascending.
    pub sweep: Vec<(f64, f64)>,
    /// Bytes per second that the drives' links carry at most, together, as they run now.
    pub pcie: Option<f64>,
    /// Those links in words.
    pub link: Option<String>,
    /// Bytes per second that the RDMA ports carry.
    pub nic: Option<f64>,
    /// Workers, drives or memory on different NUMA nodes: which, in words.
    pub apart: Option<String>,
    /// True where it is known that they are not.
    pub together: bool,
}

impl Evidence {
    /// A figure.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }

    /// From measured runs.
    pub fn of(matrix: &Matrix, point: &Point, points: &[Point], runs: &[Run]) -> Self {
        let load: LoadPoint = matrix.loads[point.load];
        let switches = &matrix.variants[point.variant].switches;
        let local = matrix.fabric == "local";
        let lanes = if local { switches.workers() } else { matrix.connections };
        let mut figures: BTreeMap<String, f64> =
            point.figures.iter().map(|(name, middle)| (name.clone(), middle.median)).collect();
        figures.extend(point.traced.clone());
        let mut sweep: Vec<(f64, f64)> = points
            .iter()
            .filter(|other| other.variant == point.variant)
            .filter(|other| {
                let theirs = matrix.loads[other.load];
                theirs.io_size == load.io_size && theirs.rate == load.rate
            })
            .filter_map(|other| {
                let depth = f64::from(matrix.loads[other.load].depth) * lanes as f64;
                Some((depth, other.get("iops")?))
            })
            .collect();
        sweep.sort_by(|a, b| a.0.total_cmp(&b.0));
        let own =
            || runs.iter().filter(|run| (run.load, run.variant) == (point.load, point.variant));
        let last = own().next_back();
        let drives = last.map(|run| run.facts.drives.as_slice()).unwrap_or_default();
        let apart = own().find_map(apart);
        let known = last.is_some_and(|run| !run.facts.core_nodes.is_empty());
        Self {
            figures,
            depth: f64::from(load.depth) * lanes as f64,
            rate: load.rate,
            local,
            check: switches.get("check").into(),
            wait: switches.get("wait").into(),
            polls_drive: switches.polls_drive(),
            sweep,
            pcie: drives
                .iter()
                .map(|drive| drive.link_now)
                .sum::<Option<f64>>()
                .filter(|n| *n > 0.0),
            link: drives.iter().find_map(|drive| drive.link.clone()),
            nic: last.and_then(|run| run.facts.nic_bytes_per_sec),
            together: apart.is_none() && known,
            apart,
        }
    }
}

/// What of a run is on different NUMA nodes.
fn apart(run: &Run) -> Option<String> {
    let facts = &run.facts;
    let elsewhere = |node: usize| facts.core_nodes.iter().any(|own| *own != node);
    if let Some(node) = facts.memory_node.filter(|node| elsewhere(*node)) {
        return Some(format!("memory on node {node}, workers on {:?}", facts.core_nodes));
    }
    let drive = facts.drives.iter().find(|drive| drive.node.is_some_and(elsewhere))?;
    Some(format!("{} on node {}, workers on {:?}", drive.name, drive.node?, facts.core_nodes))
}
