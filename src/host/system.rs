//! The kernel and what it runs on: release, boot parameters, memory settings, virtualisation,
//! clock.

use serde::Serialize;

use super::Root;
use super::fact::Fact;
use super::numa::{self, Pool};

/// The kernel.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Kernel {
    /// Release, such as `6.1.0-18-amd64`.
    pub release: Fact<String>,
    /// Boot parameters.
    pub cmdline: Fact<String>,
    /// Seconds since boot.
    pub uptime: Fact<f64>,
    /// Kernel lockdown: `none`, `integrity`, `confidentiality`.
    pub lockdown: Fact<String>,
}

impl Kernel {
    /// Reads them below `root`.
    pub fn read(root: &Root) -> Self {
        Self {
            release: Fact::text(root, "/proc/sys/kernel/osrelease"),
            cmdline: Fact::text(root, "/proc/cmdline"),
            uptime: Fact::parse(root, "/proc/uptime", |text| {
                text.split_whitespace().next()?.parse().ok()
            }),
            lockdown: Fact::choice(root, "/sys/kernel/security/lockdown"),
        }
    }

    /// Major and minor number.
    pub fn version(&self) -> Option<(u32, u32)> {
        version(self.release.as_deref()?)
    }

    /// Value of a boot parameter, of the last where it is given several times; empty for one
    /// without a value.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let words = self.cmdline.as_deref()?.split_whitespace();
        let mut values = words.filter_map(|word| match word.split_once('=') {
            Some((key, value)) => (key == name).then_some(value),
            None => (word == name).then_some(""),
        });
        values.next_back()
    }
}

/// Major and minor number in the text of a release.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Memory settings of the whole system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// Bytes that can be had without swapping.
    pub available: Fact<u64>,
    /// Bytes that are swapped out.
    pub swapped: Fact<u64>,
    /// Default hugepage size in bytes.
    pub default_hugepage: Fact<u64>,
    /// Hugepages by size.
    pub pools: Fact<Vec<Pool>>,
    /// Where a hugetlbfs is mounted first.
    pub hugetlbfs: Fact<Option<String>>,
    /// Transparent hugepages: `always`, `madvise`, `never`.
    pub transparent: Fact<String>,
    /// 1 where the kernel moves pages to the node that uses them.
    pub numa_balancing: Fact<u64>,
    /// 1 where the kernel merges equal pages.
    pub ksm: Fact<u64>,
    /// Not 0 where the kernel reclaims on the node before it takes memory of another.
    pub zone_reclaim: Fact<u64>,
}

impl Memory {
    /// Reads them below `root`.
    pub fn read(root: &Root) -> Self {
        let meminfo =
            |field: &'static str| Fact::parse(root, "/proc/meminfo", move |text| kib(text, field));
        Self {
            available: meminfo("MemAvailable:"),
            swapped: Fact::parse(root, "/proc/meminfo", |text| {
                Some(kib(text, "SwapTotal:")?.saturating_sub(kib(text, "SwapFree:")?))
            }),
            default_hugepage: meminfo("Hugepagesize:"),
            pools: numa::pools(root, "/sys/kernel/mm/hugepages"),
            hugetlbfs: Fact::parse(root, "/proc/mounts", |text| {
                let fields = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
                let mut mounts = fields.filter(|f| f.get(2) == Some(&"hugetlbfs"));
                Some(mounts.next().and_then(|f| f.get(1).map(|at| (*at).to_owned())))
            }),
            transparent: Fact::choice(root, "/sys/kernel/mm/transparent_hugepage/enabled"),
            numa_balancing: Fact::number(root, "/proc/sys/kernel/numa_balancing"),
            ksm: Fact::number(root, "/sys/kernel/mm/ksm/run"),
            zone_reclaim: Fact::number(root, "/proc/sys/vm/zone_reclaim_mode"),
        }
    }
}

fn kib(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// What lies between the kernel and the hardware, and how time is kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Platform {
    /// Maker as the firmware says.
    pub vendor: Fact<String>,
    /// Product as the firmware says.
    pub product: Fact<String>,
    /// Type of chassis (SMBIOS 7.4.1): 8 to 11, 14 and 30 to 32 are portable.
    pub chassis: Fact<u64>,
    /// Jiffies of all CPUs since boot: those stolen by a hypervisor, and all.
    pub steal: Fact<(u64, u64)>,
    /// Clock source in use.
    pub clock: Fact<String>,
    /// Clock sources that could be used.
    pub clocks: Fact<String>,
}

impl Platform {
    /// Reads them below `root`.
    pub fn read(root: &Root) -> Self {
        let clock = "/sys/devices/system/clocksource/clocksource0";
        Self {
            vendor: Fact::text(root, "/sys/class/dmi/id/sys_vendor"),
            product: Fact::text(root, "/sys/class/dmi/id/product_name"),
            chassis: Fact::number(root, "/sys/class/dmi/id/chassis_type"),
            steal: Fact::parse(root, "/proc/stat", steal),
            clock: Fact::text(root, format!("{clock}/current_clocksource")),
            clocks: Fact::text(root, format!("{clock}/available_clocksource")),
        }
    }
}

/// Of the first line: the eighth figure, and the sum of the first eight (guest time is in user
/// time already; proc_stat(5)).
fn steal(stat: &str) -> Option<(u64, u64)> {
    let figures = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let figures: Vec<u64> = figures.map(|f| f.parse().ok()).collect::<Option<_>>()?;
    Some((*figures.get(7)?, figures.iter().take(8).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_boot_parameter_counts() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/sys/kernel")).unwrap();
        std::fs::write(dir.path().join("proc/cmdline"), "quiet iommu=off iommu=pt\n").unwrap();
        std::fs::write(dir.path().join("proc/sys/kernel/osrelease"), "6.1.0-18-amd64\n").unwrap();
        let kernel = Kernel::read(&Root::at(dir.path()));
        assert_eq!(kernel.parameter("iommu"), Some("pt"));
        assert_eq!(kernel.parameter("quiet"), Some(""));
        assert_eq!(kernel.parameter("amd_iommu"), None);
        assert_eq!(kernel.version(), Some((6, 1)));
        assert_eq!(version("6.12.9+bpo"), Some((6, 12)));
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn rows_of_proc_are_read() {
        assert_eq!(steal("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1"), Some((8, 36)));
        assert_eq!(steal("cpu0 1"), None);
        assert_eq!(
            kib("SwapTotal:       1 kB\nHugepagesize:    2048 kB", "Hugepagesize:"),
            Some(2 << 20)
        );
    }

    #[test]
    fn a_mount_of_hugepages_is_found_or_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        let root = Root::at(dir.path());
        assert!(Memory::read(&root).hugetlbfs.get().is_none());
        let mounts = dir.path().join("proc/mounts");
        std::fs::write(&mounts, "proc /proc proc rw 0 0\n").unwrap();
        assert_eq!(Memory::read(&root).hugetlbfs.get(), Some(&None));
        std::fs::write(&mounts, "none /dev/hugepages hugetlbfs rw 0 0\n").unwrap();
        let found = Memory::read(&root).hugetlbfs;
        assert_eq!(found.get(), Some(&Some("/dev/hugepages".to_owned())));
    }
}
