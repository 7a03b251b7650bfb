//! Who uses a block device or a VFIO group now: mounts, swap, holders, targets and processes.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use serde::Serialize;

use super::Root;
use super::nvme::Disk;

/// One use of a drive. While there is any, the drive stays where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Use {
    /// Mounted in this mount namespace.
    Mounted {
        /// Block device, as `nvme0n1p1`.
        device: String,
        /// Mount point.
        at: String,
    },
    /// Active swap space.
    Swap {
        /// Block device.
        device: String,
    },
    /// Another block device is stacked on it (dm, md, bcache).
    Holder {
        /// Block device.
        device: String,
        /// The device above: `dm-0`, `md127`.
        holder: String,
        /// Its name for people: a device-mapper name, or the holder's own.
        name: String,
        /// `LVM`, `crypt`, `multipath`, `dm`, `md`, `bcache`, `other`.
        stack: &'static str,
    },
    /// A loop device or an NVMe target reads from it.
    Backing {
        /// Block device.
        device: String,
        /// Loop device, or the subsystem and namespace of the target.
        by: String,
    },
    /// The kernel holds it exclusively for something that none of the above shows: a ZFS pool, a
    /// further member of a file system on several drives, a mount in another namespace.
    Exclusive {
        /// Block device.
        device: String,
        /// True where it carries a ZFS label.
        zfs: bool,
    },
    /// A process has it open or mapped.
    Open {
        /// Path of what is open: a block device, the controller, a VFIO group.
        path: String,
        /// The process.
        pid: u32,
        /// Its command name.
        command: String,
    },
}

impl Use {
    /// What the use is, in words.
    pub fn describe(&self) -> String {
        match self {
            Use::Mounted { device, at } => format!("/dev/{device} is mounted at {at}"),
            Use::Swap { device } => format!("/dev/{device} is swap space in use"),
            Use::Holder { device, holder, name, stack } if holder == name => {
                format!("/dev/{device} is held by /dev/{holder} ({stack})")
            }
            Use::Holder { device, holder, name, stack } => {
                format!("/dev/{device} is held by /dev/{holder} ({stack} {name})")
            }
            Use::Backing { device, by } => format!("/dev/{device} is what {by} reads from"),
            Use::Exclusive { device, zfs: true } => {
                format!("/dev/{device} belongs to a ZFS pool in use")
            }
            Use::Exclusive { device, zfs: false } => format!(
                "/dev/{device} is held by the kernel (mounted in a container, or a further member \
                 of a file system on several drives)"
            ),
            Use::Open { path, pid, command } => format!("{path} is open by PID {pid} ({command})"),
        }
    }

    /// The command that ends the use.
    pub fn release(&self) -> String {
        match self {
            Use::Mounted { at, .. } => format!("umount {at}"),
            Use::Swap { device } => format!("swapoff /dev/{device}"),
            Use::Holder { holder, name, stack, .. } => match *stack {
                "LVM" => format!("vgchange --activate n {}", volume_group(name)),
                "crypt" => format!("cryptsetup close {name}"),
                "multipath" => format!("multipath -f {name}"),
                "dm" => format!("dmsetup remove {name}"),
                "md" => format!("mdadm --stop /dev/{holder}"),
                "bcache" => format!("echo 1 > /sys/block/{holder}/bcache/stop"),
                _ => format!("release /dev/{holder} (lsblk /dev/{holder} shows what it is)"),
            },
            Use::Backing { by, .. } => match by.strip_prefix("/dev/") {
                Some(_) => format!("losetup --detach {by}"),
                None => "disable that namespace: echo 0 > .../enable in its folder".to_owned(),
            },
            Use::Exclusive { zfs: true, .. } => {
                "zpool status -LP shows the pool; then zpool export POOL".to_owned()
            }
            Use::Exclusive { device, zfs: false } => {
                format!(
                    "grep -l {device} /proc/*/mountinfo; btrfs filesystem show; then unmount it"
                )
            }
            Use::Open { pid, .. } => format!("stop the process: kill {pid}"),
        }
    }
}

/// The volume group in a device-mapper name `group-volume`, where a hyphen in either is doubled.
fn volume_group(name: &str) -> String {
    let bytes = name.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b'-', Some(b'-')) => at += 2,
            (b'-', _) => return name[..at].replace("--", "-"),
            _ => at += 1,
        }
    }
    name.replace("--", "-")
}

/// Everything that uses the disk or one of its partitions, without the processes.
pub fn of_disk(root: &Root, disk: &Disk) -> Vec<Use> {
    let mut uses = Vec::new();
    for device in disk.names() {
        let folder = match device == disk.name {
            true => format!("/sys/block/{device}"),
            false => format!("/sys/block/{}/{device}", disk.name),
        };
        let number = root.read(format!("{folder}/dev")).unwrap_or_default();
        mounts(root, device, &number, &mut uses);
        swaps(root, device, &mut uses);
        holders(root, device, &folder, &mut uses);
        backings(root, device, &mut uses);
    }
    uses
}

/// By device number, and by source name for file systems with numbers of their own (btrfs).
fn mounts(root: &Root, device: &str, number: &str, uses: &mut Vec<Use>) {
    let table = root.read("/proc/self/mountinfo").unwrap_or_default();
    for line in table.lines() {
        // Documentation/filesystems/proc.rst 3.5: ID, parent, major:minor, root, mount point, ...,
        // a hyphen, type, source.
        let fields: Vec<&str> = line.split(' ').collect();
        let source = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').nth(1));
        let by_number = !number.is_empty() && fields.get(2) == Some(&number);
        let by_name = source.and_then(|path| path.strip_prefix("/dev/")) == Some(device);
        if let Some(at) = fields.get(4).filter(|_| by_number || by_name) {
            uses.push(Use::Mounted { device: device.to_owned(), at: unescape(at) });
        }
    }
}

/// Octal escapes of spaces and the like in the tables of /proc.
fn unescape(text: &str) -> String {
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    plain.iter().fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

fn swaps(root: &Root, device: &str, uses: &mut Vec<Use>) {
    let table = root.read("/proc/swaps").unwrap_or_default();
    let path = format!("/dev/{device}");
    if table.lines().any(|line| line.split_whitespace().next() == Some(&path)) {
        uses.push(Use::Swap { device: device.to_owned() });
    }
}

fn holders(root: &Root, device: &str, folder: &str, uses: &mut Vec<Use>) {
    for holder in root.list(format!("{folder}/holders")).unwrap_or_default() {
        let above = format!("/sys/block/{holder}");
        let uuid = root.read(format!("{above}/dm/uuid")).unwrap_or_default();
        let stack = if root.exists(format!("{above}/dm")) {
            match uuid.split('-').next() {
                Some("LVM") => "LVM",
                Some("CRYPT") => "crypt",
                Some("mpath") => "multipath",
                _ => "dm",
            }
        } else if root.exists(format!("{above}/md")) {
            "md"
        } else if root.exists(format!("{above}/bcache")) {
            "bcache"
        } else {
            "other"
        };
        let name = root.read(format!("{above}/dm/name")).unwrap_or_else(|_| holder.clone());
        uses.push(Use::Holder { device: device.to_owned(), holder, name, stack });
    }
}

fn backings(root: &Root, device: &str, uses: &mut Vec<Use>) {
    let path = format!("/dev/{device}");
    let mut add = |by| uses.push(Use::Backing { device: device.to_owned(), by });
    for name in root.list("/sys/block").unwrap_or_default() {
        if root.read(format!("/sys/block/{name}/loop/backing_file")).is_ok_and(|f| f == path) {
            add(format!("/dev/{name}"));
        }
    }
    let nvmet = "/sys/kernel/config/nvmet/subsystems";
    for subsystem in root.list(nvmet).unwrap_or_default() {
        let folder = format!("{nvmet}/{subsystem}/namespaces");
        for id in root.list(&folder).unwrap_or_default() {
            let read = |what: &str| root.read(format!("{folder}/{id}/{what}")).unwrap_or_default();
            if read("device_path") == path && read("enable") == "1" {
                add(format!("the NVMe target's namespace {folder}/{id}"));
            }
        }
    }
}

/// A file below /dev that a process has open or mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFile {
    /// The process.
    pub pid: u32,
    /// Its command name.
    pub command: String,
    /// The path by which it was opened.
    pub path: String,
    /// `b` or `c` and `major:minor` of a device node: block and character devices number apart.
    pub number: String,
}

/// Files of NVMe drives, VFIO and UIO that any process but this one has open or mapped. Without
/// root's rights only one's own processes can be seen. A node made under another name is recognised
/// below /dev alone: a stat of every file of every process could hang on a dead network share.
pub fn open_files(root: &Root) -> Vec<OpenFile> {
    let mut found: Vec<OpenFile> = Vec::new();
    for name in root.list("/proc").unwrap_or_default() {
        let Ok(pid) = name.parse::<u32>() else { continue };
        if pid == std::process::id() {
            continue;
        }
        let mut add = |path: String, number: String| {
            if !found.iter().any(|file| file.pid == pid && file.path == path) {
                let command = root.read(format!("/proc/{pid}/comm")).unwrap_or_default();
                found.push(OpenFile { pid, command, path, number });
            }
        };
        for fd in root.list(format!("/proc/{pid}/fd")).unwrap_or_default() {
            let fd = format!("/proc/{pid}/fd/{fd}");
            let Ok(target) = root.link(&fd) else { continue };
            let target = target.to_string_lossy();
            if target.starts_with("/dev/") {
                let path = target.trim_end_matches(" (deleted)").to_owned();
                add(path, number_of(root, &fd));
            }
        }
        // Documentation/filesystems/proc.rst: address, rights, offset, device, inode, path.
        let maps = root.read(format!("/proc/{pid}/maps")).unwrap_or_default();
        for path in maps.lines().filter_map(|line| line.find("/dev/").map(|at| &line[at..])) {
            add(path.trim_end_matches(" (deleted)").to_owned(), String::new());
        }
    }
    found
}

/// [`OpenFile::number`] of what a descriptor's link leads to.
fn number_of(root: &Root, fd: &str) -> String {
    let Ok(meta) = std::fs::metadata(root.path(fd)) else { return String::new() };
    let kind = meta.file_type();
    let letter = match (kind.is_block_device(), kind.is_char_device()) {
        (true, _) => 'b',
        (_, true) => 'c',
        _ => return String::new(),
    };
    format!("{letter}{}:{}", libc::major(meta.rdev()), libc::minor(meta.rdev()))
}

/// The uses by processes of the nodes named (`/dev/nvme0n1`, `/dev/vfio/12`), or of nodes with one
/// of the device numbers given.
pub fn of_nodes(open: &[OpenFile], paths: &[String], numbers: &[String]) -> Vec<Use> {
    open.iter()
        .filter(|file| paths.contains(&file.path) || numbers.contains(&file.number))
        .map(|file| Use::Open {
            path: file.path.clone(),
            pid: file.pid,
            command: file.command.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_tables_are_read_as_they_were_meant() {
        assert_eq!(volume_group("data-store"), "data");
        assert_eq!(volume_group("my--data-store--1"), "my-data");
        assert_eq!(unescape("/mnt/a\\040b\\134"), "/mnt/a b\\");
    }
}
