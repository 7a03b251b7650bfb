//! PCI functions as sysfs shows them (Documentation/ABI/testing/sysfs-bus-pci of the kernel).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

use super::Root;
use crate::error::{Error, Result};

/// Class code of an NVMe controller: mass storage, non-volatile memory, NVM Express I/O (PCI Code
/// and ID Assignment Specification, 1.2).
pub const NVME_CLASS: u32 = 0x01_0802;

/// Address of a PCI function: `0000:5e:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Address {
    /// Domain (segment); VMD and some clouds use more than 16 bits.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for Address {
    type Err = Error;

    /// Takes `0000:5e:00.0`, and `5e:00.0` for domain 0 as lspci prints it.
    fn from_str(text: &str) -> Result<Self> {
        parse(text).ok_or_else(|| {
            Error::usage(format!("\"{text}\" is not a PCI address"))
                .remedy("write it like 0000:5e:00.0; millrace device list shows them")
        })
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl TryFrom<String> for Address {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

fn parse(text: &str) -> Option<Address> {
    let hex = |digits: &str, most: usize| {
        let fits = (1..=most).contains(&digits.len());
        let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
        if fits && plain { u32::from_str_radix(digits, 16).ok() } else { None }
    };
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    let address = Address {
        domain: hex(domain, 8)?,
        bus: hex(bus, 2)? as u8,
        device: hex(device, 2)? as u8,
        function: hex(function, 1)? as u8,
    };
    (address.device < 32 && address.function < 8).then_some(address)
}

/// The sysfs folder of a function.
pub fn dir(address: Address) -> String {
    format!("/sys/bus/pci/devices/{address}")
}

/// Every function whose class is NVMe, whatever driver it has, sorted by address.
pub fn nvme_controllers(root: &Root) -> Result<Vec<Address>> {
    if !root.exists("/sys/bus/pci/devices") {
        return Ok(Vec::new());
    }
    let mut found: Vec<Address> = root
        .list("/sys/bus/pci/devices")?
        .iter()
        .filter_map(|name| parse(name))
        .filter(|address| class(root, *address) == Some(NVME_CLASS))
        .collect();
    found.sort();
    Ok(found)
}

/// Class code (24 bits: class, subclass, programming interface), if the function exists.
pub fn class(root: &Root, address: Address) -> Option<u32> {
    let text = root.read(format!("{}/class", dir(address))).ok()?;
    u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

/// True for bridges of all kinds, which never stand in the way of an IOMMU group.
pub fn is_bridge(class: u32) -> bool {
    class >> 16 == 0x06
}

/// Name of the driver that has the function now.
pub fn driver(root: &Root, address: Address) -> Option<String> {
    let link = root.link(format!("{}/driver", dir(address))).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// The only driver that the function may be bound to, if somebody has set one.
pub fn driver_override(root: &Root, address: Address) -> Option<String> {
    let text = root.read(format!("{}/driver_override", dir(address))).ok()?;
    (!text.is_empty() && text != "(null)").then_some(text)
}

/// NUMA node; `None` on machines that name none (the kernel says -1).
pub fn numa_node(root: &Root, address: Address) -> Option<u32> {
    root.read(format!("{}/numa_node", dir(address))).ok()?.parse().ok()
}

/// True where the function is suspended: to read its configuration, of which its link is a part,
/// would wake it (Documentation/ABI/testing/sysfs-devices-power).
pub fn is_asleep(root: &Root, address: Address) -> bool {
    root.read(format!("{}/power/runtime_status", dir(address)))
        .is_ok_and(|status| matches!(status.as_str(), "suspended" | "suspending"))
}

/// One state of a PCIe link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Link {
    /// Transfer rate in GT/s per lane.
    pub gigatransfers: f64,
    /// Lanes.
    pub width: u32,
}

impl Link {
    /// What both of two ends can do.
    pub fn least(self, other: Link) -> Link {
        Link {
            gigatransfers: self.gigatransfers.min(other.gigatransfers),
            width: self.width.min(other.width),
        }
    }

    /// Bits per second of one direction after the encoding of the line: 8b/10b up to 5 GT/s,
    /// 128b/130b up to 32 GT/s, and from 64 GT/s on flits, of whose 256 bytes 236 are of
    /// transactions (PCI Express Base Specification 6.0, 4.2).
    pub fn bits_per_sec(self) -> f64 {
        let encoding = match self.gigatransfers {
            ..=5.0 => 0.8,
            ..=32.0 => 128.0 / 130.0,
            _ => 236.0 / 256.0,
        };
        self.gigatransfers * 1e9 * encoding * f64::from(self.width)
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}GT/s x{}", self.gigatransfers, self.width)
    }
}

/// The link of a function as it runs now. An idle link may have been slowed down: judge it under
/// load only.
pub fn link_now(root: &Root, address: Address) -> Option<Link> {
    link(root, address, "current")
}

/// The best that the function's end of the link can do.
pub fn link_best(root: &Root, address: Address) -> Option<Link> {
    link(root, address, "max")
}

fn link(root: &Root, address: Address, which: &str) -> Option<Link> {
    let read = |what: &str| root.read(format!("{}/{which}_link_{what}", dir(address))).ok();
    // "8.0 GT/s PCIe"; "Unknown" and width 0 or 255 stand for a link that is down or emulated.
    let gigatransfers = read("speed")?.split_whitespace().next()?.parse().ok()?;
    let width = read("width")?.parse().ok()?;
    (width > 0 && width < 64).then_some(Link { gigatransfers, width })
}

/// The port above the function, which has the other end of its link.
pub fn upstream(root: &Root, address: Address) -> Option<Address> {
    let real = std::fs::canonicalize(root.path(dir(address))).ok()?;
    parse(real.parent()?.file_name()?.to_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_carry_what_their_encoding_leaves() {
        let gbit = |gigatransfers, width| Link { gigatransfers, width }.bits_per_sec() / 1e9;
        // The NIC of background: 8 GT/s x4 is 32 Gb/s less encoding.
        assert!((gbit(8.0, 4) - 31.51).abs() < 0.01);
        assert!((gbit(8.0, 16) - 126.03).abs() < 0.01);
        assert_eq!(gbit(5.0, 4), 16.0);
        assert_eq!(gbit(64.0, 4), 236.0);
    }

    #[test]
    fn addresses_parse_and_print() {
        for (text, printed) in [
            ("0000:5e:00.0", "0000:5e:00.0"),
            ("5E:1f.7", "0000:5e:1f.7"),
            ("10000:01:00.0", "10000:01:00.0"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), printed);
        }
        for text in ["", "nvme0n1", "0000:5e:20.0", "5e:00.8", "5e:00", "0000:+5:00.0", "::.0"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
