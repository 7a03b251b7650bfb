//! Carrying out a bind: whatever fails, the drive is back with its driver afterwards, or the
//! journal knows where it belongs.

use std::fs::File;
use std::io::ErrorKind;
use std::time::{SystemTime, UNIX_EPOCH};

use super::journal::JournalFile;
use super::kernel::{Kernel, Step};
use super::plan::{BindRequest, load_modules, plan};
use super::switch::{await_disks, switch};
use super::{Drive, Entry, NVME, VFIO, boot_id, look_again};
use crate::error::{Error, Kind, Result};
use crate::host::pci;

/// Plans, shows the plan through `say`, and carries it out, drive by drive. On a failure the drive
/// at hand is rolled back; those before it stay bound and are named. Blocks for as long as the
/// kernel takes to unbind and to probe.
pub fn bind(
    kernel: &dyn Kernel,
    journal: &mut JournalFile,
    request: &BindRequest,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    let plan = plan(kernel, journal.journal(), request)?;
    say(plan.describe().trim_end());
    load_modules(kernel, &plan.modules)?;
    for pool in &plan.pools {
        pool.carry_out(kernel)?;
    }
    // Held until each drive has left: nobody can mount one or stack on one in between, and what
    // was taken into use since the plan keeps all of them.
    let mut claims = Vec::new();
    let mut claimed: Vec<&str> = Vec::new();
    for drive in &plan.drives {
        // Under native multipath several drives have the same block device.
        let names = drive.disks.iter().map(|disk| disk.name.as_str());
        let names: Vec<&str> = names.filter(|name| !claimed.contains(name)).collect();
        claims.push(claim(kernel, drive, &names)?);
        claimed.extend(names);
        unchanged(kernel, journal, drive)?;
    }
    let mut done: Vec<String> = Vec::new();
    for (drive, claims) in plan.drives.iter().zip(claims) {
        match bind_one(kernel, journal, drive, claims) {
            Ok(()) => say(&format!("{} is on {VFIO}", drive.title())),
            Err(error) if done.is_empty() => return Err(error),
            Err(error) => {
                let done = done.join(" ");
                let what = format!("{done} went to {VFIO} and stay there, the next drive did not");
                let undo = format!("millrace device restore {done}");
                let remedy = match error.remedy_text() {
                    Some(remedy) => format!("{remedy}; to undo the others: {undo}"),
                    None => format!("to undo the others: {undo}"),
                };
                return Err(Error::new(error.kind(), what).remedy(remedy).caused_by(error));
            }
        }
        done.push(drive.address.to_string());
    }
    Ok(())
}

fn bind_one(
    kernel: &dyn Kernel,
    journal: &mut JournalFile,
    drive: &Drive,
    claims: Vec<File>,
) -> Result<()> {
    let entry = entry_of(kernel, drive);
    journal.add(entry.clone())?;
    kernel.reached(Step::Journal);
    let outcome = switch(kernel, drive.address, VFIO);
    drop(claims);
    outcome.map_err(|cause| roll_back(kernel, journal, &entry, cause))
}

/// Exclusive claims of block devices of the drive.
fn claim(kernel: &dyn Kernel, drive: &Drive, devices: &[&str]) -> Result<Vec<File>> {
    let claims = devices.iter().map(|device| {
        kernel.claim(device).map_err(|e| {
            let (kind, how) = match e.kind() {
                ErrorKind::ResourceBusy => {
                    (Kind::Busy, "was taken into use since the plan was made")
                }
                _ => (Kind::Device, "cannot be claimed"),
            };
            let title = drive.title();
            Error::new(kind, format!("no drive was moved: {title}: /dev/{device} {how}"))
                .remedy("millrace device list shows what it is used for; run both as root")
                .caused_by(e)
        })
    });
    claims.collect()
}

/// The plan may be some seconds old.
fn unchanged(kernel: &dyn Kernel, journal: &JournalFile, drive: &Drive) -> Result<()> {
    let now = look_again(kernel.root(), journal.journal(), drive.address);
    if let Some(used) = now.uses.first() {
        let what = format!(
            "no drive was moved: {}: {} since the plan was made",
            drive.title(),
            used.describe()
        );
        return Err(Error::new(Kind::Busy, what).remedy(used.release()));
    }
    if (&now.serial, &now.driver) != (&drive.serial, &drive.driver) {
        let what = format!("{} changed since the plan was made: {}", drive.title(), now.title());
        return Err(Error::new(Kind::Busy, what).remedy("millrace device list, then try again"));
    }
    Ok(())
}

fn entry_of(kernel: &dyn Kernel, drive: &Drive) -> Entry {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Entry {
        address: drive.address,
        serial: drive.serial.clone().unwrap_or_default(),
        model: drive.model.clone().unwrap_or_default(),
        driver: drive.driver.clone().unwrap_or_else(|| NVME.to_owned()),
        driver_override: drive.driver_override.clone(),
        bound_to: VFIO.to_owned(),
        disks: drive.disks.clone(),
        holds: Entry::content(&drive.holds),
        time: now.as_secs(),
        boot_id: boot_id(kernel.root()),
    }
}

/// Puts the drive back and says so; if even that fails, the journal keeps the entry.
fn roll_back(kernel: &dyn Kernel, journal: &mut JournalFile, entry: &Entry, cause: Error) -> Error {
    let address = entry.address;
    let back = switch(kernel, address, &entry.driver)
        .and_then(|()| await_disks(kernel, entry))
        .and_then(|disks| journal.remove(address).map(|()| disks));
    match back {
        Ok(disks) => {
            let what = format!(
                "{address} (serial {}) could not be moved and is back with {} as {}",
                entry.serial,
                entry.driver,
                disks.join(", ")
            );
            let remedy = cause.remedy_text().unwrap_or("dmesg | tail shows the kernel's reason");
            Error::new(cause.kind(), what).remedy(remedy).caused_by(cause)
        }
        Err(second) => {
            let now = pci::driver(kernel.root(), address);
            let what = format!(
                "{address} (serial {}) could not be moved ({}), nor be put back ({}): it has {}",
                entry.serial,
                cause.report(),
                second.report(),
                now.as_deref().unwrap_or("no driver")
            );
            Error::new(Kind::Device, what)
                .remedy(format!("the journal keeps it: millrace device restore {address}"))
        }
    }
}
