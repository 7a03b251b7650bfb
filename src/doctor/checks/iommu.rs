//! The IOMMU as each device really has it, and VFIO.

use super::Family;
use crate::doctor::case::Case;
use crate::doctor::check::Check;
use crate::doctor::ruling::{Ruling, Weight, do_it, run};
use crate::host::fact::Fact;
use crate::host::function::Function;
use crate::host::iommu;
use crate::host::vfio::{self, Presence};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "iommu-on",
        family: Family::Iommu,
        why: "vfio-pci gives a drive to userspace only behind an IOMMU, which keeps it to its \
              buffers.",
        rule: on,
    },
    Check {
        id: "iommu-group",
        family: Family::Iommu,
        why: "A drive leaves for userspace together with its whole IOMMU group, or not at all.",
        rule: group,
    },
    Check {
        id: "vfio-modules",
        family: Family::Iommu,
        why: "Without vfio-pci and vfio_iommu_type1 a drive that was unbound has no driver.",
        rule: modules,
    },
    Check {
        id: "iommu-width",
        family: Family::Iommu,
        why: "An IOMMU of 39 bits cannot map the addresses that DPDK uses, which have 47.",
        rule: width,
    },
    Check {
        id: "vfio-entries",
        family: Family::Iommu,
        why: "VFIO counts mappings, and a pool of many small pages runs out of them.",
        rule: entries,
    },
    Check {
        id: "vfio-lockdown",
        family: Family::Iommu,
        why: "Under kernel lockdown only signed modules load.",
        rule: lockdown,
    },
    Check {
        id: "vfio-noiommu",
        family: Family::Iommu,
        why: "In no-IOMMU mode a drive can write anywhere in memory.",
        rule: noiommu,
    },
    Check {
        id: "iommu-domain",
        family: Family::Iommu,
        why: "A translating IOMMU invalidates after each read: strict mode took the kernel's path \
              from 16.5 M to 2.8 M reads/s.",
        rule: domain,
    },
    Check {
        id: "iommu-nic-domain",
        family: Family::Iommu,
        why: "A NIC behind a translating IOMMU looks every page up that it sends from.",
        rule: nic_domain,
    },
    Check {
        id: "iommu-boot",
        family: Family::Iommu,
        why: "A parameter that the kernel does not know is passed over silently (amd_iommu=pt).",
        rule: boot,
    },
];

const ONLY: &str = "only for --for spdk";

fn vendor(case: &Case) -> Option<&str> {
    case.machine.cpus.vendor.as_deref()
}

fn on(case: &Case) -> Ruling {
    if !case.job.spdk {
        return Ruling::skip(ONLY);
    }
    if case.is_off_pci() {
        return Ruling::skip("no drive here is on PCI");
    }
    let mut ruling = Ruling::new();
    let fact = &case.machine.vfio.groups;
    match ruling.read(fact) {
        Some(0) if case.machine.vfio.noiommu.as_deref() == Some("Y") => {
            ruling.stops(&fact.path, "empty", &iommu::noiommu(vendor(case)));
        }
        Some(0) => ruling.stops(&fact.path, "empty", &iommu::off(vendor(case))),
        Some(count) => ruling.fine(&fact.path, format!("{count} groups")),
        None => {}
    }
    ruling
}

fn group(case: &Case) -> Ruling {
    if !case.job.spdk || case.machine.vfio.groups.copied() == Some(0) {
        return Ruling::skip("only for --for spdk, with the IOMMU on");
    }
    let mut ruling = Ruling::new();
    ruling.note(&case.machine.vfio.groups);
    let named: Vec<_> = case.functions().map(|(_, function)| function.address).collect();
    for (_, function) in case.functions() {
        let file = format!("/sys/bus/pci/devices/{}/iommu_group", function.address);
        let Some(group) = function.group else {
            if case.machine.vfio.groups.get().is_some() {
                ruling.stops(file, "none", &iommu::no_group(function.address));
            }
            continue;
        };
        let stays =
            function.peers.iter().find(|peer| !peer.is_viable() && !named.contains(&peer.address));
        match stays {
            Some(peer) => {
                let error = iommu::not_viable(group, function.address, peer);
                ruling.stops(file, format!("{group}, with {}", peer.address), &error);
            }
            None => ruling.fine(file, group),
        }
    }
    ruling
}

fn modules(case: &Case) -> Ruling {
    if !case.job.spdk {
        return Ruling::skip(ONLY);
    }
    if case.is_off_pci() {
        return Ruling::skip("no drive here is on PCI");
    }
    let mut ruling = Ruling::new();
    let release = case.machine.kernel.release.as_deref().unwrap_or_default();
    let locked = case.machine.kernel.lockdown.as_deref().filter(|state| *state != "none");
    for module in &case.machine.vfio.modules {
        match ruling.read(&module.presence) {
            Some(Presence::Loaded) => ruling.fine(&module.presence.path, "loaded"),
            Some(Presence::Loadable) => ruling.fine(&module.presence.path, "modprobe finds it"),
            Some(Presence::Missing) => {
                let why = format!("Module {} not found in /lib/modules/{release}", module.name);
                let error = vfio::cannot_load(module.name, &why, release, locked);
                ruling.stops(&module.presence.path, "has none", &error);
            }
            // No list of modules, and not loaded: a kernel without modules, or a container.
            None if module.presence.why_unread().is_none() => {
                let why = format!("there is no {}", module.presence.path);
                let error = vfio::cannot_load(module.name, &why, release, locked);
                ruling.stops(&module.presence.path, "not there", &error);
            }
            None => {}
        }
    }
    ruling
}

fn width(case: &Case) -> Ruling {
    if !case.job.spdk {
        return Ruling::skip(ONLY);
    }
    let mut ruling = Ruling::new();
    for (drive, function) in case.functions() {
        let fact = &function.iommu_bits;
        let Some(bits) = ruling.read(fact).copied() else { continue };
        if bits >= 48 {
            ruling.fine(&fact.path, format!("{bits} bits"));
            continue;
        }
        let user = case.machine.process.user.copied();
        let what = match user {
            Some(0) => format!(
                "the IOMMU above {} has {bits} bits: DPDK will use physical addresses",
                drive.title()
            ),
            _ => format!(
                "the IOMMU above {} has {bits} bits, and physical addresses need root",
                drive.title()
            ),
        };
        let mends = vec![do_it("run as root, or give a guest aw-bits=48 (QEMU's intel-iommu)")];
        let lost = if user == Some(0) { 0.02 } else { 0.9 };
        ruling.loses(lost, &fact.path, format!("{bits} bits"), what, mends);
    }
    ruling
}

fn entries(case: &Case) -> Ruling {
    if !case.job.spdk {
        return Ruling::skip(ONLY);
    }
    let mut ruling = Ruling::new();
    let fact = &case.machine.vfio.entry_limit;
    let Some(limit) = ruling.read(fact).copied() else { return ruling };
    let Some(page) = ruling.read(&case.machine.memory.default_hugepage).copied() else {
        return ruling;
    };
    // At worst each page is a mapping of its own, and DPDK maps a few more.
    let need = (case.job.arena_bytes * case.job.workers()).div_ceil(page) + 64;
    let value = format!("{limit}, up to {need} needed");
    let mends = || {
        let most = need * 2;
        vec![run(format!("echo {most} > {}", fact.path)), do_it("or use pages of 1 GiB")]
    };
    if need > limit {
        let what = format!("VFIO takes {limit} mappings, up to {need} are needed");
        ruling.loses(0.9, &fact.path, value, what, mends());
    } else if need * 2 > limit {
        let what = format!("VFIO takes {limit} mappings, up to {need} are needed: little room");
        ruling.loses(0.01, &fact.path, value, what, mends());
    } else {
        ruling.fine(&fact.path, value);
    }
    ruling
}

fn lockdown(case: &Case) -> Ruling {
    if !case.job.spdk {
        return Ruling::skip(ONLY);
    }
    let mut ruling = Ruling::new();
    let fact = &case.machine.kernel.lockdown;
    match ruling.read(fact).map(String::as_str) {
        Some("none") => ruling.fine(&fact.path, "none"),
        Some(state) => {
            let loaded = |m: &vfio::Module| m.presence.copied() == Some(Presence::Loaded);
            if case.machine.vfio.modules.iter().all(loaded) {
                ruling.fine(&fact.path, format!("{state}; vfio-pci works under it"));
            } else {
                let what = format!("kernel lockdown ({state}) takes only signed modules");
                let mends = vec![do_it("use the distribution's own modules")];
                ruling.loses(0.01, &fact.path, state, what, mends);
            }
        }
        None => {}
    }
    ruling
}

fn noiommu(case: &Case) -> Ruling {
    if !case.job.spdk {
        return Ruling::skip(ONLY);
    }
    let mut ruling = Ruling::new();
    let fact = &case.machine.vfio.noiommu;
    match ruling.read(fact).map(String::as_str) {
        Some("Y") => {
            let what = "VFIO would take devices without an IOMMU";
            let mends = vec![run(format!("echo N > {}", fact.path))];
            ruling.loses(0.02, &fact.path, "Y", what, mends);
        }
        Some(value) => ruling.fine(&fact.path, value),
        None => {}
    }
    ruling
}

/// What a domain of the IOMMU costs the kernel's path.
fn judge(ruling: &mut Ruling, name: &str, function: &Function, strict: f64) {
    let fact: &Fact<String> = &function.domain;
    let Some(kind) = ruling.read(fact) else { return };
    let group = function.group.unwrap_or(0);
    match kind.as_str() {
        "DMA" => {
            let what = format!("{name} is behind a strict IOMMU: each unmap waits for it");
            let mends = vec![
                run(format!("echo DMA-FQ > /sys/kernel/iommu_groups/{group}/type")),
                do_it("or passthrough for all: iommu.passthrough=1 at boot"),
            ];
            ruling.loses(strict, &fact.path, kind, what, mends);
        }
        "DMA-FQ" => {
            let what = format!("{name} is behind a translating IOMMU (lazy invalidation)");
            let mends = vec![do_it("passthrough: iommu.passthrough=1 at boot")];
            ruling.loses(0.1, &fact.path, kind, what, mends);
        }
        kind => ruling.fine(&fact.path, kind),
    }
}

fn domain(case: &Case) -> Ruling {
    if !case.job.uring {
        return Ruling::skip("only for --for uring: SPDK maps its memory once");
    }
    let mut ruling = Ruling::new();
    if case.machine.vfio.groups.copied() == Some(0) {
        ruling.fine(&case.machine.vfio.groups.path, "no IOMMU");
        return ruling;
    }
    for (drive, function) in case.functions() {
        judge(&mut ruling, &drive.title(), function, 0.8);
    }
    ruling
}

fn nic_domain(case: &Case) -> Ruling {
    if !case.job.rdma {
        return Ruling::skip("only for --for rdma");
    }
    let mut ruling = Ruling::new();
    if case.machine.vfio.groups.copied() == Some(0) {
        ruling.fine(&case.machine.vfio.groups.path, "no IOMMU");
        return ruling;
    }
    for nic in &case.nics {
        if let Some(function) = &nic.function {
            // Memory regions are mapped once: strictness costs the control path only.
            judge(&mut ruling, &nic.device.name, function, 0.1);
        }
    }
    ruling
}

fn boot(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let kernel = &case.machine.kernel;
    if ruling.read(&kernel.cmdline).is_none() {
        return ruling;
    }
    let asked = ["iommu", "amd_iommu", "intel_iommu"]
        .into_iter()
        .filter_map(|name| Some((name, kernel.parameter(name)?)))
        .find(|(_, value)| value.split(',').any(|word| word == "pt"));
    let Some((name, value)) = asked else {
        return Ruling::skip("no boot parameter asks for passthrough");
    };
    let text = format!("{name}={value}");
    let translated = case.all_functions().into_iter().find_map(|(title, function)| {
        let kind = function.domain.as_deref()?;
        kind.starts_with("DMA").then(|| (title, kind.to_owned()))
    });
    match translated {
        Some((title, kind)) => {
            let what = format!(
                "the kernel was asked for passthrough by {text}, and {title} is translated ({kind})"
            );
            let mends = vec![do_it("the parameter is iommu=pt, or iommu.passthrough=1")];
            ruling.hit(Weight::Loses(0.05), &kernel.cmdline.path, text, what, mends);
        }
        None => ruling.fine(&kernel.cmdline.path, text),
    }
    ruling
}
