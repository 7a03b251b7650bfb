//! What the drives were really asked for, by the kernel's block layer.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use super::Totals;
use crate::host::Root;
use crate::host::block::BlockDevice;
use crate::host::diskstat::DiskStat;
use crate::host::pci::Address;

pub(super) struct Drives {
    devices: Result<Vec<BlockDevice>, String>,
    before: Option<DiskStat>,
}

impl Drives {
    pub(super) fn open(root: &Root, names: &[String]) -> Self {
        let devices = names.iter().map(|name| device(root, name)).collect();
        let devices = match names.is_empty() {
            true => Err("the drives were not named".into()),
            false => devices,
        };
        Self { devices, before: None }
    }

    /// PCI functions of the drives that the kernel's driver has.
    pub(super) fn functions(&self) -> Vec<Address> {
        self.devices.iter().flatten().filter_map(|device| device.pci).collect()
    }

    pub(super) fn begin(&mut self, root: &Root) {
        match self.read(root) {
            Ok(stat) => self.before = Some(stat),
            Err(why) => self.devices = Err(why),
        }
    }

    fn read(&self, root: &Root) -> Result<DiskStat, String> {
        let mut sum = DiskStat::default();
        for device in self.devices.as_ref().map_err(Clone::clone)? {
            sum = sum.plus(DiskStat::read(root, device)?);
        }
        Ok(sum)
    }

    pub(super) fn end(&self, root: &Root, totals: &mut Totals) {
        let stat = self.read(root).and_then(|stat| {
            let before = self.before.ok_or("the run ended before its rounds began")?;
            Ok(stat.since(before))
        });
        let figure = |of: &dyn Fn(&DiskStat) -> f64| stat.as_ref().map(of).map_err(Clone::clone);
        totals.sums.insert("drive_requests", figure(&|s| s.reads as f64));
        totals.sums.insert("drive_merges", figure(&|s| s.merged as f64));
        let mean = |sum: f64, requests: u64, what: &str| match requests {
            0 => Err(format!("the block layer counted no {what}")),
            _ => Ok(sum / requests as f64),
        };
        let stat = stat.as_ref().map_err(Clone::clone);
        let size = stat.clone().and_then(|s| mean(s.bytes as f64, s.reads, "request"));
        totals.plain.insert("drive_request_bytes", size);
        let time = stat.clone().and_then(|s| mean(s.read_ms as f64 * 1e6, s.reads, "request"));
        totals.plain.insert("drive_request_ns", time);
        // Little's law as the block layer keeps it: time in requests by time passed.
        let depth = stat.clone().map(|s| s.queue_ms as f64 / 1e3 / totals.seconds);
        totals.plain.insert("drive_queue_depth", depth);
        let busy = stat.map(|s| s.busy_ms as f64 / 1e3 / totals.seconds);
        totals.plain.insert("drive_busy_share", busy.map(|share| share.min(1.0)));
    }
}

/// The block device that a name on the command line stands for: itself, or that of the file
/// system on which the file lies.
fn device(root: &Root, name: &str) -> Result<BlockDevice, String> {
    if name.starts_with("mem:") {
        return Err("the drive is memory".into());
    }
    if !name.starts_with('/') && !name.starts_with('.') {
        return Err("the kernel's block layer does not see a drive of SPDK's driver; \
                    commands_per_op has its commands"
            .into());
    }
    let meta = std::fs::metadata(root.path(name)).map_err(|e| format!("{name}: {e}"))?;
    let number = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
    BlockDevice::by_number(root, libc::major(number), libc::minor(number)).map_err(|_| {
        format!("{name} lies on a file system without a block device of its own (tmpfs, overlay)")
    })
}
