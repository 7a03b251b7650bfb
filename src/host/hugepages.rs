//! The hugepage pools: per size and NUMA node
//! (Documentation/admin-guide/mm/hugetlbpage.rst of the kernel).

use super::Root;
use crate::error::{Error, Kind, Result};
use crate::units::format_size;

/// The default hugepage size in bytes, from /proc/meminfo.
pub fn default_size(root: &Root) -> Result<usize> {
    let meminfo = root.read("/proc/meminfo")?;
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix("Hugepagesize:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|kib| kib.trim().parse::<usize>().ok())
        .map(|kib| kib << 10)
        .ok_or_else(|| {
            Error::new(Kind::Unsupported, "/proc/meminfo names no Hugepagesize")
                .remedy("use --hugepages none, or a kernel with CONFIG_HUGETLBFS")
        })
}

/// Folder of the pool for pages of `size` bytes: of one node, or of the whole system.
pub fn pool(size: usize, node: Option<u32>) -> String {
    let kib = size >> 10;
    match node {
        Some(node) => format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB"),
        None => format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB"),
    }
}

/// Pages of `size` bytes that nobody holds or has reserved, on `node` or on the whole system.
pub fn free(root: &Root, size: usize, node: Option<u32>) -> Result<u64> {
    let pool = pool(size, node);
    let free = root.read_number(format!("{pool}/free_hugepages"))?;
    // Reservations are kept for the system as a whole only.
    let reserved = match node {
        None => reserved(root.read_number(format!("{pool}/resv_hugepages"))?),
        Some(_) => 0,
    };
    Ok(free.saturating_sub(reserved))
}

/// Pages reserved, by what `resv_hugepages` says. The kernel's counter is below 0, printed as
/// unsigned, while a ring that has ended still holds pages whose mapping is gone (seen with Linux
/// 6.18): nothing is reserved then.
pub fn reserved(counter: u64) -> u64 {
    if counter > i64::MAX as u64 { 0 } else { counter }
}

/// The error of a pool that has too few free pages.
pub fn shortage(size: usize, need: u64, free: u64, node: Option<u32>) -> Error {
    let on = node.map_or_else(String::new, |node| format!(" on NUMA node {node}"));
    let name = format_size(size as u64);
    Error::new(Kind::Resource, format!("{need} hugepages of {name} needed, {free} free{on}"))
        .remedy(remedy(size, need.saturating_sub(free).max(1), node))
}

/// The error of a system without a hugetlbfs, which DPDK looks for its pages in.
pub fn no_mount() -> Error {
    Error::new(Kind::Resource, "no hugetlbfs is mounted, which SPDK needs").remedy(MOUNT)
}

/// The command that mounts one.
pub const MOUNT: &str = "mkdir -p /dev/hugepages && mount -t hugetlbfs nodev /dev/hugepages";

/// Pages of the default size in bytes that SPDK takes for itself: DPDK's own structures, queues and
/// the controllers have about 16 MiB.
pub fn spdk_base(size: usize) -> u64 {
    (32usize << 20).div_ceil(size) as u64
}

/// The command that adds `missing` pages to a pool.
pub fn remedy(size: usize, missing: u64, node: Option<u32>) -> String {
    format!("reserve {missing} more: {}", command(size, missing, node))
}

/// The same for a shell.
pub fn command(size: usize, missing: u64, node: Option<u32>) -> String {
    let file = format!("{}/nr_hugepages", pool(size, node));
    format!("echo $(( $(cat {file}) + {missing} )) > {file}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal: 1 kB\nHugepagesize:       2048 kB\n");
        write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "10\n");
        write("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "4\n");
        write("sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "7\n");
        dir
    }

    #[test]
    fn free_pages_exclude_reservations() {
        let dir = tree();
        let root = Root::at(dir.path());
        assert_eq!(default_size(&root).unwrap(), 2 << 20);
        assert_eq!(free(&root, 2 << 20, None).unwrap(), 6);
        assert_eq!(free(&root, 2 << 20, Some(1)).unwrap(), 7);
        assert!(free(&root, 1 << 30, None).is_err());
        let reserved = "sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages";
        std::fs::write(dir.path().join(reserved), "18446744073709551615\n").unwrap();
        assert_eq!(free(&root, 2 << 20, None).unwrap(), 10, "a counter below 0 reserves nothing");
    }

    #[test]
    fn the_remedy_is_a_command_for_that_node() {
        let text = remedy(2 << 20, 5, Some(1));
        assert!(text.contains("node1/hugepages/hugepages-2048kB/nr_hugepages"), "{text}");
        assert!(text.contains("+ 5"), "{text}");
    }
}
