//! Every reason against a move: the drive is left alone, and the message says what to do.

use super::*;

/// Sets the machine up, and names what the refusal and its remedy must say.
type Case = (&'static str, fn(&Machine), &'static str, &'static str);

/// Each has the serial quoted, so that data alone is no reason.
const REFUSALS: &[Case] = &[
    (
        "mounted",
        |m| m.set("/proc/self/mountinfo", "36 1 259:0 / /mnt/a\\040b rw - ext4 /dev/root rw"),
        "/dev/nvme0n1 is mounted at /mnt/a b",
        "umount /mnt/a b",
    ),
    (
        "mounted under a number of its own",
        |m| m.set("/proc/self/mountinfo", "36 1 0:41 / /data rw shared:1 - btrfs /dev/nvme0n1 rw"),
        "/dev/nvme0n1 is mounted at /data",
        "umount /data",
    ),
    (
        "partition mounted",
        |m| {
            m.set("/sys/block/nvme0n1/nvme0n1p1/partition", "1");
            m.set("/sys/block/nvme0n1/nvme0n1p1/dev", "259:7");
            m.set("/proc/self/mountinfo", "36 1 259:7 / /boot rw - ext4 /dev/x rw");
        },
        "/dev/nvme0n1p1 is mounted at /boot",
        "umount /boot",
    ),
    (
        "swap",
        |m| m.set("/proc/swaps", "Filename Type\n/dev/nvme0n1 partition 1 0 -2"),
        "/dev/nvme0n1 is swap space in use",
        "swapoff /dev/nvme0n1",
    ),
    (
        "LVM in use",
        |m| {
            m.folder("/sys/block/nvme0n1/holders/dm-0");
            m.set("/sys/block/dm-0/dm/uuid", "LVM-xyz");
            m.set("/sys/block/dm-0/dm/name", "my--group-volume");
        },
        "held by /dev/dm-0 (LVM my--group-volume)",
        "vgchange --activate n my-group",
    ),
    (
        "md in use",
        |m| {
            m.folder("/sys/block/nvme0n1/holders/md127");
            m.folder("/sys/block/md127/md");
        },
        "held by /dev/md127 (md)",
        "mdadm --stop /dev/md127",
    ),
    (
        "ZFS in use",
        |m| {
            m.put("nvme0n1", 128 << 10, &0x00BA_B10C_u64.to_le_bytes());
            m.claims_left.set(Some(0));
        },
        "belongs to a ZFS pool in use",
        "zpool export",
    ),
    (
        "claimed by the kernel",
        |m| m.claims_left.set(Some(0)),
        "/dev/nvme0n1 is held by the kernel",
        "/proc/*/mountinfo",
    ),
    (
        "loop device",
        |m| m.set("/sys/block/loop3/loop/backing_file", "/dev/nvme0n1"),
        "what /dev/loop3 reads from",
        "losetup --detach /dev/loop3",
    ),
    (
        "open by a process",
        |m| m.process(4_000_000, "/dev/nvme0n1"),
        "/dev/nvme0n1 is open by PID 4000000 (reader)",
        "kill 4000000",
    ),
    (
        "controller open by a process",
        |m| m.process(4_000_001, "/dev/nvme0"),
        "/dev/nvme0 is open by PID 4000001",
        "kill 4000001",
    ),
    (
        "mapped by a process",
        |m| m.set("/proc/4000002/maps", "7f00-7f01 r--s 0 00:05 99    /dev/nvme0n1"),
        "/dev/nvme0n1 is open by PID 4000002",
        "kill 4000002",
    ),
    (
        "group not viable",
        |m| {
            let peer = "0000:01:00.1".parse().unwrap();
            m.add_function("0000:00:01.0", peer, 0x02_0000, 10);
            m.link("/sys/bus/pci/devices/0000:01:00.1/driver", "../../drivers/e1000e");
        },
        "group 10 is not viable: its member 0000:01:00.1 (class 020000) has the driver e1000e",
        "echo 0000:01:00.1 > /sys/bus/pci/drivers/e1000e/unbind",
    ),
    (
        "IOMMU off",
        |m| {
            m.remove("/sys/kernel/iommu_groups");
            m.remove("/sys/bus/pci/devices/0000:01:00.0/iommu_group");
        },
        "the IOMMU is off",
        "intel_iommu=on",
    ),
    (
        "no-IOMMU mode",
        |m| {
            m.remove("/sys/kernel/iommu_groups");
            m.remove("/sys/bus/pci/devices/0000:01:00.0/iommu_group");
            m.set("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y");
        },
        "no-IOMMU mode",
        "echo N > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
    ),
    (
        "made-up group of the no-IOMMU mode",
        |m| m.set("/sys/kernel/iommu_groups/10/name", "vfio-noiommu"),
        "no-IOMMU mode",
        "intel_iommu=on",
    ),
    (
        "drive outside the IOMMU",
        |m| m.remove("/sys/bus/pci/devices/0000:01:00.0/iommu_group"),
        "in no IOMMU group",
        "--backend uring",
    ),
    (
        "module missing",
        |m| {
            m.set("/proc/sys/kernel/osrelease", "6.1.0-x");
            m.remove("/sys/module/vfio_iommu_type1");
        },
        "module vfio_iommu_type1 is not loaded and cannot be",
        "linux-image-6.1.0-x",
    ),
    (
        "module under lockdown",
        |m| {
            m.set("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
            m.remove("/sys/bus/pci/drivers/vfio-pci");
        },
        "vfio-pci cannot be loaded under kernel lockdown (integrity)",
        "mokutil",
    ),
    (
        "driver_override of somebody else",
        |m| m.set("/sys/bus/pci/devices/0000:01:00.0/driver_override", "pci-stub"),
        "driver_override says pci-stub",
        "millrace device restore 0000:01:00.0",
    ),
    (
        "serial not read yet",
        |m| m.set("/sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/serial", "(efault)"),
        "has not (yet) read its serial",
        "dmesg",
    ),
];

#[test]
fn every_refusal_leaves_the_drive_alone_and_says_what_to_do() {
    for (name, set_up, what, remedy) in REFUSALS {
        let machine = Machine::new();
        set_up(&machine);
        let mut request = meant(&[DRIVE]);
        if *name == "serial not read yet" {
            request.meant.clear();
        }
        let before = drive(&machine);
        let dry = plan(&machine, &Journal::default(), &request).unwrap_err().report();
        let error = bind_it(&machine, &request).unwrap_err();
        assert_eq!(error.report(), dry, "{name}");
        assert!(error.what().contains(what), "{name}: {}", error.report());
        assert!(error.remedy_text().unwrap().contains(remedy), "{name}: {}", error.report());
        assert!(machine.writes.borrow().is_empty(), "{name}");
        assert_eq!(drive(&machine), before, "{name}");
        assert!(machine.journal().journal().entries.is_empty(), "{name}");
    }
}
