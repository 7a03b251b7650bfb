//! Errors of set-up and control, and the one-word outcome of an I/O on the data path.
//!
//! An [`Error`] says what is wrong, with the value, and what to do about it. The data path never
//! builds one: a drive answers each command with an [`IoStatus`], which is `Copy`.

use std::fmt;

/// Result of set-up and control operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of fault an [`Error`] is, for callers that match on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The request itself is wrong: a flag, a size, a name. Exit code 2.
    Usage,
    /// Something named does not exist.
    NotFound,
    /// The operating system or the peer refuses.
    Denied,
    /// This machine, kernel, drive or build cannot do it.
    Unsupported,
    /// Memory, hugepages, file descriptors, or a port are short.
    Resource,
    /// A drive or a NIC failed.
    Device,
    /// The network or the peer failed.
    Network,
    /// The peer broke the protocol.
    Protocol,
    /// Bytes are not what they must be.
    Data,
    /// The thing is in use by somebody else.
    Busy,
}

/// A fault of set-up or control: what is wrong, what to do, and the cause below it.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: Kind,
    what: String,
    remedy: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// A fault described by `what`: the thing, the value, and what is wrong with it.
    pub fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, what: what.into(), remedy: None, source: None }))
    }

    /// Wrong usage.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Kind::Usage, what)
    }

    /// Adds what to do: a command where there is one.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.0.remedy = Some(remedy.into());
        self
    }

    /// Adds the cause. It is printed by [`Error::report`], never repeated by `Display`.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The kind, for callers that decide by it.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// What is wrong, without cause and remedy.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// What to do about it, where that is known.
    pub fn remedy_text(&self) -> Option<&str> {
        self.0.remedy.as_deref()
    }

    /// The whole text for a person: what, each cause, and the remedy on its own line.
    pub fn report(&self) -> String {
        let mut text = self.0.what.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(inner) = cause {
            text.push_str(": ");
            text.push_str(&inner.to_string());
            cause = inner.source();
        }
        if let Some(remedy) = &self.0.remedy {
            text.push_str("\n  to mend it: ");
            text.push_str(remedy);
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.what)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

/// Turns an `std::io::Result` into a [`Result`] with context.
pub trait Context<T> {
    /// Adds what was being done; the kind follows from the errno.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for std::io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::new(kind_of(&e), what()).caused_by(e))
    }
}

fn kind_of(e: &std::io::Error) -> Kind {
    use std::io::ErrorKind as K;
    match e.kind() {
        K::NotFound => Kind::NotFound,
        K::PermissionDenied => Kind::Denied,
        K::OutOfMemory | K::StorageFull | K::AddrInUse => Kind::Resource,
        K::Unsupported => Kind::Unsupported,
        K::ResourceBusy => Kind::Busy,
        K::ConnectionRefused
        | K::ConnectionReset
        | K::ConnectionAborted
        | K::NotConnected
        | K::TimedOut
        | K::BrokenPipe
        | K::UnexpectedEof
        | K::HostUnreachable
        | K::NetworkUnreachable => Kind::Network,
        _ => Kind::Device,
    }
}

/// How one command to a drive ended. One word; no allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IoStatus {
    /// Every byte asked for was transferred.
    Ok,
    /// The kernel's answer, as a positive errno.
    Errno(u16),
    /// The drive's answer: status code type and status code (NVM Express Base Specification 2.0,
    /// section 3.3.3.2.1, "Status Field").
    Nvme {
        /// Status code type.
        sct: u8,
        /// Status code.
        sc: u8,
    },
    /// The drive ended the transfer early and gives nothing more from there on.
    Short,
    /// The drive is gone: removed, failed, or given up by its driver.
    Gone,
    /// The command was aborted before the drive answered it.
    Aborted,
}

/// What kind of failure an [`IoStatus`] is: the same for both data paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IoClass {
    /// The medium cannot give the data back.
    Medium,
    /// The data came back, but fails its integrity check.
    Integrity,
    /// The drive refuses the command as such.
    Target,
    /// The way to the drive failed; the drive may be well.
    Transport,
    /// The drive did not answer in time.
    Timeout,
    /// The drive is gone.
    Gone,
    /// The command was aborted.
    Aborted,
    /// None of these.
    Other,
}

impl IoClass {
    /// The class in words.
    pub fn text(self) -> &'static str {
        match self {
            IoClass::Medium => "medium error",
            IoClass::Integrity => "integrity error",
            IoClass::Target => "refused by the drive",
            IoClass::Transport => "transport error",
            IoClass::Timeout => "no answer in time",
            IoClass::Gone => "drive gone",
            IoClass::Aborted => "aborted",
            IoClass::Other => "other error",
        }
    }
}

impl IoStatus {
    /// True for a complete transfer.
    pub fn is_ok(self) -> bool {
        self == IoStatus::Ok
    }

    /// What kind of failure it is; `None` for success.
    ///
    /// The kernel turns a drive's status into an errno by way of `nvme_error_status`
    /// (drivers/nvme/host/core.c) and `blk_errors` (block/blk-core.c); this undoes it.
    pub fn class(self) -> Option<IoClass> {
        Some(match self {
            IoStatus::Ok => return None,
            IoStatus::Errno(errno) => match i32::from(errno) {
                libc::ENODATA => IoClass::Medium,
                libc::EILSEQ => IoClass::Integrity,
                libc::EREMOTEIO | libc::EOPNOTSUPP | libc::EBADE => IoClass::Target,
                libc::ENOLINK => IoClass::Transport,
                libc::ETIMEDOUT | libc::ETIME => IoClass::Timeout,
                libc::ENODEV | libc::ENXIO => IoClass::Gone,
                libc::ECANCELED => IoClass::Aborted,
                _ => IoClass::Other,
            },
            IoStatus::Nvme { sct, sc } => match (sct, sc) {
                (2, 0x80 | 0x81 | 0x86 | 0x87) => IoClass::Medium,
                (2, 0x82..=0x84) => IoClass::Integrity,
                (0, 0x07 | 0x08) | (3, 0x71) => IoClass::Aborted,
                (0, 0x04 | 0x22) | (3, _) => IoClass::Transport,
                (0 | 1, _) => IoClass::Target,
                _ => IoClass::Other,
            },
            // A read inside a drive ends early only where the drive has shrunk or vanished: after
            // a removal the kernel answers reads of the open file with 0 bytes, not an error.
            IoStatus::Short | IoStatus::Gone => IoClass::Gone,
            IoStatus::Aborted => IoClass::Aborted,
        })
    }
}

impl fmt::Display for IoStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            IoStatus::Ok => f.write_str("ok"),
            IoStatus::Errno(errno) => {
                write!(f, "{}", std::io::Error::from_raw_os_error(errno.into()))
            }
            IoStatus::Nvme { sct, sc } => match nvme_status_name(sct, sc) {
                Some(name) => write!(f, "NVMe status SCT {sct:X}h SC {sc:02X}h ({name})"),
                None => write!(f, "NVMe status SCT {sct:X}h SC {sc:02X}h"),
            },
            IoStatus::Short => f.write_str("the drive ended the transfer early"),
            IoStatus::Gone => f.write_str("the drive does not answer any more"),
            IoStatus::Aborted => f.write_str("the command did not complete"),
        }?;
        match self.class() {
            Some(class) => write!(f, ": {}", class.text()),
            None => Ok(()),
        }
    }
}

/// Name of an NVMe status (NVM Express Base Specification 2.0, figures 102 to 107), for the codes
/// that a reader of an error message is likely to meet.
pub fn nvme_status_name(sct: u8, sc: u8) -> Option<&'static str> {
    Some(match (sct, sc) {
        (0, 0x00) => "successful completion",
        (0, 0x01) => "invalid command opcode",
        (0, 0x02) => "invalid field in command",
        (0, 0x04) => "data transfer error",
        (0, 0x05) => "commands aborted due to power loss notification",
        (0, 0x06) => "internal error",
        (0, 0x07) => "command abort requested",
        (0, 0x08) => "command aborted due to SQ deletion",
        (0, 0x0B) => "invalid namespace or format",
        (0, 0x13) => "PRP offset invalid",
        (0, 0x20) => "namespace is write protected",
        (0, 0x21) => "command interrupted",
        (0, 0x22) => "transient transport error",
        (0, 0x80) => "LBA out of range",
        (0, 0x81) => "capacity exceeded",
        (0, 0x82) => "namespace not ready",
        (0, 0x83) => "reservation conflict",
        (0, 0x84) => "format in progress",
        (2, 0x80) => "write fault",
        (2, 0x81) => "unrecovered read error",
        (2, 0x82) => "end-to-end guard check error",
        (2, 0x83) => "end-to-end application tag check error",
        (2, 0x84) => "end-to-end reference tag check error",
        (2, 0x85) => "compare failure",
        (2, 0x86) => "access denied",
        (2, 0x87) => "deallocated or unwritten logical block",
        (3, 0x00) => "internal path error",
        (3, 0x70) => "host pathing error",
        (3, 0x71) => "command aborted by host",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_gives_cause_once_and_remedy_last() {
        let cause = std::io::Error::from_raw_os_error(libc::EACCES);
        let error = Error::new(Kind::Denied, "cannot open /dev/x").caused_by(cause).remedy("chmod");
        assert_eq!(error.to_string(), "cannot open /dev/x");
        assert_eq!(
            error.report(),
            "cannot open /dev/x: Permission denied (os error 13)\n  to mend it: chmod"
        );
    }

    #[test]
    fn one_fault_has_one_class_on_both_paths() {
        let nvme = |sct, sc| IoStatus::Nvme { sct, sc }.class();
        let errno = |errno: i32| IoStatus::Errno(errno as u16).class();
        assert_eq!(nvme(2, 0x81), errno(libc::ENODATA));
        assert_eq!(nvme(2, 0x82), errno(libc::EILSEQ));
        assert_eq!(nvme(0, 0x02), errno(libc::EREMOTEIO));
        assert_eq!(nvme(3, 0x70), errno(libc::ENOLINK));
        assert_eq!(IoStatus::Gone.class(), errno(libc::ENODEV));
        assert_eq!(IoStatus::Gone.class(), IoStatus::Short.class());
        assert_eq!(IoStatus::Ok.class(), None);
    }

    #[test]
    fn statuses_name_themselves() {
        let unrecovered = IoStatus::Nvme { sct: 2, sc: 0x81 };
        assert_eq!(
            unrecovered.to_string(),
            "NVMe status SCT 2h SC 81h (unrecovered read error): medium error"
        );
        assert_eq!(IoStatus::Ok.to_string(), "ok");
        assert!(IoStatus::Errno(5).to_string().ends_with("(os error 5): other error"));
    }
}
