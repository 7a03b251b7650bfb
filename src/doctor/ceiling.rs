//! What each part on the way can carry, and which carries least.

use serde::Serialize;

use super::case::Case;
use super::checks::{rdma_mtu, shared_ports};
use crate::host::pci::Link;
use crate::units::format_size;

/// Rates that are not in any file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Bytes per second of one core's CRC-64/NVME.
    pub crc_per_core: Option<f64>,
    /// Bytes per second that the workers' cores read from memory together.
    pub memory: Option<f64>,
    /// Bytes per second of one drive, from its data sheet or `millrace local`.
    pub drive: Option<f64>,
}

/// A part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// Its name.
    pub part: &'static str,
    /// How its rate comes about.
    pub how: String,
    /// Bytes of payload per second; `None` where it is not known.
    pub bytes_per_sec: Option<f64>,
}

/// The ceiling of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ceiling {
    /// Every part on the way.
    pub parts: Vec<Part>,
    /// The one that carries least.
    pub least: Option<&'static str>,
    /// What it carries, in bytes per second.
    pub bytes_per_sec: Option<f64>,
    /// The same in reads per second.
    pub reads_per_sec: Option<f64>,
}

/// Payload of a PCIe packet from a drive, in bytes. Every device can do 128 (PCI Express Base
/// Specification, 7.5.3.3); what is set stands in configuration space, which only root reads.
const PACKET: f64 = 128.0;

/// Bytes around that payload: header of a write with a 64-bit address 16, sequence number 2, LCRC
/// 4, framing 4; and flow control and acknowledgements, a DLLP of 8 bytes for some packets.
const AROUND: f64 = 16.0 + 2.0 + 4.0 + 4.0 + 2.0;

/// Bytes of payload per second of a link.
pub fn payload(link: Link) -> f64 {
    link.bits_per_sec() / 8.0 * PACKET / (PACKET + AROUND)
}

/// Bytes around the payload of a RoCE v2 packet: preamble and gap 20, Ethernet and FCS 18, IP 20,
/// UDP 8, BTH 12, ICRC 4 (InfiniBand Architecture Specification, annex A17).
const ROCE: f64 = 82.0;

/// Times that a byte crosses memory: the drive writes it, the check reads it, the NIC reads it.
const CROSSINGS: f64 = 3.0;

/// Adds the parts up. A pure function of facts and rates.
pub fn ceiling(case: &Case, rates: Rates) -> Ceiling {
    let mut parts = vec![drives(case, rates), drive_links(case)];
    parts.extend(uplinks(case));
    parts.push(Part {
        part: "memory",
        how: match rates.memory {
            Some(rate) => format!(
                "{}/s read by {} core(s), crossed {CROSSINGS} times: drive, check, NIC",
                format_size(rate as u64),
                case.job.workers()
            ),
            None => "not measured".to_owned(),
        },
        bytes_per_sec: rates.memory.map(|rate| rate / CROSSINGS),
    });
    let workers = case.job.workers() as f64;
    parts.push(Part {
        part: "CRC",
        how: match rates.crc_per_core {
            Some(rate) => format!("{workers} core(s) of {}/s", format_size(rate as u64)),
            None => "not measured".to_owned(),
        },
        bytes_per_sec: rates.crc_per_core.map(|rate| rate * workers),
    });
    parts.extend(nics(case));
    let known = parts.iter().filter_map(|part| Some((part.part, part.bytes_per_sec?)));
    let least = known.min_by(|a, b| a.1.total_cmp(&b.1));
    Ceiling {
        least: least.map(|(name, _)| name),
        bytes_per_sec: least.map(|(_, rate)| rate),
        reads_per_sec: least.map(|(_, rate)| rate / case.job.io_size as f64),
        parts,
    }
}

fn drives(case: &Case, rates: Rates) -> Part {
    let count = case.drives.iter().filter(|drive| drive.missing.is_none()).count();
    Part {
        part: "drives",
        how: match rates.drive {
            Some(rate) => format!("{count} of {}/s", format_size(rate as u64)),
            None => format!("{count}, rate not given (--drive-rate, by millrace local)"),
        },
        bytes_per_sec: rates.drive.map(|rate| rate * count as f64).filter(|rate| *rate > 0.0),
    }
}

fn drive_links(case: &Case) -> Part {
    let links: Vec<Link> =
        case.functions().filter_map(|(_, function)| function.link.copied()).collect();
    let sum: f64 = links.iter().copied().map(payload).sum();
    let mut kinds: Vec<String> = links.iter().map(Link::to_string).collect();
    kinds.sort();
    kinds.dedup();
    Part {
        part: "drives' links",
        how: match links.is_empty() {
            true => "no drive says its link".to_owned(),
            false => format!(
                "{} at {}, {PACKET} of {} bytes on the line",
                links.len(),
                kinds.join(", "),
                PACKET + AROUND
            ),
        },
        bytes_per_sec: (!links.is_empty()).then_some(sum),
    }
}

/// Where drives share uplinks: what they can bring through them together.
fn uplinks(case: &Case) -> Option<Part> {
    let shared = shared_ports(case);
    let narrow: Vec<_> = shared
        .iter()
        .filter_map(|(address, port)| Some((address, port, port.now.copied()?)))
        .filter(|(_, port, link)| link.bits_per_sec() < port.sum)
        .collect();
    if narrow.is_empty() {
        return None;
    }
    let all: f64 =
        case.functions().filter_map(|(_, function)| function.link.copied()).map(payload).sum();
    // What the narrow uplinks take away from the sum of the links.
    let scale = PACKET / (PACKET + AROUND) / 8.0;
    let lost: f64 =
        narrow.iter().map(|(_, port, link)| (port.sum - link.bits_per_sec()) * scale).sum();
    let names: Vec<String> =
        narrow.iter().map(|(address, _, link)| format!("{address} at {link}")).collect();
    Some(Part {
        part: "uplinks",
        how: names.join(", "),
        bytes_per_sec: Some((all - lost).max(0.0)),
    })
}

fn nics(case: &Case) -> Vec<Part> {
    let mut parts = Vec::new();
    let links: Vec<Link> =
        case.nics.iter().filter_map(|nic| nic.function.as_ref()?.link.copied()).collect();
    if !links.is_empty() {
        let kinds: Vec<String> = links.iter().map(Link::to_string).collect();
        parts.push(Part {
            part: "NIC's link",
            how: format!("{}, {PACKET} of {} bytes on the line", kinds.join(", "), PACKET + AROUND),
            bytes_per_sec: Some(links.iter().copied().map(payload).sum()),
        });
    }
    let mut sum = 0.0;
    let mut how = Vec::new();
    for nic in &case.nics {
        let Some((_, bits)) = nic.rate() else { continue };
        let mtu = nic.interfaces.iter().filter_map(|i| i.mtu.copied()).min();
        let packet = mtu.map_or(4096, rdma_mtu) as f64;
        sum += bits / 8.0 * packet / (packet + ROCE);
        how.push(format!(
            "{} {:.0} Gb/s, {packet} of {} bytes on the line",
            nic.device.name,
            bits / 1e9,
            packet + ROCE
        ));
    }
    if !how.is_empty() {
        parts.push(Part { part: "NIC", how: how.join("; "), bytes_per_sec: Some(sum) });
    }
    parts
}
