//! How fast a set of servers can be, and what is the wall: a model of limits.
//!
//! Every part of the way has a most that it can carry: requests in flight over the time that one
//! takes, drives, PCIe, NICs on both sides, the workers' CPU time, memory. The throughput is the
//! least of them, and the part whose limit that is is the wall. docs/SCALING.md says where the
//! constants come from and how far the model can be trusted.

/// 1 GiB in bytes.
pub const GIB: f64 = (1u64 << 30) as f64;

/// A page of the smallest size.
const BASE_PAGE: f64 = 4096.0;

/// A PCIe link.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Link {
    /// Transfers per lane in GT/s: 8 (gen 3), 16 (gen 4), 32 (gen 5).
    pub gigatransfers: f64,
    /// Lanes.
    pub lanes: u32,
}

impl Link {
    /// Bytes of data per second in one direction: less 128b/130b encoding (gen 3 to 5), and less
    /// the header, sequence number and checksum of each packet of 256 bytes (PCI Express Base
    /// Specification: 12 or 16 of header, 2 of sequence, 4 of LCRC, 4 of framing).
    pub fn bytes_per_sec(self) -> f64 {
        const PACKET: f64 = 256.0;
        const AROUND: f64 = 16.0 + 2.0 + 4.0 + 4.0;
        let raw = self.gigatransfers * 1e9 / 8.0 * f64::from(self.lanes) * 128.0 / 130.0;
        raw * PACKET / (PACKET + AROUND)
    }
}

/// One shard: a NUMA node with its NIC and drives.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Shard {
    /// NIC in Gbit/s.
    pub nic_gbit: f64,
    /// The NIC's slot, as it is wired.
    pub nic_link: Option<Link>,
    /// Drives.
    pub drives: u32,
    /// Bytes per second of one drive.
    pub drive_bytes_per_sec: f64,
    /// Reads per second of one drive; infinite where only bytes matter.
    pub drive_iops: f64,
    /// Time of one read on an idle drive, in nanoseconds, without its transfer.
    pub drive_latency_ns: f64,
    /// Bytes per second of the node's memory.
    pub memory_bytes_per_sec: Option<f64>,
    /// Workers.
    pub workers: u32,
    /// Requests of one worker on the drives at once.
    pub depth: u32,
}

/// What is done to the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// The CPU does not look at it.
    None,
    /// One load every 64 bytes.
    Touch,
    /// A CRC.
    Crc,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Load {
    /// Shards in all.
    pub shards: u32,
    /// Client NICs in all, each as fast as a shard's.
    pub client_nics: u32,
    /// Bytes of payload of a request.
    pub payload: f64,
    /// Bytes that the drive reads for it: 4,096 more for an object.
    pub on_drive: f64,
    /// Bytes of a page of the arena.
    pub page: f64,
    /// Whether the kernel pins the pages for each read (a buffer that is not registered).
    pub pinned_per_read: bool,
    /// What is done to the data.
    pub access: Access,
}

/// Costs of a worker's core, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Costs {
    /// Each request, whatever its size.
    pub request_ns: f64,
    /// Each base page that the kernel pins for a read.
    pub pin_ns: f64,
    /// Each byte of a CRC.
    pub crc_ns_per_byte: f64,
    /// Each byte of `touch`.
    pub touch_ns_per_byte: f64,
    /// Each base page of data that is looked at in an arena of base pages, all workers busy.
    pub page_walk_ns: f64,
}

impl Costs {
    /// From the published figures (docs/SCALING.md, "Constants"). One core with plain reads of
    /// 1 MiB stops at 22.7 GiB/s, 81.6 % of it pinning 256 pages: the first two. CRC at 50 GiB/s.
    /// Eight workers on base pages with CRC stop at half of 46.6 GiB/s: the last.
    pub fn published() -> Self {
        let read_ns = 1e9 / (22.7 * 1024.0);
        let crc_ns_per_byte = 1e9 / (50.0 * GIB);
        let request_ns = read_ns * (1.0 - 0.816);
        let get_ns = 1e9 * 8.0 / (nic_bytes(400.0) / 2.0 / f64::from(1 << 20));
        let crc_ns = crc_ns_per_byte * f64::from(1028 << 10);
        Self {
            request_ns,
            pin_ns: read_ns * 0.816 / 256.0,
            crc_ns_per_byte,
            // It loads as many cache lines as the CRC, and does nothing else.
            touch_ns_per_byte: crc_ns_per_byte,
            page_walk_ns: (get_ns - request_ns - crc_ns) / 257.0,
        }
    }

    /// Nanoseconds of CPU time of one request.
    pub fn of(&self, load: &Load) -> f64 {
        let pages = (load.on_drive / BASE_PAGE).ceil();
        let mut sum = self.request_ns;
        if load.pinned_per_read {
            sum += pages * self.pin_ns;
        }
        sum += match load.access {
            Access::None => 0.0,
            Access::Touch => load.on_drive * self.touch_ns_per_byte,
            Access::Crc => load.on_drive * self.crc_ns_per_byte,
        };
        if load.access != Access::None && load.page <= BASE_PAGE {
            sum += pages * self.page_walk_ns;
        }
        sum
    }
}

/// What limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wall {
    /// Requests in flight: more depth helps.
    Depth,
    /// The drives.
    Drive,
    /// The slot of the NIC.
    Pcie,
    /// The servers' NICs.
    Nic,
    /// The clients' NICs.
    Client,
    /// The workers' cores.
    Cpu,
    /// Memory.
    Memory,
}

/// What the model says.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Prediction {
    /// Bytes of payload per second of all shards.
    pub bytes_per_sec: f64,
    /// Requests per second of all shards.
    pub requests_per_sec: f64,
    /// The part that limits.
    pub wall: Wall,
    /// Every limit, in bytes of payload per second of all shards, least first.
    pub limits: Vec<(Wall, f64)>,
}

/// Bytes per second of a NIC at line rate.
pub fn nic_bytes(gbit: f64) -> f64 {
    gbit * 1e9 / 8.0
}

/// Pages of the data of one request that a TLB of `entries` cannot hold, because the arena has
/// more pages than that: at most one miss each for a pass over the data.
pub fn dtlb_misses(shard: &Shard, load: &Load, entries: f64) -> f64 {
    let arena = load.on_drive * 2.0 * f64::from(shard.depth);
    if arena / load.page <= entries { 0.0 } else { (load.on_drive / load.page).ceil() }
}

/// Predicts the throughput of `load.shards` shards that are all like `shard`.
pub fn predict(shard: &Shard, load: &Load, costs: &Costs) -> Prediction {
    let count = f64::from(load.shards);
    let payload_share = load.payload / load.on_drive;
    let drives = f64::from(shard.drives);
    let drive = (shard.drive_bytes_per_sec * payload_share).min(shard.drive_iops * load.payload);
    let in_flight = f64::from(shard.workers) * f64::from(shard.depth);
    let time_ns = shard.drive_latency_ns
        + load.on_drive / shard.drive_bytes_per_sec * 1e9
        + costs.of(load)
        + load.payload / nic_bytes(shard.nic_gbit) * 1e9;
    let mut limits = vec![
        (Wall::Depth, count * in_flight / time_ns * 1e9 * load.payload),
        (Wall::Drive, count * drives * drive),
        (Wall::Nic, count * nic_bytes(shard.nic_gbit)),
        (Wall::Client, f64::from(load.client_nics) * nic_bytes(shard.nic_gbit)),
        (Wall::Cpu, count * f64::from(shard.workers) / costs.of(load) * 1e9 * load.payload),
    ];
    if let Some(link) = shard.nic_link {
        limits.push((Wall::Pcie, count * link.bytes_per_sec()));
    }
    if let Some(memory) = shard.memory_bytes_per_sec {
        // Written by the drive, read by the NIC, and by the core that checks it.
        let passes = if load.access == Access::None { 2.0 } else { 3.0 };
        limits.push((Wall::Memory, count * memory / passes * payload_share));
    }
    // Stable: of equal limits the one that is named first above is the wall.
    limits.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (wall, bytes_per_sec) = limits[0];
    Prediction { bytes_per_sec, requests_per_sec: bytes_per_sec / load.payload, wall, limits }
}

/// A published figure beside what the model says.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Published {
    /// What was measured.
    pub what: &'static str,
    /// The least and the most that was published.
    pub range: (f64, f64),
    /// Unit of the figures.
    pub unit: &'static str,
    /// What the model says.
    pub predicted: f64,
    /// The wall, where it is a throughput.
    pub wall: Option<Wall>,
    /// True where a constant of the model was taken from this very figure: it proves nothing.
    pub calibrates: bool,
}

/// The shard of the published measurements.
pub fn published_shard(workers: u32, depth: u32) -> Shard {
    Shard {
        nic_gbit: 400.0,
        nic_link: Some(Link { gigatransfers: 32.0, lanes: 16 }),
        drives: 8,
        drive_bytes_per_sec: 7.0 * GIB,
        drive_iops: f64::INFINITY,
        drive_latency_ns: 80_000.0,
        memory_bytes_per_sec: None,
        workers,
        depth,
    }
}

/// Every published figure that the model has something to say about.
pub fn published() -> Vec<Published> {
    let costs = Costs::published();
    let mib = f64::from(1 << 20);
    let read = |page: f64, pinned: bool| Load {
        shards: 1,
        client_nics: 1,
        payload: mib,
        on_drive: mib,
        page,
        pinned_per_read: pinned,
        access: Access::None,
    };
    let object = |page: f64, access: Access| Load {
        shards: 8,
        client_nics: 8,
        payload: mib,
        on_drive: mib + 4096.0,
        page,
        pinned_per_read: false,
        access,
    };
    let gib = |p: &Prediction| p.bytes_per_sec / GIB;
    let mut table = Vec::new();
    let mut put = |what, range, unit, predicted, wall, calibrates| {
        table.push(Published { what, range, unit, predicted, wall, calibrates });
    };
    let one = |depth| published_shard(1, depth);
    let p = predict(&one(16), &read(4096.0, true), &costs);
    put("1 worker, plain reads, depth 16", (22.7, 22.7), "GiB/s", gib(&p), Some(p.wall), true);
    put("the same, pages pinned", (5e6, 13e6), "pages/s", p.requests_per_sec * 256.0, None, true);
    let p = predict(&one(64), &read(4096.0, false), &costs);
    put("1 worker, registered, depth 64", (46.6, 46.6), "GiB/s", gib(&p), Some(p.wall), false);
    let eight = published_shard(8, 64);
    let p = predict(&eight, &object(4096.0, Access::Crc), &costs);
    put("8 shards, 4 KiB pages, CRC", (168.0, 205.0), "GiB/s", gib(&p), Some(p.wall), true);
    let p = predict(&eight, &object(4096.0, Access::Touch), &costs);
    put("8 shards, 4 KiB pages, touch", (168.0, 205.0), "GiB/s", gib(&p), Some(p.wall), false);
    let p = predict(&eight, &object(4096.0, Access::None), &costs);
    put("8 shards, 4 KiB pages, no check", (372.5, 372.5), "GiB/s", gib(&p), Some(p.wall), false);
    let huge = f64::from(1 << 30);
    let p = predict(&eight, &object(huge, Access::Crc), &costs);
    put("8 shards, 1 GiB pages, CRC", (372.5, 372.5), "GiB/s", gib(&p), Some(p.wall), false);
    // Second-level TLBs of that generation have 1,536 to 2,048 entries.
    let misses = |page| dtlb_misses(&eight, &object(page, Access::Crc), 2048.0);
    put("dTLB misses per GET, 4 KiB pages", (80.0, 257.0), "misses", misses(4096.0), None, false);
    put("dTLB misses per GET, 1 GiB pages", (0.0, 1.0), "misses", misses(huge), None, false);
    let gbit = |lanes| Link { gigatransfers: 8.0, lanes }.bytes_per_sec() * 8.0 / 1e9;
    put("100G NIC in a slot wired x4", (28.0, 30.0), "Gbit/s", gbit(4), Some(Wall::Pcie), false);
    let after = gbit(16).min(100.0);
    put("the same in x16", (96.0, 100.0), "Gbit/s", after, Some(Wall::Nic), false);
    table
}

#[cfg(test)]
mod tests;
