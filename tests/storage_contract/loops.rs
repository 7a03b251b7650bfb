//! The suite over a loop device: a real block device, where this machine lets us make one.

use std::path::{Path, PathBuf};
use std::process::Command as Program;

use millrace::error::{IoStatus, Kind};
use millrace::storage::uring::{UringOptions, UringStorage};
use millrace::storage::{Command, DriveName, OpenMode, Operation, Storage, mem};

use crate::backends::{BYTES, make_file, open, registrations};
use crate::skip::skip;
use crate::suite::{self, Rig};

/// A loop device over a file, taken away when it is dropped.
struct Loop {
    device: PathBuf,
    backing: PathBuf,
    _dir: tempfile::TempDir,
}

impl Loop {
    /// `None`, after saying so, where no loop device can be made.
    fn new(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let backing = dir.path().join("backing");
        make_file(&backing, 0);
        let output = Program::new("losetup")
            .args(["--find", "--show", "--direct-io=on"])
            .arg(&backing)
            .output();
        match output {
            Ok(output) if output.status.success() => {
                let device = String::from_utf8_lossy(&output.stdout).trim().into();
                Some(Self { device, backing, _dir: dir })
            }
            Ok(output) => {
                skip(test, String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(e) => {
                skip(test, &format!("losetup does not run: {e}"));
                None
            }
        }
    }

    fn number(&self) -> String {
        self.device.file_name().expect("a name").to_string_lossy().into_owned()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let done = Program::new("losetup").arg("--detach").arg(&self.device).status();
        assert!(done.is_ok_and(|done| done.success()), "{} stays", self.device.display());
    }
}

#[test]
fn uring_reads_a_loop_device_with_every_set_of_registrations() {
    let Some(it) = Loop::new("uring_reads_a_loop_device_with_every_set_of_registrations") else {
        return;
    };
    for options in registrations() {
        println!("{options:?}");
        let storage = open(&[&it.device], OpenMode::Read, options);
        suite::reading(&storage, &mem::fill);
    }
}

#[test]
fn uring_knows_the_geometry_of_a_loop_device() {
    let Some(it) = Loop::new("uring_knows_the_geometry_of_a_loop_device") else { return };
    let storage = open(&[&it.device], OpenMode::Read, UringOptions::default());
    let info = &storage.drives()[0];
    let queue = PathBuf::from(format!("/sys/block/{}/queue", it.number()));
    let number = |file: &str| -> u64 {
        std::fs::read_to_string(queue.join(file)).unwrap().trim().parse().unwrap()
    };
    assert_eq!(info.capacity, BYTES as u64);
    assert_eq!(u64::from(info.block_size), number("logical_block_size"));
    assert_eq!(u64::from(info.memory_align), number("dma_alignment") + 1);
    assert_eq!(info.max_transfer, Some(number("max_sectors_kb") << 10));
}

#[test]
fn uring_writes_a_loop_device() {
    let Some(it) = Loop::new("uring_writes_a_loop_device") else { return };
    let storage = open(&[&it.device], OpenMode::ReadWrite, UringOptions::default());
    // It is claimed: nobody else opens it to write.
    let name = DriveName::Path(it.device.clone());
    let again = UringStorage::open(&[name], OpenMode::ReadWrite, UringOptions::default());
    assert_eq!(again.unwrap_err().kind(), Kind::Busy);
    suite::writing(&storage, &mem::fill);
}

#[test]
fn an_error_of_the_device_is_the_error_of_one_command() {
    let Some(it) = Loop::new("an_error_of_the_device_is_the_error_of_one_command") else { return };
    let storage = open(&[&it.device], OpenMode::Read, UringOptions::default());
    // A loop device answers EIO where its file has nothing any more (drivers/block/loop.c).
    std::fs::OpenOptions::new().write(true).open(&it.backing).unwrap().set_len(1 << 20).unwrap();
    let mut rig = Rig::new(&storage);
    for (offset, expected) in
        [(0, IoStatus::Ok), (2 << 20, IoStatus::Errno(libc::EIO as u16)), (4096, IoStatus::Ok)]
    {
        let slot = rig.pool.acquire().unwrap();
        let (operation, len) = (Operation::Read, 8192);
        let done = rig.carry_out(Command { slot, drive: 0, operation, offset, len, tag: 3 });
        assert_eq!((done.status, done.tag), (expected, 3), "bytes {offset}+{len}");
        rig.pool.release(done.slot.expect("its slot, also after an error"));
    }
}

#[test]
fn polling_on_a_loop_device_is_refused() {
    let Some(it) = Loop::new("polling_on_a_loop_device_is_refused") else { return };
    let options = UringOptions { iopoll: true, ..UringOptions::default() };
    let name = DriveName::Path(it.device.clone());
    let error = UringStorage::open(&[name], OpenMode::Read, options).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.report().contains("io_poll"), "{}", error.report());
}

#[test]
fn a_loop_device_without_a_file_is_refused() {
    let free = Program::new("losetup").arg("--find").output();
    let path = match &free {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => return skip("a_loop_device_without_a_file_is_refused", "losetup finds none"),
    };
    if !Path::new(&path).exists() {
        return skip("a_loop_device_without_a_file_is_refused", "no device node");
    }
    let name = DriveName::Path(path.into());
    let error = UringStorage::open(&[name], OpenMode::Read, UringOptions::default());
    // Another test may take the device at this moment.
    if let Err(error) = error {
        assert!(error.remedy_text().is_some(), "{}", error.report());
    }
}
