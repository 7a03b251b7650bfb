//! Network interfaces: addresses (getifaddrs(3)), state, and NUMA node (/sys/class/net).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Root;
use crate::error::{Context, Result};

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// `ens1f0np0`.
    pub name: String,
    /// Its addresses that other machines can use: no link-local ones.
    pub addresses: Vec<IpAddr>,
    /// NUMA node of its device; `None` for interfaces without one, and machines with one node.
    pub node: Option<u32>,
}

/// The interfaces that have an address, by name, without loopback. `addresses` is from
/// [`addresses`], or made for a test.
pub fn interfaces(root: &Root, addresses: &BTreeMap<String, Vec<IpAddr>>) -> Vec<Interface> {
    let usable = |address: &&IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    let one = |(name, all): (&String, &Vec<IpAddr>)| Interface {
        name: name.clone(),
        addresses: all.iter().filter(usable).copied().collect(),
        node: root
            .read(format!("/sys/class/net/{name}/device/numa_node"))
            .ok()
            .and_then(|text| text.parse().ok()),
    };
    addresses.iter().map(one).filter(|interface| !interface.addresses.is_empty()).collect()
}

/// The addresses of this machine's interfaces that are up, by interface.
pub fn addresses() -> Result<BTreeMap<String, Vec<IpAddr>>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs stores a list there, or fails and stores nothing.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(std::io::Error::last_os_error())
            .context(|| "cannot list the addresses of this machine".into());
    }
    let mut found: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    let mut next = first;
    // SAFETY: every element of the list is valid until freeifaddrs, and the last one's link null.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        let up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        // SAFETY: an interface's name is a C string of the list.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
        // SAFETY: the address is null or a socket address of the list.
        if let Some(address) = unsafe { ip(entry.ifa_addr) }.filter(|_| up) {
            found.entry(name.to_string_lossy().into_owned()).or_default().push(address);
        }
    }
    // SAFETY: the list is getifaddrs', freed once; nothing of it is kept.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// # Safety
///
/// `address` is null, or points to a socket address as long as its family says.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: null or valid, as the caller says; the family tells what is there.
    match i32::from(unsafe { address.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: an address of this family is a sockaddr_in; it may lie unaligned.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, of sockaddr_in6.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there() {
        let found = addresses().unwrap();
        assert!(found.values().flatten().any(IpAddr::is_loopback), "{found:?}");
    }

    #[test]
    fn interfaces_have_their_node_and_no_link_local_address() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("sys/class/net/ens1/device");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("numa_node"), "1\n").unwrap();
        let list = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let addresses = BTreeMap::from([
            ("lo".to_owned(), list(&["127.0.0.1", "::1"])),
            ("ens1".to_owned(), list(&["fe80::1", "10.0.1.1", "fd00::1"])),
            ("idle".to_owned(), list(&["169.254.0.1"])),
        ]);
        let found = interfaces(&Root::at(dir.path()), &addresses);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].node, found[0].addresses.len()), (Some(1), 2));
    }
}
