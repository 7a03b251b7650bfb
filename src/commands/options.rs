//! Flags that several commands share, and their parsers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::names;
use crate::bench::Observe;
use crate::device::DEFAULT_JOURNAL;
use crate::error::{Context, Error, Kind, Result};
use crate::host::Root;
use crate::memory::Pages;
use crate::storage::OpenMode;
use crate::storage::mem::MemStorage;
use crate::storage::name::DriveName;
#[cfg(feature = "spdk")]
use crate::storage::spdk::{SpdkOptions, SpdkStorage};
use crate::storage::uring::{UringOptions, UringStorage};
use crate::units;
use crate::wire::CheckMode;

/// Data path to the drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The kernel's driver through io_uring with O_DIRECT
    Uring,
    /// SPDK's userspace driver, on drives bound to vfio-pci
    Spdk,
    /// Seeded data in memory: the baseline without a drive
    Mem,
}

/// A switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnOff {
    /// Really on, or an error
    On,
    /// Really off
    Off,
}

impl OnOff {
    pub(super) fn is_on(self) -> bool {
        self == OnOff::On
    }
}

/// How much is counted beside the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Counting {
    /// Nothing
    Off,
    /// What costs the load nothing
    On,
    /// That, and what costs it time
    Traced,
}

impl Counting {
    /// What is observed: the threads of `pid`, or of this process, and these drives.
    pub(super) fn observe(self, pid: Option<u32>, drives: &[String]) -> Option<Observe> {
        let traced = self == Counting::Traced;
        (self != Counting::Off).then(|| Observe { pid, drives: drives.to_vec(), traced })
    }
}

/// The drives, and how they are reached.
#[derive(Debug, Clone, Args, Serialize)]
pub struct StorageArgs {
    /// Data path to the drives
    #[arg(long, value_enum, default_value_t = Backend::Uring)]
    pub backend: Backend,
    /// Drive: /dev/nvme0n1, a partition, a file, 0000:5e:00.0, "0000:5e:00.0 ns:1 part:1",
    /// "trtype:... traddr:..." (spdk), mem:512MiB; repeat it for more. With spdk, a drive that
    /// `millrace device bind` has taken from the kernel keeps the name it had: /dev/nvme0n1p1
    #[arg(long = "device", value_name = "D", required = true)]
    pub devices: Vec<String>,
    /// Pages of the slots' memory: auto, none, 2m, 1g
    #[arg(long, default_value = "auto", value_parser = parse::<Pages>)]
    pub hugepages: Pages,
    /// NUMA node of the slots' memory [default: that of the drives]
    #[arg(long)]
    pub node: Option<u32>,
    /// uring: register the slots' memory as fixed buffers
    #[arg(long, value_enum, default_value_t = OnOff::On)]
    pub regbufs: OnOff,
    /// uring: register the drives' file descriptors
    #[arg(long, value_enum, default_value_t = OnOff::On)]
    pub regfiles: OnOff,
    /// uring: register the ring's own file descriptor
    #[arg(long, value_enum, default_value_t = OnOff::On)]
    pub regring: OnOff,
    /// uring: poll the drives for completions instead of taking interrupts
    #[arg(long, value_enum, default_value_t = OnOff::Off)]
    pub iopoll: OnOff,
    /// uring: let a kernel thread submit
    #[arg(long, value_enum, default_value_t = OnOff::Off)]
    pub sqpoll: OnOff,
    /// spdk: time that the drive has for a command; then it is aborted, after as long again the
    /// controller is reset, and a controller that does not come back is given up
    #[arg(long, default_value = "10s", value_parser = duration)]
    #[serde(serialize_with = "seconds")]
    pub command_timeout: Duration,
    /// What is done with the bytes that were read: crc, touch, none
    #[arg(long, default_value = "crc", value_parser = parse::<CheckMode>)]
    pub check: CheckMode,
}

impl StorageArgs {
    /// Opens the drives for reading through io_uring.
    pub fn open_uring(&self) -> Result<UringStorage> {
        self.open_uring_for(OpenMode::Read)
    }

    /// Opens the drives through io_uring, to be written where `mode` says so.
    pub fn open_uring_for(&self, mode: OpenMode) -> Result<UringStorage> {
        let names = self.devices.iter().map(|name| name.parse()).collect::<Result<Vec<_>>>()?;
        UringStorage::open(&names, mode, self.uring_options()).map_err(|error| {
            let root = Root::system();
            let away = |name| names::away(&root, Path::new(DEFAULT_JOURNAL), name);
            match error.kind() {
                Kind::NotFound => self.devices.iter().find_map(|name| away(name)).unwrap_or(error),
                _ => error,
            }
        })
    }

    /// Attaches the drives to SPDK's driver, for reading.
    #[cfg(feature = "spdk")]
    pub fn open_spdk(&self) -> Result<SpdkStorage> {
        self.open_spdk_for(OpenMode::Read)
    }

    /// Attaches the drives to SPDK's driver, to be written where `mode` says so.
    #[cfg(feature = "spdk")]
    pub fn open_spdk_for(&self, mode: OpenMode) -> Result<SpdkStorage> {
        let root = Root::system();
        let drive = |name: &String| names::for_spdk(&root, Path::new(DEFAULT_JOURNAL), name);
        let drives = self.devices.iter().map(drive).collect::<Result<Vec<_>>>()?;
        let timeout = self.command_timeout;
        let options = SpdkOptions { mode, timeout, ..SpdkOptions::default() };
        SpdkStorage::open_drives(&drives, options)
    }

    /// Makes the drives in memory.
    pub fn open_mem(&self) -> Result<MemStorage> {
        let size = |name: &String| match name.parse()? {
            DriveName::Memory(bytes) => Ok(bytes),
            _ => Err(Error::usage(format!("\"{name}\" is not a drive in memory"))
                .remedy("write it like mem:512MiB, or choose --backend uring")),
        };
        let sizes = self.devices.iter().map(size).collect::<Result<Vec<_>>>()?;
        MemStorage::open(&sizes, OpenMode::Read)
    }

    fn uring_options(&self) -> UringOptions {
        UringOptions {
            regbufs: self.regbufs.is_on(),
            regfiles: self.regfiles.is_on(),
            regring: self.regring.is_on(),
            iopoll: self.iopoll.is_on(),
            sqpoll: self.sqpoll.is_on(),
        }
    }
}

/// What `--backend spdk` says in a build without it.
#[cfg(not(feature = "spdk"))]
pub(super) fn spdk_missing() -> Error {
    Error::new(Kind::Unsupported, "this build has no SPDK backend").remedy(
        "install SPDK (https://spdk.io/doc/getting_started.html), then build with \
         --features spdk; or use --backend uring",
    )
}

/// How load is made and measured.
#[derive(Debug, Clone, Args, Serialize)]
pub struct LoadArgs {
    /// Bytes of each read
    #[arg(long, default_value = "1MiB", value_parser = size32)]
    pub io_size: u32,
    /// Reads in flight: per connection, or per thread of `local`
    #[arg(long, default_value_t = 16)]
    pub depth: u32,
    /// Time measured
    #[arg(long, default_value = "10s", value_parser = duration)]
    #[serde(serialize_with = "seconds")]
    pub duration: Duration,
    /// Time before that
    #[arg(long, default_value = "1s", value_parser = duration)]
    #[serde(serialize_with = "seconds")]
    pub warmup: Duration,
    /// Rounds that the measured time is cut into
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Reads per second of the whole run, at fixed intervals: an open loop, whose latency counts
    /// from the intended start [default: a closed loop by depth]
    #[arg(long, value_name = "R")]
    pub rate: Option<f64>,
    /// Read in sequence instead of at random
    #[arg(long)]
    pub sequential: bool,
    /// Offsets are multiples of this [default: the I/O size]
    #[arg(long, value_parser = size)]
    pub align: Option<u64>,
    /// Seed of the random offsets
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Count what the machine does meanwhile: hardware events of the threads that read, CPU time,
    /// requests of the drives, TLB shootdowns, idle states. traced: also system calls, requests
    /// that go to io-wq and look-ups of files, which slows the load down
    #[arg(long, value_enum, default_value_t = Counting::Off)]
    pub counters: Counting,
    /// Write the result as JSON; "-": to standard output, and nothing else there
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Parses whatever knows how, with its own error text.
pub(super) fn parse<T: std::str::FromStr<Err = Error>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e: Error| e.report())
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    units::parse_size(text).map_err(|e| e.report())
}

pub(super) fn size32(text: &str) -> Result<u32, String> {
    u32::try_from(size(text)?).map_err(|_| format!("{text} is more than one read can be"))
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    units::parse_duration(text).map_err(|e| e.report())
}

pub(super) fn seconds<S: serde::Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// Reads a token file: its bytes without white space at the end.
pub(super) fn read_token(path: Option<&Path>) -> Result<Option<Arc<[u8]>>> {
    /// Shorter secrets can be tried out against a recorded handshake.
    const SHORTEST: usize = 16;
    let Some(path) = path else { return Ok(None) };
    let bytes =
        std::fs::read(path).context(|| format!("cannot read the token file {}", path.display()))?;
    let token = bytes.trim_ascii_end();
    if token.len() < SHORTEST {
        return Err(Error::usage(format!(
            "the token in {} has {} bytes; {SHORTEST} are the least",
            path.display(),
            token.len()
        ))
        .remedy(format!("make one: head -c 32 /dev/urandom | base64 > {}", path.display())));
    }
    Ok(Some(Arc::from(token)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_trimmed_and_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        assert_eq!(read_token(Some(&file)).unwrap().unwrap().len(), 16);
        std::fs::write(&file, "short\n").unwrap();
        assert!(read_token(Some(&file)).unwrap_err().what().contains("5 bytes"));
        assert!(read_token(Some(&dir.path().join("none"))).is_err());
        assert!(read_token(None).unwrap().is_none());
    }
}
