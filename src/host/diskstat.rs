//! What a drive was really asked for: Documentation/block/stat.rst of the kernel.

use super::Root;
use super::block::BlockDevice;

/// Reads of one block device since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskStat {
    /// Requests that completed.
    pub reads: u64,
    /// Reads that were merged into one of them before it was sent.
    pub merged: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Sum of milliseconds that read requests took.
    pub read_ms: u64,
    /// Milliseconds during which there was any request.
    pub busy_ms: u64,
    /// Sum of milliseconds of all requests, also of those in flight.
    pub queue_ms: u64,
}

impl DiskStat {
    /// Reads those of `device` below `root`. Under native NVMe multipath the head shows no I/O of
    /// its own, so the paths behind it are added up.
    ///
    /// # Errors
    ///
    /// The reason, in words, why there are none.
    pub fn read(root: &Root, device: &BlockDevice) -> Result<Self, String> {
        let own = Self::of(root, &format!("/sys/class/block/{}", device.name))?;
        if device.name != device.disk {
            return Ok(own);
        }
        let paths = paths(root, &device.disk);
        Ok(paths.iter().filter_map(|path| Self::of(root, path).ok()).fold(own, Self::plus))
    }

    fn of(root: &Root, folder: &str) -> Result<Self, String> {
        let text = root.read(format!("{folder}/stat")).map_err(|e| e.report())?;
        let fields: Vec<u64> =
            text.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        if fields.len() < 11 {
            return Err(format!("{folder}/stat holds \"{text}\", not eleven numbers"));
        }
        Ok(Self {
            reads: fields[0],
            merged: fields[1],
            bytes: fields[2] * 512,
            read_ms: fields[3],
            busy_ms: fields[9],
            queue_ms: fields[10],
        })
    }

    /// Field-wise sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            merged: self.merged + other.merged,
            bytes: self.bytes + other.bytes,
            read_ms: self.read_ms + other.read_ms,
            busy_ms: self.busy_ms.max(other.busy_ms),
            queue_ms: self.queue_ms + other.queue_ms,
        }
    }

    /// What happened since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(before.reads),
            merged: self.merged.saturating_sub(before.merged),
            bytes: self.bytes.saturating_sub(before.bytes),
            read_ms: self.read_ms.saturating_sub(before.read_ms),
            busy_ms: self.busy_ms.saturating_sub(before.busy_ms),
            queue_ms: self.queue_ms.saturating_sub(before.queue_ms),
        }
    }
}

/// Folders of the hidden path devices of a multipath head: `nvme0c1n2` of `nvme0n2`.
fn paths(root: &Root, disk: &str) -> Vec<String> {
    let Some((head, namespace)) = disk.strip_prefix("nvme").and_then(|rest| rest.split_once('n'))
    else {
        return Vec::new();
    };
    let prefix = format!("nvme{head}c");
    let suffix = format!("n{namespace}");
    let names = root.list("/sys/block").unwrap_or_default();
    names
        .into_iter()
        .filter(|name| name.starts_with(&prefix) && name.ends_with(&suffix))
        .map(|name| format!("/sys/block/{name}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, disk: &str) -> BlockDevice {
        BlockDevice {
            name: name.into(),
            disk: disk.into(),
            start: 0,
            memory_align: None,
            block_size: 512,
            max_transfer: None,
            serial: None,
            model: None,
            node: None,
            pci: None,
        }
    }

    #[test]
    fn a_multipath_head_has_the_io_of_its_paths() {
        let dir = tempfile::tempdir().unwrap();
        let write = |folder: &str, text: &str| {
            let folder = dir.path().join("sys").join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("stat"), text).unwrap();
        };
        write("class/block/nvme0n1", "0 0 0 0 0 0 0 0 0 0 0");
        write("block/nvme0c0n1", "10 1 80 5 0 0 0 0 0 4 5");
        write("block/nvme0c1n1", "20 2 160 6 0 0 0 0 1 7 8");
        write("block/nvme0c1n2", "99 9 99 9 0 0 0 0 1 7 8");
        write("class/block/nvme0n1p1", "3 0 24 1 0 0 0 0 0 1 1");
        let root = Root::at(dir.path());
        let whole = DiskStat::read(&root, &device("nvme0n1", "nvme0n1")).unwrap();
        assert_eq!((whole.reads, whole.merged, whole.bytes), (30, 3, 240 * 512));
        assert_eq!((whole.busy_ms, whole.queue_ms), (7, 13));
        let part = DiskStat::read(&root, &device("nvme0n1p1", "nvme0n1")).unwrap();
        assert_eq!(part.reads, 3);
        assert_eq!(whole.since(whole), DiskStat::default());
        assert!(DiskStat::read(&root, &device("sda", "sda")).unwrap_err().contains("stat"));
    }
}
