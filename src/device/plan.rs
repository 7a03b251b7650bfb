//! What a bind will do, and everything that speaks against it, found before anything is touched.

use std::fmt::Write;
use std::io::ErrorKind;

use super::kernel::Kernel;
use super::pool::Growth;
use super::{Drive, Journal, NVME, VFIO, find, survey};
use crate::error::{Error, Kind, Result};
use crate::host::Root;
use crate::host::iommu;
use crate::host::usage::Use;
use crate::host::vfio::{self, MODULES};
use crate::units::format_size;

/// What a person asks of `bind`.
#[derive(Debug, Clone, Default)]
pub struct BindRequest {
    /// Drives by PCI address, block device or serial.
    pub drives: Vec<String>,
    /// Serials quoted to say that a drive with data on it is meant.
    pub meant: Vec<String>,
    /// Free hugepages of 2 MiB wanted on each drive's node.
    pub hugepages: Option<u64>,
}

/// What `bind` will do.
#[derive(Debug)]
pub struct Plan {
    /// Drives to move.
    pub drives: Vec<Drive>,
    /// Drives that are there already.
    pub already: Vec<Drive>,
    /// Modules to load first.
    pub modules: Vec<&'static str>,
    /// Pools to grow first.
    pub pools: Vec<Growth>,
    /// Kernel lockdown, where it is in force.
    pub lockdown: Option<String>,
}

/// A reason against moving a drive, and the command that removes it.
#[derive(Debug)]
struct Refusal {
    kind: Kind,
    what: String,
    remedy: String,
}

/// Finds the drives and checks everything that can be checked without touching them. The error
/// names every reason against every drive, each with the command that removes it.
pub fn plan(kernel: &dyn Kernel, journal: &Journal, request: &BindRequest) -> Result<Plan> {
    let root = kernel.root();
    let all = settled_survey(kernel, journal)?;
    let mut named: Vec<&Drive> = Vec::new();
    for name in &request.drives {
        let drive = find(root, &all, name)?;
        if !named.contains(&drive) {
            named.push(drive);
        }
    }
    let (already, moving): (Vec<&Drive>, Vec<&Drive>) =
        named.iter().partition(|drive| drive.driver.as_deref() == Some(VFIO));
    let (modules, mut machine) = modules(kernel);
    machine.extend(iommu_off(root));
    if moving.is_empty() {
        machine.clear();
    }
    let mut text = String::new();
    let mut refusals = wrong_serials(&named, request);
    if !refusals.is_empty() {
        text.push_str("no drive was touched:");
        describe(&mut text, &refusals);
    }
    for drive in &moving {
        let mut found = in_use(kernel, drive);
        found.extend(state(drive));
        found.extend(data(drive, request));
        found.extend(group(root, drive, &named));
        if !found.is_empty() {
            let _ = write!(text, "\n{} stays with {}:", drive.title(), drive.driver_name());
            describe(&mut text, &found);
        }
        refusals.extend(found);
    }
    if !machine.is_empty() {
        text.push_str("\nno drive was touched, since this machine cannot give any to vfio-pci:");
        describe(&mut text, &machine);
    }
    refusals.extend(machine);
    if let Some(first) = refusals.first() {
        let kind = first.kind;
        return Err(Error::new(kind, text.trim_start()).remedy(remedies(&refusals)));
    }
    Ok(Plan {
        pools: pools(kernel, &named, request)?,
        drives: moving.into_iter().cloned().collect(),
        already: already.into_iter().cloned().collect(),
        modules,
        lockdown: iommu::lockdown(root).filter(|state| state != "none"),
    })
}

/// Udev opens each new block device for a moment, for instance just after a restore: that is no use
/// to refuse, so wait for it, at most two seconds.
fn settled_survey(kernel: &dyn Kernel, journal: &Journal) -> Result<Vec<Drive>> {
    const TRIES: u32 = 40;
    let by_udev =
        |used: &Use| matches!(used, Use::Open { command, .. } if command.contains("udev"));
    for _ in 0..TRIES {
        let drives = survey(kernel.root(), journal)?;
        if !drives.iter().any(|drive| drive.uses.iter().any(by_udev)) {
            return Ok(drives);
        }
        kernel.pause();
    }
    survey(kernel.root(), journal)
}

fn describe(text: &mut String, refusals: &[Refusal]) {
    for refusal in refusals {
        let _ = write!(text, "\n  - {}", refusal.what);
    }
}

fn remedies(refusals: &[Refusal]) -> String {
    let mut remedies: Vec<&str> = refusals.iter().map(|r| r.remedy.as_str()).collect();
    remedies.dedup();
    match remedies[..] {
        [one] => one.to_owned(),
        [..] => remedies.iter().map(|remedy| format!("\n  - {remedy}")).collect(),
    }
}

/// Everything that uses the drive, and the exclusive claim for what leaves no other trace.
fn in_use(kernel: &dyn Kernel, drive: &Drive) -> Vec<Refusal> {
    let mut uses = drive.uses.clone();
    if uses.is_empty() {
        uses.extend(drive.disks.iter().filter_map(|disk| claimed(kernel, drive, &disk.name)));
    }
    uses.iter()
        .map(|used| Refusal { kind: Kind::Busy, what: used.describe(), remedy: used.release() })
        .collect()
}

fn claimed(kernel: &dyn Kernel, drive: &Drive, device: &str) -> Option<Use> {
    let error = kernel.claim(device).err()?;
    let zfs = drive.holds.iter().any(|content| content.what.starts_with("ZFS"));
    (error.kind() == ErrorKind::ResourceBusy)
        .then(|| Use::Exclusive { device: device.to_owned(), zfs })
}

/// Reasons in the drive's own state.
fn state(drive: &Drive) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let address = drive.address;
    let restore = format!("millrace device restore {address}");
    match drive.driver.as_deref() {
        Some(NVME) if drive.serial.is_none() => refusals.push(Refusal {
            kind: Kind::Device,
            what: "the kernel's driver has it, but has not (yet) read its serial".to_owned(),
            remedy: format!("dmesg | grep {address} shows why; then try again"),
        }),
        Some(NVME) => {}
        None => refusals.push(Refusal {
            kind: Kind::Device,
            what: "it has no driver, so its serial and its content cannot be read".to_owned(),
            remedy: restore.clone(),
        }),
        Some(other) => refusals.push(Refusal {
            kind: Kind::Busy,
            what: format!("it has the driver {other}, so its serial and content cannot be read"),
            remedy: restore.clone(),
        }),
    }
    // That of a bind which another tool did not finish does no harm, and goes when ours is done.
    if let Some(left) = drive.leftover_override().filter(|left| *left != VFIO) {
        refusals.push(Refusal {
            kind: Kind::Busy,
            what: format!("its driver_override says {left}: somebody has reserved it"),
            remedy: format!("if nobody has: {restore}"),
        });
    }
    refusals
}

/// A serial that is none of the named drives' is a person's mistake about which drive is meant.
fn wrong_serials(named: &[&Drive], request: &BindRequest) -> Vec<Refusal> {
    let tokens: Vec<String> = named.iter().map(|drive| drive.token()).collect();
    let wrong = request.meant.iter().filter(|serial| !tokens.contains(serial));
    wrong
        .map(|serial| Refusal {
            kind: Kind::Denied,
            what: format!("--yes-i-mean {serial} is not the serial of a drive named here"),
            remedy: format!(
                "check which drive is meant (millrace device list); the serial here is {}",
                tokens.join(", ")
            ),
        })
        .collect()
}

/// Data needs the serial. It is not in danger from the bind itself, but from who binds the wrong
/// drive and then writes to it.
fn data(drive: &Drive, request: &BindRequest) -> Option<Refusal> {
    if drive.holds.is_empty() || request.meant.contains(&drive.token()) {
        return None;
    }
    let what = format!("it holds data: {}", holds(drive));
    let remedy = format!("if this drive is meant, say so: --yes-i-mean {}", drive.token());
    Some(Refusal { kind: Kind::Denied, what, remedy })
}

/// What the drive holds, in one line.
fn holds(drive: &Drive) -> String {
    let texts = drive.holds.iter().map(|c| format!("{} on /dev/{}", c.what, c.device));
    texts.collect::<Vec<_>>().join(", ")
}

/// The whole group goes to userspace or none of it does.
fn group(root: &Root, drive: &Drive, named: &[&Drive]) -> Vec<Refusal> {
    let address = drive.address;
    let Some(group) = drive.iommu_group else {
        // Said once for the machine if it has no IOMMU at all.
        let refusal = Refusal::from(iommu::no_group(address));
        return iommu::is_on(root).then_some(refusal).into_iter().collect();
    };
    if iommu::is_noiommu(root, group) {
        return vec![iommu::noiommu(iommu::cpu_vendor(root).as_deref()).into()];
    }
    let stands = drive.iommu_peers.iter().filter(|peer| {
        !peer.is_viable() && !named.iter().any(|other| other.address == peer.address)
    });
    stands.map(|peer| iommu::not_viable(group, address, peer).into()).collect()
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self {
            kind: error.kind(),
            what: error.what().to_owned(),
            remedy: error.remedy_text().unwrap_or_default().to_owned(),
        }
    }
}

fn iommu_off(root: &Root) -> Option<Refusal> {
    if iommu::is_on(root) {
        return None;
    }
    let vendor = iommu::cpu_vendor(root);
    if iommu::noiommu_allowed(root) {
        return Some(iommu::noiommu(vendor.as_deref()).into());
    }
    Some(iommu::off(vendor.as_deref()).into())
}

/// Modules that must be loaded, and reasons why they cannot be.
fn modules(kernel: &dyn Kernel) -> (Vec<&'static str>, Vec<Refusal>) {
    let absent = MODULES.iter().filter(|(_, place)| !kernel.root().exists(place));
    let absent: Vec<&'static str> = absent.map(|(name, _)| *name).collect();
    let refusals = absent
        .iter()
        .filter_map(|name| Some(cannot_load(kernel.root(), name, &kernel.load(name, true).err()?)))
        .collect();
    (absent, refusals)
}

fn cannot_load(root: &Root, module: &str, why: &str) -> Refusal {
    let release = root.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let locked = iommu::lockdown(root).filter(|state| state != "none");
    vfio::cannot_load(module, why, &release, locked.as_deref()).into()
}

/// Loads what the plan names and verifies that it is there. No drive has been touched yet.
pub(super) fn load_modules(kernel: &dyn Kernel, modules: &[&'static str]) -> Result<()> {
    for module in modules {
        let loaded = kernel.load(module, false);
        let place = MODULES.iter().find(|(name, _)| name == module).map_or("", |(_, place)| place);
        let why = match loaded {
            Err(why) => why,
            Ok(()) if kernel.root().exists(place) => continue,
            Ok(()) => format!("modprobe succeeded, but {place} is not there"),
        };
        let refusal = cannot_load(kernel.root(), module, &why);
        let what = format!("no drive was touched: {}", refusal.what);
        return Err(Error::new(refusal.kind, what).remedy(refusal.remedy));
    }
    Ok(())
}

/// One pool for each node that has a named drive.
fn pools(kernel: &dyn Kernel, named: &[&Drive], request: &BindRequest) -> Result<Vec<Growth>> {
    let Some(wanted) = request.hugepages else { return Ok(Vec::new()) };
    let mut nodes: Vec<Option<u32>> = named.iter().map(|drive| drive.numa_node).collect();
    nodes.sort();
    nodes.dedup();
    nodes.into_iter().map(|node| Growth::new(kernel, node, wanted)).collect()
}

impl Plan {
    /// The plan for a person, one line for each thing that will be done.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for module in &self.modules {
            let _ = writeln!(text, "load the module {module}");
        }
        for pool in &self.pools {
            let place = pool.place();
            let _ = match pool.missing() {
                0 => writeln!(text, "{place} has {} free hugepages of 2 MiB already", pool.free),
                n => writeln!(text, "add {n} hugepages of 2 MiB on {place}, for {}", pool.wanted),
            };
        }
        if let Some(state) = &self.lockdown {
            let _ =
                writeln!(text, "kernel lockdown is in force ({state}); vfio-pci works under it");
        }
        for drive in &self.already {
            let _ = writeln!(text, "{} is on {VFIO} already", drive.title());
        }
        for drive in &self.drives {
            let model = drive.model.as_deref().unwrap_or("?");
            let size = format_size(drive.size.unwrap_or(0));
            let _ = writeln!(
                text,
                "move {} from {} to {VFIO}: {model}, {size}",
                drive.title(),
                drive.driver_name()
            );
            if !drive.holds.is_empty() {
                let _ = writeln!(text, "  it holds {}; its serial was quoted", holds(drive));
            }
            if let Some(left) = drive.leftover_override() {
                let _ = writeln!(text, "  a leftover driver_override ({left}) will be cleared");
            }
        }
        text
    }
}
