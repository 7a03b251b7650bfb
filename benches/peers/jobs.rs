//! The jobs: what is measured against whom.

use crate::peers::{self, Run};
use crate::setup::{Stage, have};

/// One comparison.
pub struct Job {
    pub name: &'static str,
    pub what: &'static str,
    /// Name of the other side.
    pub peer: &'static str,
    pub unit: &'static str,
    /// True where the figure is a time.
    pub less_is_more: bool,
    /// Programs that must be there.
    pub needs: &'static [&'static str],
    pub setup: fn() -> Result<Stage, String>,
    pub ours: fn(&mut Stage, f64) -> Result<Run, String>,
    pub theirs: fn(&mut Stage, f64) -> Result<Run, String>,
}

impl Job {
    /// What of its needs is not here.
    pub fn missing(&self) -> Option<String> {
        let missing: Vec<_> = self.needs.iter().filter(|name| !have(name)).copied().collect();
        (!missing.is_empty()).then(|| format!("not installed: {}", missing.join(", ")))
    }
}

const FIO: &[&str] = &["fio", "losetup"];
const SPDK: &[&str] = &["nvmf_tgt", "spdk_nvme_perf", "spdk-rpc"];

/// All of them.
pub fn jobs() -> Vec<Job> {
    vec![
        Job {
            name: "uring-4k-32",
            what: "local, io_uring, loop device on tmpfs, 4 KiB depth 32, one core",
            peer: "fio",
            unit: "reads/s",
            less_is_more: false,
            needs: FIO,
            setup: Stage::loop_device,
            ours: |stage, s| peers::local_uring(stage, "4KiB", 32, s),
            theirs: |stage, s| peers::fio(stage, "4k", 32, s),
        },
        Job {
            name: "uring-1m-16",
            what: "local, io_uring, loop device on tmpfs, 1 MiB depth 16, one core",
            peer: "fio",
            unit: "reads/s",
            less_is_more: false,
            needs: FIO,
            setup: Stage::loop_device,
            ours: |stage, s| peers::local_uring(stage, "1MiB", 16, s),
            theirs: |stage, s| peers::fio(stage, "1m", 16, s),
        },
        Job {
            name: "scan-4k-64",
            what: "restart of a store: its headers, against local at 4 KiB depth 64, which is the \
                   limit",
            peer: "local",
            unit: "reads/s",
            less_is_more: false,
            needs: &["losetup"],
            setup: Stage::store,
            ours: |stage, s| peers::scan(stage, s),
            theirs: |stage, s| peers::local_4k_64(stage, s),
        },
        Job {
            name: "objects-1m-none",
            what: "GET of 1 MiB objects over TCP loopback, nothing checked, against reads of the \
                   same drive's ranges of that size",
            peer: "--raw",
            unit: "reads/s",
            less_is_more: false,
            needs: &["losetup"],
            setup: Stage::filled,
            ours: |stage, s| peers::objects(stage, "none", s),
            theirs: |stage, s| peers::ranges(stage, "none", s),
        },
        Job {
            name: "objects-1m-crc",
            what: "the same with --check crc on both sides: the cost of the object's path alone",
            peer: "--raw",
            unit: "reads/s",
            less_is_more: false,
            needs: &["losetup"],
            setup: Stage::filled,
            ours: |stage, s| peers::objects(stage, "crc", s),
            theirs: |stage, s| peers::ranges(stage, "crc", s),
        },
        Job {
            name: "tcp-1m-16",
            what: "TCP loopback from RAM, 1 MiB depth 16, a core each, against SPDK NVMe/TCP",
            peer: "spdk",
            unit: "reads/s",
            less_is_more: false,
            needs: SPDK,
            setup: || Stage::millrace_mem()?.with_spdk_tcp(),
            ours: |stage, s| peers::bench_tcp(stage, "1MiB", 16, 1, s),
            theirs: |stage, s| peers::spdk_perf(stage, 1, 1 << 20, 16, s),
        },
        Job {
            name: "tcp-1m-16-of-iperf3",
            what: "the same against one stream of iperf3, which is the limit",
            peer: "iperf3",
            unit: "bytes/s",
            less_is_more: false,
            needs: &["iperf3"],
            setup: || Stage::millrace_mem()?.with_iperf3(),
            ours: |stage, s| peers::bench_tcp(stage, "1MiB", 16, 1, s).map(Run::as_mib_bytes),
            theirs: peers::iperf3,
        },
        Job {
            name: "tcp-4k-32",
            what: "TCP loopback from RAM, 4 KiB depth 32, a core each, against SPDK NVMe/TCP",
            peer: "spdk",
            unit: "reads/s",
            less_is_more: false,
            needs: SPDK,
            setup: || Stage::millrace_mem()?.with_spdk_tcp(),
            ours: |stage, s| peers::bench_tcp(stage, "4KiB", 32, 1, s),
            theirs: |stage, s| peers::spdk_perf(stage, 1, 4096, 32, s),
        },
        Job {
            name: "tcp-4k-1",
            what: "TCP loopback from RAM, 4 KiB depth 1, a core each, against SPDK NVMe/TCP",
            peer: "spdk",
            unit: "reads/s",
            less_is_more: false,
            needs: SPDK,
            setup: || Stage::millrace_mem()?.with_spdk_tcp(),
            ours: |stage, s| peers::bench_tcp(stage, "4KiB", 1, 1, s),
            theirs: |stage, s| peers::spdk_perf(stage, 1, 4096, 1, s),
        },
        Job {
            name: "spdk-4k-32",
            what: "local, SPDK over vfio-user to a target in RAM, 4 KiB depth 32, one core",
            peer: "spdk_nvme_perf",
            unit: "reads/s",
            less_is_more: false,
            needs: SPDK,
            setup: Stage::spdk_vfiouser,
            ours: |stage, s| peers::local_spdk(stage, "4KiB", 32, "none", s),
            theirs: |stage, s| peers::spdk_perf(stage, 0, 4096, 32, s),
        },
        Job {
            name: "spdk-4k-1",
            what: "the same at depth 1",
            peer: "spdk_nvme_perf",
            unit: "reads/s",
            less_is_more: false,
            needs: SPDK,
            setup: Stage::spdk_vfiouser,
            ours: |stage, s| peers::local_spdk(stage, "4KiB", 1, "none", s),
            theirs: |stage, s| peers::spdk_perf(stage, 0, 4096, 1, s),
        },
        Job {
            name: "spdk-1m-16",
            what: "the same with 1 MiB at depth 16",
            peer: "spdk_nvme_perf",
            unit: "reads/s",
            less_is_more: false,
            needs: SPDK,
            setup: Stage::spdk_vfiouser,
            ours: |stage, s| peers::local_spdk(stage, "1MiB", 16, "none", s),
            theirs: |stage, s| peers::spdk_perf(stage, 0, 1 << 20, 16, s),
        },
        Job {
            name: "spdk-1m-16-crc-of-crc",
            what: "the same with the CRC checked, against the CRC alone, which is the limit",
            peer: "crc-fast alone",
            unit: "reads/s",
            less_is_more: false,
            needs: SPDK,
            setup: Stage::spdk_vfiouser,
            ours: |stage, s| peers::local_spdk(stage, "1MiB", 16, "crc", s),
            theirs: peers::crc_alone,
        },
        Job {
            // The same load in all, 1,024 reads in flight: what 16 connections can have by the
            // default credits. One read per connection would compare depth 1 with depth 16
            // instead (the job below): TCP then carries one request and one answer per segment.
            name: "connections-256-of-16",
            what: "one worker, TCP loopback, 16 KiB: 256 connections of depth 4 against 16 of 64",
            peer: "16 connections",
            unit: "reads/s",
            less_is_more: false,
            needs: &[],
            setup: Stage::millrace_mem,
            ours: |stage, s| peers::bench_tcp(stage, "16KiB", 4, 256, s),
            theirs: |stage, s| peers::bench_tcp(stage, "16KiB", 64, 16, s),
        },
        Job {
            name: "depth-1-connections-256-of-16",
            what: "the same at depth 1 on both sides, 256 reads in flight against 16",
            peer: "16 connections",
            unit: "reads/s",
            less_is_more: false,
            needs: &[],
            setup: Stage::millrace_mem,
            ours: |stage, s| peers::bench_tcp(stage, "16KiB", 1, 256, s),
            theirs: |stage, s| peers::bench_tcp(stage, "16KiB", 1, 16, s),
        },
        Job {
            name: "depth-1-of-16-connections",
            what: "256 connections of depth 1 against 16 of 16: answers that cannot be batched",
            peer: "depth 16",
            unit: "reads/s",
            less_is_more: false,
            needs: &[],
            setup: Stage::millrace_mem,
            ours: |stage, s| peers::bench_tcp(stage, "16KiB", 1, 256, s),
            theirs: |stage, s| peers::bench_tcp(stage, "16KiB", 16, 16, s),
        },
        Job {
            name: "counters-on-of-off",
            what: "local, io_uring, loop device on tmpfs, 4 KiB depth 32: all counters of none",
            peer: "no counters",
            unit: "reads/s",
            less_is_more: false,
            needs: &["losetup"],
            setup: Stage::loop_device,
            ours: |stage, s| peers::counted_uring(stage, "4KiB", 32, "on", s),
            theirs: |stage, s| peers::counted_uring(stage, "4KiB", 32, "off", s),
        },
    ]
}
