//! Which CPUs the workers are on, and what the host is.

use super::Family;
use crate::doctor::case::Case;
use crate::doctor::check::Check;
use crate::doctor::ruling::{Ruling, do_it};
use crate::host::affinity;
use crate::host::fact::list_text;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "cpu-allowed",
        family: Family::Cpu,
        why: "A worker can only be pinned to a CPU that is online and in the process's cpuset.",
        rule: allowed,
    },
    Check {
        id: "cpu-siblings",
        family: Family::Cpu,
        why: "Two polling workers on the threads of one core have half a core each.",
        rule: siblings,
    },
    Check {
        id: "cpu-zero",
        family: Family::Cpu,
        why: "The kernel puts its own work on CPU 0 first, and a worker there waits for it.",
        rule: zero,
    },
    Check {
        id: "cpu-isolation",
        family: Family::Cpu,
        why: "On a CPU that the scheduler shares out, a worker is interrupted by tasks and ticks.",
        rule: isolation,
    },
    Check {
        id: "host-virtual",
        family: Family::Cpu,
        why: "Figures of a guest are those of its emulation and of its neighbours.",
        rule: guest,
    },
    Check {
        id: "host-portable",
        family: Family::Cpu,
        why: "A portable computer saves power and heat first, whatever it is told.",
        rule: portable,
    },
];

const NO_CORES: &str = "no --cores given";

fn allowed(case: &Case) -> Ruling {
    if case.job.cores.is_empty() {
        return Ruling::skip(NO_CORES);
    }
    let mut ruling = Ruling::new();
    let fact = &case.machine.cpus.allowed;
    let Some(allowed) = ruling.read(fact) else { return ruling };
    let value = format!("Cpus_allowed_list: {}", list_text(allowed));
    match case.job.cores.iter().find(|cpu| !allowed.contains(cpu)) {
        Some(cpu) => ruling.stops(&fact.path, value, &affinity::cannot_pin(&cpu.to_string())),
        None => ruling.fine(&fact.path, value),
    }
    ruling
}

fn siblings(case: &Case) -> Ruling {
    if case.job.cores.is_empty() {
        return Ruling::skip(NO_CORES);
    }
    let mut ruling = Ruling::new();
    let cores = &case.job.cores;
    for cpu in case.worker_cpus() {
        let Some(siblings) = ruling.read(&cpu.siblings) else { continue };
        let value = list_text(siblings);
        let shared: Vec<usize> =
            siblings.iter().copied().filter(|n| *n > cpu.number && cores.contains(n)).collect();
        if shared.is_empty() {
            ruling.fine(&cpu.siblings.path, value);
            continue;
        }
        let what = format!("CPUs {} and {} are one core", cpu.number, list_text(&shared));
        let mends = vec![do_it("name one CPU of each core by --cores")];
        ruling.loses(0.3, &cpu.siblings.path, value, what, mends);
    }
    ruling
}

fn zero(case: &Case) -> Ruling {
    if case.job.cores.is_empty() {
        return Ruling::skip(NO_CORES);
    }
    let mut ruling = Ruling::new();
    let fact = &case.machine.cpus.online;
    let Some(online) = ruling.read(fact) else { return ruling };
    let cores = list_text(&case.job.cores);
    if case.job.cores.contains(&0) && online.len() > 1 {
        let mends = vec![do_it("leave CPU 0 out of --cores")];
        ruling.loses(0.02, "--cores", cores, "a worker is on CPU 0", mends);
    } else {
        ruling.fine("--cores", cores);
    }
    ruling
}

fn isolation(case: &Case) -> Ruling {
    if case.job.cores.is_empty() {
        return Ruling::skip(NO_CORES);
    }
    let mut ruling = Ruling::new();
    let fact = &case.machine.cpus.isolated;
    ruling.note(&case.machine.cpus.nohz_full);
    let Some(isolated) = ruling.read(fact) else { return ruling };
    let value = match isolated.is_empty() {
        true => "none".to_owned(),
        false => list_text(isolated),
    };
    let open: Vec<usize> =
        case.job.cores.iter().copied().filter(|cpu| !isolated.contains(cpu)).collect();
    if open.is_empty() {
        ruling.fine(&fact.path, value);
        return ruling;
    }
    let list = list_text(&case.job.cores);
    let what = format!("the scheduler puts other tasks on the workers' CPUs {}", list_text(&open));
    let mends = vec![do_it(format!(
        "boot with isolcpus={list} nohz_full={list} rcu_nocbs={list}, or keep them free by cpusets"
    ))];
    ruling.loses(0.02, &fact.path, value, what, mends);
    ruling
}

fn guest(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let fact = &case.machine.cpus.flags;
    let Some(flags) = ruling.read(fact) else { return ruling };
    if !flags.contains("hypervisor") {
        ruling.fine(&fact.path, "no hypervisor flag");
        return ruling;
    }
    let vendor = case.machine.platform.vendor.as_deref().unwrap_or("unknown vendor");
    let product = case.machine.platform.product.as_deref().unwrap_or("unknown product");
    let what = format!("this is a guest ({vendor}, {product})");
    let mends = vec![do_it("compare figures only within this guest")];
    ruling.loses(0.01, &fact.path, "hypervisor", what, mends);
    ruling
}

fn portable(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let fact = &case.machine.platform.chassis;
    let Some(chassis) = ruling.read(fact).copied() else { return ruling };
    // SMBIOS specification 3.7, 7.4.1.
    if matches!(chassis, 8..=11 | 14 | 30..=32) {
        let what = "this is a portable computer: its cooling decides how fast it is";
        let mends = vec![do_it("plug it in, and watch throttling: millrace doctor --watch")];
        ruling.loses(0.05, &fact.path, chassis, what, mends);
    } else {
        ruling.fine(&fact.path, chassis);
    }
    ruling
}
