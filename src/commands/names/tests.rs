use std::fs;
use std::os::unix::fs::symlink;

use super::*;

/// A machine with /dev, /sys and a journal.
struct Machine(tempfile::TempDir);

impl Machine {
    /// `entries`: address, serial, disk, namespace number.
    fn new(entries: &[(&str, &str, &str, Option<u32>)]) -> Self {
        let it = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(it.0.path().join("dev/disk/by-id")).unwrap();
        let entries: Vec<_> = entries
            .iter()
            .map(|(address, serial, name, nsid)| {
                serde_json::json!({
                    "address": address, "serial": serial, "model": "M", "driver": "nvme",
                    "driver_override": null, "bound_to": "vfio-pci", "holds": [], "time": 1,
                    "boot_id": "b",
                    "disks": [{ "name": name, "size": 4096, "partitions": [], "nsid": nsid }],
                })
            })
            .collect();
        let text = serde_json::json!({ "version": 1, "entries": entries }).to_string();
        fs::write(it.journal(), text).unwrap();
        it
    }

    fn root(&self) -> Root {
        Root::at(self.0.path())
    }

    fn journal(&self) -> PathBuf {
        self.0.path().join("journal")
    }

    /// Gives the kernel a disk at `address`.
    #[cfg(feature = "spdk")]
    fn disk(&self, name: &str, address: &str) {
        let disk = format!("sys/devices/pci0000:00/{address}/nvme/nvme0/{name}");
        let queue = self.0.path().join(&disk).join("queue");
        fs::create_dir_all(&queue).unwrap();
        fs::write(queue.join("logical_block_size"), "512\n").unwrap();
        fs::create_dir_all(self.0.path().join("sys/class/block")).unwrap();
        let link = self.0.path().join("sys/class/block").join(name);
        symlink(Path::new("../../..").join(disk), link).unwrap();
    }
}

#[cfg(feature = "spdk")]
mod spdk {
    use super::*;

    fn find(machine: &Machine, name: &str) -> Result<SpdkDrive> {
        for_spdk(&machine.root(), &machine.journal(), name)
    }

    #[test]
    fn a_bound_drive_is_found_by_the_names_that_it_had() {
        let machine = Machine::new(&[
            ("0000:01:00.0", "S1", "nvme0n1", Some(3)),
            ("0000:02:00.0", "S2", "nvme1n2", None),
        ]);
        for (name, at) in [
            ("/dev/nvme0n1", "0000:01:00.0 ns:3"),
            ("/dev/nvme0n1p12", "0000:01:00.0 ns:3 part:12"),
            ("/dev/./disk/../nvme0n1p1", "0000:01:00.0 ns:3 part:1"),
            ("/dev/nvme1n2p1", "0000:02:00.0 ns:2 part:1"),
        ] {
            let found = find(&machine, name).unwrap_or_else(|e| panic!("{}", e.report()));
            assert_eq!((found.name.as_str(), found.at.to_string().as_str()), (name, at));
        }
        let expected = find(&machine, "/dev/nvme0n1").unwrap().expected.unwrap();
        assert_eq!((expected.serial.as_str(), expected.bytes), ("S1", None));
        // Without the namespace's number the size has to agree.
        let expected = find(&machine, "/dev/nvme1n2").unwrap().expected.unwrap();
        assert_eq!((expected.serial.as_str(), expected.bytes), ("S2", Some(4096)));
    }

    #[test]
    fn links_are_followed_to_where_nothing_is_any_more() {
        let machine = Machine::new(&[("0000:01:00.0", "S1", "nvme0n1", Some(1))]);
        let folder = machine.0.path().join("dev/disk/by-id");
        symlink("../../nvme0n1p2", folder.join("nvme-M_S1-part2")).unwrap();
        symlink("loop", folder.join("loop")).unwrap();
        let found = find(&machine, "/dev/disk/by-id/nvme-M_S1-part2").unwrap();
        assert_eq!(found.at.to_string(), "0000:01:00.0 ns:1 part:2");
        let found = find(&machine, "/dev/disk/by-id/loop").unwrap();
        assert!(found.expected.is_none());
    }

    #[test]
    fn other_names_are_left_alone_or_explained() {
        let machine = Machine::new(&[("0000:01:00.0", "S1", "nvme0n1", Some(1))]);
        machine.disk("nvme3n1", "0000:03:00.0");
        for name in ["0000:05:00.0 part:1", "/data/nvme0n1", "mem:1MiB", "/dev/nvme3n1"] {
            let found = find(&machine, name).unwrap();
            assert_eq!((found.at.to_string().as_str(), found.expected), (name, None));
        }
        for name in ["/dev/nvme0n12", "/dev/nvme0n1p", "/dev/nvme0n1p01", "/dev/nvme0", "/dev/x"] {
            let error = find(&machine, name).unwrap_err();
            assert_eq!(error.kind(), Kind::NotFound, "{name}");
            assert!(error.remedy_text().is_some());
        }
    }

    #[test]
    fn a_name_that_was_two_drives_is_refused() {
        let machine = Machine::new(&[
            ("0000:01:00.0", "S1", "nvme0n1", Some(1)),
            ("0000:02:00.0", "S2", "nvme0n1", Some(1)),
        ]);
        let error = find(&machine, "/dev/nvme0n1").unwrap_err();
        for word in ["0000:01:00.0", "S1", "0000:02:00.0", "S2"] {
            assert!(error.what().contains(word), "{error}");
        }
        // The kernel has given the name to another drive since.
        let machine = Machine::new(&[("0000:01:00.0", "S1", "nvme0n1", Some(1))]);
        machine.disk("nvme0n1", "0000:02:00.0");
        let error = find(&machine, "/dev/nvme0n1").unwrap_err();
        assert!(error.what().contains("at 0000:02:00.0 now"), "{error}");
        // The drive of the entry itself: it has not left, and the storage says how it does.
        let machine = Machine::new(&[("0000:01:00.0", "S1", "nvme0n1", Some(1))]);
        machine.disk("nvme0n1", "0000:01:00.0");
        assert_eq!(find(&machine, "/dev/nvme0n1").unwrap().expected, None);
    }

    #[test]
    fn a_damaged_journal_is_an_error() {
        let machine = Machine::new(&[]);
        fs::write(machine.journal(), "{").unwrap();
        assert!(find(&machine, "/dev/nvme0n1").unwrap_err().what().contains("damaged"));
    }
}

#[test]
fn a_drive_that_is_away_is_told_with_the_way_back() {
    let machine = Machine::new(&[("0000:01:00.0", "S1", "nvme0n1", Some(1))]);
    symlink("../../nvme0n1", machine.0.path().join("dev/disk/by-id/x")).unwrap();
    for name in ["/dev/nvme0n1p1", "/dev/disk/by-id/x"] {
        let error = away(&machine.root(), &machine.journal(), name).unwrap();
        let report = error.report();
        assert!(report.contains("millrace device restore 0000:01:00.0"), "{report}");
        assert!(report.contains("S1") && report.contains("vfio-pci"), "{report}");
    }
    for name in ["/dev/nvme1n1", "/data/nvme0n1"] {
        assert!(away(&machine.root(), &machine.journal(), name).is_none());
    }
}
