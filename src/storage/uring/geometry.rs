//! Sizes and alignments of an opened drive, each from the kernel, none assumed.

use std::fs::{File, Metadata};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{Context, Error, Kind, Result};
use crate::host::Root;
use crate::host::block::BlockDevice;

/// What an opened drive looks like.
#[derive(Debug)]
pub(super) struct Geometry {
    /// Size in bytes.
    pub bytes: u64,
    /// Unit in bytes of offsets and lengths.
    pub block_size: u32,
    /// Alignment in bytes of a buffer's address.
    pub memory_align: u32,
    /// The block device that it is, or that its file system is on.
    pub device: Option<BlockDevice>,
}

/// Of a block device: block size and size by ioctl (block/ioctl.c), the rest from sysfs.
pub(super) fn of_block_device(
    root: &Root,
    path: &Path,
    file: &File,
    metadata: &Metadata,
) -> Result<Geometry> {
    let failed = |what: &str| format!("cannot learn the {what} of {}", path.display());
    let mut block_size: libc::c_int = 0;
    // SAFETY: BLKSSZGET writes one int to the address; the descriptor is open.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &raw mut block_size) };
    check(done).context(|| failed("block size"))?;
    // The number is made from size_t in linux/fs.h; what is written are 64 bits.
    let get_size = libc::_IOR::<libc::size_t>(0x12, 114);
    let mut bytes: u64 = 0;
    // SAFETY: BLKGETSIZE64 writes one u64 to the address; the descriptor is open.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), get_size, &raw mut bytes) };
    check(done).context(|| failed("size"))?;
    let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    let device = BlockDevice::by_number(root, major, minor)?;
    let block_size = block_size as u32;
    // Kernels that do not tell the alignment want that of a block (fs/direct-io.c before 6.0).
    let memory_align = device.memory_align.unwrap_or(block_size);
    Ok(Geometry { bytes, block_size, memory_align, device: Some(device) })
}

/// Of a plain file: what statx(2) says about direct I/O; where the file system does not say, the
/// logical block of the device below it; where it is on none (tmpfs, overlay), the file system's
/// own block size.
pub(super) fn of_file(
    root: &Root,
    path: &Path,
    file: &File,
    metadata: &Metadata,
) -> Result<Geometry> {
    let bytes = metadata.len();
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    // Major 0 is for file systems without a device.
    let device = if major == 0 { None } else { BlockDevice::by_number(root, major, minor).ok() };
    if let Some((memory_align, block_size)) = direct_io_alignment(file) {
        if block_size == 0 {
            return Err(Error::new(
                Kind::Unsupported,
                format!("{}: its file system does no direct I/O on this file", path.display()),
            )
            .remedy("switch off encryption, compression or verity for it, or use a block device"));
        }
        return Ok(Geometry { bytes, block_size, memory_align, device });
    }
    if let Some(BlockDevice { block_size, memory_align, .. }) = device {
        let memory_align = memory_align.unwrap_or(block_size);
        return Ok(Geometry { bytes, block_size, memory_align, device });
    }
    let block_size = file_system_block(file)
        .context(|| format!("cannot learn the block size of {}", path.display()))?;
    Ok(Geometry { bytes, block_size, memory_align: block_size, device })
}

/// Alignment of addresses and of offsets, by STATX_DIOALIGN (kernel 6.1 and later). `None` where
/// the kernel or the file system does not tell.
fn direct_io_alignment(file: &File) -> Option<(u32, u32)> {
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty C string, which with AT_EMPTY_PATH means the descriptor; the
    // kernel writes one statx to the address.
    let done = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            answer.as_mut_ptr(),
        )
    };
    // SAFETY: statx is plain numbers, for which zeroes are a value too.
    let answer = unsafe { answer.assume_init() };
    let told = done == 0 && answer.stx_mask & libc::STATX_DIOALIGN != 0;
    told.then_some((answer.stx_dio_mem_align, answer.stx_dio_offset_align))
}

fn file_system_block(file: &File) -> io::Result<u32> {
    let mut answer = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel writes one statfs to the address; the descriptor is open.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), answer.as_mut_ptr()) })?;
    // SAFETY: filled by the call; zeroes were a value too.
    let answer = unsafe { answer.assume_init() };
    u32::try_from(answer.f_bsize).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))
}

fn check(done: libc::c_int) -> io::Result<()> {
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
