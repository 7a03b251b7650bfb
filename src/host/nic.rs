//! RDMA devices with the NIC and network interfaces behind them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Root;
use super::fact::{Fact, why};
use super::function::Function;
use super::interrupts::Table;
use super::rdma::{self, Device};

const CLASS: &str = "/sys/class/infiniband";

/// A network interface.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Bytes of payload in a frame.
    pub mtu: Fact<u64>,
    /// Speed in Mb/s; -1 where it has none.
    pub megabits: Fact<i64>,
    /// `up`, `down`, ...
    pub state: Fact<String>,
}

/// An RDMA device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Nic {
    /// Name, node, ports and addresses.
    #[serde(flatten)]
    pub device: Device,
    /// Its PCI function; `None` for soft-RoCE and the like.
    pub function: Option<Function>,
    /// Its network interfaces.
    pub interfaces: Vec<Interface>,
    /// Counters of its first port that should stay at 0, by file.
    pub troubles: Vec<Fact<u64>>,
}

/// Counters whose growth means lost or repeated packets (drivers/infiniband/hw/mlx5/counters.c,
/// drivers/infiniband/sw/rxe/rxe_hw_counters.c of the kernel; what a driver does not have, is not
/// there).
const TROUBLES: [&str; 6] = [
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "rcvd_rnr_err",
    "retry_exceeded_err",
];

impl Nic {
    /// True where software plays the NIC.
    pub fn is_soft(&self) -> bool {
        self.function.is_none()
    }

    /// NUMA node, where one is named.
    pub fn numa_node(&self) -> Option<usize> {
        let node = self.function.as_ref()?.node.copied()?;
        usize::try_from(node).ok()
    }

    /// Rate of its fastest active port in bits per second, with the file that says so.
    pub fn rate(&self) -> Option<(String, f64)> {
        let ports = self.device.ports.iter().filter(|port| port.is_active());
        let rate = |port: &rdma::Port| {
            // "100 Gb/sec (4X EDR)".
            let gigabits: f64 = port.rate.split_whitespace().next()?.parse().ok()?;
            let file = format!("{CLASS}/{}/ports/{}/rate", self.device.name, port.number);
            Some((file, gigabits * 1e9))
        };
        ports.filter_map(rate).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Every RDMA device.
pub fn all(root: &Root, table: &Fact<Table>) -> Fact<Vec<Nic>> {
    match rdma::list(root) {
        Ok(devices) => {
            Fact::known(CLASS, devices.into_iter().map(|d| nic(root, d, table)).collect())
        }
        Err(e) => Fact { path: CLASS.to_owned(), value: Err(why(&e)) },
    }
}

fn nic(root: &Root, device: Device, table: &Fact<Table>) -> Nic {
    let folder = format!("{CLASS}/{}", device.name);
    let address = root.link(format!("{folder}/device")).ok();
    let address = address.and_then(|link| link.file_name()?.to_str()?.parse().ok());
    let function = address.and_then(|address| Function::read(root, address, table));
    let mut names = root.list(format!("{folder}/device/net")).unwrap_or_default();
    let gids = device.ports.iter().flat_map(|port| &port.gids);
    names.extend(gids.filter_map(|gid| gid.netdev.clone()));
    // Soft-RoCE names the interface that it is on.
    names.extend(root.read(format!("{folder}/parent")).ok());
    names.sort();
    names.dedup();
    let port = device.ports.first().map_or(1, |port| port.number);
    let counter =
        |name: &&str| Fact::number(root, format!("{folder}/ports/{port}/hw_counters/{name}"));
    let troubles = TROUBLES.iter().map(counter);
    Nic {
        function,
        interfaces: names.into_iter().map(|name| interface(root, name)).collect(),
        troubles: troubles.filter(|fact| fact.value != Err(super::fact::Unread::Absent)).collect(),
        device,
    }
}

fn interface(root: &Root, name: String) -> Interface {
    let folder = format!("/sys/class/net/{name}");
    Interface {
        mtu: Fact::number(root, format!("{folder}/mtu")),
        megabits: Fact::parse(root, format!("{folder}/speed"), |text| text.trim().parse().ok()),
        state: Fact::text(root, format!("{folder}/operstate")),
        name,
    }
}

/// Networks that several devices have an address in, as the first three bytes of IPv4 addresses:
/// replies may leave by the wrong one.
pub fn shared_networks(nics: &[Nic]) -> Vec<(String, Vec<String>)> {
    let mut networks: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for nic in nics {
        let gids = nic.device.ports.iter().flat_map(|port| &port.gids);
        let ips = gids.filter_map(|gid| gid.address.to_ipv4_mapped());
        let mut own: Vec<String> = ips
            .map(|ip| {
                let [a, b, c, _] = ip.octets();
                format!("{a}.{b}.{c}.0/24")
            })
            .collect();
        own.sort();
        own.dedup();
        for network in own {
            networks.entry(network).or_default().push(nic.device.name.clone());
        }
    }
    networks.into_iter().filter(|(_, names)| names.len() > 1).collect()
}
