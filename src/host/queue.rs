//! The limits of a drive's request queue (Documentation/ABI/stable/sysfs-block).

use serde::Serialize;

use super::Root;
use super::fact::Fact;

/// A request queue.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Queue {
    /// Most pieces of memory in one request.
    pub max_segments: Fact<u64>,
    /// Most bytes of one piece.
    pub max_segment_bytes: Fact<u64>,
    /// Most KiB of one request, as set.
    pub max_kib: Fact<u64>,
    /// Most KiB of one request that the drive takes: of NVMe, its MDTS and the driver's own limit.
    pub max_hw_kib: Fact<u64>,
    /// Logical block size in bytes.
    pub logical_block: Fact<u64>,
    /// Physical block size in bytes.
    pub physical_block: Fact<u64>,
    /// 1 where completions can be polled for.
    pub poll: Fact<u64>,
    /// Scheduler.
    pub scheduler: Fact<String>,
    /// 1 for spinning disks.
    pub rotational: Fact<u64>,
    /// Bytes of metadata with each block.
    pub metadata: Fact<u64>,
    /// Hardware queues: one for each CPU, or fewer.
    pub queues: Fact<u64>,
}

impl Queue {
    /// Reads that of the block device `disk`.
    pub fn read(root: &Root, disk: &str) -> Self {
        let folder = format!("/sys/block/{disk}");
        let number = |file: &str| Fact::number(root, format!("{folder}/queue/{file}"));
        Self {
            max_segments: number("max_segments"),
            max_segment_bytes: number("max_segment_size"),
            max_kib: number("max_sectors_kb"),
            max_hw_kib: number("max_hw_sectors_kb"),
            logical_block: number("logical_block_size"),
            physical_block: number("physical_block_size"),
            poll: number("io_poll"),
            // "[none] mq-deadline", or plain "none" where there is no choice.
            scheduler: Fact::parse(root, format!("{folder}/queue/scheduler"), |text| {
                let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
                Some(chosen.map_or(text, |(name, _)| name).trim().to_owned())
            }),
            rotational: number("rotational"),
            metadata: Fact::number(root, format!("{folder}/metadata_bytes")),
            queues: match root.list(format!("{folder}/mq")) {
                Ok(names) => Fact::known(format!("{folder}/mq"), names.len() as u64),
                Err(e) => Fact { path: format!("{folder}/mq"), value: Err(super::fact::why(&e)) },
            },
        }
    }
}
