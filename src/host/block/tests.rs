use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;

const ADDRESS: Address = Address { domain: 0, bus: 0x5e, device: 0, function: 0 };

/// A tree below a temporary folder, with the relative links that sysfs has.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn root(&self) -> Root {
        Root::at(self.0.path())
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let up = "../".repeat(path.strip_prefix(self.0.path()).unwrap().components().count() - 1);
        symlink(Path::new(&up).join(target), path).unwrap();
    }

    /// One NVMe drive with one partition, on PCI.
    fn nvme() -> Self {
        let tree = Self::new();
        let controller = "sys/devices/pci0000:5d/0000:5d:02.0/0000:5e:00.0/nvme/nvme0";
        let disk = format!("{controller}/nvme0n1");
        for (file, text) in [
            ("queue/logical_block_size", "512"),
            ("queue/dma_alignment", "3"),
            ("queue/max_sectors_kb", "128"),
            ("queue/io_poll", "1"),
            ("nvme0n1p2/partition", "2"),
            ("nvme0n1p2/start", "2048"),
        ] {
            tree.write(&format!("{disk}/{file}"), text);
        }
        for folder in ["holders", "slaves", "nvme0n1p2/holders"] {
            fs::create_dir_all(tree.0.path().join(&disk).join(folder)).unwrap();
        }
        tree.write(&format!("{controller}/serial"), "S4EV NX0   ");
        tree.write(&format!("{controller}/model"), "ACME 3.84TB        ");
        tree.write(&format!("{controller}/numa_node"), "1");
        tree.link(&format!("{disk}/device"), controller);
        tree.link("sys/class/block/nvme0n1", &disk);
        tree.link("sys/class/block/nvme0n1p2", &format!("{disk}/nvme0n1p2"));
        tree.link("sys/dev/block/259:2", &format!("{disk}/nvme0n1p2"));
        let function = "sys/devices/pci0000:5d/0000:5d:02.0/0000:5e:00.0";
        tree.link("sys/bus/pci/devices/0000:5e:00.0", function);
        tree.driver("nvme");
        tree.write("sys/module/nvme/parameters/poll_queues", "4");
        tree
    }

    fn driver(&self, name: &str) {
        let link = "sys/devices/pci0000:5d/0000:5d:02.0/0000:5e:00.0/driver";
        let _ = fs::remove_file(self.0.path().join(link));
        self.link(link, &format!("sys/bus/pci/drivers/{name}"));
    }
}

#[test]
fn a_partition_has_the_facts_of_its_disk() {
    let tree = Tree::nvme();
    let device = BlockDevice::by_number(&tree.root(), 259, 2).unwrap();
    let expected = BlockDevice {
        name: "nvme0n1p2".into(),
        disk: "nvme0n1".into(),
        start: 2048 * 512,
        memory_align: Some(4),
        block_size: 512,
        max_transfer: Some(128 << 10),
        serial: Some("S4EV NX0".into()),
        model: Some("ACME 3.84TB".into()),
        node: Some(1),
        pci: Some(ADDRESS),
    };
    assert_eq!(device, expected);
    assert_eq!(BlockDevice::by_name(&tree.root(), "nvme0n1").unwrap().start, 0);
}

#[test]
fn a_device_that_is_not_there_is_not_found() {
    let error = BlockDevice::by_name(&Tree::nvme().root(), "sdq").unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

#[test]
fn a_node_of_minus_one_is_none() {
    let tree = Tree::nvme();
    tree.write("sys/class/block/nvme0n1/device/numa_node", "-1");
    assert_eq!(BlockDevice::by_name(&tree.root(), "nvme0n1").unwrap().node, None);
}

#[test]
fn a_pci_address_leads_to_the_namespace() {
    let tree = Tree::nvme();
    assert_eq!(of_pci(&tree.root(), ADDRESS, None).unwrap(), "nvme0n1");
    let missing = Address { bus: 0x5f, ..ADDRESS };
    assert_eq!(of_pci(&tree.root(), missing, None).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn several_namespaces_are_named() {
    let tree = Tree::nvme();
    let folder = "sys/bus/pci/devices/0000:5e:00.0/nvme/nvme0";
    fs::create_dir_all(tree.0.path().join(folder).join("nvme0n2")).unwrap();
    let error = of_pci(&tree.root(), ADDRESS, None).unwrap_err();
    assert!(error.what().contains("nvme0n1, nvme0n2"), "{error}");
    tree.write("sys/class/block/nvme0n1/nsid", "4");
    assert_eq!(of_pci(&tree.root(), ADDRESS, Some(4)).unwrap(), "nvme0n1");
    let error = of_pci(&tree.root(), ADDRESS, Some(1)).unwrap_err();
    assert!(error.what().contains("no namespace 1; active are [4]"), "{error}");
    for other in ["hwmon3", "nvme0-fabrics", "ng0n1", "nvmen1", "nvme0n"] {
        assert_eq!(namespace(other), None, "{other}");
    }
    assert_eq!(namespace("nvme0c1n2").as_deref(), Some("nvme0n2"), "native multipath");
}

#[test]
fn partitions_are_found_by_number() {
    let tree = Tree::nvme();
    assert_eq!(partition(&tree.root(), "nvme0n1", 2).unwrap(), "nvme0n1p2");
    let error = partition(&tree.root(), "nvme0n1", 1).unwrap_err();
    assert!(error.what().contains("no partition 1 of nvme0n1; it has [2]"), "{error}");
    assert!(error.remedy_text().is_some());
}

#[test]
fn another_driver_is_named_with_the_command_that_mends_it() {
    let tree = Tree::nvme();
    for driver in ["vfio-pci", "uio_pci_generic"] {
        tree.driver(driver);
        let error = of_pci(&tree.root(), ADDRESS, None).unwrap_err();
        assert!(error.what().contains(driver), "{error}");
        let report = error.report();
        assert!(report.contains("millrace device restore 0000:5e:00.0"), "{report}");
    }
}

#[test]
fn polling_is_refused_with_the_reason() {
    let check = |tree: &Tree| {
        BlockDevice::by_name(&tree.root(), "nvme0n1").unwrap().check_polling(&tree.root())
    };
    assert!(check(&Tree::nvme()).is_ok());

    let tree = Tree::nvme();
    tree.write("sys/module/nvme/parameters/poll_queues", "0");
    assert!(check(&tree).unwrap_err().report().contains("nvme poll_queues=4"));

    let tree = Tree::nvme();
    tree.write("sys/class/block/nvme0n1/queue/io_poll", "0");
    assert!(check(&tree).unwrap_err().what().contains("io_poll is \"0\""));

    let tree = Tree::nvme();
    tree.write("sys/class/block/nvme0n1/holders/md0/x", "");
    assert!(check(&tree).unwrap_err().what().contains("part of md0"));

    let tree = Tree::nvme();
    tree.write("sys/class/block/nvme0n1/slaves/sda/x", "");
    assert!(check(&tree).unwrap_err().what().contains("stacked on sda"));
}
