use clap::Parser;

use super::super::config;
use super::*;
use crate::host::Root;
use crate::host::nvme::Disk;
use crate::host::usage::Use;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ServeArgs,
}

fn args(flags: &[&str]) -> ServeArgs {
    let flags = ["serve", "--auto-shard"].iter().chain(flags);
    Cli::try_parse_from(flags).unwrap_or_else(|e| panic!("{e}")).args
}

fn drive(address: &str, node: Option<u32>, driver: &str) -> Drive {
    let disk = Disk { name: "nvme0n1".into(), size: 1, partitions: vec![], nsid: Some(1) };
    Drive {
        address: address.parse().unwrap(),
        serial: Some(format!("S{address}")),
        model: None,
        size: None,
        from_journal: false,
        driver: Some(driver.into()),
        driver_override: None,
        controller: None,
        disks: if driver == "nvme" { vec![disk] } else { vec![] },
        uses: vec![],
        holds: vec![],
        numa_node: node,
        link_now: None,
        link_best: None,
        upstream: None,
        iommu_group: None,
        iommu_peers: vec![],
    }
}

fn nic(name: &str, address: &str, node: Option<u32>) -> Nic {
    Nic { name: name.into(), address: address.parse().unwrap(), node }
}

/// Two nodes of four CPUs, each with two drives and a NIC.
fn host() -> Host {
    Host {
        nodes: vec![
            Node { number: 0, cpus: vec![1, 2, 3, 0] },
            Node { number: 1, cpus: vec![4, 5, 6, 7] },
        ],
        drives: vec![
            drive("0000:01:00.0", Some(0), "nvme"),
            drive("0000:02:00.0", Some(0), "nvme"),
            drive("0000:81:00.0", Some(1), "nvme"),
            drive("0000:82:00.0", Some(1), "nvme"),
        ],
        nics: vec![nic("mlx5_1", "10.0.1.1", Some(1)), nic("mlx5_0", "fd00::1", Some(0))],
    }
}

fn plan(host: &Host, args: &ServeArgs) -> super::super::plan::Plan {
    let text = write(host, args).unwrap_or_else(|e| panic!("{}", e.report()));
    config::parse("auto", &text, &Root::system()).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

#[test]
fn each_node_gets_its_own() {
    let args = args(&["--fabric", "rdma", "--workers", "2", "--insecure", "--depth", "9"]);
    let plan = plan(&host(), &args);
    plan.check().unwrap();
    let [a, b] = &plan.shards[..] else { panic!("{plan:?}") };
    assert_eq!((a.name.as_str(), b.name.as_str()), ("node0", "node1"));
    assert_eq!((a.cores.clone(), b.cores.clone()), (vec![1, 2], vec![4, 5]));
    assert_eq!(a.listen.to_string(), "[fd00::1]:4790");
    assert_eq!(b.listen.to_string(), "10.0.1.1:4790");
    assert_eq!(a.storage.devices, ["0000:01:00.0", "0000:02:00.0"]);
    assert_eq!(b.storage.devices, ["0000:81:00.0", "0000:82:00.0"]);
    assert_eq!((a.storage.node, b.storage.node), (Some(0), Some(1)));
    assert_eq!((a.depth, plan.raw, plan.insecure), (9, true, true));
}

#[test]
fn drives_in_use_or_of_another_driver_are_left_alone_and_named() {
    let mut host = host();
    host.drives[0].uses = vec![Use::Mounted { device: "nvme0n1".into(), at: "/home".into() }];
    host.drives[2].driver = Some("vfio-pci".into());
    host.drives[3].driver = Some("vfio-pci".into());
    let text = write(&host, &args(&["--insecure"])).unwrap();
    assert!(text.contains("# not 0000:01:00.0"), "{text}");
    assert!(text.contains("mounted at /home"), "{text}");
    assert!(text.contains("its driver is vfio-pci"), "{text}");
    assert!(!text.contains("node1\""), "{text}");
    let spdk = plan(&host, &args(&["--insecure", "--backend", "spdk"]));
    assert_eq!(spdk.shards.len(), 1);
    assert_eq!(spdk.shards[0].storage.devices, ["0000:81:00.0", "0000:82:00.0"]);
}

#[test]
fn nothing_crosses_nodes_unasked() {
    let mut host = host();
    host.nics.truncate(1);
    let error = write(&host, &args(&["--insecure"])).unwrap_err();
    assert!(error.what().contains("NUMA node 0 has drives and no NIC"), "{error}");
    assert!(error.what().contains("mlx5_1 10.0.1.1 on node 1"), "{error}");
}

#[test]
fn a_machine_with_one_node_takes_what_names_none() {
    let host = Host {
        nodes: vec![Node { number: 0, cpus: vec![1, 0] }],
        drives: vec![drive("0000:01:00.0", None, "nvme")],
        nics: vec![nic("rxe0", "10.77.0.1", None), nic("rxe1", "10.77.1.1", None)],
    };
    let plan = plan(&host, &args(&["--insecure"]));
    assert_eq!(plan.shards[0].cores, [0, 1]);
    assert_eq!(plan.shards[0].storage.node, None);
    let text = write(&host, &args(&[])).unwrap();
    assert!(text.contains("# also on this node: rxe1 10.77.1.1"), "{text}");
}

#[test]
fn what_cannot_be_had_is_said() {
    let empty = Host { drives: vec![], ..host() };
    let error = write(&empty, &args(&[])).unwrap_err();
    assert!(error.what().contains("there is none at all"), "{error}");
    let error = write(&host(), &args(&["--workers", "5"])).unwrap_err();
    assert!(error.what().contains("may use 4 CPUs"), "{error}");
    let error = write(&host(), &args(&["--backend", "spdk"])).unwrap_err();
    assert!(error.what().contains("its driver is nvme"), "{error}");
}
