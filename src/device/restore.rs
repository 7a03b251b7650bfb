//! Putting drives back with the driver that they came from.

use super::journal::{Journal, JournalFile};
use super::kernel::Kernel;
use super::switch::{await_disks, await_serial, is_of_this_boot, switch};
use super::{Drive, Entry, NVME, find, look_again, survey};
use crate::error::{Error, Kind, Result};
use crate::host::pci::{self, Address};

/// What a person asks of `restore` and `unbind`.
#[derive(Debug, Clone, Default)]
pub struct RestoreRequest {
    /// Drives by PCI address or serial; none stands for everything in the journal. A drive that is
    /// not in the journal (bound by another tool) may be named: it goes to the kernel's driver.
    pub drives: Vec<String>,
}

/// What is to be done about one drive.
enum Action {
    /// It is where it belongs; an entry in the journal may go.
    Home(String),
    /// It must be moved.
    Move,
}

/// Says what [`restore`] would do, without lock or change.
pub fn preview(
    kernel: &dyn Kernel,
    journal: &Journal,
    request: &RestoreRequest,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    let addresses = addresses(kernel, journal, request)?;
    for_each(&addresses, say, |address| {
        Ok(match judge(kernel, journal, address, request)? {
            (_, _, Action::Home(text)) => text,
            (drive, driver, Action::Move) => {
                format!("move {} from {} to {driver}", drive.title(), drive.driver_name())
            }
        })
    })
}

/// Puts back what is asked for and waits until each serial is there again as a block device.
/// Repeating it does no harm. A drive that cannot be put back does not keep the others away; the
/// error names all that could not.
pub fn restore(
    kernel: &dyn Kernel,
    journal: &mut JournalFile,
    request: &RestoreRequest,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    let addresses = addresses(kernel, journal.journal(), request)?;
    for_each(&addresses, say, |address| {
        let text = match judge(kernel, journal.journal(), address, request)? {
            (_, _, Action::Home(text)) => text,
            (_, driver, Action::Move) => {
                let entry = journal.journal().of(address).cloned();
                bring_home(kernel, entry.as_ref(), address, &driver)?
            }
        };
        journal.remove(address)?;
        Ok(text)
    })
}

fn for_each(
    addresses: &[Address],
    say: &mut dyn FnMut(&str),
    mut one: impl FnMut(Address) -> Result<String>,
) -> Result<()> {
    if addresses.is_empty() {
        say("the journal names no drive: nothing to restore");
    }
    let mut failed: Vec<Error> = Vec::new();
    for address in addresses {
        match one(*address) {
            Ok(text) => say(&text),
            Err(error) => failed.push(error),
        }
    }
    match failed.len() {
        0 => Ok(()),
        1 => Err(failed.remove(0)),
        n => {
            let texts: Vec<String> = failed.iter().map(Error::report).collect();
            let what = format!("{n} drives could not be restored:\n{}", texts.join("\n"));
            Err(Error::new(failed[0].kind(), what))
        }
    }
}

/// The drives meant. A drive that has left the machine can still be named by what the journal
/// knows of it.
fn addresses(
    kernel: &dyn Kernel,
    journal: &Journal,
    request: &RestoreRequest,
) -> Result<Vec<Address>> {
    let entries = &journal.entries;
    if request.drives.is_empty() {
        return Ok(entries.iter().map(|entry| entry.address).collect());
    }
    let drives = survey(kernel.root(), journal)?;
    let mut addresses = Vec::new();
    for name in &request.drives {
        let by_journal = entries.iter().find(|entry| {
            entry.serial == *name
                || name.parse().is_ok_and(|address: Address| address == entry.address)
                || entry.disks.iter().any(|d| d.name == name.trim_start_matches("/dev/"))
        });
        // The living drive first: a block device's name may be another drive's by now.
        let address = match (find(kernel.root(), &drives, name), by_journal) {
            (Ok(drive), _) => drive.address,
            (Err(_), Some(entry)) => entry.address,
            (Err(error), None) => return Err(error),
        };
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

fn bring_home(
    kernel: &dyn Kernel,
    entry: Option<&Entry>,
    address: Address,
    driver: &str,
) -> Result<String> {
    load_driver(kernel, driver, address)?;
    switch(kernel, address, driver).map_err(|e| {
        Error::new(e.kind(), format!("{address} could not be put back"))
            .remedy(format!(
                "dmesg | tail shows the kernel's reason; then again: millrace device restore \
                 {address}"
            ))
            .caused_by(e)
    })?;
    let Some(entry) = entry else {
        return Ok(match await_serial(kernel, address) {
            Some(serial) => format!("{address} (serial {serial}) is with {driver}"),
            None => format!("{address} is with {driver}, but does not name itself: see dmesg"),
        });
    };
    let disks = await_disks(kernel, entry)?.join(", ");
    Ok(format!("{address} (serial {}) is back with {driver} as {disks}", entry.serial))
}

/// What is to be done about the drive at `address`, which driver it belongs to, and the drive.
fn judge(
    kernel: &dyn Kernel,
    journal: &Journal,
    address: Address,
    request: &RestoreRequest,
) -> Result<(Drive, String, Action)> {
    let drive = look_again(kernel.root(), journal, address);
    let entry = journal.of(address);
    let driver = entry.map_or(NVME, |entry| entry.driver.as_str());
    let named = !request.drives.is_empty();
    let action = action(kernel, entry, &drive, driver, named)?;
    Ok((drive, driver.to_owned(), action))
}

fn action(
    kernel: &dyn Kernel,
    entry: Option<&Entry>,
    drive: &Drive,
    driver: &str,
    named: bool,
) -> Result<Action> {
    let address = drive.address;
    // Something else may sit there by now; it is none of ours.
    if pci::class(kernel.root(), address) != Some(pci::NVME_CLASS) {
        let serial = entry.map_or("?", |entry| entry.serial.as_str());
        return Ok(Action::Home(format!(
            "{address} (serial {serial}) has left the machine: nothing to restore"
        )));
    }
    if drive.driver.as_deref() == Some(driver) {
        return Ok(match &drive.driver_override {
            // The move clears it: another tool's, or our own after a crash on the way back.
            Some(_) => Action::Move,
            None => home(kernel, entry, drive, driver),
        });
    }
    if let Some(used) = drive.uses.first() {
        let what =
            format!("{} stays with {}: {}", drive.title(), drive.driver_name(), used.describe());
        return Err(Error::new(Kind::Busy, what)
            .remedy(format!("{}; then millrace device restore {address}", used.release())));
    }
    let stale = entry.filter(|entry| !is_of_this_boot(kernel, entry));
    if let (Some(entry), Some(now), false) = (stale, &drive.driver, named) {
        // Addresses may have moved since: this may be another drive, put there on purpose.
        let what = format!(
            "{address} had serial {} before the machine was started again, and something other \
             than millrace has bound it to {now} since (vfio-pci.ids= on the kernel's command \
             line, driverctl)",
            entry.serial
        );
        return Err(Error::new(Kind::Busy, what).remedy(format!(
            "to move it to {driver} all the same: millrace device restore {address}"
        )));
    }
    Ok(Action::Move)
}

/// The drive has its driver. After a crash it may not have come up yet: then wait for it.
fn home(kernel: &dyn Kernel, entry: Option<&Entry>, drive: &Drive, driver: &str) -> Action {
    let address = drive.address;
    match entry {
        Some(entry) if drive.serial.is_none() && is_of_this_boot(kernel, entry) => Action::Move,
        Some(entry) if drive.serial.as_ref().is_some_and(|serial| *serial != entry.serial) => {
            Action::Home(format!(
                "{address} is another drive now ({}): the entry of serial {} is removed",
                drive.title(),
                entry.serial
            ))
        }
        _ => Action::Home(format!("{} is with {driver} already", drive.title())),
    }
}

/// Without its driver's module the drive would be left without any.
fn load_driver(kernel: &dyn Kernel, driver: &str, address: Address) -> Result<()> {
    let place = format!("/sys/bus/pci/drivers/{driver}");
    if kernel.root().exists(&place) {
        return Ok(());
    }
    let why = match kernel.load(driver, false) {
        Ok(()) if kernel.root().exists(&place) => return Ok(()),
        Ok(()) => format!("modprobe succeeded, but {place} is not there"),
        Err(why) => why,
    };
    let what = format!("{address} stays where it is: its driver {driver} cannot be loaded: {why}");
    Err(Error::new(Kind::Unsupported, what)
        .remedy(format!("modprobe {driver}; then millrace device restore {address}")))
}
