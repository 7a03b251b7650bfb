//! The one way in which a drive changes its driver, used forward, for rolling back and for
//! restoring: override, unbind, probe, look, clear.

use super::kernel::{Kernel, Step};
use super::{Entry, boot_id};
use crate::error::{Context, Error, Kind, Result};
use crate::host::nvme;
use crate::host::pci::{self, Address};

/// Pauses (50 ms each) until a driver's link must have appeared.
const LINK_TRIES: u32 = 100;

/// Pauses until a drive must have named itself and its namespaces. A drive may take tens of seconds
/// to become ready (CAP.TO, at most 127.5 s).
const SERIAL_TRIES: u32 = 2600;

/// Pauses more for partitions: the kernel reads the table after the disk has appeared.
const PARTITION_TRIES: u32 = 40;

/// Gives the drive to `driver`, verifies it, and leaves `driver_override` empty. Nothing to do is a
/// success. On an error the drive may be anywhere between: the caller decides what then.
pub(super) fn switch(kernel: &dyn Kernel, address: Address, driver: &str) -> Result<()> {
    let root = kernel.root();
    let now = pci::driver(root, address);
    if now.as_deref() == Some(driver) {
        return clear_override(kernel, address);
    }
    let folder = pci::dir(address);
    kernel
        .write(&format!("{folder}/driver_override"), &format!("{driver}\n"))
        .context(|| format!("cannot set driver_override of {address} to {driver}"))?;
    kernel.reached(Step::Override);
    if let Some(now) = now {
        kernel
            .write(&format!("/sys/bus/pci/drivers/{now}/unbind"), &address.to_string())
            .context(|| format!("cannot unbind {address} from {now}"))?;
    }
    kernel.reached(Step::Unbind);
    // The answer is judged by its outcome below: a driver that fails to take the drive is no error
    // of this write on every kernel. Its errno still says why.
    let probed = kernel.write("/sys/bus/pci/drivers_probe", &address.to_string());
    kernel.reached(Step::Probe);
    let bound = || pci::driver(root, address).as_deref() == Some(driver);
    if !wait(kernel, LINK_TRIES, bound) {
        let now = pci::driver(root, address).unwrap_or_else(|| "no driver".to_owned());
        let what = format!("{address} did not attach to {driver}: it has {now}");
        let error = Error::new(Kind::Device, what).remedy("dmesg | tail shows the kernel's reason");
        return Err(match probed {
            Ok(()) => error,
            Err(e) => error.caused_by(e),
        });
    }
    kernel.reached(Step::Verify);
    clear_override(kernel, address)?;
    kernel.reached(Step::Clear);
    Ok(())
}

/// Empties `driver_override` and reads it back. A leftover would keep the drive from every other
/// driver: after a hot reset, a rescan or the end of this program.
pub(super) fn clear_override(kernel: &dyn Kernel, address: Address) -> Result<()> {
    if pci::driver_override(kernel.root(), address).is_none() {
        return Ok(());
    }
    let path = format!("{}/driver_override", pci::dir(address));
    kernel.write(&path, "\n").context(|| format!("cannot clear {path}"))?;
    match pci::driver_override(kernel.root(), address) {
        None => Ok(()),
        Some(left) => Err(Error::new(Kind::Device, format!("{path} still says {left}"))
            .remedy(format!("echo > {path}"))),
    }
}

/// Waits until the drive of `entry` is back as block devices under its own serial, at most two
/// minutes. Returns their names.
pub(super) fn await_disks(kernel: &dyn Kernel, entry: &Entry) -> Result<Vec<String>> {
    let root = kernel.root();
    let address = entry.address;
    let look = || nvme::controller(root, address).filter(|c| c.serial.is_some());
    let expected = entry.disks.len();
    let is_ours = |c: &nvme::Controller| c.serial.as_ref() == Some(&entry.serial);
    let back = || look().is_some_and(|c| !is_ours(&c) || c.namespaces.len() >= expected);
    if !wait(kernel, SERIAL_TRIES, back) {
        let what = format!(
            "{address} has {} again, but serial {} has not reappeared as {} block device(s)",
            entry.driver, entry.serial, expected
        );
        return Err(Error::new(Kind::Device, what).remedy(format!(
            "dmesg | grep {address} shows why; then: millrace device restore {address}"
        )));
    }
    if let Some(other) = look().filter(|c| !is_ours(c)) {
        let serial = other.serial.unwrap_or_default();
        let what = format!("the drive at {address} has serial {serial}, not {}", entry.serial);
        return Err(Error::new(Kind::Device, what)
            .remedy("drives were exchanged or renumbered: millrace device list"));
    }
    let partitions =
        |c: &nvme::Controller| c.namespaces.iter().map(|d| d.partitions.len()).sum::<usize>();
    let before: usize = entry.disks.iter().map(|disk| disk.partitions.len()).sum();
    // They may be fewer for good: whoever had the drive may have written to it.
    wait(kernel, PARTITION_TRIES, || look().is_some_and(|c| partitions(&c) >= before));
    let disks = look().map(|c| c.namespaces).unwrap_or_default();
    Ok(disks.into_iter().map(|disk| disk.name).collect())
}

/// Waits until the drive has named itself, at most as long; for a drive of which nothing is known.
pub(super) fn await_serial(kernel: &dyn Kernel, address: Address) -> Option<String> {
    let serial = || nvme::controller(kernel.root(), address)?.serial;
    wait(kernel, SERIAL_TRIES, || serial().is_some());
    serial()
}

/// True as soon as `done` is; false after `tries` pauses.
fn wait(kernel: &dyn Kernel, tries: u32, done: impl Fn() -> bool) -> bool {
    for _ in 0..tries {
        if done() {
            return true;
        }
        kernel.pause();
    }
    done()
}

/// True for an entry that was written since the machine started.
pub(super) fn is_of_this_boot(kernel: &dyn Kernel, entry: &Entry) -> bool {
    entry.boot_id == boot_id(kernel.root())
}
