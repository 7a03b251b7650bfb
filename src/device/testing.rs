//! A made machine: a tree of /sys, /proc and /dev that changes as the kernel's would when it is
//! written to, with faults on demand.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::kernel::{Kernel, Step};
use super::{JournalFile, VFIO};
use crate::host::Root;
use crate::host::pci::{self, Address, NVME_CLASS};

/// The drive that most tests move.
pub const DRIVE: &str = "0000:01:00.0";
/// Its block device's size.
const SIZE: u64 = 4 << 20;

pub struct Machine {
    dir: tempfile::TempDir,
    root: Root,
    /// Every write that was asked for.
    pub writes: RefCell<Vec<(String, String)>>,
    /// Writes to a path that ends so fail from now on.
    pub failing: RefCell<Vec<&'static str>>,
    /// vfio-pci refuses to take drives.
    pub vfio_refuses: Cell<bool>,
    /// nvme takes drives, but they do not come up.
    pub drives_stay_dead: Cell<bool>,
    /// Modules that modprobe finds.
    pub loadable: RefCell<Vec<&'static str>>,
    /// What claims fail with EBUSY, and how many succeed before that.
    pub claims_left: Cell<Option<u32>>,
    /// The process that ends during the next pause.
    pub ends_at_pause: Cell<Option<u32>>,
    /// Where the program ends.
    pub crash_after: Cell<Option<Step>>,
    /// Most pages of 2 MiB that a pool can have.
    pub most_pages: Cell<u64>,
}

impl Machine {
    /// Two drives, `mill0` at 0000:01:00.0 on node 0 and `mill1` at 0000:02:00.0 on node 1, each
    /// blank, on nvme, and alone with a bridge in its IOMMU group; VFIO is loaded.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let machine = Self {
            root: Root::at(dir.path()),
            dir,
            writes: RefCell::default(),
            failing: RefCell::default(),
            vfio_refuses: Cell::new(false),
            drives_stay_dead: Cell::new(false),
            loadable: RefCell::default(),
            claims_left: Cell::new(None),
            ends_at_pause: Cell::new(None),
            crash_after: Cell::new(None),
            most_pages: Cell::new(1000),
        };
        machine.set("/proc/sys/kernel/random/boot_id", "boot-1");
        machine.set("/proc/cpuinfo", "vendor_id : GenuineIntel");
        machine.set("/sys/bus/pci/drivers_probe", "");
        for place in ["/sys/module/vfio", "/sys/module/vfio_iommu_type1"] {
            machine.folder(place);
        }
        for driver in ["nvme", VFIO, "pci-stub"] {
            machine.folder(&format!("/sys/bus/pci/drivers/{driver}"));
        }
        for index in 0..2 {
            machine.add_drive(index);
            for file in ["nr_hugepages", "free_hugepages"] {
                let node = format!("/sys/devices/system/node/node{index}");
                machine.set(&format!("{node}/hugepages/hugepages-2048kB/{file}"), "2");
            }
        }
        machine
    }

    fn add_drive(&self, index: u32) {
        let address: Address = format!("{:02x}:00.0", index + 1).parse().unwrap();
        let port = format!("0000:00:{:02x}.0", index + 1);
        self.add_function(&port, address, NVME_CLASS, index + 10);
        self.set(&self.attribute(address, "numa_node"), &index.to_string());
        for (name, value) in [("speed", "8.0 GT/s PCIe"), ("width", "4")] {
            self.set(&self.attribute(address, &format!("current_link_{name}")), value);
            self.set(&self.attribute(address, &format!("max_link_{name}")), value);
        }
        let disk = File::create(self.path_for(&format!("/dev/nvme{index}n1"))).unwrap();
        disk.set_len(SIZE).unwrap();
        self.attach(address, "nvme");
    }

    /// A PCI function below `port`, without a driver, in `group` together with the port.
    pub fn add_function(&self, port: &str, address: Address, class: u32, group: u32) {
        let real = format!("/sys/devices/pci0000:00/{port}/{address}");
        self.set(&format!("{real}/class"), &format!("{class:#08x}"));
        self.set(&format!("{real}/driver_override"), "(null)");
        self.link(&pci::dir(address), &format!("../../../devices/pci0000:00/{port}/{address}"));
        self.link(&format!("{real}/iommu_group"), &format!("../kernel/iommu_groups/{group}"));
        let port_address: Address = port.parse().unwrap();
        if !self.root.exists(pci::dir(port_address)) {
            self.set(&format!("/sys/devices/pci0000:00/{port}/class"), "0x060400");
            self.link(&pci::dir(port_address), &format!("../../../devices/pci0000:00/{port}"));
        }
        for member in [address, port_address] {
            self.folder(&format!("/sys/kernel/iommu_groups/{group}/devices/{member}"));
        }
    }

    pub fn attribute(&self, address: Address, name: &str) -> String {
        format!("{}/{name}", pci::dir(address))
    }

    fn path_for(&self, path: &str) -> PathBuf {
        let path = self.root.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    /// Makes or replaces a file.
    pub fn set(&self, path: &str, text: &str) {
        fs::write(self.path_for(path), format!("{text}\n")).unwrap();
    }

    /// Writes into a block device.
    pub fn put(&self, device: &str, at: usize, bytes: &[u8]) {
        use std::os::unix::fs::FileExt;
        let file = File::options().write(true).open(self.path_for(&format!("/dev/{device}")));
        file.unwrap().write_all_at(bytes, at as u64).unwrap();
    }

    pub fn folder(&self, path: &str) {
        fs::create_dir_all(self.root.path(path)).unwrap();
    }

    pub fn link(&self, path: &str, target: &str) {
        symlink(target, self.path_for(path)).unwrap();
    }

    /// Removes a file, link or folder with all below it.
    pub fn remove(&self, path: &str) {
        let path = self.root.path(path);
        let gone = match path.is_dir() && !path.is_symlink() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        gone.unwrap();
    }

    /// A process that has `path` open.
    pub fn process(&self, pid: u32, path: &str) {
        self.set(&format!("/proc/{pid}/comm"), "reader");
        self.link(&format!("/proc/{pid}/fd/3"), path);
    }

    pub fn journal_path(&self) -> PathBuf {
        self.dir.path().join("var/lib/millrace/device-journal.json")
    }

    pub fn journal(&self) -> JournalFile {
        JournalFile::open(&self.journal_path()).unwrap()
    }

    pub fn driver(&self, address: &str) -> Option<String> {
        pci::driver(&self.root, address.parse().unwrap())
    }

    /// Gives the drive to a driver, as the kernel does at start.
    pub fn attach(&self, address: Address, driver: &str) {
        let link = self.attribute(address, "driver");
        self.link(&link, &format!("../../../../bus/pci/drivers/{driver}"));
        if driver != "nvme" || self.drives_stay_dead.get() {
            return;
        }
        let index = address.bus - 1;
        let folder = self.attribute(address, &format!("nvme/nvme{index}"));
        self.set(&format!("{folder}/serial"), &format!("mill{index}             "));
        self.set(&format!("{folder}/model"), "Made Drive      ");
        self.folder(&format!("{folder}/nvme{index}n1"));
        self.set(&format!("/sys/block/nvme{index}n1/size"), &(SIZE / 512).to_string());
        self.set(&format!("/sys/block/nvme{index}n1/dev"), &format!("259:{index}"));
    }

    /// Takes it away from its driver.
    pub fn detach(&self, address: Address) {
        self.remove(&self.attribute(address, "driver"));
        if self.root.exists(self.attribute(address, "nvme")) {
            self.remove(&self.attribute(address, "nvme"));
            self.remove(&format!("/sys/block/nvme{}n1", address.bus - 1));
        }
    }

    fn probe(&self, address: Address) -> io::Result<()> {
        if pci::driver(&self.root, address).is_some() {
            return Ok(());
        }
        let wanted = pci::driver_override(&self.root, address);
        let driver = wanted.as_deref().unwrap_or("nvme");
        if driver == VFIO && self.vfio_refuses.get() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if self.root.exists(format!("/sys/bus/pci/drivers/{driver}")) {
            self.attach(address, driver);
        }
        Ok(())
    }

    fn grant(&self, path: &str, text: &str) {
        let asked: u64 = text.parse().unwrap();
        let total = asked.min(self.most_pages.get());
        let free = path.replace("nr_hugepages", "free_hugepages");
        let before = self.root.read_number(path).unwrap();
        let free_before = self.root.read_number(&free).unwrap();
        self.set(path, &total.to_string());
        self.set(&free, &(free_before + total - before).to_string());
    }
}

impl Kernel for Machine {
    fn root(&self) -> &Root {
        &self.root
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        self.writes.borrow_mut().push((path.to_owned(), text.to_owned()));
        if self.failing.borrow().iter().any(|end| format!("{path}={}", text.trim()).ends_with(end))
        {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let name = Path::new(path).file_name().unwrap().to_str().unwrap();
        match name {
            "driver_override" if text.trim().is_empty() => self.set(path, "(null)"),
            "driver_override" => self.set(path, text.trim()),
            "unbind" => self.detach(text.parse().unwrap()),
            "drivers_probe" => self.probe(text.parse().unwrap())?,
            "nr_hugepages" => self.grant(path, text),
            other => panic!("unexpected write to {other}"),
        }
        Ok(())
    }

    fn load(&self, module: &str, dry_run: bool) -> Result<(), String> {
        if !self.loadable.borrow().contains(&module) {
            return Err(format!("modprobe: FATAL: Module {module} not found"));
        }
        match module {
            _ if dry_run => {}
            "vfio-pci" | "nvme" => self.folder(&format!("/sys/bus/pci/drivers/{module}")),
            other => self.folder(&format!("/sys/module/{other}")),
        }
        Ok(())
    }

    fn claim(&self, device: &str) -> io::Result<File> {
        match self.claims_left.get() {
            Some(0) => return Err(io::Error::from_raw_os_error(libc::EBUSY)),
            Some(left) => self.claims_left.set(Some(left - 1)),
            None => {}
        }
        File::open(self.root.path(format!("/dev/{device}")))
    }

    fn pause(&self) {
        if let Some(pid) = self.ends_at_pause.take() {
            self.remove(&format!("/proc/{pid}"));
        }
    }

    fn reached(&self, step: Step) {
        if self.crash_after.get() == Some(step) {
            std::panic::resume_unwind(Box::new(step.name()));
        }
    }
}
