use std::os::unix::ffi::OsStrExt;

use super::*;

fn open_path(path: &Path, mode: OpenMode) -> Result<DriveInfo> {
    let name = DriveName::Path(path.to_owned());
    open(&Root::system(), &name, mode, UringOptions::default()).map(|(info, _)| info)
}

fn refused(path: &Path) -> Error {
    let error = open_path(path, OpenMode::Read).expect_err("is refused");
    assert!(error.remedy_text().is_some(), "{}", error.report());
    error
}

#[test]
fn a_file_is_a_drive_of_whole_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("drive");
    std::fs::write(&path, vec![1; 10_000]).unwrap();
    let info = open_path(&path, OpenMode::Read).unwrap();
    assert!(info.block_size.is_power_of_two());
    assert_eq!(info.capacity, 10_000 / u64::from(info.block_size) * u64::from(info.block_size));
    assert_eq!((info.start, info.serial), (0, None));
    assert_eq!(info.name, path.display().to_string());
}

#[test]
fn what_is_no_drive_is_refused_by_its_kind() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(refused(dir.path()).kind(), Kind::Usage);
    assert_eq!(refused(&dir.path().join("missing")).kind(), Kind::NotFound);
    assert!(refused(Path::new("/dev/null")).what().contains("character device"));
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    assert!(refused(&empty).what().contains("0 bytes"));
    let pipe = dir.path().join("pipe");
    let text = std::ffi::CString::new(pipe.as_os_str().as_bytes()).unwrap();
    // SAFETY: mkfifo reads a C string.
    assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o600) }, 0);
    assert_eq!(refused(&pipe).kind(), Kind::Usage);
}

#[test]
fn each_errno_has_its_kind_and_remedy() {
    for (errno, kind) in [
        (libc::ENOENT, Kind::NotFound),
        (libc::EACCES, Kind::Denied),
        (libc::EROFS, Kind::Denied),
        (libc::EBUSY, Kind::Busy),
        (libc::EINVAL, Kind::Unsupported),
    ] {
        let cause = io::Error::from_raw_os_error(errno);
        let error = open_error(Path::new("/dev/x"), OpenMode::ReadWrite, cause);
        assert_eq!(error.kind(), kind);
        assert!(error.what().contains("/dev/x") && error.remedy_text().is_some(), "{error}");
    }
}

#[test]
fn names_of_other_backends_are_refused_with_the_flag() {
    for (name, flag) in [("mem:1MiB", "--backend mem"), ("trtype:TCP traddr:x", "--backend spdk")] {
        let name: DriveName = name.parse().unwrap();
        let error = open(&Root::system(), &name, OpenMode::Read, UringOptions::default());
        assert!(error.unwrap_err().report().contains(flag));
    }
}

#[test]
fn polling_of_what_has_no_poll_queues_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![0; 8192]).unwrap();
    let options = UringOptions { iopoll: true, ..UringOptions::default() };
    // No /sys at all: the file's device is not known.
    let dir = tempfile::tempdir().unwrap();
    let name = DriveName::Path(file.path().to_owned());
    let error = open(&Root::at(dir.path()), &name, OpenMode::Read, options).unwrap_err();
    assert!(error.report().contains("--iopoll off"), "{}", error.report());
}

#[test]
fn blocks_larger_than_a_slot_are_refused() {
    let geometry = |block_size, memory_align| Geometry {
        bytes: 1 << 20,
        block_size,
        memory_align,
        device: None,
    };
    let path = Path::new("/dev/x");
    assert!(check_geometry(path, &geometry(4096, 4)).is_ok());
    for (block_size, memory_align) in [(16384, 4), (520, 4), (512, 8192)] {
        let error = check_geometry(path, &geometry(block_size, memory_align)).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    }
}
