//! A tree of files as objects: their keys are their paths below its root.

use std::fs::{DirEntry, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};
use crate::object::{BadKey, KeyName, MAX_KEY};
use crate::storage::Queue;
use crate::units::format_size;

use super::Progress;
use super::puts::{PutOutcome, PutReport, Puts, Source};

/// Why a file was left out.
#[derive(Debug)]
pub enum WhySkipped {
    /// Its path below the root has that many bytes.
    KeyTooLong(usize),
    /// It has no bytes, which no object has.
    Empty,
    /// It has that many bytes; the store's limit is the second number.
    TooLarge(u64, u32),
    /// It is no file and no folder: a link, a pipe, a device, a socket.
    NotRegular(&'static str),
    /// It was changed while it was read.
    Changed,
    /// It cannot be read.
    Unreadable(std::io::Error),
}

impl std::fmt::Display for WhySkipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WhySkipped::KeyTooLong(len) => {
                write!(f, "its path has {len} bytes; keys have {MAX_KEY} at most")
            }
            WhySkipped::Empty => f.write_str("it is empty; objects have 1 byte at least"),
            WhySkipped::TooLarge(size, limit) => {
                let (size, limit) = (format_size(*size), format_size((*limit).into()));
                write!(f, "it has {size}; objects of this store have {limit} at most")
            }
            WhySkipped::NotRegular(what) => write!(f, "it is {what}"),
            WhySkipped::Changed => f.write_str("it was changed while it was read"),
            WhySkipped::Unreadable(error) => write!(f, "it cannot be read: {error}"),
        }
    }
}

/// A file that was left out.
#[derive(Debug)]
pub struct Skipped {
    /// Its path.
    pub path: PathBuf,
    /// Why.
    pub why: WhySkipped,
}

/// Puts every file below `root`; `skipped` learns of each that is left out.
///
/// # Errors
///
/// Where `root` is no folder that can be read; else as [`Puts::run`].
pub fn ingest<Q: Queue>(
    puts: &mut Puts<Q>,
    limit: u32,
    root: &Path,
    progress: &Progress,
    skipped: &mut dyn FnMut(Skipped),
    each: &mut dyn FnMut(&KeyName, PutOutcome),
) -> Result<PutReport> {
    let first = sorted(root).context(|| format!("cannot read the folder {}", root.display()))?;
    progress.begin(0);
    let mut tree = Tree { root, limit, stack: vec![first], skipped };
    puts.run(&mut tree, progress, each)
}

/// What is left of each folder on the way down, last name first.
type Left = Vec<DirEntry>;

struct Tree<'a> {
    root: &'a Path,
    limit: u32,
    stack: Vec<Left>,
    skipped: &'a mut dyn FnMut(Skipped),
}

/// By name, backwards, so that a run does what the one before it did.
fn sorted(folder: &Path) -> std::io::Result<Left> {
    let mut entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.file_name()));
    Ok(entries)
}

impl Source for Tree<'_> {
    fn next(&mut self, data: &mut [u8]) -> Result<Option<(KeyName, u32)>> {
        loop {
            let Some(folder) = self.stack.last_mut() else { return Ok(None) };
            let Some(entry) = folder.pop() else {
                self.stack.pop();
                continue;
            };
            let path = entry.path();
            match self.take(&entry, &path, data) {
                Ok(Some(taken)) => return Ok(Some(taken)),
                Ok(None) => {}
                Err(why) => (self.skipped)(Skipped { path, why }),
            }
        }
    }
}

impl Tree<'_> {
    /// Reads a file, or goes down into a folder.
    fn take(
        &mut self,
        entry: &DirEntry,
        path: &Path,
        data: &mut [u8],
    ) -> Result<Option<(KeyName, u32)>, WhySkipped> {
        use std::os::unix::fs::FileTypeExt;
        // Of the entry itself: links are not followed.
        let kind = entry.file_type().map_err(WhySkipped::Unreadable)?;
        if kind.is_dir() {
            self.stack.push(sorted(path).map_err(WhySkipped::Unreadable)?);
            return Ok(None);
        }
        if !kind.is_file() {
            return Err(WhySkipped::NotRegular(match () {
                () if kind.is_symlink() => "a symbolic link",
                () if kind.is_fifo() => "a pipe",
                () if kind.is_socket() => "a socket",
                () => "a device",
            }));
        }
        let relative = path.strip_prefix(self.root).expect("entries are below the root");
        let key = KeyName::new(relative.as_os_str().as_bytes()).map_err(|bad| match bad {
            BadKey::TooLong(len) => WhySkipped::KeyTooLong(len),
            BadKey::Empty => unreachable!("an entry has a name"),
        })?;
        let mut file = File::open(path).map_err(WhySkipped::Unreadable)?;
        let size = file.metadata().map_err(WhySkipped::Unreadable)?.len();
        match size {
            0 => return Err(WhySkipped::Empty),
            size if size > self.limit.into() => {
                return Err(WhySkipped::TooLarge(size, self.limit));
            }
            _ => {}
        }
        let into = &mut data[..size as usize];
        file.read_exact(into).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => WhySkipped::Changed,
            _ => WhySkipped::Unreadable(error),
        })?;
        // One byte more means that it has grown.
        match file.read(&mut [0]).map_err(WhySkipped::Unreadable)? {
            0 => Ok(Some((key, size as u32))),
            _ => Err(WhySkipped::Changed),
        }
    }
}
