//! RDMA devices, their links and addresses.

use super::Family;
use crate::doctor::case::Case;
use crate::doctor::check::Check;
use crate::doctor::ruling::{Ruling, Weight, do_it, run};
use crate::host::nic::{Nic, shared_networks};
use crate::host::rdma::{self, GidKind};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "rdma-device",
        family: Family::Rdma,
        why: "Without an RDMA device there is TCP only.",
        rule: device,
    },
    Check {
        id: "rdma-link",
        family: Family::Rdma,
        why: "A port that is not active sends nothing.",
        rule: link,
    },
    Check {
        id: "rdma-gid",
        family: Family::Rdma,
        why: "A connection needs a RoCE v2 address that is routed; a link-local one ends in \
              retries.",
        rule: gid,
    },
    Check {
        id: "rdma-mtu",
        family: Family::Rdma,
        why: "RDMA cuts payload into 4,096 bytes at most, and into 1,024 where the interface is at \
              Ethernet's 1,500.",
        rule: mtu,
    },
    Check {
        id: "rdma-errors",
        family: Family::Rdma,
        why: "Packets that are sent again cost their time twice, and the wait between.",
        rule: errors,
    },
    Check {
        id: "rdma-networks",
        family: Family::Rdma,
        why: "Of two NICs in one network, the kernel answers for both by either.",
        rule: networks,
    },
    Check {
        id: "rdma-soft",
        family: Family::Rdma,
        why: "Soft-RoCE runs on the CPU: every byte is copied, and the rate is the CPU's.",
        rule: soft,
    },
];

const ONLY: &str = "only for --for rdma";

fn folder(nic: &Nic) -> String {
    format!("/sys/class/infiniband/{}", nic.device.name)
}

fn device(case: &Case) -> Ruling {
    if !case.job.rdma {
        return Ruling::skip(ONLY);
    }
    let mut ruling = Ruling::new();
    let fact = &case.machine.nics;
    let Some(all) = ruling.read(fact) else { return ruling };
    if all.is_empty() {
        ruling.stops(&fact.path, "none", &rdma::none_beside(&case.machine.interfaces));
    } else if case.nics.is_empty() {
        let known: Vec<&str> = all.iter().map(|nic| nic.device.name.as_str()).collect();
        let name = case.job.nic.as_deref().unwrap_or_default();
        let what = format!("no RDMA device is, or is on, {name}; there are {}", known.join(", "));
        ruling.hit(Weight::Stops, &fact.path, known.join(", "), what, Vec::new());
    }
    for nic in &case.nics {
        ruling.fine(folder(nic), &nic.device.name);
    }
    ruling
}

/// What checks of NICs say where there is none.
fn none(case: &Case) -> Ruling {
    let mut ruling = Ruling::skip(ONLY);
    if case.job.rdma {
        ruling.note(&case.machine.nics);
    }
    ruling
}

fn link(case: &Case) -> Ruling {
    if case.nics.is_empty() {
        return none(case);
    }
    let mut ruling = Ruling::new();
    let active = |nic: &Nic| nic.device.ports.iter().any(rdma::Port::is_active);
    let some = case.nics.iter().any(active);
    for nic in &case.nics {
        for port in &nic.device.ports {
            let file = format!("{}/ports/{}/state", folder(nic), port.number);
            if port.state.is_empty() {
                ruling.unread(format!("could not read {file}: it says no state"));
                continue;
            }
            if port.is_active() {
                ruling.fine(file, format!("{}, {}", port.state, port.rate));
                continue;
            }
            let error = match port.gids.first() {
                Some(gid) => rdma::link_down(&nic.device, port, gid, gid.ip()),
                None => crate::error::Error::new(
                    crate::error::Kind::Network,
                    format!(
                        "the link of {} port {} is {}",
                        nic.device.name, port.number, port.state
                    ),
                )
                .remedy("check the cable and, on InfiniBand, the subnet manager"),
            };
            // One port of several may be free on purpose.
            if some {
                let mends = error.remedy_text().map(do_it).into_iter().collect();
                ruling.loses(0.02, file, &port.state, error.what(), mends);
            } else {
                ruling.stops(file, &port.state, &error);
            }
        }
    }
    ruling
}

fn gid(case: &Case) -> Ruling {
    if case.nics.is_empty() {
        return none(case);
    }
    let mut ruling = Ruling::new();
    for nic in &case.nics {
        for port in nic.device.ports.iter().filter(|port| port.is_active()) {
            if port.link_layer == "InfiniBand" {
                continue;
            }
            let file = format!("{}/ports/{}/gids", folder(nic), port.number);
            let local = |ip: std::net::IpAddr| match ip {
                std::net::IpAddr::V4(ip) => ip.is_link_local(),
                std::net::IpAddr::V6(ip) => ip.is_unicast_link_local(),
            };
            let routed: Vec<_> = port.gids.iter().filter(|gid| !local(gid.ip())).collect();
            let second = routed.iter().find(|gid| gid.kind == GidKind::RoceV2);
            let name = &nic.device.name;
            if let Some(gid) = second {
                ruling.fine(file, format!("GID {}: {}, RoCE v2", gid.index, gid.ip()));
            } else if let Some(gid) = routed.first() {
                let what = format!("{name} has RoCE v1 addresses only, which no router forwards");
                let mends = vec![do_it(
                    "echo RoCE v2 > .../default_roce_mode in configfs, or update the driver",
                )];
                ruling.loses(0.05, file, format!("GID {}: RoCE v1", gid.index), what, mends);
            } else {
                let on = port.gids.iter().find_map(|gid| gid.netdev.as_deref());
                let what = format!("{name} has no address but link-local ones");
                let mends = vec![do_it(format!(
                    "ip addr add ADDRESS/LENGTH dev {}",
                    on.unwrap_or("INTERFACE")
                ))];
                ruling.loses(0.9, file, format!("{} GIDs", port.gids.len()), what, mends);
            }
        }
    }
    ruling
}

/// Payload of a RoCE v2 packet on an interface of this MTU: the largest that fits beside the
/// headers (IP 40, UDP 8, BTH 12, RETH 16, ICRC 4 bytes).
pub(in crate::doctor) fn rdma_mtu(mtu: u64) -> u64 {
    let room = mtu.saturating_sub(80);
    [4096, 2048, 1024, 512].into_iter().find(|size| *size <= room).unwrap_or(256)
}

fn mtu(case: &Case) -> Ruling {
    if case.nics.is_empty() {
        return none(case);
    }
    let mut ruling = Ruling::new();
    for nic in &case.nics {
        for interface in &nic.interfaces {
            let Some(mtu) = ruling.read(&interface.mtu).copied() else { continue };
            let payload = rdma_mtu(mtu);
            let value = format!("{mtu}: {payload} bytes of payload in a packet");
            if payload >= 4096 {
                ruling.fine(&interface.mtu.path, value);
                continue;
            }
            let what = format!("{} carries {payload} bytes of payload in a packet", interface.name);
            let mends = vec![
                run(format!("ip link set {} mtu 4200", interface.name)),
                do_it("and the same on the switch and on the clients"),
            ];
            // 1,024 bytes of payload to 82 of headers are 7 % of the line; below it is more.
            let lost = if payload >= 1024 { 0.06 } else { 0.25 };
            ruling.loses(lost, &interface.mtu.path, value, what, mends);
        }
    }
    ruling
}

/// Troubles that end in a wait or a lost connection.
const GRAVE: [&str; 2] = ["retry_exceeded_err", "rnr_nak_retry_err"];

fn errors(case: &Case) -> Ruling {
    if case.nics.is_empty() {
        return none(case);
    }
    let mut ruling = Ruling::new();
    for nic in &case.nics {
        for fact in &nic.troubles {
            let Some(count) = ruling.read(fact).copied() else { continue };
            if count == 0 {
                ruling.fine(&fact.path, 0);
                continue;
            }
            let name = fact.path.rsplit('/').next().unwrap_or_default();
            let what = format!("{} counts {count} of {name}", nic.device.name);
            let mends = vec![do_it(
                "check PFC or ECN on the switch (lossless class), MTU on both sides, and the cable",
            )];
            let lost = if GRAVE.contains(&name) { 0.3 } else { 0.05 };
            ruling.loses(lost, &fact.path, count, what, mends);
        }
    }
    ruling
}

fn networks(case: &Case) -> Ruling {
    if case.nics.is_empty() {
        return none(case);
    }
    if case.nics.len() < 2 {
        return Ruling::skip("fewer than two NICs");
    }
    let mut ruling = Ruling::new();
    let shared = shared_networks(&case.nics);
    for (network, names) in &shared {
        let names = names.join(", ");
        let what = format!("{names} are in one network, {network}");
        let mends = vec![do_it(
            "give each a network of its own, or a routing table each by source address (ip rule)",
        )];
        ruling.loses(0.05, "/sys/class/infiniband/*/ports/*/gids", names, what, mends);
    }
    if shared.is_empty() {
        ruling.fine("/sys/class/infiniband/*/ports/*/gids", "each NIC in its own network");
    }
    ruling
}

fn soft(case: &Case) -> Ruling {
    if case.nics.is_empty() {
        return none(case);
    }
    let mut ruling = Ruling::new();
    for nic in &case.nics {
        if nic.is_soft() {
            let what =
                format!("{} is soft-RoCE or the like: the CPU plays the NIC", nic.device.name);
            let mends = vec![do_it("take its figures for a test of function, not of speed")];
            ruling.loses(0.02, format!("{}/device", folder(nic)), "not there", what, mends);
        } else {
            ruling.fine(format!("{}/device", folder(nic)), "a PCI function");
        }
    }
    ruling
}
