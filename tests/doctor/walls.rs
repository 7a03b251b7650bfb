//! Whole hosts: the healthy one passes, and each wall is the first thing that is said, with the
//! figure that gives it away.

use millrace::doctor::{self, Case, Rates, ceiling, examine, exit_code};
use millrace::host::finding::{Finding, Outcome};

use crate::checks::job;
use crate::hosts::Host;

/// Four drives and the NIC of node 0, with workers there.
const NODE_0: &str = "rdma,nic=mlx5_0,cores=2-5,dev=/dev/nvme0n1,dev=/dev/nvme1n1,\
                      dev=/dev/nvme2n1,dev=/dev/nvme3n1";

fn case(host: &str, flags: &str) -> Case {
    let flags: Vec<String> =
        flags.split(',').filter(|flag| !flag.is_empty()).map(str::to_owned).collect();
    let host = Host::load(host);
    Case::read(&host.root(), job(&flags), host.probe.clone())
}

/// The first finding, which must be this check's, with this text in what it says or shows.
fn first(host: &str, flags: &str, id: &str, figure: &str) -> Vec<Finding> {
    let findings = examine(&case(host, flags));
    let first = &findings[0];
    assert_eq!(first.id, id, "{first:#?}");
    let shown = first.evidence.iter().any(|evidence| evidence.value.contains(figure));
    assert!(first.what.contains(figure) || shown, "no {figure} in {first:#?}");
    assert!(!first.mends.is_empty(), "{first:#?}");
    findings
}

#[test]
fn a_healthy_server_has_no_finding() {
    for flags in [NODE_0, "rdma", "spdk,cores=2-5,dev=/dev/nvme0n1", ""] {
        let findings = examine(&case("server", flags));
        let troubles: Vec<_> = findings.iter().filter(|finding| finding.is_trouble()).collect();
        assert!(troubles.is_empty(), "{flags}: {troubles:#?}");
        assert_eq!(exit_code(&findings), 0);
    }
    assert_eq!(exit_code(&examine(&case("amd-1g", ""))), 0);
}

#[test]
fn the_wall_of_the_link() {
    // Section 3: LnkSta 8GT/s x4, which is 32 Gb/s less encoding.
    let findings = first("wall-link", NODE_0, "pcie-nic-link", "8GT/s x4, 31.5 Gb/s");
    assert_eq!(exit_code(&findings), 4);
}

#[test]
fn the_wall_of_deep_sleep() {
    // Section 4: cores in C6, which takes hundreds of microseconds to leave.
    let findings =
        first("wall-sleep", NODE_0, "cpu-cstates", "290 us (C6: entered 9812345 times, 50 %");
    let ids: Vec<&str> =
        findings.iter().filter(|f| f.outcome >= Outcome::Warn).map(|f| f.id).collect();
    assert_eq!(ids, ["cpu-cstates", "cpu-governor", "irq-balance"]);
}

#[test]
fn the_wall_of_shootdowns() {
    // Section 5: the TLB row of /proc/interrupts.
    first("wall-shootdowns", NODE_0, "tlb-shootdowns", "9500/s");
}

#[test]
fn the_wall_of_small_pages() {
    let findings = first("wall-pages", NODE_0, "hugepages-free", "0 free, 260 needed");
    let requests = findings.iter().find(|f| f.id == "drive-requests").expect("it is a check");
    let says =
        "1028KiB on 4KiB pages gives 257 segments, /dev/nvme0n1 takes 127: 3 requests per read";
    assert_eq!(requests.what, says);
}

#[test]
fn the_wall_of_a_strict_iommu() {
    let findings = first("wall-iommu", NODE_0, "iommu-domain", "DMA");
    let boot = findings.iter().find(|f| f.id == "iommu-boot").expect("it is a check");
    assert!(boot.what.contains("amd_iommu=pt"), "{boot:#?}");
}

#[test]
fn a_sick_server_is_told_its_faults_by_what_they_cost() {
    let findings = first("sick", NODE_0, "pcie-nic-link", "32GT/s x4");
    let ids: Vec<&str> =
        findings.iter().filter(|f| f.outcome >= Outcome::Warn).map(|f| f.id).collect();
    let expected = [
        "pcie-nic-link",
        "cpu-cstates",
        "cpu-governor",
        "cpu-preference",
        "numa-drives",
        "irq-balance",
    ];
    assert_eq!(ids, expected);
    let drives = findings.iter().find(|f| f.id == "numa-drives").expect("it is a check");
    assert!(drives.what.contains("/dev/nvme2n1 is on node 1"), "{drives:#?}");
    assert!(drives.what.contains("distance 21"), "{drives:#?}");
}

#[test]
fn other_hosts_are_known_for_what_they_are() {
    first("container", "", "uring-seccomp", "seccomp");
    first("laptop", "", "memlock", "1MiB");
    let guest = examine(&case("guest", "rdma"));
    for id in ["drive-emulated", "rdma-soft", "host-virtual", "iommu-domain"] {
        let finding = guest.iter().find(|finding| finding.id == id).expect(id);
        assert!(finding.outcome >= Outcome::Warn, "{finding:#?}");
    }
    // For SPDK with a smaller job, nothing stands in the guest's way.
    let mut small = job(&["spdk".to_owned()]);
    small.arena_bytes = 16 << 20;
    let host = Host::load("guest");
    let spdk = examine(&Case::read(&host.root(), small, host.probe.clone()));
    assert!(spdk.iter().all(|finding| !finding.stops), "{spdk:#?}");
}

#[test]
fn the_least_part_is_the_ceiling() {
    let rates = Rates {
        crc_per_core: Some(50e9),
        memory: Some(600e9),
        drive: Some(7.0 * f64::from(1 << 30)),
    };
    let names = |case: &Case| ceiling(case, rates).least.expect("something is known");
    let healthy = case("server", NODE_0);
    // 16 GT/s x4 carries 7.88 GB/s on the line; of 156 bytes 128 are payload: 6.46 GB/s.
    assert_eq!(names(&healthy), "drives' links");
    let found = ceiling(&healthy, rates);
    let rate = found.bytes_per_sec.expect("known");
    assert!((rate / 4.0 / 1e9 - 6.46).abs() < 0.01, "{rate}");
    assert!((found.reads_per_sec.expect("known") - rate / 1_052_672.0).abs() < 1.0);
    // A NIC on 8 GT/s x4.
    assert_eq!(names(&case("wall-link", NODE_0)), "NIC's link");
    // One core's CRC.
    let one = "rdma,nic=mlx5_0,cores=2,dev=/dev/nvme0n1,dev=/dev/nvme1n1,dev=/dev/nvme2n1";
    let slow = Rates { crc_per_core: Some(10e9), ..rates };
    assert_eq!(ceiling(&case("server", one), slow).least, Some("CRC"));
    // Nothing is made up where nothing is known.
    let guest = ceiling(&case("amd-1g", ""), Rates::default());
    let drives = guest.parts.iter().find(|part| part.part == "drives").expect("a part");
    assert_eq!(drives.bytes_per_sec, None);
}

#[test]
fn drives_behind_one_uplink_are_capped_by_it() {
    let host = Host::load("switch");
    host.set("/sys/bus/pci/devices/0000:10:01.0/current_link_width", "4");
    let case = Case::read(&host.root(), job(&[]), host.probe.clone());
    let found = ceiling(&case, Rates::default());
    assert_eq!(found.least, Some("uplinks"), "{found:#?}");
    // 32 GT/s x4: 126 Gb/s on the line.
    let gigabits = found.bytes_per_sec.expect("known") * 8.0 / 1e9 / 128.0 * 156.0;
    assert!((gigabits - 126.0).abs() < 0.1, "{gigabits}");
}

#[test]
fn reports_have_everything_and_nothing_is_written() {
    let host = Host::load("sick");
    let before = host.contents();
    let flags: Vec<String> = NODE_0.split(',').map(str::to_owned).collect();
    let case = Case::read(&host.root(), job(&flags), host.probe.clone());
    let findings = examine(&case);
    let found = ceiling(&case, Rates::default());
    let table = doctor::table(&case, &findings, &found);
    for expected in ["FAIL  pcie-nic-link: ", "WARN  irq-balance: ", "what each part can carry"] {
        assert!(table.contains(expected), "{expected} in {table}");
    }
    let json = doctor::json(&case, &findings, &found).expect("it is JSON");
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(json["schema"], doctor::SCHEMA);
    assert_eq!(json["exit_code"], 4);
    assert_eq!(json["findings"].as_array().expect("a list").len(), doctor::ALL.len());
    let first = &json["findings"][0];
    for key in ["id", "outcome", "stops", "what", "why", "evidence", "mends"] {
        assert!(!first[key].is_null(), "{key} in {first}");
    }
    assert_eq!(json["facts"]["machine"]["cpus"]["vendor"], "GenuineIntel");
    assert_eq!(json["requests"].as_array().expect("a list").len(), 4);

    let script = doctor::script(&findings);
    assert!(script.contains("\nsystemctl disable --now irqbalance\n"), "{script}");
    assert!(script.contains("\ncpupower frequency-set -g performance\n"), "{script}");
    assert!(script.contains("#   by hand: "), "{script}");
    assert_eq!(host.contents(), before, "the tree was changed");
}

#[test]
fn a_drive_that_sleeps_is_left_asleep() {
    let host = Host::load("server");
    let function = "/sys/bus/pci/devices/0000:17:00.0";
    host.set(&format!("{function}/power/runtime_status"), "suspended");
    // To read either would wake it; here it would show as something that could not be read.
    let _link = host.change(&format!("{function}/current_link_speed"), "!");
    let _heat = host.change("/sys/class/nvme/nvme0/hwmon0/temp1_input", "!");
    let findings = examine(&Case::read(&host.root(), job(&[]), host.probe.clone()));
    assert!(findings.iter().all(|finding| finding.unread.is_empty()), "it was woken");
    let power = findings.iter().find(|finding| finding.id == "drive-power").expect("a check");
    assert_eq!(power.outcome, Outcome::Warn);
}

#[test]
fn what_stops_a_run_stops_it_before_it_begins() {
    let cases = [
        ("server", "rdma,nic=mlx5_9", "no RDMA device is, or is on, mlx5_9"),
        ("amd-1g", "rdma", "this machine has no RDMA device (no network interface but lo)"),
        ("container", "", "io_uring is refused to this process"),
    ];
    for (host, flags, text) in cases {
        let error = doctor::preflight(&case(host, flags)).expect_err(text);
        assert!(error.what().contains(text), "{}", error.report());
    }
    // What merely costs does not.
    for host in ["sick", "wall-pages", "wall-iommu"] {
        let findings = doctor::preflight(&case(host, NODE_0)).expect("it may run");
        assert!(findings[0].outcome == Outcome::Fail, "{host}");
    }
}
