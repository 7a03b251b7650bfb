//! A drive as a person names it, with all facts that can be read without opening it.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use serde::Serialize;

use super::Root;
use super::block::{self, BlockDevice};
use super::fact::{Fact, why};
use super::function::Function;
use super::interrupts::Table;
use super::nvme;
use super::pci::{self, Address};
use super::queue::Queue;
use super::usage::{self, Use};
use crate::error::{Error, Kind, Result};

/// Every block device, path devices of native multipath among them.
const CLASS: &str = "/sys/class/block";

/// The controller of an NVMe drive under the kernel's driver.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Controller {
    /// `nvme0`.
    pub name: String,
    /// Model.
    pub model: Fact<String>,
    /// Serial number.
    pub serial: Fact<String>,
    /// `live`, or what it is on its way to or from.
    pub state: Fact<String>,
    /// Temperature in thousandths of a degree Celsius. Not read of a drive that sleeps.
    pub temperature: Fact<u64>,
    /// That at which the drive begins to slow down, as it says.
    pub temperature_warning: Fact<u64>,
    /// That at which it may switch itself off.
    pub temperature_critical: Fact<u64>,
}

/// A drive.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Drive {
    /// As it was named.
    pub name: String,
    /// Why nothing more is known of it; `None` for a drive that was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<Fault>,
    /// Its whole disk, where the kernel's driver has it.
    pub disk: Option<String>,
    /// Its PCI function.
    pub function: Option<Function>,
    /// Its controller.
    pub controller: Option<Controller>,
    /// Its request queue.
    pub queue: Option<Queue>,
    /// Devices that are made of it.
    pub holders: Vec<String>,
    /// Devices that it is made of.
    pub slaves: Fact<Vec<String>>,
    /// Paths of native multipath, such as `nvme0c1n1`.
    pub paths: Fact<Vec<String>>,
    /// What the kernel uses it for now: mounts, swap, arrays.
    pub uses: Vec<Use>,
    /// Why completions cannot be polled for; `None` where they can.
    pub not_polled: Option<Fault>,
}

/// An error, as two texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let remedy = error.remedy_text().unwrap_or_default().to_owned();
        Self { what: error.what().to_owned(), remedy }
    }
}

impl Drive {
    /// Its name for people, with the address where that is another.
    pub fn title(&self) -> String {
        let disk = self.disk.as_ref().map(|disk| format!("/dev/{disk}"));
        match (&disk, &self.function) {
            (Some(disk), _) => disk.clone(),
            (None, Some(function)) => function.address.to_string(),
            (None, None) => self.name.clone(),
        }
    }

    /// NUMA node, where the firmware names one.
    pub fn node(&self) -> Option<usize> {
        self.function.as_ref()?.node.copied().and_then(|node| usize::try_from(node).ok())
    }

    /// Reads the drive that `name` stands for: a device node, a file, or a PCI address (with
    /// `ns:` and `part:` after it). No device node is opened; a file is only looked at.
    pub fn read(root: &Root, name: &str, table: &Fact<Table>) -> Self {
        let mut drive = Self {
            name: name.to_owned(),
            missing: None,
            disk: None,
            function: None,
            controller: None,
            queue: None,
            holders: Vec::new(),
            slaves: Fact::absent("/sys/block/*/slaves"),
            paths: Fact::absent(CLASS),
            uses: Vec::new(),
            not_polled: None,
        };
        if let Ok(address) = name.split_whitespace().next().unwrap_or_default().parse() {
            drive.add_function(root, address, table);
        } else {
            match device_of(root, name) {
                Ok(Some(device)) => drive.add_device(root, &device, table),
                // A file on tmpfs, or a network file system: there is no more to know.
                Ok(None) => {}
                Err(error) => drive.missing = Some(error.into()),
            }
        }
        drive
    }

    fn add_function(&mut self, root: &Root, address: Address, table: &Fact<Table>) {
        self.function = Function::read(root, address, table);
        if self.function.is_none() {
            self.missing = Some(block::no_function(address).into());
            return;
        }
        let found = nvme::controller(root, address);
        let disks = found.map(|controller| controller.namespaces).unwrap_or_default();
        self.uses = disks.iter().flat_map(|disk| usage::of_disk(root, disk)).collect();
        let Some(disk) = disks.first() else { return };
        match BlockDevice::by_name(root, &disk.name) {
            Ok(device) => self.add_device(root, &device, table),
            Err(e) => {
                // Some of it may be read nevertheless, and the rest then says why it cannot.
                log::debug!("{}", e.report());
                self.paths = paths(root, &disk.name);
                self.queue = Some(Queue::read(root, &disk.name));
                self.disk = Some(disk.name.clone());
            }
        }
    }

    fn add_device(&mut self, root: &Root, device: &BlockDevice, table: &Fact<Table>) {
        self.holders = device.holders(root);
        let slaves = format!("/sys/class/block/{}/slaves", device.disk);
        self.slaves = match root.list(&slaves) {
            Ok(names) => Fact::known(slaves, names),
            Err(e) => Fact { path: slaves, value: Err(why(&e)) },
        };
        self.not_polled = device.check_polling(root).err().map(Fault::from);
        self.queue = Some(Queue::read(root, &device.disk));
        self.disk = Some(device.disk.clone());
        if self.uses.is_empty()
            && let Some(disk) = nvme::disk(root, device.disk.clone())
        {
            self.uses = usage::of_disk(root, &disk);
        }
        let address = device.pci.or_else(|| path_function(root, &device.disk));
        if let Some(address) = address
            && self.function.is_none()
        {
            self.function = Function::read(root, address, table);
        }
        let asleep = self.function.as_ref().is_some_and(|function| function.asleep);
        if device.disk.starts_with("nvme") {
            self.paths = paths(root, &device.disk);
            let name = controller_of(root, &device.disk, address);
            self.controller = name.map(|name| controller(root, name, asleep));
        }
    }
}

/// Every NVMe drive of the machine: by block device where the kernel has it, else by address.
pub fn all(root: &Root, table: &Fact<Table>) -> Vec<Drive> {
    let addresses = pci::nvme_controllers(root).unwrap_or_default();
    addresses.iter().map(|address| Drive::read(root, &address.to_string(), table)).collect()
}

/// The block device of a node or file; none for a file that is on no block device of its own.
fn device_of(root: &Root, name: &str) -> Result<Option<BlockDevice>> {
    let path = Path::new(name);
    // A made tree has the names only.
    if let Some(short) = name.strip_prefix("/dev/")
        && !short.contains('/')
        && root.exists(format!("/sys/class/block/{short}"))
    {
        return BlockDevice::by_name(root, short).map(Some);
    }
    let looked =
        std::fs::metadata(root.path(path)).map_err(|e| block::no_drive(name).caused_by(e))?;
    let number = match looked.file_type().is_block_device() {
        true => looked.rdev(),
        false => looked.dev(),
    };
    match BlockDevice::by_number(root, libc::major(number), libc::minor(number)) {
        Ok(device) => Ok(Some(device)),
        Err(e) if e.kind() == Kind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// The function of a disk under native multipath, whose head hangs below no controller: that of
/// its first path.
fn path_function(root: &Root, disk: &str) -> Option<Address> {
    let paths = paths(root, disk);
    BlockDevice::by_name(root, paths.get()?.first()?).ok()?.pci
}

/// Paths of a head device: `nvme0c1n1` of `nvme0n1`. The kernel hides them in /dev, not in sysfs.
fn paths(root: &Root, disk: &str) -> Fact<Vec<String>> {
    match root.list(CLASS) {
        Ok(mut names) => {
            names.retain(|name| block::head_of_path(name).as_deref() == Some(disk));
            Fact::known(CLASS, names)
        }
        Err(e) => Fact { path: CLASS.to_owned(), value: Err(why(&e)) },
    }
}

fn controller_of(root: &Root, disk: &str, address: Option<Address>) -> Option<String> {
    if let Some(found) = address.and_then(|address| nvme::controller(root, address)) {
        return Some(found.name);
    }
    let (name, _) = disk.rsplit_once('n')?;
    root.exists(format!("/sys/class/nvme/{name}")).then(|| name.to_owned())
}

fn controller(root: &Root, name: String, asleep: bool) -> Controller {
    let folder = format!("/sys/class/nvme/{name}");
    let text = |file: &str| Fact::text(root, format!("{folder}/{file}"));
    let sensors = root.list(&folder).unwrap_or_default();
    let sensor = sensors.into_iter().find(|entry| entry.starts_with("hwmon") && entry != "hwmon");
    let sensor = sensor.map(|entry| format!("{folder}/{entry}")).or_else(|| {
        let inside = root.list(format!("{folder}/hwmon")).ok()?.into_iter().next()?;
        Some(format!("{folder}/hwmon/{inside}"))
    });
    // The kernel asks the drive for these by commands, which a suspended one would wake up for.
    let number = |file: &str| match &sensor {
        Some(sensor) if !asleep => Fact::number(root, format!("{sensor}/{file}")),
        _ => Fact::absent(format!("{folder}/hwmon/{file}")),
    };
    Controller {
        model: text("model"),
        serial: text("serial"),
        state: text("state"),
        temperature: number("temp1_input"),
        temperature_warning: number("temp1_max"),
        temperature_critical: number("temp1_crit"),
        name,
    }
}
