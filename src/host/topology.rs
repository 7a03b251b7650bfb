//! Where workers should run: the CPUs of each NUMA node, in the order in which to take them.

use std::collections::HashSet;

use super::{Root, affinity, numa};
use crate::error::Result;

/// A NUMA node that has CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Its CPUs, ascending.
    pub cpus: Vec<usize>,
}

/// The nodes that have CPUs, ascending: those of memory alone have none. A machine that names no
/// nodes is one, number 0, with all CPUs that are online.
pub fn nodes(root: &Root) -> Result<Vec<Node>> {
    let known = numa::nodes(root);
    let of = |node: &numa::Node| {
        let cpus = node.cpus.get().filter(|cpus| !cpus.is_empty())?;
        Some(Node { number: node.number as u32, cpus: cpus.clone() })
    };
    let mut found: Vec<Node> = known.get().into_iter().flatten().filter_map(of).collect();
    if found.is_empty() {
        let online = root.read("/sys/devices/system/cpu/online")?;
        found.push(Node { number: 0, cpus: affinity::parse_list(&online)? });
    }
    found.sort_by_key(|node| node.number);
    Ok(found)
}

/// Which of `cpus` a worker each should have, best first: one thread of each core before the
/// second of any, since two polling threads on one core halve each other; and CPU 0 last, because
/// the kernel puts its own work there.
pub fn by_preference(root: &Root, cpus: &[usize]) -> Vec<usize> {
    let siblings = |cpu: usize| {
        let list = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let text = root.read(list).unwrap_or_default();
        affinity::parse_list(&text).unwrap_or_else(|_| vec![cpu])
    };
    let mut taken = HashSet::new();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for cpu in cpus.iter().copied() {
        // The core is told by its lowest thread. That of CPU 0 comes last with all its threads.
        let core = siblings(cpu).into_iter().min().unwrap_or(cpu);
        if core != 0 && taken.insert(core) { first.push(cpu) } else { second.push(cpu) }
    }
    second.sort_by_key(|cpu| (siblings(*cpu).contains(&0), *cpu == 0, *cpu));
    first.extend(second);
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::at(dir.path());
        (dir, root)
    }

    #[test]
    fn nodes_with_cpus_are_found() {
        let (_dir, root) = tree(&[
            ("sys/devices/system/node/node1/cpulist", "4-7\n"),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/devices/system/node/node2/cpulist", "\n"),
            ("sys/devices/system/node/online", "0-2\n"),
        ]);
        let nodes = nodes(&root).unwrap();
        assert_eq!(nodes.len(), 2);
        assert_eq!(nodes[0], Node { number: 0, cpus: vec![0, 1, 2, 3] });
        assert_eq!(nodes[1].cpus, [4, 5, 6, 7]);
    }

    #[test]
    fn a_machine_without_nodes_is_one() {
        let (_dir, root) = tree(&[("sys/devices/system/cpu/online", "0-1\n")]);
        assert_eq!(nodes(&root).unwrap(), [Node { number: 0, cpus: vec![0, 1] }]);
    }

    #[test]
    fn one_thread_of_each_core_comes_first_and_cpu_0_last() {
        let mut files = Vec::new();
        for cpu in 0..8 {
            let list = format!("{},{}\n", cpu % 4, cpu % 4 + 4);
            files.push((
                format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"),
                list,
            ));
        }
        let files: Vec<_> = files.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let (_dir, root) = tree(&files);
        let cpus: Vec<usize> = (0..8).collect();
        assert_eq!(by_preference(&root, &cpus), [1, 2, 3, 5, 6, 7, 4, 0]);
        let (_dir, bare) = tree(&[]);
        assert_eq!(by_preference(&bare, &[0, 1, 2]), [1, 2, 0], "nothing is known of cores");
    }
}
