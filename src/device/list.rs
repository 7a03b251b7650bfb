//! The drives for people and for programs.

use std::fmt::Write;

use serde::Serialize;

use super::{Drive, VFIO};
use crate::error::{Error, Kind, Result};
use crate::units::format_size;

/// Version of the JSON.
const SCHEMA: &str = "millrace.device-list/1";

/// The drives as JSON: `schema`, `tool`, `drives` (every field of [`Drive`]).
pub fn json(drives: &[Drive]) -> Result<String> {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: &'static str,
        tool: &'static str,
        drives: &'a [Drive],
    }
    let tool = concat!("millrace ", env!("CARGO_PKG_VERSION"));
    serde_json::to_string_pretty(&Document { schema: SCHEMA, tool, drives })
        .map_err(|e| Error::new(Kind::Data, "cannot write the drives as JSON").caused_by(e))
}

/// The drives as an aligned table, and below it what a table has no room for.
pub fn table(drives: &[Drive]) -> String {
    if drives.is_empty() {
        return "no NVMe drive on PCI (class 010802)\n".to_owned();
    }
    let header =
        ["ADDRESS", "SERIAL", "MODEL", "SIZE", "DRIVER", "BLOCK", "NODE", "LINK", "GROUP", "USE"];
    let mut rows: Vec<Vec<String>> = vec![header.map(str::to_owned).to_vec()];
    rows.extend(drives.iter().map(row));
    let columns = header.len();
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    for note in drives.iter().flat_map(notes) {
        let _ = writeln!(text, "{note}");
    }
    text
}

fn row(drive: &Drive) -> Vec<String> {
    let text = |value: &Option<String>| match value.as_deref() {
        None | Some("") => "-".to_owned(),
        Some(value) => value.to_owned(),
    };
    let number = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
    let disks: Vec<&str> = drive.disks.iter().map(|disk| disk.name.as_str()).collect();
    vec![
        drive.address.to_string(),
        text(&drive.serial),
        text(&drive.model),
        drive.size.map_or("-".to_owned(), format_size),
        text(&drive.driver),
        if disks.is_empty() { "-".to_owned() } else { disks.join(",") },
        number(drive.numa_node),
        drive.link_now.map_or("-".to_owned(), |link| link.to_string()),
        number(drive.iommu_group),
        usage(drive),
    ]
}

fn usage(drive: &Drive) -> String {
    let mut parts: Vec<String> = drive.uses.iter().map(|used| used.describe()).collect();
    parts.extend(drive.holds.iter().map(|c| format!("{} on /dev/{}", c.what, c.device)));
    match parts.is_empty() {
        true if drive.disks.is_empty() => "-".to_owned(),
        true => "free, blank".to_owned(),
        false => parts.join("; "),
    }
}

/// What is out of the ordinary.
fn notes(drive: &Drive) -> Vec<String> {
    let address = drive.address;
    let mut notes = Vec::new();
    if drive.from_journal {
        notes.push(format!("{address}: serial, model and size are the journal's"));
    }
    if let Some(left) = drive.leftover_override() {
        notes.push(format!(
            "{address}: driver_override says {left}, so no other driver can have the drive; \
             millrace device restore {address} clears it"
        ));
    }
    if drive.driver.is_none() {
        notes.push(format!(
            "{address}: has no driver; millrace device restore {address} gives it back to the \
             kernel"
        ));
    }
    if drive.driver.as_deref() == Some(VFIO) && !drive.from_journal {
        notes.push(format!(
            "{address}: was not bound by millrace, or before the machine started: its serial is \
             unknown; millrace device restore {address} gives it to the kernel's driver"
        ));
    }
    let port = drive.upstream.as_ref().and_then(|port| port.link_best);
    if let (Some(now), Some(best)) = (drive.link_now, drive.link_best) {
        let possible = port.map_or(best, |port| super::Link {
            gigatransfers: best.gigatransfers.min(port.gigatransfers),
            width: best.width.min(port.width),
        });
        if possible != best {
            notes.push(format!("{address}: its slot gives {possible}, the drive could do {best}"));
        }
        if now.gigatransfers < possible.gigatransfers || now.width < possible.width {
            notes.push(format!(
                "{address}: its link runs at {now}, {possible} is possible (an idle link may have \
                 been slowed down: look under load)"
            ));
        }
    }
    for peer in drive.iommu_peers.iter().filter(|peer| !crate::host::pci::is_bridge(peer.class)) {
        notes.push(format!(
            "{address}: shares its IOMMU group with {} (class {:06x}, {})",
            peer.address,
            peer.class,
            peer.driver.as_deref().unwrap_or("no driver")
        ));
    }
    notes
}
