//! What drives are opened by.

use crate::error::{Error, Kind, Result};
use crate::storage::DriveName;

/// A drive to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpdkDrive {
    /// What it is called, in results and errors.
    pub name: String,
    /// Where it is.
    pub at: DriveName,
    /// What has to be found there, where `at` is from an earlier time and may be another's by now.
    pub expected: Option<Expected>,
}

/// What a drive was when it was last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Its serial number.
    pub serial: String,
    /// Bytes of its namespace, where only they tell it from others of the same controller.
    pub bytes: Option<u64>,
    /// Who says so: `the journal of bound drives`.
    pub source: String,
}

impl std::str::FromStr for SpdkDrive {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(Self { name: text.to_owned(), at: text.parse()?, expected: None })
    }
}

impl Expected {
    /// Compares with what is there, so that no other drive's bytes are taken for this one's.
    ///
    /// # Errors
    ///
    /// `NotFound`, with both.
    pub(super) fn check(&self, name: &str, serial: Option<&str>, bytes: u64) -> Result<()> {
        let serial = serial.unwrap_or_default();
        let source = &self.source;
        let what = if serial != self.serial || serial.is_empty() {
            format!(
                "{name} has serial number \"{}\" by {source}, but the drive there now has \
                 \"{serial}\"",
                self.serial
            )
        } else if self.bytes.is_some_and(|expected| expected != bytes) {
            format!(
                "{name} has {} bytes by {source}, but the namespace there now has {bytes}",
                self.bytes.unwrap_or_default()
            )
        } else {
            return Ok(());
        };
        Err(Error::new(Kind::NotFound, what).remedy(
            "millrace device list shows where each drive is; name it by its PCI address, or put \
             the entry right with millrace device restore",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_drive_in_its_place_is_refused_with_both_serials() {
        let expected = Expected { serial: "A1".into(), bytes: Some(512), source: "them".into() };
        assert!(expected.check("x", Some("A1"), 512).is_ok());
        let error = expected.check("x", Some("B2"), 512).unwrap_err();
        assert!(error.what().contains("\"A1\"") && error.what().contains("\"B2\""), "{error}");
        let error = expected.check("x", None, 512).unwrap_err();
        assert!(error.what().contains("has \"\""), "{error}");
        let error = expected.check("x", Some("A1"), 1024).unwrap_err();
        assert!(error.what().contains("512 bytes") && error.what().contains("1024"), "{error}");
        // Drives without a serial number cannot be told apart.
        let nameless = Expected { serial: String::new(), ..expected };
        assert!(nameless.check("x", None, 512).is_err());
    }
}
