//! Whether drives, NIC and workers are on one NUMA node.

use std::collections::BTreeSet;

use super::Family;
use crate::doctor::case::Case;
use crate::doctor::check::Check;
use crate::doctor::ruling::{Ruling, do_it};
use crate::host::fact::list_text;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "numa-nic",
        family: Family::Numa,
        why: "Cores and slots on the NIC's node were a part of what took a server from 30 to \
              96 Gb/s.",
        rule: nic,
    },
    Check {
        id: "numa-drives",
        family: Family::Numa,
        why: "A drive on another node writes each byte across the link between sockets, where it \
              meets all others.",
        rule: drives,
    },
    Check {
        id: "numa-unknown",
        family: Family::Numa,
        why: "Where the firmware names no node, memory lands where it happens to.",
        rule: unknown,
    },
];

fn text(nodes: &BTreeSet<usize>) -> String {
    list_text(&nodes.iter().copied().collect::<Vec<_>>())
}

fn cores_of(case: &Case, node: usize) -> String {
    let on_node = case.machine.cpus.each.iter().filter(|cpu| cpu.node == Some(node));
    list_text(&on_node.map(|cpu| cpu.number).collect::<Vec<_>>())
}

fn nic(case: &Case) -> Ruling {
    if case.machine.node_count() < 2 {
        return Ruling::skip("one NUMA node");
    }
    let cores = case.nodes_of_cores();
    let (near, whose) = match cores.is_empty() {
        false => (cores, "the workers"),
        true => (case.nodes_of_drives(), "the drives"),
    };
    if case.nics.is_empty() || near.is_empty() {
        return Ruling::skip("no NIC, or nothing that it should be near to");
    }
    let mut ruling = Ruling::new();
    let mut seen = BTreeSet::new();
    for nic in &case.nics {
        let Some(function) = &nic.function else { continue };
        let Some(node) = ruling.read(&function.node).copied() else { continue };
        let Ok(node) = usize::try_from(node) else { continue };
        seen.insert(node);
        let file = &function.node.path;
        if near.contains(&node) {
            ruling.fine(file, node);
            continue;
        }
        let what = format!("{} is on node {node}, {whose} on {}", nic.device.name, text(&near));
        let mends =
            vec![do_it(format!("choose --cores from {}, or the other NIC", cores_of(case, node)))];
        ruling.loses(0.3, file, node, what, mends);
    }
    // Part of the workers (or drives) far from every NIC.
    let far: BTreeSet<usize> = near.difference(&seen).copied().collect();
    if !far.is_empty() && near.iter().any(|node| seen.contains(node)) {
        let what = format!("{whose} on node {} have no NIC on theirs", text(&far));
        let mends = vec![do_it("run a server for each node, with the node's own NIC")];
        ruling.loses(0.15, "/sys/class/infiniband/*/device/numa_node", text(&seen), what, mends);
    }
    ruling
}

fn drives(case: &Case) -> Ruling {
    if case.machine.node_count() < 2 {
        return Ruling::skip("one NUMA node");
    }
    let cores = case.nodes_of_cores();
    let (near, whose) = match cores.is_empty() {
        false => (cores, "the workers"),
        true => (case.nodes_of_nics(), "the NIC"),
    };
    if near.is_empty() {
        return Ruling::skip("no --cores and no NIC to be near to");
    }
    let mut ruling = Ruling::new();
    let all = case.functions().count();
    let far = case.nodes_of_drives().difference(&near).count();
    let every = far > 0 && case.nodes_of_drives().intersection(&near).count() == 0;
    for (drive, function) in case.functions() {
        let Some(node) = ruling.read(&function.node).copied() else { continue };
        let Ok(node) = usize::try_from(node) else { continue };
        let file = &function.node.path;
        if near.contains(&node) {
            ruling.fine(file, node);
            continue;
        }
        let distance = distance(case, node, &near);
        let what =
            format!("{} is on node {node}, {whose} on {}{distance}", drive.title(), text(&near));
        let mends = vec![do_it(format!(
            "serve it from cores of its own node ({}), by a server of its own",
            cores_of(case, node)
        ))];
        // One far drive of many costs less than all of them.
        let lost = if every { 0.3 } else { 0.2 / (all.max(1) as f64) + 0.02 };
        ruling.loses(lost, file, node, what, mends);
    }
    ruling
}

fn distance(case: &Case, node: usize, near: &BTreeSet<usize>) -> String {
    let nodes = case.machine.nodes.get().map(Vec::as_slice).unwrap_or_default();
    let row = nodes.iter().find(|n| n.number == node).and_then(|n| n.distances.get());
    let to = near.iter().next().copied();
    let place = to.and_then(|to| nodes.iter().position(|n| n.number == to));
    match (row, place) {
        (Some(row), Some(place)) => match row.get(place) {
            Some(distance) => format!(" (distance {distance}, 10 is itself)"),
            None => String::new(),
        },
        _ => String::new(),
    }
}

fn unknown(case: &Case) -> Ruling {
    if case.machine.node_count() < 2 {
        return Ruling::skip("one NUMA node");
    }
    let mut ruling = Ruling::new();
    for (name, function) in case.all_functions() {
        match ruling.read(&function.node).copied() {
            Some(node) if node < 0 => {
                let what = format!("the firmware names no node for {name}");
                let mends = vec![do_it(
                    "update the firmware, or name the node by --node (lstopo shows the tree)",
                )];
                ruling.loses(0.1, &function.node.path, node, what, mends);
            }
            Some(node) => ruling.fine(&function.node.path, node),
            None => {}
        }
    }
    ruling
}
