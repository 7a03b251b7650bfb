//! Advisory locks between processes (flock(2)).

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::error::{Context, Error, Kind, Result};

/// An exclusive lock, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "closing the file releases the lock")] File);

impl Lock {
    /// Takes the lock on `path` (made if it is missing) or fails at once with [`Kind::Busy`],
    /// naming the process that wrote itself into the file.
    pub fn take(path: &Path) -> Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).truncate(false);
        // First as it is: in a folder that all may write to, the kernel refuses O_CREAT on a file
        // of somebody else even to root (fs.protected_regular in proc(5)).
        let opened = options.open(path).or_else(|e| match e.kind() {
            io::ErrorKind::NotFound => options.create(true).open(path),
            _ => Err(e),
        });
        let mut file = opened.context(|| format!("cannot open the lock {}", path.display()))?;
        if let Err(e) = flock(&file) {
            if e.kind() != io::ErrorKind::WouldBlock {
                return Err(e).context(|| format!("cannot lock {}", path.display()));
            }
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => String::new(),
                pid => format!(" (PID {pid})"),
            };
            let what = format!("{} is locked by another millrace process{holder}", path.display());
            return Err(Error::new(Kind::Busy, what)
                .remedy("wait until that process has ended, then run the command again"));
        }
        // Only said to people; the lock itself is the kernel's.
        let said = file.set_len(0).and_then(|()| file.rewind());
        said.and_then(|()| writeln!(file, "{}", std::process::id()))
            .context(|| format!("cannot write {}", path.display()))?;
        Ok(Self(file))
    }
}

fn flock(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `file` lives, and the call takes no pointers.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_taker_is_told_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = Lock::take(&path).unwrap();
        let error = Lock::take(&path).unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        assert!(error.what().contains(&format!("PID {}", std::process::id())), "{error}");
        drop(first);
        Lock::take(&path).unwrap();
    }
}
