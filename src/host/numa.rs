//! NUMA nodes: their CPUs, distances, and hugepages (Documentation/ABI/stable/sysfs-devices-node).

use serde::Serialize;

use super::Root;
use super::fact::{Fact, why};
use super::hugepages;

const FOLDER: &str = "/sys/devices/system/node";

/// A pool of hugepages of one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pool {
    /// Page size in bytes.
    pub size: usize,
    /// Pages in the pool.
    pub total: Fact<u64>,
    /// Pages of it that nobody has.
    pub free: Fact<u64>,
    /// Free pages that are promised to somebody; of the whole system only.
    pub reserved: Fact<u64>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Node {
    /// Its number.
    pub number: usize,
    /// Its CPUs.
    pub cpus: Fact<Vec<usize>>,
    /// Distances to all nodes in the order of their numbers; 10 is itself.
    pub distances: Fact<Vec<u64>>,
    /// Bytes of memory.
    pub memory: Fact<u64>,
    /// Bytes that are free.
    pub free: Fact<u64>,
    /// Hugepages on it, by size.
    pub pools: Vec<Pool>,
}

/// Numbers of the nodes that are online.
pub fn online(root: &Root) -> Fact<Vec<usize>> {
    Fact::list(root, format!("{FOLDER}/online"))
}

/// All nodes.
pub fn nodes(root: &Root) -> Fact<Vec<Node>> {
    online(root).and_then(|numbers| Some(numbers.into_iter().map(|n| node(root, n)).collect()))
}

fn node(root: &Root, number: usize) -> Node {
    let folder = format!("{FOLDER}/node{number}");
    let memory = |field: &'static str| {
        Fact::parse(root, format!("{folder}/meminfo"), |text| {
            // "Node 0 MemTotal:       65536 kB"
            let line = text.lines().find_map(|line| line.split_once(field))?.1;
            Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
        })
    };
    Node {
        number,
        cpus: Fact::list(root, format!("{folder}/cpulist")),
        distances: Fact::parse(root, format!("{folder}/distance"), |text| {
            text.split_whitespace().map(|word| word.parse().ok()).collect()
        }),
        memory: memory("MemTotal:"),
        free: memory("MemFree:"),
        pools: pools(root, &format!("{folder}/hugepages")).get().cloned().unwrap_or_default(),
    }
}

/// Pools in `folder`, by size.
pub fn pools(root: &Root, folder: &str) -> Fact<Vec<Pool>> {
    let names = match root.list(folder) {
        Ok(names) => names,
        Err(e) => return Fact { path: folder.to_owned(), value: Err(why(&e)) },
    };
    let size =
        |name: &str| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<usize>().ok();
    let pool = |name: &String| {
        let number = |file: &str| Fact::number(root, format!("{folder}/{name}/{file}"));
        Some(Pool {
            size: size(name)? << 10,
            total: number("nr_hugepages"),
            free: number("free_hugepages"),
            reserved: number("resv_hugepages").and_then(|n| Some(hugepages::reserved(n))),
        })
    };
    let mut pools: Vec<Pool> = names.iter().filter_map(pool).collect();
    pools.sort_by_key(|pool| pool.size);
    Fact::known(folder, pools)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_distances_memory_and_pools() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join("sys/devices/system/node").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        };
        put("online", "0");
        put("node0/cpulist", "0-3");
        put("node0/distance", "10 21");
        put("node0/meminfo", "Node 0 MemTotal:       1024 kB\nNode 0 MemFree:        512 kB");
        put("node0/hugepages/hugepages-2048kB/nr_hugepages", "8");
        put("node0/hugepages/hugepages-2048kB/free_hugepages", "3");
        put("node0/hugepages/hugepages-2048kB/resv_hugepages", "18446744073709551615");
        put("node0/hugepages/hugepages-1048576kB/nr_hugepages", "x");
        let nodes = nodes(&Root::at(dir.path())).get().cloned().unwrap();
        assert_eq!(nodes[0].distances.get(), Some(&vec![10, 21]));
        assert_eq!(
            (nodes[0].memory.copied(), nodes[0].free.copied()),
            (Some(1 << 20), Some(512 << 10))
        );
        assert_eq!(nodes[0].pools.len(), 2);
        assert_eq!(nodes[0].pools[0].free.copied(), Some(3));
        assert_eq!(nodes[0].pools[0].reserved.copied(), Some(0));
        assert!(nodes[0].pools[1].total.why_unread().is_some());
    }
}
