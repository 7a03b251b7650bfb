//! Opening a drive by name.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::geometry::{self, Geometry};
use super::options::UringOptions;
use crate::error::{Context, Error, Kind, Result};
use crate::host::{Root, block};
use crate::limits::SLOT_ALIGN;
use crate::storage::{DriveInfo, DriveName, OpenMode};

/// How long a drive in use is asked for again. The kernel gives back what a killed process held in
/// the background (io_ring_exit_work in io_uring/io_uring.c), so a server that is started anew at
/// once would be refused the drives of the one before.
const LET_GO: Duration = Duration::from_millis(500);

/// Opens one drive and learns what it is.
pub(super) fn open(
    root: &Root,
    name: &DriveName,
    mode: OpenMode,
    options: UringOptions,
) -> Result<(DriveInfo, OwnedFd)> {
    let path = path_of(root, name)?;
    // Looked at first, because opening a pipe waits for its other end.
    let metadata = std::fs::metadata(&path).map_err(|e| open_error(&path, mode, e))?;
    check_type(&path, &metadata)?;
    let is_block = metadata.file_type().is_block_device();
    let file = open_direct(&path, mode, is_block)?;
    let metadata = file.metadata().context(|| format!("cannot look at {}", path.display()))?;
    let geometry = if is_block {
        geometry::of_block_device(root, &path, &file, &metadata)?
    } else {
        geometry::of_file(root, &path, &file, &metadata)?
    };
    check_geometry(&path, &geometry)?;
    if options.iopoll {
        let refused = |cause: Error| {
            let error = Error::new(
                Kind::Unsupported,
                format!("--iopoll on: {} cannot be polled", path.display()),
            );
            let remedy = cause.remedy_text().unwrap_or("use --iopoll off").to_owned();
            error.caused_by(cause).remedy(remedy)
        };
        match &geometry.device {
            Some(device) => device.check_polling(root).map_err(refused)?,
            None => {
                let cause = "its file system is on no block device of its own";
                return Err(refused(Error::new(Kind::Unsupported, cause)));
            }
        }
    }
    let capacity = geometry.bytes - geometry.bytes % u64::from(geometry.block_size);
    let node = geometry.device.as_ref().and_then(|device| device.node);
    // Of the drive itself only: a file is not the whole of what it lies on.
    let device = geometry.device.filter(|_| is_block);
    let info = DriveInfo {
        name: name.to_string(),
        serial: device.as_ref().and_then(|device| device.serial.clone()),
        model: device.as_ref().and_then(|device| device.model.clone()),
        capacity,
        block_size: geometry.block_size,
        memory_align: geometry.memory_align,
        max_transfer: device.as_ref().and_then(|device| device.max_transfer),
        start: device.as_ref().map_or(0, |device| device.start),
        node,
    };
    Ok((info, file.into()))
}

fn path_of(root: &Root, name: &DriveName) -> Result<PathBuf> {
    match name {
        DriveName::Path(path) => Ok(path.clone()),
        DriveName::Pci(address, within) => {
            let disk = block::of_pci(root, *address, within.namespace)?;
            let device = match within.partition {
                None => disk,
                Some(number) => block::partition(root, &disk, number)?,
            };
            Ok(PathBuf::from(format!("/dev/{device}")))
        }
        DriveName::Transport(id, _) => {
            Err(Error::usage(format!("\"{id}\" is an SPDK transport id"))
                .remedy("use --backend spdk, or name the drive by path or PCI address"))
        }
        DriveName::Memory(_) => Err(Error::usage(format!("{name} is not a drive of the kernel"))
            .remedy("use --backend mem, or name a file on tmpfs")),
    }
}

fn check_type(path: &Path, metadata: &Metadata) -> Result<()> {
    let (kind, path) = (metadata.file_type(), path.display());
    if kind.is_block_device() || kind.is_file() {
        return Ok(());
    }
    let (what, remedy) = if kind.is_dir() {
        ("a directory", "name a block device, a partition, or a file in it")
    } else if kind.is_char_device() {
        ("a character device", "name the block device of a namespace, such as /dev/nvme0n1")
    } else {
        ("neither a block device nor a file", "name a block device, a partition, or a file")
    };
    Err(Error::usage(format!("{path} is {what}")).remedy(remedy))
}

fn open_direct(path: &Path, mode: OpenMode, is_block: bool) -> Result<File> {
    let mut flags = libc::O_DIRECT | libc::O_CLOEXEC;
    if is_block && mode.is_writable() {
        // Without O_CREAT, this claims a block device: EBUSY where it is mounted, swapped to, or
        // part of an array (open(2)).
        flags |= libc::O_EXCL;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(mode.is_writable()).custom_flags(flags);
    let end = Instant::now() + LET_GO;
    loop {
        match options.open(path) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => {
                std::thread::sleep(LET_GO / 50);
            }
            done => return done.map_err(|e| open_error(path, mode, e)),
        }
    }
}

fn open_error(path: &Path, mode: OpenMode, cause: io::Error) -> Error {
    let path = path.display();
    let purpose = if mode.is_writable() { "read and write" } else { "read" };
    let error = match cause.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENXIO | libc::ENODEV) => {
            block::no_drive(&path.to_string())
        }
        Some(libc::EACCES | libc::EPERM) => {
            Error::new(Kind::Denied, format!("no permission to {purpose} {path}"))
                .remedy("run it as root, or as a member of the group that owns it (often: disk)")
        }
        Some(libc::EROFS) => Error::new(Kind::Denied, format!("{path} cannot be written"))
            .remedy("open it to read, or make it writable: blockdev --setrw, mount -o remount,rw"),
        Some(libc::EBUSY) => Error::new(Kind::Busy, format!("{path} is in use"))
            .remedy("`lsblk` and `millrace device list` show by what; unmount or release it first"),
        Some(libc::ETXTBSY) => Error::new(Kind::Busy, format!("{path} is in use as swap"))
            .remedy("`swapon --show` lists swap; name another file"),
        Some(libc::EINVAL) => Error::new(
            Kind::Unsupported,
            format!("{path} cannot be opened with O_DIRECT: its file system does not have it"),
        )
        .remedy("use a block device, or a file on ext4, xfs, or (kernel 6.6 and later) tmpfs"),
        _ => Error::new(Kind::Device, format!("cannot open {path} to {purpose}")),
    };
    error.caused_by(cause)
}

/// The rest of the program relies on these.
fn check_geometry(path: &Path, geometry: &Geometry) -> Result<()> {
    let path = path.display();
    let unsupported = |what: String, remedy: &str| {
        Err(Error::new(Kind::Unsupported, format!("{path} {what}")).remedy(remedy))
    };
    let (block, align) = (geometry.block_size, geometry.memory_align);
    if !block.is_power_of_two() || block as usize > SLOT_ALIGN {
        return unsupported(
            format!("has blocks of {block} bytes; powers of two up to {SLOT_ALIGN} are supported"),
            "format the drive to 512 or 4096 bytes (nvme format --lbaf), which erases it",
        );
    }
    if !align.is_power_of_two() || align as usize > SLOT_ALIGN {
        return unsupported(
            format!("needs buffers aligned to {align} bytes; slots are aligned to {SLOT_ALIGN}"),
            "use another drive",
        );
    }
    if geometry.bytes < u64::from(block) {
        return Err(Error::new(
            Kind::Data,
            format!("{path} has {} bytes, less than one block of {block}", geometry.bytes),
        )
        .remedy("a drive that shows no size is not ready or not attached; a file must be filled"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
