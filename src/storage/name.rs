//! Names of drives as people write them. The same name works with every backend that can open it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::host::pci::Address;
use crate::limits::SLOT_ALIGN;
use crate::units::{format_size, parse_size};

/// What a drive is named by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DriveName {
    /// A block device, a partition, or a plain file.
    Path(PathBuf),
    /// The NVMe controller at a PCI address.
    Pci(Address, Within),
    /// An SPDK transport id (`trtype:VFIOUSER traddr:...`), as it was written.
    Transport(String, Within),
    /// That many bytes of RAM.
    Memory(u64),
}

/// What of an NVMe controller is meant: ` ns:N` and ` part:N` after its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Within {
    /// Namespace; without it the first one, or the only one.
    pub namespace: Option<u32>,
    /// Partition of that namespace, as the kernel numbers it; without it all of the namespace.
    pub partition: Option<u32>,
}

impl Within {
    /// Takes the words of this kind out of a name.
    fn split(name: &str) -> Result<(String, Self)> {
        let mut within = Self::default();
        let mut words = Vec::new();
        for word in name.split_ascii_whitespace() {
            let Some((key, value)) = word.split_once(':') else {
                words.push(word);
                continue;
            };
            let (place, what) = match key.to_ascii_lowercase().as_str() {
                "ns" => (&mut within.namespace, "namespace"),
                "part" => (&mut within.partition, "partition"),
                _ => {
                    words.push(word);
                    continue;
                }
            };
            let number = value.parse().ok().filter(|number| *number != 0);
            let number = number.ok_or_else(|| {
                Error::usage(format!("\"{word}\" in \"{name}\" is not a {what}"))
                    .remedy(format!("write it like {}:1", key.to_ascii_lowercase()))
            })?;
            if place.replace(number).is_some() {
                return Err(Error::usage(format!("\"{name}\" names two {what}s"))
                    .remedy("name the drive once for each: --device ... --device ..."));
            }
        }
        Ok((words.join(" "), within))
    }
}

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = self.namespace {
            write!(f, " ns:{namespace}")?;
        }
        if let Some(partition) = self.partition {
            write!(f, " part:{partition}")?;
        }
        Ok(())
    }
}

impl FromStr for DriveName {
    type Err = Error;

    /// Parses a name. A file that is called like a PCI address or like a `mem:` drive is reached
    /// by a path with a slash, such as `./5e:00.0`.
    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::usage("the name of a drive is empty").remedy(FORMS));
        }
        if let Some(size) = text.strip_prefix("mem:") {
            return memory(text, size);
        }
        // SPDK's own parser takes `=` as well as `:`, and keys in either case.
        let lower = text.to_ascii_lowercase();
        if lower.starts_with("trtype:") || lower.starts_with("trtype=") {
            let (plain, within) = Within::split(text)?;
            return transport(plain, within);
        }
        // Only the first word decides, so that a file's name may have blanks in it.
        let first = text.split_ascii_whitespace().next().unwrap_or_default();
        if first.parse::<Address>().is_ok() {
            let (plain, within) = Within::split(text)?;
            return Ok(DriveName::Pci(plain.parse()?, within));
        }
        if !text.contains('/') && text.contains(':') {
            return Err(Error::usage(format!("\"{text}\" is not the name of a drive"))
                .remedy(format!("{FORMS}; a file of this name is ./{text}")));
        }
        Ok(DriveName::Path(PathBuf::from(text)))
    }
}

const FORMS: &str = "write /dev/nvme0n1 or another path, a PCI address like 0000:5e:00.0, \
                     an SPDK transport id like \"trtype:PCIe traddr:0000:5e:00.0\" (either with \
                     ns:1 and part:1 behind it, in quotes), or mem:512MiB";

fn memory(text: &str, size: &str) -> Result<DriveName> {
    let bytes = parse_size(size).map_err(|e| {
        Error::usage(format!("\"{text}\" is not a drive in memory"))
            .caused_by(e)
            .remedy("write it like mem:512MiB")
    })?;
    if bytes == 0 || !bytes.is_multiple_of(SLOT_ALIGN as u64) {
        let align = format_size(SLOT_ALIGN as u64);
        let what = format!("\"{text}\": {bytes} bytes is not a multiple of {align} above 0");
        return Err(Error::usage(what).remedy("write it like mem:512MiB"));
    }
    Ok(DriveName::Memory(bytes))
}

fn transport(text: String, within: Within) -> Result<DriveName> {
    let has_address = text
        .split_ascii_whitespace()
        .any(|word| word.len() > 7 && word[..7.min(word.len())].eq_ignore_ascii_case("traddr:"))
        || text.to_ascii_lowercase().contains("traddr=");
    if !has_address {
        return Err(Error::usage(format!("the transport id \"{text}\" has no traddr"))
            .remedy("write it like \"trtype:PCIe traddr:0000:5e:00.0\", in quotes"));
    }
    Ok(DriveName::Transport(text, within))
}

impl fmt::Display for DriveName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriveName::Path(path) => path.display().fmt(f),
            DriveName::Pci(address, within) => write!(f, "{address}{within}"),
            DriveName::Transport(id, within) => write!(f, "{id}{within}"),
            DriveName::Memory(bytes) => write!(f, "mem:{}", exact_size(*bytes)),
        }
    }
}

/// `format_size` rounds what no unit divides; a name has to give the exact size back.
fn exact_size(bytes: u64) -> String {
    let text = format_size(bytes);
    if parse_size(&text).is_ok_and(|parsed| parsed == bytes) {
        text
    } else {
        format!("{}KiB", bytes >> 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> DriveName {
        text.parse().unwrap_or_else(|e: Error| panic!("{text}: {}", e.report()))
    }

    #[test]
    fn each_form_is_recognised() {
        assert_eq!(parse("/dev/nvme0n1"), DriveName::Path("/dev/nvme0n1".into()));
        assert_eq!(parse("data.img"), DriveName::Path("data.img".into()));
        assert_eq!(parse("./5e:00.0"), DriveName::Path("./5e:00.0".into()));
        let address = Address { domain: 0, bus: 0x5e, device: 0, function: 0 };
        assert_eq!(parse("0000:5e:00.0"), DriveName::Pci(address, Within::default()));
        assert_eq!(parse("5E:00.0"), DriveName::Pci(address, Within::default()));
        assert_eq!(parse("5e:00.0").to_string(), "0000:5e:00.0");
        assert_eq!(parse("10000:01:1f.7").to_string(), "10000:01:1f.7");
        assert_eq!(parse("mem:512MiB"), DriveName::Memory(512 << 20));
        let id = "trtype:VFIOUSER traddr:/run/vfio subnqn:nqn.2026-01.io:x";
        assert_eq!(parse(id), DriveName::Transport(id.into(), Within::default()));
        let within = Within { namespace: Some(2), partition: Some(7) };
        assert_eq!(parse("5e:00.0 part:7 ns:2"), DriveName::Pci(address, within));
        assert_eq!(parse(&format!("{id} ns:2 Part:7")), DriveName::Transport(id.into(), within));
        assert_eq!(parse("./5e:00.0 part:1"), DriveName::Path("./5e:00.0 part:1".into()));
    }

    const PARTED: &str = "0000:5e:00.0 ns:1 part:2";

    #[test]
    fn printing_and_parsing_agree() {
        for text in
            ["/dev/nvme0n1", "0000:5e:00.0", "mem:512MiB", "mem:4KiB", "mem:1048580KiB", PARTED]
        {
            assert_eq!(parse(text).to_string(), text);
        }
    }

    #[test]
    fn wrong_names_say_how_to_write_them() {
        for text in [
            "",
            "mem:",
            "mem:0",
            "mem:1000",
            "mem:lots",
            "trtype:PCIe",
            "0000:5e:20.0",
            "0000:5e:00.8",
            "0000:5e:00",
            "0000:5e:00.0 part:0",
            "0000:5e:00.0 part:1 part:2",
            "0000:5e:00.0 partition:1",
            "trtype:PCIe traddr:0000:5e:00.0 ns:x",
            "nqn:x",
        ] {
            let error = text.parse::<DriveName>().expect_err(text);
            assert_eq!(error.kind(), crate::error::Kind::Usage, "{text}");
            assert!(error.remedy_text().is_some(), "{text}");
        }
    }
}
