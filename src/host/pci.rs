//! PCI functions as sysfs shows them (Documentation/ABI/testing/sysfs-bus-pci of the kernel).

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Address of a PCI function: `0000:5e:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Domain (segment). More than 16 bits behind Intel VMD and on some hypervisors.
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
