//! Which RDMA devices there are, and which of them carries an address.
//!
//! Read from /sys/class/infiniband (Linux, Documentation/ABI/stable/sysfs-class-infiniband), below
//! an injectable root. rdma_cm chooses device, port and GID by the address; this table says
//! beforehand whether it can, and afterwards what it chose. Devices are never chosen by name.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::Root;
use crate::error::{Error, Kind, Result};

const CLASS: &str = "/sys/class/infiniband";

/// Unused places after which a table is taken to be at its end: the kernel fills the lowest that
/// is free, and a table may have a thousand.
const GID_GAP: u32 = 64;

/// How a GID's packets look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
pub enum GidKind {
    /// InfiniBand, or RoCE v1: Ethernet frames that no router forwards.
    IbOrRoceV1,
    /// RoCE v2: UDP packets.
    RoceV2,
}

/// An address of a port.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Gid {
    /// Place in the port's table.
    pub index: u32,
    /// The address; IPv4 is mapped (`::ffff:10.0.0.1`).
    pub address: Ipv6Addr,
    /// How its packets look.
    pub kind: GidKind,
    /// Network interface that it belongs to, where the kernel names one.
    pub netdev: Option<String>,
}

impl Gid {
    /// The address as it is configured on the interface.
    pub fn ip(&self) -> IpAddr {
        self.address.to_ipv4_mapped().map_or(IpAddr::V6(self.address), IpAddr::V4)
    }
}

/// A port of a device.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Port {
    /// Number, from 1.
    pub number: u8,
    /// State as the kernel says it, without its number: `ACTIVE`, `DOWN`, `INIT`, `ARMED`.
    pub state: String,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// Speed as the kernel says it, such as `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// Its addresses.
    pub gids: Vec<Gid>,
}

impl Port {
    /// True if packets can be sent.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// An RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Device {
    /// Name, such as `mlx5_0`.
    pub name: String,
    /// NUMA node; `None` for software devices and machines with one node.
    pub node: Option<u32>,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// What an address leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Name of the device.
    pub device: String,
    /// NUMA node of the device.
    pub node: Option<u32>,
    /// Number of the port.
    pub port: u8,
    /// The GID.
    pub gid: Gid,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.gid.kind {
            GidKind::RoceV2 => "RoCE v2",
            GidKind::IbOrRoceV1 => "IB/RoCE v1",
        };
        write!(
            f,
            "{} port {}, GID {} ({}, {kind}, {})",
            self.device,
            self.port,
            self.gid.index,
            self.gid.ip(),
            self.gid.netdev.as_deref().unwrap_or("no interface")
        )
    }
}

/// All RDMA devices, sorted by name; none where the kernel has no RDMA.
pub fn list(root: &Root) -> Result<Vec<Device>> {
    if !root.exists(CLASS) {
        return Ok(Vec::new());
    }
    root.list(CLASS)?.into_iter().map(|name| device(root, name)).collect()
}

fn device(root: &Root, name: String) -> Result<Device> {
    let dir = format!("{CLASS}/{name}");
    // -1 is the kernel's word for "no node".
    let node = root.read(format!("{dir}/device/numa_node")).ok().and_then(|t| t.parse().ok());
    let mut ports = Vec::new();
    for number in root.list(format!("{dir}/ports"))? {
        let port = format!("{dir}/ports/{number}");
        let Ok(number) = number.parse() else { continue };
        let state = root.read(format!("{port}/state"))?;
        ports.push(Port {
            number,
            state: state.rsplit(": ").next().unwrap_or_default().to_owned(),
            link_layer: root.read(format!("{port}/link_layer")).unwrap_or_default(),
            rate: root.read(format!("{port}/rate")).unwrap_or_default(),
            gids: gids(root, &port)?,
        });
    }
    ports.sort_by_key(|port| port.number);
    Ok(Device { name, node, ports })
}

fn gids(root: &Root, port: &str) -> Result<Vec<Gid>> {
    let mut gids: Vec<Gid> = Vec::new();
    let names = root.list(format!("{port}/gids"))?;
    let mut places: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    places.sort_unstable();
    for index in places {
        if gids.last().map_or(0, |gid| gid.index) + GID_GAP < index {
            break;
        }
        // Reading an entry that is not in use fails on some devices, and gives zeros on others.
        let Ok(text) = root.read(format!("{port}/gids/{index}")) else { continue };
        let Ok(address) = text.parse::<Ipv6Addr>() else { continue };
        if address.is_unspecified() {
            continue;
        }
        let kind = match root.read(format!("{port}/gid_attrs/types/{index}")) {
            Ok(kind) if kind == "RoCE v2" => GidKind::RoceV2,
            _ => GidKind::IbOrRoceV1,
        };
        let netdev = root.read(format!("{port}/gid_attrs/ndevs/{index}")).ok();
        gids.push(Gid { index, address, kind, netdev });
    }
    Ok(gids)
}

/// One line per GID (per port where it has none), for logs and error messages.
pub fn table(devices: &[Device]) -> String {
    let mut text = String::new();
    for device in devices {
        for port in &device.ports {
            let head =
                format!("{} port {} {} {}", device.name, port.number, port.link_layer, port.state);
            if port.gids.is_empty() {
                text.push_str(&format!("\n  {head}, no address"));
            }
            for gid in &port.gids {
                let Gid { index, kind, netdev, .. } = gid;
                let on = netdev.as_deref().unwrap_or("no interface");
                text.push_str(&format!("\n  {head}, GID {index} {} {kind:?} on {on}", gid.ip()));
            }
        }
    }
    text
}

/// The error of a machine without RDMA devices: says which network interfaces there are and how
/// to get soft-RoCE on one.
pub fn none_here(root: &Root) -> Error {
    none_beside(&interfaces(root))
}

/// Network interfaces but for `lo`.
pub fn interfaces(root: &Root) -> Vec<String> {
    let names = root.list("/sys/class/net").unwrap_or_default();
    names.into_iter().filter(|name| name != "lo").collect()
}

/// As [`none_here`], for a machine with these network interfaces.
pub fn none_beside(interfaces: &[String]) -> Error {
    let on = interfaces.first().map_or("INTERFACE", String::as_str).to_owned();
    let known = match interfaces.is_empty() {
        true => "no network interface but lo".to_owned(),
        false => format!("network interfaces: {}", interfaces.join(", ")),
    };
    Error::new(Kind::Unsupported, format!("this machine has no RDMA device ({known})")).remedy(
        format!(
            "load the NIC's RDMA driver (such as mlx5_ib), or use soft-RoCE: modprobe rdma_rxe && \
             rdma link add rxe0 type rxe netdev {on}; or use --fabric tcp"
        ),
    )
}

/// The device, port and GID of `ip`: RoCE v2 where there is a choice.
///
/// # Errors
///
/// `NotFound` where no RDMA device has that address, with those that they have; `Network` where
/// the port is not active, with its state.
pub fn choose(devices: &[Device], ip: IpAddr) -> Result<Choice> {
    let mut found: Option<(&Device, &Port, &Gid)> = None;
    for device in devices {
        for port in &device.ports {
            for gid in port.gids.iter().filter(|gid| gid.ip() == ip) {
                let better = |had: &(&Device, &Port, &Gid)| {
                    gid.kind == GidKind::RoceV2 && had.2.kind != GidKind::RoceV2
                };
                if found.as_ref().is_none_or(better) {
                    found = Some((device, port, gid));
                }
            }
        }
    }
    let Some((device, port, gid)) = found else {
        return Err(Error::new(
            Kind::NotFound,
            format!("no RDMA device has the address {ip}; there are:{}", table(devices)),
        )
        .remedy("use one of these addresses; on RoCE, `ip addr add` gives the interface another"));
    };
    settle(device, port, gid, ip)
}

/// The choice, if its link is up.
fn settle(device: &Device, port: &Port, gid: &Gid, ip: IpAddr) -> Result<Choice> {
    if !port.is_active() {
        return Err(link_down(device, port, gid, ip));
    }
    let (device, node, port) = (device.name.clone(), device.node, port.number);
    Ok(Choice { device, node, port, gid: gid.clone() })
}

/// The error of a port that cannot send.
pub fn link_down(device: &Device, port: &Port, gid: &Gid, ip: IpAddr) -> Error {
    let what = format!(
        "the link of {} port {}, which has the address {ip}, is {}",
        device.name, port.number, port.state
    );
    Error::new(Kind::Network, what).remedy(match &gid.netdev {
        Some(netdev) => format!("ip link set {netdev} up, and check the cable"),
        None => "check the cable and, on InfiniBand, the subnet manager".to_owned(),
    })
}

/// As [`choose`], for an address that rdma_cm has bound to a port already. On InfiniBand the
/// addresses are those of IPoIB interfaces, which are in no GID table: there rdma_cm's word counts.
pub fn choose_bound(devices: &[Device], ip: IpAddr, bound: Option<(&str, u8)>) -> Result<Choice> {
    let missing = match choose(devices, ip) {
        Err(e) if e.kind() == Kind::NotFound => e,
        other => return other,
    };
    let found = bound.and_then(|(name, number)| {
        let device = devices.iter().find(|device| device.name == name)?;
        let port = device.ports.iter().find(|port| port.number == number)?;
        let gid = port.gids.first().filter(|_| port.link_layer == "InfiniBand")?;
        Some((device, port, gid))
    });
    let (device, port, gid) = found.ok_or(missing)?;
    settle(device, port, gid, ip)
}

/// The address to stand for "any": that of the only device that has one.
///
/// # Errors
///
/// `Usage` where several devices could be meant, `NotFound` where none has an address.
pub fn only_address(devices: &[Device]) -> Result<IpAddr> {
    let usable = |device: &Device| {
        let gids = device.ports.iter().filter(|port| port.is_active()).flat_map(|port| &port.gids);
        // A link-local address needs a scope to be routed by.
        gids.map(Gid::ip).find(|ip| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()))
    };
    let mut addresses = devices.iter().filter_map(usable);
    match (addresses.next(), addresses.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(Error::new(
            Kind::NotFound,
            format!("no RDMA device has an active port with an address:{}", table(devices)),
        )
        .remedy("ip addr add ADDRESS/LENGTH dev INTERFACE, and ip link set INTERFACE up")),
        (Some(_), Some(_)) => Err(Error::usage(format!(
            "several RDMA devices could be meant by the unspecified address:{}",
            table(devices)
        ))
        .remedy("give the address of one in --listen; for each NIC run a server of its own")),
    }
}

/// Sum of the port's counters of "receiver not ready", sent and received; `None` where its
/// driver counts none. Millrace's credits keep it at 0.
pub fn rnr_count(root: &Root, device: &str, port: u8) -> Option<u64> {
    let dir = format!("{CLASS}/{device}/ports/{port}/hw_counters");
    let names = root.list(&dir).ok()?;
    let mut counters = names
        .iter()
        .filter(|name| name.contains("rnr"))
        .filter_map(|name| root.read_number(format!("{dir}/{name}")).ok())
        .peekable();
    counters.peek()?;
    Some(counters.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of a guest with two soft-RoCE devices, the second without a link.
    fn captured() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join("sys/class").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        };
        put("net/net0/mtu", "4200");
        for (k, state) in [(0, "4: ACTIVE"), (1, "1: DOWN")] {
            let port = format!("infiniband/rxe{k}/ports/1");
            put(&format!("{port}/state"), state);
            put(&format!("{port}/link_layer"), "Ethernet");
            put(&format!("{port}/rate"), "2.5 Gb/sec (1X SDR)");
            let link_local = format!("fe80:0000:0000:0000:0000:0aff:fe4d:0{k}01");
            put(&format!("{port}/gids/0"), &link_local);
            put(&format!("{port}/gids/1"), &format!("0000:0000:0000:0000:0000:ffff:0a4d:0{k}01"));
            put(&format!("{port}/gids/2"), &format!("0000:0000:0000:0000:0000:ffff:0a4d:0{k}01"));
            put(&format!("{port}/gids/3"), "0000:0000:0000:0000:0000:0000:0000:0000");
            for (index, kind) in [(0, "RoCE v2"), (1, "IB/RoCE v1"), (2, "RoCE v2")] {
                put(&format!("{port}/gid_attrs/types/{index}"), kind);
                put(&format!("{port}/gid_attrs/ndevs/{index}"), &format!("net{k}"));
            }
            put(&format!("{port}/hw_counters/rcvd_rnr_err"), "2");
            put(&format!("{port}/hw_counters/send_rnr_err"), "3");
            put(&format!("{port}/hw_counters/sent_pkts"), "99");
        }
        let root = Root::at(dir.path());
        (dir, root)
    }

    #[test]
    fn the_gid_fits_the_address_and_is_roce_v2() {
        let (_dir, root) = captured();
        let devices = list(&root).unwrap();
        assert_eq!(devices.len(), 2);
        assert_eq!(devices[0].ports[0].gids.len(), 3);
        let choice = choose(&devices, "10.77.0.1".parse().unwrap()).unwrap();
        assert_eq!((choice.gid.index, choice.gid.kind), (2, GidKind::RoceV2));
        assert_eq!(choice.to_string(), "rxe0 port 1, GID 2 (10.77.0.1, RoCE v2, net0)");
        assert_eq!(only_address(&devices).unwrap().to_string(), "10.77.0.1");
    }

    #[test]
    fn what_does_not_fit_is_explained() {
        let (_dir, root) = captured();
        let devices = list(&root).unwrap();
        let error = choose(&devices, "10.1.1.1".parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.what().contains("GID 2 10.77.0.1 RoceV2 on net0"), "{error}");
        let error = choose(&devices, "10.77.1.1".parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), Kind::Network);
        assert!(error.what().contains("rxe1 port 1"), "{error}");
        assert!(error.what().ends_with("is DOWN"), "{error}");
        assert!(error.report().contains("ip link set net1 up"), "{}", error.report());
    }

    #[test]
    fn on_infiniband_the_word_of_rdma_cm_counts() {
        let (dir, root) = captured();
        let ip = "192.168.9.9".parse().unwrap();
        let bound = Some(("rxe0", 1));
        assert!(choose_bound(&list(&root).unwrap(), ip, bound).is_err(), "a RoCE port");
        let layer = dir.path().join("sys/class/infiniband/rxe0/ports/1/link_layer");
        std::fs::write(layer, "InfiniBand\n").unwrap();
        let devices = list(&root).unwrap();
        assert_eq!(choose_bound(&devices, ip, bound).unwrap().gid.index, 0);
        assert!(choose_bound(&devices, ip, None).is_err());
    }

    #[test]
    fn several_devices_need_an_address() {
        let (dir, root) = captured();
        let state = dir.path().join("sys/class/infiniband/rxe1/ports/1/state");
        std::fs::write(state, "4: ACTIVE\n").unwrap();
        let error = only_address(&list(&root).unwrap()).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        assert!(only_address(&[]).unwrap_err().kind() == Kind::NotFound);
    }

    #[test]
    fn a_machine_without_devices_is_told_how_to_get_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("sys/class/net/eth0")).unwrap();
        let root = Root::at(dir.path());
        assert!(list(&root).unwrap().is_empty());
        let report = none_here(&root).report();
        assert!(report.contains("rdma link add rxe0 type rxe netdev eth0"), "{report}");
    }

    #[test]
    fn rnr_counters_are_summed() {
        let (_dir, root) = captured();
        assert_eq!(rnr_count(&root, "rxe0", 1), Some(5));
        assert_eq!(rnr_count(&root, "rxe9", 1), None);
    }
}
