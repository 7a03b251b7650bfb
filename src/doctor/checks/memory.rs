//! Hugepages, limits, and settings that unmap memory under a running job.

use super::Family;
use crate::doctor::case::Case;
use crate::doctor::check::Check;
use crate::doctor::ruling::{Ruling, do_it, run};
use crate::host::hugepages;
use crate::host::numa::Pool;
use crate::host::process::Limit;
use crate::host::uring::memlock_error;
use crate::memory::Pages;
use crate::units::format_size;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "hugepages-free",
        family: Family::Memory,
        why: "On 4 KiB pages the CPU misses its TLB at every page that it checks, which halved a \
              400 Gb/s server.",
        rule: free,
    },
    Check {
        id: "hugepages-node",
        family: Family::Memory,
        why: "Pages of another node make every byte cross the link between sockets.",
        rule: node,
    },
    Check {
        id: "hugepages-mount",
        family: Family::Memory,
        why: "DPDK, which SPDK stands on, starts only where a hugetlbfs is mounted.",
        rule: mount,
    },
    Check {
        id: "hugepages-size",
        family: Family::Memory,
        why: "Pages of 1 GiB need the fewest TLB entries, but are taken only where asked for.",
        rule: size,
    },
    Check {
        id: "memlock",
        family: Family::Memory,
        why: "Memory that a drive or NIC writes to is locked, and counts against this limit.",
        rule: memlock,
    },
    Check {
        id: "open-files",
        family: Family::Memory,
        why: "Each connection, drive and ring is an open file.",
        rule: files,
    },
    Check {
        id: "memory-available",
        family: Family::Memory,
        why: "Slots are locked in memory, and where they do not fit, nothing starts.",
        rule: available,
    },
    Check {
        id: "swap-used",
        family: Family::Memory,
        why: "A host that swaps stalls whoever touches the pages that are out.",
        rule: swap,
    },
    Check {
        id: "tlb-shootdowns",
        family: Family::Memory,
        why: "Each change of a mapping interrupts every core of the process until all have flushed \
              their TLB: pauses of milliseconds, with idle CPUs.",
        rule: shootdowns,
    },
    Check {
        id: "thp",
        family: Family::Memory,
        why: "Transparent hugepages are put together and split behind the job's back, each time \
              with a TLB shootdown.",
        rule: transparent,
    },
    Check {
        id: "numa-balancing",
        family: Family::Memory,
        why: "The kernel unmaps pages to see who uses them: faults and TLB shootdowns in a job \
              that is placed already.",
        rule: balancing,
    },
    Check {
        id: "ksm",
        family: Family::Memory,
        why: "Merging equal pages scans memory and changes mappings.",
        rule: ksm,
    },
    Check {
        id: "zone-reclaim",
        family: Family::Memory,
        why: "The kernel throws pages away on a node rather than take memory of the next, in the \
              middle of an allocation.",
        rule: zone_reclaim,
    },
];

/// The pool of the pages that the job takes, and how many it takes in all.
fn wanted(case: &Case) -> Option<(u64, u64)> {
    let size = match case.job.pages {
        Pages::Base => return None,
        Pages::Huge2M => 2 << 20,
        Pages::Huge1G => 1 << 30,
        Pages::Auto => case.machine.memory.default_hugepage.copied()?,
    };
    let slots = case.job.arena_bytes.div_ceil(size) * case.job.workers();
    let own = if case.job.spdk { hugepages::spdk_base(size as usize) } else { 0 };
    Some((size, slots.max(own)))
}

fn pool_of(pools: &[Pool], size: u64) -> Option<&Pool> {
    pools.iter().find(|pool| pool.size as u64 == size)
}

fn free(case: &Case) -> Ruling {
    if case.job.pages == Pages::Base && !case.job.spdk {
        return Ruling::skip("--hugepages none was asked for");
    }
    let mut ruling = Ruling::new();
    let memory = &case.machine.memory;
    ruling.note(&memory.default_hugepage);
    let Some(pools) = ruling.read(&memory.pools) else { return ruling };
    let Some((size, need)) = wanted(case) else { return ruling };
    let name = format_size(size);
    let Some(pool) = pool_of(pools, size) else {
        let file = &memory.pools.path;
        let what = format!("no hugepages of {name} here");
        let mend = do_it("boot with hugepagesz= and hugepages=, or use --hugepages none");
        match case.job.spdk || case.job.pages != Pages::Auto {
            true => ruling.hit(crate::doctor::Weight::Stops, file, "no pool", what, vec![mend]),
            false => ruling.loses(0.5, file, "no pool", what, vec![mend]),
        }
        return ruling;
    };
    ruling.note(&pool.reserved);
    let Some(free) = ruling.read(&pool.free) else { return ruling };
    let free = free.saturating_sub(pool.reserved.copied().unwrap_or(0));
    let value = format!("{free} free, {need} needed");
    if free >= need {
        ruling.fine(&pool.free.path, value);
        return ruling;
    }
    let error = hugepages::shortage(size as usize, need, free, None);
    let command = run(hugepages::command(size as usize, need - free, None));
    if case.job.spdk || case.job.pages != Pages::Auto {
        ruling.hit(
            crate::doctor::Weight::Stops,
            &pool.free.path,
            value,
            error.what(),
            vec![command],
        );
    } else {
        let what = format!("the slots will be on 4 KiB pages: {}", error.what());
        ruling.loses(0.5, &pool.free.path, value, what, vec![command]);
    }
    ruling
}

fn node(case: &Case) -> Ruling {
    if case.machine.node_count() < 2 {
        return Ruling::skip("one NUMA node");
    }
    if case.job.pages == Pages::Base && !case.job.spdk {
        return Ruling::skip("--hugepages none was asked for");
    }
    let mut ruling = Ruling::new();
    let Some((size, need)) = wanted(case) else {
        ruling.note(&case.machine.memory.default_hugepage);
        return ruling;
    };
    let meant = case.nodes_of_drives();
    // Each worker's slots are on one node.
    let share = need.div_ceil(meant.len().max(1) as u64);
    let Some(nodes) = ruling.read(&case.machine.nodes) else { return ruling };
    for node in nodes.iter().filter(|node| meant.contains(&node.number)) {
        let Some(pool) = pool_of(&node.pools, size) else { continue };
        let Some(free) = ruling.read(&pool.free).copied() else { continue };
        let value = format!("{free} free, {share} needed");
        if free >= share {
            ruling.fine(&pool.free.path, value);
            continue;
        }
        let number = u32::try_from(node.number).ok();
        let error = hugepages::shortage(size as usize, share, free, number);
        let mends = vec![run(hugepages::command(size as usize, share - free, number))];
        // Auto leaves the node before it leaves hugepages.
        let share_lost = if free == 0 { 0.3 } else { 0.2 };
        ruling.loses(share_lost, &pool.free.path, value, error.what(), mends);
    }
    ruling
}

fn mount(case: &Case) -> Ruling {
    if !case.job.spdk {
        return Ruling::skip("only for --for spdk");
    }
    let mut ruling = Ruling::new();
    let fact = &case.machine.memory.hugetlbfs;
    match ruling.read(fact) {
        Some(Some(at)) => ruling.fine(&fact.path, format!("hugetlbfs on {at}")),
        Some(None) => {
            let error = hugepages::no_mount();
            let mends = vec![run(hugepages::MOUNT)];
            let value = "no hugetlbfs";
            ruling.hit(crate::doctor::Weight::Stops, &fact.path, value, error.what(), mends);
        }
        None => {}
    }
    ruling
}

fn size(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let memory = &case.machine.memory;
    if case.job.pages != Pages::Auto {
        return Ruling::skip("the page size was chosen");
    }
    let default = ruling.read(&memory.default_hugepage).copied();
    let (Some(pools), Some(default)) = (ruling.read(&memory.pools), default) else { return ruling };
    for pool in pools {
        let Some(total) = ruling.read(&pool.total).copied().filter(|total| *total > 0) else {
            continue;
        };
        let size = format_size(pool.size as u64);
        if pool.size as u64 > default {
            let what = format!(
                "{total} pages of {size} are reserved, and auto takes the default of {}",
                format_size(default)
            );
            let mends = vec![do_it(format!(
                "use --hugepages 1g, or boot with default_hugepagesz={}G",
                pool.size >> 30
            ))];
            ruling.loses(0.02, &pool.total.path, total, what, mends);
        } else {
            ruling.fine(&pool.total.path, format!("{total} pages of {size}"));
        }
    }
    ruling
}

fn memlock(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let process = &case.machine.process;
    ruling.note(&process.capabilities);
    let Some(limit) = ruling.read(&process.locked).copied() else { return ruling };
    let file = &process.locked.path;
    if process.may_lock_all() {
        ruling.fine(file, "unlimited, or CAP_IPC_LOCK");
        return ruling;
    }
    let Limit::Most(most) = limit else { return ruling };
    let (one, all) = (case.job.arena_bytes, case.job.arena_bytes * case.job.workers());
    let value = format!("{}, {} needed", format_size(most), format_size(all));
    let vfio = case.job.spdk && !case.is_off_pci();
    let locks = (case.job.uring && case.job.registered) || vfio || case.job.rdma;
    if !locks {
        return Ruling::skip("nothing is registered");
    }
    if !limit.allows(all) {
        // What a worker says is its own need; more workers than fit are told the whole.
        let need = if limit.allows(one) { all } else { one };
        let cause = std::io::Error::from_raw_os_error(libc::ENOMEM);
        ruling.stops(file, value, &memlock_error(need, Some(most), cause));
    } else if most < all * 2 {
        let what = format!("the limit on locked memory leaves little room: {value}");
        let mends = vec![do_it("ulimit -l unlimited; systemd: LimitMEMLOCK=infinity")];
        ruling.loses(0.01, file, value, what, mends);
    } else {
        ruling.fine(file, value);
    }
    ruling
}

fn files(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let fact = &case.machine.process.files;
    let Some(limit) = ruling.read(fact).copied() else { return ruling };
    let need = case.job.files + case.drives.len() as u64 + 4 * case.job.workers();
    let mends = || vec![do_it("ulimit -n 1048576; systemd: LimitNOFILE=1048576")];
    match limit {
        Limit::Most(most) if most < need => {
            let what = format!("{most} open files allowed, about {need} needed");
            ruling.loses(0.3, &fact.path, most, what, mends());
        }
        Limit::Most(most) if most < need * 2 => {
            let what = format!("{most} open files allowed, about {need} needed: little room");
            ruling.loses(0.01, &fact.path, most, what, mends());
        }
        Limit::Most(most) => ruling.fine(&fact.path, most),
        Limit::None => ruling.fine(&fact.path, "unlimited"),
    }
    ruling
}

fn available(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let fact = &case.machine.memory.available;
    let Some(bytes) = ruling.read(fact).copied() else { return ruling };
    if case.page_size() != Some(4096) {
        return Ruling::skip("the slots are on hugepages, which are reserved already");
    }
    let need = case.job.arena_bytes * case.job.workers();
    let value = format!("{} available, {} needed", format_size(bytes), format_size(need));
    let mends = || vec![do_it("use a smaller --depth or --slot-size, or fewer workers")];
    if bytes < need {
        let what = format!("the slots do not fit into memory: {value}");
        ruling.loses(0.9, &fact.path, value, what, mends());
    } else if bytes < need + need / 4 {
        let what = format!("the slots fill memory: {value}");
        ruling.loses(0.05, &fact.path, value, what, mends());
    } else {
        ruling.fine(&fact.path, value);
    }
    ruling
}

fn swap(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let fact = &case.machine.memory.swapped;
    match ruling.read(fact) {
        Some(0) => ruling.fine(&fact.path, "nothing is swapped out"),
        Some(bytes) => {
            let value = format_size(*bytes);
            let what = format!("{value} are swapped out");
            let mends = vec![do_it("free memory, then swapoff -a && swapon -a")];
            ruling.loses(0.02, &fact.path, value, what, mends);
        }
        None => {}
    }
    ruling
}

/// Shootdowns per second and CPU that a job feels, and that stop it in its tracks.
const SOME: f64 = 100.0;
const MANY: f64 = 1000.0;

fn shootdowns(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let fact = &case.machine.interrupts;
    let uptime = ruling.read(&case.machine.kernel.uptime).copied();
    let (Some(table), Some(uptime)) = (ruling.read(fact), uptime) else { return ruling };
    let counts = case.worker_cpus();
    let counts =
        counts.iter().filter_map(|cpu| Some((cpu.number, table.of_cpu("TLB", cpu.number)?)));
    let Some((cpu, count)) = counts.max_by_key(|(_, count)| *count) else { return ruling };
    let rate = count as f64 / uptime.max(1.0);
    let value = format!("TLB: {count} on CPU {cpu} since boot, {rate:.0}/s");
    let what = format!("CPU {cpu} has been interrupted by {rate:.0} TLB shootdowns/s since boot");
    let mends = || {
        vec![
            do_it(
                "find who unmaps: perf trace -e munmap,mprotect,madvise -s, or bpftrace on \
                 tlb:tlb_flush; allocate at start, recycle buffers, never unmap",
            ),
            do_it("millrace doctor --watch shows the rate now, CPU by CPU"),
        ]
    };
    if rate >= MANY {
        ruling.loses(0.6, &fact.path, value, what, mends());
    } else if rate >= SOME {
        ruling.loses(0.1, &fact.path, value, what, mends());
    } else {
        ruling.fine(&fact.path, value);
    }
    ruling
}

fn transparent(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let fact = &case.machine.memory.transparent;
    match ruling.read(fact).map(String::as_str) {
        Some("always") => {
            let what = "transparent hugepages are on for every process";
            let mends = vec![run(format!("echo madvise > {}", fact.path))];
            ruling.loses(0.03, &fact.path, "always", what, mends);
        }
        Some(value) => ruling.fine(&fact.path, value),
        None => {}
    }
    ruling
}

fn balancing(case: &Case) -> Ruling {
    if case.machine.node_count() < 2 {
        return Ruling::skip("one NUMA node");
    }
    let fact = &case.machine.memory.numa_balancing;
    switched_off(fact, 0.05, "automatic NUMA balancing is on", "sysctl -w kernel.numa_balancing=0")
}

fn ksm(case: &Case) -> Ruling {
    let fact = &case.machine.memory.ksm;
    switched_off(fact, 0.03, "the kernel merges equal pages", "echo 2 > /sys/kernel/mm/ksm/run")
}

fn zone_reclaim(case: &Case) -> Ruling {
    let fact = &case.machine.memory.zone_reclaim;
    switched_off(fact, 0.03, "zone reclaim is on", "sysctl -w vm.zone_reclaim_mode=0")
}

/// A setting that should be 0.
fn switched_off(
    fact: &crate::host::fact::Fact<u64>,
    share: f64,
    what: &str,
    command: &str,
) -> Ruling {
    let mut ruling = Ruling::new();
    match ruling.read(fact) {
        Some(0) => ruling.fine(&fact.path, 0),
        // ksm: 2 has stopped, and undone what it had merged.
        Some(2) if fact.path.ends_with("ksm/run") => ruling.fine(&fact.path, 2),
        Some(value) => ruling.loses(share, &fact.path, value, what, vec![run(command)]),
        None => {}
    }
    ruling
}
