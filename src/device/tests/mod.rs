//! Binding and restoring on made machines: every reason against a move, a fault of every write, a
//! crash after every step.

mod refusals;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::testing::{DRIVE, Machine};
use super::*;
use crate::error::Kind;

fn request(drives: &[&str]) -> BindRequest {
    BindRequest { drives: drives.iter().map(|d| d.to_string()).collect(), ..Default::default() }
}

/// With the serial quoted.
fn meant(drives: &[&str]) -> BindRequest {
    BindRequest { meant: vec!["mill0".to_owned()], ..request(drives) }
}

fn bind_it(machine: &Machine, request: &BindRequest) -> Result<String> {
    let mut said = String::new();
    bind(machine, &mut machine.journal(), request, &mut |text| said += &format!("{text}\n"))?;
    Ok(said)
}

fn restore_it(machine: &Machine, drives: &[&str]) -> Result<String> {
    let request = RestoreRequest { drives: drives.iter().map(|d| d.to_string()).collect() };
    let mut said = String::new();
    restore(machine, &mut machine.journal(), &request, &mut |text| said += &format!("{text}\n"))?;
    Ok(said)
}

fn drive(machine: &Machine) -> Drive {
    let journal = Journal::read(&machine.journal_path()).unwrap();
    look_again(machine.root(), &journal, DRIVE.parse().unwrap())
}

#[track_caller]
fn assert_home(machine: &Machine) {
    let drive = drive(machine);
    assert_eq!(drive.driver.as_deref(), Some(NVME));
    assert_eq!(drive.driver_override, None);
    assert_eq!(drive.serial.as_deref(), Some("mill0"));
    assert_eq!(drive.disks.len(), 1);
    assert!(machine.journal().journal().entries.is_empty());
}

#[track_caller]
fn assert_away(machine: &Machine) {
    let drive = drive(machine);
    assert_eq!(drive.driver.as_deref(), Some(VFIO));
    assert_eq!(drive.driver_override, None);
    assert!(drive.from_journal);
    assert_eq!(drive.serial.as_deref(), Some("mill0"));
    assert_eq!(machine.journal().journal().entries.len(), 1);
}

#[test]
fn a_drive_goes_and_comes_back_by_any_of_its_names() {
    let machine = Machine::new();
    for name in ["mill0", "01:00.0", "/dev/nvme0n1", "nvme0", DRIVE] {
        let said = bind_it(&machine, &request(&[name])).unwrap();
        assert!(said.contains("move 0000:01:00.0 (nvme0n1, serial mill0) from nvme to vfio-pci"));
        assert_away(&machine);
        let said = bind_it(&machine, &request(&["mill0"])).unwrap();
        assert!(said.contains("is on vfio-pci already"), "{said}");
        let said = restore_it(&machine, &[]).unwrap();
        assert!(
            said.contains("0000:01:00.0 (serial mill0) is back with nvme as nvme0n1"),
            "{said}"
        );
        assert_home(&machine);
        restore_it(&machine, &[]).unwrap();
        restore_it(&machine, &["mill0"]).unwrap();
        assert_home(&machine);
    }
}

#[test]
fn data_needs_the_serial() {
    for (at, magic, name) in [
        (0x218, &b"LVM2 001"[..], "LVM2 member on /dev/nvme0n1"),
        (4096, &0xA92B_4EFC_u32.to_le_bytes(), "md member (1.2) on /dev/nvme0n1"),
        (128 << 10, &0x00BA_B10C_u64.to_le_bytes(), "ZFS member on /dev/nvme0n1"),
        (0, b"XFSB", "xfs on /dev/nvme0n1"),
        (5000, b"x", "data of an unknown kind on /dev/nvme0n1"),
    ] {
        let machine = Machine::new();
        machine.put("nvme0n1", at, magic);
        let error = bind_it(&machine, &request(&["mill0"])).unwrap_err();
        assert!(error.what().contains(name), "{}", error.report());
        assert!(error.remedy_text().unwrap().contains("--yes-i-mean mill0"));
        let wrong = BindRequest { meant: vec!["mill1".into()], ..request(&["mill0"]) };
        let error = bind_it(&machine, &wrong).unwrap_err();
        assert!(error.what().contains("mill1 is not the serial of a drive named"), "{error}");
        assert!(machine.writes.borrow().is_empty());
        assert_home(&machine);
        bind_it(&machine, &meant(&["mill0"])).unwrap();
        assert_away(&machine);
        restore_it(&machine, &[]).unwrap();
        assert_home(&machine);
    }
}

#[test]
fn a_group_in_use_is_not_joined_and_udev_is_waited_for() {
    let machine = Machine::new();
    machine.process(4_000_000, "/dev/vfio/10");
    let error = bind_it(&machine, &request(&["mill0"])).unwrap_err();
    assert!(error.what().contains("/dev/vfio/10 is open by PID 4000000"), "{error}");
    machine.remove("/proc/4000000");
    machine.process(4_000_001, "/dev/nvme0n1");
    machine.set("/proc/4000001/comm", "(udev-worker)");
    machine.ends_at_pause.set(Some(4_000_001));
    bind_it(&machine, &request(&["mill0"])).unwrap();
    assert_away(&machine);
}

#[test]
fn modules_are_loaded_first_and_verified() {
    let machine = Machine::new();
    machine.remove("/sys/module/vfio_iommu_type1");
    machine.remove("/sys/bus/pci/drivers/vfio-pci");
    machine.loadable.borrow_mut().extend(["vfio-pci", "vfio_iommu_type1"]);
    plan(&machine, &Journal::default(), &request(&[DRIVE])).unwrap();
    assert!(!machine.root().exists("/sys/module/vfio_iommu_type1"));
    bind_it(&machine, &request(&[DRIVE])).unwrap();
    assert_away(&machine);
}

#[test]
fn two_drives_of_one_group_go_together() {
    let machine = Machine::new();
    machine.folder("/sys/kernel/iommu_groups/10/devices/0000:02:00.0");
    let error = bind_it(&machine, &request(&["mill0"])).unwrap_err();
    assert!(error.remedy_text().unwrap().contains("bind 0000:01:00.0 0000:02:00.0"));
    bind_it(&machine, &request(&["mill0", "mill1"])).unwrap();
    assert_eq!(machine.driver("02:00.0").as_deref(), Some(VFIO));
    restore_it(&machine, &[]).unwrap();
    assert_home(&machine);
}

#[test]
fn a_fault_of_any_write_ends_with_the_drive_at_home() {
    type Fault = (&'static str, fn(&Machine));
    let faults: [Fault; 4] = [
        ("set driver_override", |m| m.failing.borrow_mut().push("driver_override=vfio-pci")),
        ("unbind", |m| m.failing.borrow_mut().push("nvme/unbind=0000:01:00.0")),
        ("did not attach to vfio-pci", |m| m.vfio_refuses.set(true)),
        ("taken into use since", |m| m.claims_left.set(Some(1))),
    ];
    for (says, fault) in faults {
        let machine = Machine::new();
        fault(&machine);
        let error = bind_it(&machine, &request(&["mill0"])).unwrap_err();
        assert!(error.report().contains(says), "{}", error.report());
        assert_home(&machine);
    }
}

#[test]
fn of_several_drives_all_go_or_the_message_says_which() {
    let both = request(&["mill0", "mill1"]);
    let machine = Machine::new();
    // Two claims for the plan, the first of the two for the move.
    machine.claims_left.set(Some(3));
    let error = bind_it(&machine, &both).unwrap_err();
    assert!(error.what().starts_with("no drive was moved: 0000:02:00.0"), "{error}");
    assert_home(&machine);
    machine.claims_left.set(None);
    machine.failing.borrow_mut().push("nvme/unbind=0000:02:00.0");
    let error = bind_it(&machine, &both).unwrap_err();
    assert!(error.what().contains("0000:01:00.0 went to vfio-pci and stay there"), "{error}");
    assert!(error.remedy_text().unwrap().contains("millrace device restore 0000:01:00.0"));
    assert_away(&machine);
    restore_it(&machine, &[]).unwrap();
    assert_home(&machine);
}

#[test]
fn what_cannot_be_rolled_back_stays_in_the_journal() {
    let machine = Machine::new();
    machine.failing.borrow_mut().push("drivers_probe=0000:01:00.0");
    let error = bind_it(&machine, &request(&["mill0"])).unwrap_err();
    assert!(error.what().contains("nor be put back"), "{error}");
    assert!(error.remedy_text().unwrap().contains("millrace device restore 0000:01:00.0"));
    assert_eq!(machine.driver(DRIVE), None);
    assert!(restore_it(&machine, &[]).is_err());
    assert_eq!(machine.journal().journal().entries.len(), 1);
    machine.failing.borrow_mut().clear();
    restore_it(&machine, &[]).unwrap();
    assert_home(&machine);
}

#[test]
fn a_crash_after_any_step_is_mended_by_restore() {
    for step in Step::ALL {
        let machine = Machine::new();
        machine.crash_after.set(Some(step));
        let crash = catch_unwind(AssertUnwindSafe(|| bind_it(&machine, &request(&["mill0"]))));
        assert_eq!(*crash.unwrap_err().downcast::<&str>().unwrap(), step.name());
        assert_eq!(machine.journal().journal().entries.len(), 1, "{step:?}");
        // The way back may crash as well, anywhere, more than once.
        for again in [Step::Override, Step::Unbind, Step::Probe, Step::Verify, Step::Clear] {
            machine.crash_after.set(Some(again));
            let _ = catch_unwind(AssertUnwindSafe(|| restore_it(&machine, &[])));
        }
        machine.crash_after.set(None);
        restore_it(&machine, &[]).unwrap();
        assert_home(&machine);
    }
}

#[test]
fn a_crash_of_restore_is_mended_by_restore() {
    for step in [Step::Override, Step::Unbind, Step::Probe, Step::Verify, Step::Clear] {
        let machine = Machine::new();
        bind_it(&machine, &request(&["mill0"])).unwrap();
        machine.crash_after.set(Some(step));
        catch_unwind(AssertUnwindSafe(|| restore_it(&machine, &[]))).unwrap_err();
        machine.crash_after.set(None);
        restore_it(&machine, &[]).unwrap();
        assert_home(&machine);
    }
}

#[test]
fn leftover_overrides_are_shown_and_cleared() {
    let machine = Machine::new();
    let path = machine.attribute(DRIVE.parse().unwrap(), "driver_override");
    machine.set(&path, VFIO);
    let shown = table(&survey(machine.root(), &Journal::default()).unwrap());
    assert!(shown.contains("0000:01:00.0: driver_override says vfio-pci"), "{shown}");
    let said = bind_it(&machine, &request(&["mill0"])).unwrap();
    assert!(said.contains("a leftover driver_override (vfio-pci) will be cleared"), "{said}");
    assert_away(&machine);
    restore_it(&machine, &[]).unwrap();
    // Of a tool that crashed: no driver, and nothing in the journal.
    machine.set(&path, VFIO);
    machine.detach(DRIVE.parse().unwrap());
    let error = bind_it(&machine, &request(&[DRIVE])).unwrap_err();
    assert!(error.what().contains("no driver"), "{error}");
    restore_it(&machine, &[DRIVE]).unwrap();
    assert_home(&machine);
    machine.set(&path, "pci-stub");
    restore_it(&machine, &["mill0"]).unwrap();
    assert_home(&machine);
}

#[test]
fn a_busy_group_is_not_taken_from_its_process() {
    let machine = Machine::new();
    bind_it(&machine, &request(&["mill0"])).unwrap();
    machine.process(4_000_000, "/dev/vfio/10");
    let error = restore_it(&machine, &[]).unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.what().contains("/dev/vfio/10 is open by PID 4000000 (reader)"), "{error}");
    assert_away(&machine);
    machine.remove("/proc/4000000");
    restore_it(&machine, &[]).unwrap();
    assert_home(&machine);
}

#[test]
fn after_a_reboot_only_what_is_surely_ours_is_moved() {
    let machine = Machine::new();
    let address: Address = DRIVE.parse().unwrap();
    bind_it(&machine, &request(&["mill0"])).unwrap();
    let entry = machine.journal().journal().entries[0].clone();
    machine.set("/proc/sys/kernel/random/boot_id", "boot-2");
    // Bound by something else since: moved only if it is named.
    assert_eq!(drive(&machine).serial, None);
    let error = restore_it(&machine, &[]).unwrap_err();
    assert!(error.what().contains("something other than millrace"), "{error}");
    assert_eq!(machine.driver(DRIVE).as_deref(), Some(VFIO));
    restore_it(&machine, &["mill0"]).unwrap();
    assert_home(&machine);
    // Already on its driver, as usual after a reboot.
    machine.journal().add(entry.clone()).unwrap();
    let said = restore_it(&machine, &[]).unwrap();
    assert!(said.contains("is with nvme already"), "{said}");
    assert_home(&machine);
    // Another drive has the address, or none.
    machine.journal().add(Entry { serial: "gone".into(), ..entry.clone() }).unwrap();
    let said = restore_it(&machine, &[]).unwrap();
    assert!(said.contains("is another drive now"), "{said}");
    assert_home(&machine);
    let network = "0000:77:00.0".parse().unwrap();
    machine.add_function("0000:00:07.0", network, 0x02_0000, 17);
    machine.attach(network, "e1000e");
    for elsewhere in [network, "0000:78:00.0".parse().unwrap()] {
        machine.journal().add(Entry { address: elsewhere, ..entry.clone() }).unwrap();
        let said = restore_it(&machine, &[&elsewhere.to_string()]).unwrap();
        assert!(said.contains("has left the machine"), "{said}");
    }
    assert_eq!(machine.driver("77:00.0").as_deref(), Some("e1000e"));
    assert_eq!(machine.driver(DRIVE), Some(pci::driver(machine.root(), address).unwrap()));
    assert_home(&machine);
}

#[test]
fn a_drive_that_does_not_come_back_stays_in_the_journal() {
    let machine = Machine::new();
    bind_it(&machine, &request(&["mill0"])).unwrap();
    machine.drives_stay_dead.set(true);
    let error = restore_it(&machine, &[]).unwrap_err();
    assert!(error.what().contains("serial mill0 has not reappeared"), "{error}");
    assert_eq!(machine.journal().journal().entries.len(), 1);
}

#[test]
fn pools_grow_to_what_is_free_and_never_shrink() {
    let machine = Machine::new();
    let pages = |node: u32| {
        let pool = crate::host::hugepages::pool(2 << 20, Some(node));
        machine.root().read_number(format!("{pool}/nr_hugepages")).unwrap()
    };
    let wants = |n| BindRequest { hugepages: Some(n), ..request(&["mill0"]) };
    let said = bind_it(&machine, &wants(10)).unwrap();
    assert!(said.contains("add 8 hugepages of 2 MiB on NUMA node 0"), "{said}");
    assert_eq!((pages(0), pages(1)), (10, 2));
    restore_it(&machine, &[]).unwrap();
    bind_it(&machine, &wants(1)).unwrap();
    assert_eq!(pages(0), 10);
    restore_it(&machine, &[]).unwrap();
    machine.most_pages.set(12);
    let error = bind_it(&machine, &wants(100)).unwrap_err();
    assert!(error.what().contains("NUMA node 0 granted 2 of 90 further hugepages"), "{error}");
    assert!(error.remedy_text().unwrap().contains("hugepagesz=2M hugepages=0:100"));
    assert_home(&machine);
}

#[test]
fn the_list_shows_every_fact_once() {
    let machine = Machine::new();
    let port = "/sys/bus/pci/devices/0000:00:01.0";
    machine.set(&format!("{port}/max_link_speed"), "16.0 GT/s PCIe");
    machine.set(&format!("{port}/max_link_width"), "2");
    let peer = "0000:01:00.1".parse().unwrap();
    machine.add_function("0000:00:01.0", peer, 0x02_0000, 10);
    machine.put("nvme0n1", 0, b"XFSB");
    bind_it(&machine, &request(&["mill1"])).unwrap();
    let journal = Journal::read(&machine.journal_path()).unwrap();
    let drives = survey(machine.root(), &journal).unwrap();
    let expected = "\
ADDRESS       SERIAL  MODEL       SIZE  DRIVER    BLOCK    NODE  LINK      GROUP  USE
0000:01:00.0  mill0   Made Drive  4MiB  nvme      nvme0n1  0     8GT/s x4  10     \
xfs on /dev/nvme0n1
0000:02:00.0  mill1   Made Drive  4MiB  vfio-pci  -        1     8GT/s x4  11     -
0000:01:00.0: its slot gives 8GT/s x2, the drive could do 8GT/s x4
0000:01:00.0: shares its IOMMU group with 0000:01:00.1 (class 020000, no driver)
0000:02:00.0: serial, model and size are the journal's
";
    assert_eq!(table(&drives), expected);
    let json: serde_json::Value = serde_json::from_str(&json(&drives).unwrap()).unwrap();
    assert_eq!(json["schema"], "millrace.device-list/1");
    assert_eq!(json["drives"][0]["address"], DRIVE);
    assert_eq!(json["drives"][0]["upstream"]["link_best"]["width"], 2);
    assert_eq!(json["drives"][1]["from_journal"], true);
}

#[test]
fn names_that_fit_no_drive_or_several_are_told_apart() {
    let machine = Machine::new();
    machine.set("/sys/block/nvme0n1/nvme0n1p1/partition", "1");
    machine.set("/sys/bus/pci/devices/0000:02:00.0/nvme/nvme1/serial", "mill0");
    let drives = survey(machine.root(), &Journal::default()).unwrap();
    let kind = |name| find(machine.root(), &drives, name).unwrap_err().kind();
    assert_eq!(kind("mill0"), Kind::Usage);
    assert_eq!(kind("/dev/nvme0n1p1"), Kind::Usage);
    assert_eq!(kind("/dev/sda"), Kind::NotFound);
    assert_eq!(kind("0000:09:00.0"), Kind::NotFound);
    machine.link("/dev/disk/by-id/x", "../../nvme1n1");
    let by_id = find(machine.root(), &drives, "/dev/disk/by-id/x").unwrap();
    assert_eq!(by_id.address.to_string(), "0000:02:00.0");
}
