//! Links: how fast, how wide, and how clean.

use std::collections::BTreeMap;

use super::Family;
use crate::doctor::case::Case;
use crate::doctor::check::Check;
use crate::doctor::ruling::{Ruling, do_it, run};
use crate::host::fact::Fact;
use crate::host::pci::{Address, Link};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "pcie-nic-link",
        family: Family::Pcie,
        why: "A 100 Gb/s NIC in a slot wired x4 forwarded 30 Gb/s, with idle CPUs and no drops.",
        rule: nic,
    },
    Check {
        id: "pcie-drive-link",
        family: Family::Pcie,
        why: "A link that came up narrower or slower than both ends can do, caps the drive.",
        rule: drive,
    },
    Check {
        id: "pcie-drive-slot",
        family: Family::Pcie,
        why: "A slot with fewer lanes or an older generation than the drive caps it.",
        rule: slot,
    },
    Check {
        id: "pcie-uplink",
        family: Family::Pcie,
        why: "Drives behind one switch share its uplink.",
        rule: uplink,
    },
    Check {
        id: "pcie-errors-lost",
        family: Family::Pcie,
        why: "An error that the link could not mend lost a transaction: the driver resets, reads \
              fail.",
        rule: lost,
    },
    Check {
        id: "pcie-errors-mended",
        family: Family::Pcie,
        why: "Each error that the link mends is a packet sent again; many of them are a bad slot, \
              riser or cable.",
        rule: mended,
    },
    Check {
        id: "pcie-aspm",
        family: Family::Pcie,
        why: "A link that saves power takes microseconds to come back, at each read of an idle \
              drive.",
        rule: aspm,
    },
];

const IDLE: &str =
    "an idle link may have been slowed down: millrace doctor --watch during a load shows it";

fn gbit(link: Link) -> f64 {
    link.bits_per_sec() / 1e9
}

fn nic(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for nic in &case.nics {
        let Some(function) = &nic.function else { continue };
        ruling.note(&function.best);
        let Some(now) = ruling.read(&function.link).copied() else { continue };
        let best = function.best.copied().unwrap_or(now);
        let name = &nic.device.name;
        let rate = nic.rate().map(|(_, bits)| bits);
        let short = rate.is_some_and(|rate| now.bits_per_sec() < rate);
        let mut value = format!("{now}, best {best}: {:.1} of {:.1} Gb/s", gbit(now), gbit(best));
        if let Some(rate) = rate {
            value.push_str(&format!(", port {:.0} Gb/s", rate / 1e9));
        }
        let lanes = now.width < best.width;
        if now.bits_per_sec() >= best.bits_per_sec() && !short {
            ruling.fine(&function.link.path, value);
            continue;
        }
        let port = function.ports.first();
        let slot = port.and_then(|port| port.best.copied());
        let narrow = slot.is_some_and(|slot| slot.width < best.width);
        let mend = match (narrow, lanes) {
            (true, _) => format!("move {name} to a slot wired x{}", best.width),
            (false, true) => format!("reseat {name} and its riser; check bifurcation in firmware"),
            (false, false) => IDLE.to_owned(),
        };
        let what = format!(
            "{name} runs at {now}, {:.1} Gb/s, and could run at {best}, {:.1} Gb/s",
            gbit(now),
            gbit(best)
        );
        // What the port cannot fill is not lost; a mere idle speed is not believed.
        let lost = match (lanes, short, rate) {
            (_, true, Some(rate)) => 1.0 - now.bits_per_sec() / rate,
            (true, false, Some(_)) => 0.05,
            (true, ..) => 1.0 - now.bits_per_sec() / best.bits_per_sec(),
            (false, ..) => 0.05,
        };
        ruling.loses(lost, &function.link.path, value, what, vec![do_it(mend)]);
    }
    ruling
}

fn drive(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let count = case.functions().count().max(1) as f64;
    for (drive, function) in case.functions() {
        if function.asleep {
            continue;
        }
        let Some(now) = ruling.read(&function.link).copied() else { continue };
        ruling.note(&function.best);
        let Some(possible) = function.possible() else { continue };
        let value = format!("{now} of {possible}");
        if now.bits_per_sec() >= possible.bits_per_sec() {
            ruling.fine(&function.link.path, value);
            continue;
        }
        let what = format!(
            "{} runs at {now}, {:.1} Gb/s; both ends can do {possible}, {:.1} Gb/s",
            drive.title(),
            gbit(now),
            gbit(possible)
        );
        let lanes = now.width < possible.width;
        let mend = if lanes { "reseat the drive and its cable" } else { IDLE };
        let lost = match lanes {
            // Of the drives together: one of eight that has half of its lanes, is a sixteenth.
            true => ((1.0 - now.bits_per_sec() / possible.bits_per_sec()) / count).max(0.02),
            false => 0.02,
        };
        ruling.loses(lost, &function.link.path, value, what, vec![do_it(mend)]);
    }
    ruling
}

fn slot(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let count = case.functions().count().max(1) as f64;
    for (drive, function) in case.functions() {
        let Some(best) = ruling.read(&function.best).copied() else { continue };
        let Some(port) = function.ports.first() else { continue };
        let Some(slot) = ruling.read(&port.best).copied() else { continue };
        let possible = best.least(slot);
        let value = format!("{slot}, the drive {best}");
        if possible.bits_per_sec() >= best.bits_per_sec() {
            ruling.fine(&port.best.path, value);
            continue;
        }
        let what =
            format!("the slot of {} gives {possible}, the drive could do {best}", drive.title());
        let lost = (1.0 - possible.bits_per_sec() / best.bits_per_sec()) / count;
        let mends =
            vec![do_it("move the drive to another slot, or reckon with what this one gives")];
        ruling.loses(lost.max(0.02), &port.best.path, value, what, mends);
    }
    ruling
}

fn uplink(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for (address, shared) in shared_ports(case) {
        let Some(now) = ruling.read(&shared.now).copied() else { continue };
        let value = format!(
            "{:.1} Gb/s at {now}, for {} drives of {:.1} Gb/s together",
            gbit(now),
            shared.drives.len(),
            shared.sum / 1e9
        );
        if now.bits_per_sec() >= shared.sum {
            ruling.fine(&shared.now.path, value);
            continue;
        }
        let what = format!(
            "{} share the uplink {address}: {:.1} Gb/s, together they could do {:.1} Gb/s",
            shared.drives.join(", "),
            gbit(now),
            shared.sum / 1e9
        );
        let lost = 1.0 - now.bits_per_sec() / shared.sum;
        let mends = vec![do_it("spread the drives over several uplinks or root ports")];
        ruling.loses(lost, &shared.now.path, value, what, mends);
    }
    ruling
}

/// A port with several drives below it.
pub(in crate::doctor) struct Shared {
    /// What its own link upward does.
    pub now: Fact<Link>,
    /// Names of the drives.
    pub drives: Vec<String>,
    /// Bits per second of their links together.
    pub sum: f64,
}

/// Ports above several drives that have a link of their own upward.
pub(in crate::doctor) fn shared_ports(case: &Case) -> BTreeMap<Address, Shared> {
    let mut found: BTreeMap<Address, Shared> = BTreeMap::new();
    for (drive, function) in case.functions() {
        let Some(own) = function.link.copied() else { continue };
        for port in &function.ports {
            let shared = found.entry(port.address).or_insert_with(|| Shared {
                now: port.now.clone(),
                drives: Vec::new(),
                sum: 0.0,
            });
            shared.drives.push(drive.title());
            shared.sum += own.bits_per_sec();
        }
    }
    found.retain(|_, shared| shared.drives.len() > 1);
    found
}

fn lost(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for (name, function) in case.all_functions() {
        for fact in [&function.nonfatal, &function.fatal] {
            match ruling.read(fact) {
                Some(0) => ruling.fine(&fact.path, 0),
                Some(count) => {
                    let what =
                        format!("{name} lost transactions on its link {count} times since boot");
                    let mends = vec![do_it(
                        "dmesg | grep -i AER names them; reseat the card, change slot or cable",
                    )];
                    ruling.loses(0.3, &fact.path, count, what, mends);
                }
                None => {}
            }
        }
    }
    ruling
}

/// Mended errors a minute that a link shows when something is wrong with it.
const MANY: f64 = 60.0;

fn mended(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let minutes = case.machine.kernel.uptime.copied().unwrap_or(60.0).max(60.0) / 60.0;
    let mut seen: Vec<Address> = Vec::new();
    for (name, function) in case.all_functions() {
        let ports = function.ports.iter().map(|port| (port.address, &port.correctable));
        for (address, fact) in ports.chain([(function.address, &function.correctable)]) {
            if seen.contains(&address) {
                continue;
            }
            seen.push(address);
            let Some(count) = ruling.read(fact).copied() else { continue };
            if count == 0 {
                ruling.fine(&fact.path, 0);
                continue;
            }
            let rate = count as f64 / minutes;
            let what = format!(
                "{count} errors were mended on the link at {address} ({name}) since boot, \
                 {rate:.1} a minute"
            );
            let mends = vec![do_it("reseat the card; change riser, slot or cable")];
            ruling.loses(if rate >= MANY { 0.25 } else { 0.02 }, &fact.path, count, what, mends);
        }
    }
    ruling
}

fn aspm(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let policy = &case.machine.aspm;
    let mends = || vec![run(format!("echo performance > {}", policy.path))];
    let name = ruling.read(policy).map(String::as_str);
    match name {
        Some(name @ ("powersave" | "powersupersave")) => {
            let what = format!("PCIe links save power ({name})");
            ruling.loses(0.1, &policy.path, name, what, mends());
        }
        Some("performance") => ruling.fine(&policy.path, "performance"),
        Some(name) => {
            ruling.fine(&policy.path, name);
            for (title, function) in case.all_functions() {
                if ruling.read(&function.l1).copied() == Some(1) {
                    let what = format!("the link of {title} may go to L1 when it idles");
                    let mends = vec![run(format!("echo 0 > {}", function.l1.path))];
                    ruling.loses(0.03, &function.l1.path, 1, what, mends);
                }
            }
        }
        None => {}
    }
    ruling
}
