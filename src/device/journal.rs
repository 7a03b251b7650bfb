//! The journal of moved drives: written before a drive leaves its driver, so that whatever happens
//! afterwards, `restore` knows where it belongs. Version 1, JSON.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Content;
use crate::error::{Context, Error, Kind, Result};
use crate::host::lock::Lock;
use crate::host::nvme::Disk;
use crate::host::pci::Address;

/// Where the journal is kept unless another file is named.
pub const DEFAULT_JOURNAL: &str = "/var/lib/millrace/device-journal.json";

const VERSION: u32 = 1;

/// One drive that is away from its driver, or about to leave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// PCI address. May be another drive's after a reboot: the serial decides.
    pub address: Address,
    /// Serial number, which cannot be read while the drive is away.
    pub serial: String,
    /// Model.
    pub model: String,
    /// The driver that it came from.
    pub driver: String,
    /// `driver_override` before, for the record: it is cleared, never put back.
    pub driver_override: Option<String>,
    /// The driver that it went to.
    pub bound_to: String,
    /// Its block devices before.
    pub disks: Vec<Disk>,
    /// What it held.
    pub holds: Vec<String>,
    /// Seconds since 1970.
    pub time: u64,
    /// /proc/sys/kernel/random/boot_id of that boot.
    pub boot_id: String,
}

/// The drives that are away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Journal {
    /// At most one for an address.
    pub entries: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Text {
    version: u32,
    entries: Vec<Entry>,
}

impl Journal {
    /// Reads the journal without a lock; a missing file is an empty journal. Writers replace the
    /// file as a whole, so what is read is consistent.
    pub fn read(path: &Path) -> Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) => return Err(e).context(|| format!("cannot read {}", path.display())),
        };
        let damaged = |why: String| {
            Error::new(Kind::Data, format!("the journal {} {why}", path.display())).remedy(format!(
                "move it away, then give each drive back by hand: mv {0} {0}.bad; \
                 millrace device list; millrace device restore ADDRESS",
                path.display()
            ))
        };
        // The version first: a later one may have other fields.
        let version = serde_json::from_str::<serde_json::Value>(&text)
            .map_err(|e| damaged("is damaged".to_owned()).caused_by(e))?
            .get("version")
            .and_then(serde_json::Value::as_u64);
        if version != Some(VERSION.into()) {
            let version = version.map_or("none".to_owned(), |v| v.to_string());
            let why = format!("has version {version}, and this millrace knows version {VERSION}");
            return Err(damaged(why).remedy("use the millrace that wrote it"));
        }
        let text: Text = serde_json::from_str(&text)
            .map_err(|e| damaged("is damaged".to_owned()).caused_by(e))?;
        Ok(Self { entries: text.entries })
    }

    /// The entry of the drive at `address`.
    pub fn of(&self, address: Address) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.address == address)
    }
}

impl Entry {
    /// The texts for [`Entry::holds`].
    pub fn content(holds: &[Content]) -> Vec<String> {
        holds.iter().map(|content| format!("{} on {}", content.what, content.device)).collect()
    }
}

/// The journal, locked against other millrace processes for as long as this lives.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    journal: Journal,
    _lock: Lock,
}

impl JournalFile {
    /// Makes the folder if need be, takes the lock (`PATH.lock`) or fails at once with
    /// [`Kind::Busy`], and reads the file.
    pub fn open(path: &Path) -> Result<Self> {
        let folder = folder_of(path);
        std::fs::create_dir_all(folder)
            .context(|| format!("cannot make {}", folder.display()))
            .map_err(|e| e.remedy("run as root, or name another file with --journal"))?;
        let lock = Lock::take(Path::new(&format!("{}.lock", path.display())))?;
        Ok(Self { path: path.to_owned(), journal: Journal::read(path)?, _lock: lock })
    }

    /// What it says now.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds an entry in place of any for the same address; it is on disk when this returns.
    pub fn add(&mut self, entry: Entry) -> Result<()> {
        let mut next = self.journal.clone();
        next.entries.retain(|old| old.address != entry.address);
        next.entries.push(entry);
        self.save(next)
    }

    /// Removes the entry of `address`, if there is one; it is gone from disk when this returns.
    pub fn remove(&mut self, address: Address) -> Result<()> {
        if self.journal.of(address).is_none() {
            return Ok(());
        }
        let mut next = self.journal.clone();
        next.entries.retain(|old| old.address != address);
        self.save(next)
    }

    fn save(&mut self, next: Journal) -> Result<()> {
        let text = Text { version: VERSION, entries: next.entries.clone() };
        let mut text = serde_json::to_string_pretty(&text)
            .map_err(|e| Error::new(Kind::Data, "cannot write the journal as JSON").caused_by(e))?;
        text.push('\n');
        write_durably(&self.path, &text)
            .context(|| format!("cannot write the journal {}", self.path.display()))?;
        self.journal = next;
        Ok(())
    }
}

/// After a crash at any point the file is the old or the new one, whole.
fn write_durably(path: &Path, text: &str) -> std::io::Result<()> {
    let new = PathBuf::from(format!("{}.new", path.display()));
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    File::open(folder_of(path))?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(address: &str) -> Entry {
        Entry {
            address: address.parse().unwrap(),
            serial: "S1".into(),
            model: "M".into(),
            driver: "nvme".into(),
            driver_override: None,
            bound_to: "vfio-pci".into(),
            disks: vec![Disk {
                name: "nvme0n1".into(),
                size: 512,
                partitions: vec![],
                nsid: Some(1),
            }],
            holds: vec![],
            time: 1,
            boot_id: "b".into(),
        }
    }

    #[test]
    fn entries_survive_and_are_replaced_by_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/journal.json");
        assert_eq!(Journal::read(&path).unwrap(), Journal::default());
        let mut file = JournalFile::open(&path).unwrap();
        file.add(entry("0000:01:00.0")).unwrap();
        file.add(entry("0000:02:00.0")).unwrap();
        file.add(Entry { serial: "S2".into(), ..entry("0000:01:00.0") }).unwrap();
        let read = Journal::read(&path).unwrap();
        assert_eq!(&read, file.journal());
        assert_eq!(read.entries.len(), 2);
        assert_eq!(read.of("01:00.0".parse().unwrap()).unwrap().serial, "S2");
        file.remove("0000:01:00.0".parse().unwrap()).unwrap();
        assert_eq!(Journal::read(&path).unwrap().entries.len(), 1);
        assert_eq!(JournalFile::open(&path).unwrap_err().kind(), Kind::Busy);
    }

    #[test]
    fn damage_and_later_versions_are_refused_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.json");
        for (text, says) in [
            ("{", "is damaged"),
            ("{\"version\":2,\"entries\":[]}", "version 2"),
            ("{\"version\":1,\"entries\":[{}]}", "is damaged"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Journal::read(&path).unwrap_err();
            assert!(error.what().contains(says), "{error}");
            assert!(error.remedy_text().is_some());
        }
    }
}
