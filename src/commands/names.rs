//! Drives that have left the kernel, by the names that they had there: what the journal of bound
//! drives knows. A name that works with one backend so works with the other.

use std::path::{Component, Path, PathBuf};

use crate::device::{Entry, Journal};
#[cfg(feature = "spdk")]
use crate::error::Result;
use crate::error::{Error, Kind};
use crate::host::Root;
use crate::host::block::BlockDevice;
use crate::host::nvme::Disk;
#[cfg(feature = "spdk")]
use crate::storage::spdk::{Expected, SpdkDrive};
#[cfg(feature = "spdk")]
use crate::storage::{DriveName, Within};

/// Links followed at most, as the kernel does.
const MOST_LINKS: usize = 40;

/// A block device of the past.
#[cfg_attr(not(feature = "spdk"), expect(dead_code, reason = "only SPDK opens it there"))]
struct Found<'a> {
    entry: &'a Entry,
    disk: &'a Disk,
    partition: Option<u32>,
}

/// The drive that `name` stands for with SPDK: a path in /dev leads to where the journal says that
/// its drive is. Whether that drive is still there is checked when it is attached, by its serial.
///
/// # Errors
///
/// `NotFound` for a path that neither the kernel nor the journal knows; `Usage` where the name has
/// been several drives'.
#[cfg(feature = "spdk")]
pub(super) fn for_spdk(root: &Root, journal: &Path, name: &str) -> Result<SpdkDrive> {
    let drive: SpdkDrive = name.parse()?;
    let DriveName::Path(path) = &drive.at else { return Ok(drive) };
    let Some(node) = node(root, path) else { return Ok(drive) };
    let entries = Journal::read(journal)?;
    let found = look_up(&entries, &node);
    let there = BlockDevice::by_name(root, &node).ok();
    match (found.as_slice(), there) {
        ([], Some(_)) => Ok(drive),
        // No block device: the storage says so.
        ([], None) if root.exists(path) => Ok(drive),
        ([], None) => Err(Error::new(
            Kind::NotFound,
            format!(
                "there is no drive {name}, and the journal {} has none of that name",
                journal.display()
            ),
        )
        .remedy("name it by its PCI address: millrace device list shows where each drive is")),
        // Named in the journal before it leaves its driver: it is there still, or again.
        (found, Some(there)) if found.iter().all(|f| there.pci == Some(f.entry.address)) => {
            Ok(drive)
        }
        (found, Some(there)) => {
            let now = there.pci.map_or("another drive".to_owned(), |pci| format!("that at {pci}"));
            Err(ambiguous(name, &format!("is {now} now, and was {} before", places(found))))
        }
        ([found], None) => located(name, journal, found),
        (several, None) => Err(ambiguous(name, &format!("has been {}", places(several)))),
    }
}

/// Why the kernel does not have the drive that `name` stands for, where the journal knows: it is
/// bound to another driver.
pub(super) fn away(root: &Root, journal: &Path, name: &str) -> Option<Error> {
    let node = node(root, Path::new(name))?;
    if BlockDevice::by_name(root, &node).is_ok() {
        return None;
    }
    let entries = Journal::read(journal).ok()?;
    let found = look_up(&entries, &node);
    let entry = found.first()?.entry;
    let what = format!(
        "there is no block device {name}: {} is bound to {}",
        places(&found),
        entry.bound_to
    );
    let remedy = format!("millrace device restore {}; or use --backend spdk", entry.address);
    Some(Error::new(Kind::Busy, what).remedy(remedy))
}

#[cfg(feature = "spdk")]
fn located(name: &str, journal: &Path, found: &Found<'_>) -> Result<SpdkDrive> {
    let Found { entry, disk, partition } = found;
    // Journals of before do not tell the namespace's number. The kernel's count in the name is
    // mostly the same; the size has to agree then.
    let counted = || disk.name.rsplit_once('n')?.1.parse().ok();
    let within = Within { namespace: disk.nsid.or_else(counted), partition: *partition };
    let expected = Expected {
        serial: entry.serial.clone(),
        bytes: disk.nsid.is_none().then_some(disk.size),
        source: format!("the journal {}", journal.display()),
    };
    log::info!("{name}: {}{within}, serial number {}", entry.address, entry.serial);
    Ok(SpdkDrive {
        name: name.to_owned(),
        at: DriveName::Pci(entry.address, within),
        expected: Some(expected),
    })
}

#[cfg(feature = "spdk")]
fn ambiguous(name: &str, what: &str) -> Error {
    Error::usage(format!("{name} {what}"))
        .remedy("name the one that is meant by its PCI address, such as 0000:5e:00.0 part:1")
}

fn places(found: &[Found<'_>]) -> String {
    let place = |f: &Found<'_>| format!("that at {} (serial {})", f.entry.address, f.entry.serial);
    found.iter().map(place).collect::<Vec<_>>().join(" and ")
}

fn look_up<'a>(journal: &'a Journal, node: &str) -> Vec<Found<'a>> {
    let mut found = Vec::new();
    for entry in &journal.entries {
        for disk in &entry.disks {
            if let Some(partition) = within(&disk.name, node) {
                found.push(Found { entry, disk, partition });
            }
        }
    }
    found
}

/// `Some(None)` for the disk itself, `Some(Some(N))` for its partition N. The table is asked, not
/// the list of partitions that the kernel had: it may have been changed since.
fn within(disk: &str, node: &str) -> Option<Option<u32>> {
    let rest = node.strip_prefix(disk)?;
    if rest.is_empty() {
        return Some(None);
    }
    let digits = rest.strip_prefix('p')?;
    let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|_| plain).map(Some)
}

/// Name in /dev that a path leads to, whether that is there or not; `None` for paths to elsewhere.
/// Links may hang, as those of /dev/disk do that were made by hand.
fn node(root: &Root, path: &Path) -> Option<String> {
    let mut path = flat(&std::path::absolute(path).ok()?);
    for _ in 0..MOST_LINKS {
        let Ok(target) = root.link(&path) else { break };
        path = flat(&path.parent()?.join(target));
    }
    let name = path.strip_prefix("/dev").ok()?.to_str()?;
    (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
}

/// Without `.` and `..`. Folders in /dev are no links, so that `..` leads where it seems to.
fn flat(path: &Path) -> PathBuf {
    let mut flat = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                flat.pop();
            }
            part => flat.push(part),
        }
    }
    flat
}

#[cfg(test)]
mod tests;
