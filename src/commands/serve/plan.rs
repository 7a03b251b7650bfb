//! What a server is going to be: made from flags, from a file, or from the host, then checked as
//! a whole and shown, before anything is opened.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use crate::commands::options::StorageArgs;
use crate::error::{Error, Result};
use crate::fabric::address::{Address, FabricKind};
use crate::host::fact::list_text as list;
use crate::host::{Root, block, hugepages, pci, topology};
use crate::limits::SLOTS_PER_DEPTH;
use crate::memory::{Pages, SlotPool};
use crate::storage::name::DriveName;
use crate::units::format_size;

/// A server.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub shards: Vec<ShardPlan>,
    /// Byte ranges of drives, not objects.
    pub raw: bool,
    /// Puts and deletes of objects are taken.
    pub writable: bool,
    pub token_file: Option<PathBuf>,
    pub insecure: bool,
    pub metrics: Option<Address>,
    pub metrics_public: bool,
    pub deadline: Duration,
    pub drain: Duration,
}

/// One shard of it.
#[derive(Debug, Clone)]
pub(super) struct ShardPlan {
    pub name: String,
    /// Where it is described: `FILE:LINE`, or nothing for flags.
    pub origin: Option<String>,
    pub storage: StorageArgs,
    pub fabric: FabricKind,
    pub listen: Address,
    pub cores: Vec<usize>,
    pub depth: u32,
    pub slot_size: u64,
    pub credits: u16,
    pub max_connections: usize,
}

impl ShardPlan {
    /// The words before an error about this shard.
    pub fn place(&self) -> String {
        match &self.origin {
            Some(origin) => format!("{origin}: shard \"{}\": ", self.name),
            None => String::new(),
        }
    }

    /// Bytes of the workers' arenas together, in whole pages where their size is given, and that
    /// size.
    fn memory(&self) -> (u64, Option<usize>) {
        let slots = self.depth as usize * SLOTS_PER_DEPTH;
        let bytes = SlotPool::bytes_needed(self.slot_size as usize, slots);
        let page = match self.storage.hugepages {
            Pages::Huge2M => Some(2 << 20),
            Pages::Huge1G => Some(1 << 30),
            Pages::Auto | Pages::Base => None,
        };
        let each = page.map_or(bytes, |page| bytes.next_multiple_of(page));
        (each as u64 * self.cores.len() as u64, page)
    }
}

impl Plan {
    /// What no shard can see alone, and who may connect.
    ///
    /// # Errors
    ///
    /// `Usage` for a drive, a CPU or an address that two shards want, and for an address beyond
    /// loopback that asks nobody for a secret.
    pub fn check(&self) -> Result<()> {
        let mut names: HashMap<&str, &ShardPlan> = HashMap::new();
        let mut drives: HashMap<String, &ShardPlan> = HashMap::new();
        let mut cores: HashMap<usize, &ShardPlan> = HashMap::new();
        let mut listens: HashMap<String, &ShardPlan> = HashMap::new();
        let twice = |shard: &ShardPlan, what: String, other: &ShardPlan, remedy: &str| {
            let of = match (&other.origin, shard.name == other.name) {
                (_, true) => "named before in it".to_owned(),
                (Some(origin), _) => format!("that of shard \"{}\" at {origin}", other.name),
                (None, _) => format!("that of shard \"{}\"", other.name),
            };
            Error::usage(format!("{}{what} is {of}", shard.place())).remedy(remedy)
        };
        if self.raw && self.writable {
            return Err(Error::usage("ranges of drives are served read-only")
                .remedy("leave out writable, or serve the objects of a store without raw"));
        }
        for shard in &self.shards {
            if let Some(other) = names.insert(&shard.name, shard) {
                return Err(Error::usage(format!(
                    "{}the name is that of the shard at {}",
                    shard.place(),
                    other.origin.as_deref().unwrap_or("another place")
                ))
                .remedy("give each shard a name of its own"));
            }
            for device in &shard.storage.devices {
                let what = format!("drive {device}");
                match device.parse::<DriveName>() {
                    // RAM is no one thing: two drives of one size are two drives.
                    Ok(DriveName::Memory(_)) => continue,
                    Ok(_) => {}
                    Err(e) => {
                        let text = format!("{}{what}: {}", shard.place(), e.what());
                        let remedy = e.remedy_text().unwrap_or("see millrace serve --help");
                        return Err(Error::usage(text).remedy(remedy));
                    }
                }
                if self.shards.len() > 1
                    && let Some(other) = drives.insert(identity(device), shard)
                {
                    return Err(twice(shard, what, other, "give each drive to one shard"));
                }
            }
            for core in &shard.cores {
                if let Some(other) = cores.insert(*core, shard) {
                    let remedy = "a worker needs a CPU of its own: name each once";
                    return Err(twice(shard, format!("CPU {core}"), other, remedy));
                }
            }
            let listen = shard.listen.to_string();
            if shard.listen.port != 0
                && let Some(other) = listens.insert(listen.clone(), shard)
            {
                let remedy = "give each shard an address or a port of its own";
                return Err(twice(shard, format!("address {listen}"), other, remedy));
            }
            let address = shard.listen.resolve()?[0];
            if !address.ip().is_loopback() && self.token_file.is_none() && !self.insecure {
                return Err(Error::usage(format!(
                    "{}{address} can be reached from other machines, and no token is asked for",
                    shard.place()
                ))
                .remedy(match shard.origin {
                    None => {
                        "give --token-file FILE, or --insecure on a network where all are trusted"
                    }
                    Some(_) => {
                        "set token_file = \"FILE\", or insecure = true on a network where all are \
                         trusted"
                    }
                }));
            }
        }
        if let Some(metrics) = &self.metrics
            && !metrics.resolve()?[0].ip().is_loopback()
            && !self.metrics_public
        {
            return Err(Error::usage(format!(
                "{metrics} shows metrics to other machines, which nobody is asked a secret for"
            ))
            .remedy("give a loopback address, or --metrics-public where all may see them"));
        }
        Ok(())
    }

    /// The plan for people, with what of it does not suit the host.
    pub fn show(&self, root: &Root) -> Result<String> {
        let nodes = topology::nodes(root)?;
        let mut text = String::new();
        let mut line = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        for shard in &self.shards {
            let origin = shard.origin.as_deref().map_or(String::new(), |o| format!("  ({o})"));
            line(format!("shard {}{origin}", shard.name));
            line(format!("  listen     {}://{}", shard.fabric, shard.listen));
            let storage = &shard.storage;
            line(format!("  backend    {:?}, check {:?}", storage.backend, storage.check));
            let drive_nodes: Vec<Option<u32>> =
                storage.devices.iter().map(|name| node_of(root, name)).collect();
            for (name, node) in storage.devices.iter().zip(&drive_nodes) {
                line(format!("  drive      {name}{}", on(*node)));
            }
            line(format!(
                "  workers    {} on CPUs {}, depth {}, {} connections of {} credits each",
                shard.cores.len(),
                list(&shard.cores),
                shard.depth,
                shard.max_connections,
                shard.credits
            ));
            let common = drive_nodes.first().copied().flatten();
            let agreed = common.filter(|_| drive_nodes.iter().all(|node| *node == common));
            let node = storage.node.or(agreed);
            let (bytes, page) = shard.memory();
            let mut memory = format!("  memory     {}{}", format_size(bytes), on(node));
            if let Some(page) = page {
                let need = bytes / page as u64;
                let free = hugepages::free(root, page, node).unwrap_or(0);
                write!(memory, ": {need} pages of {}, {free} free", format_size(page as u64))
                    .expect("writing to a String never fails");
                line(memory);
                if free < need {
                    let remedy = hugepages::remedy(page, need - free, node);
                    line(format!("  ! too few hugepages: {remedy}"));
                }
            } else {
                line(memory);
            }
            if let Some(node) = node {
                let own = nodes.iter().find(|n| n.number == node);
                let away = |cpu: &&usize| own.is_some_and(|own| !own.cpus.contains(cpu));
                let remote: Vec<usize> = shard.cores.iter().filter(away).copied().collect();
                if !remote.is_empty() {
                    line(format!("  ! CPUs {} are not on NUMA node {node}", list(&remote)));
                }
                for (name, at) in storage.devices.iter().zip(&drive_nodes) {
                    if let Some(at) = at.filter(|at| *at != node) {
                        line(format!("  ! drive {name} is on NUMA node {at}, not {node}"));
                    }
                }
            }
        }
        let token = match &self.token_file {
            Some(file) => format!("from {}", file.display()),
            None => "none: everybody may connect".to_owned(),
        };
        line(format!("token        {token}"));
        if let Some(metrics) = &self.metrics {
            line(format!("metrics      http://{metrics}/metrics"));
        }
        Ok(text)
    }
}

/// By which two names of one drive are the same: a path without its links.
fn identity(device: &str) -> String {
    std::fs::canonicalize(device)
        .map_or_else(|_| device.to_owned(), |path| path.to_string_lossy().into_owned())
}

fn node_of(root: &Root, device: &str) -> Option<u32> {
    match device.parse().ok()? {
        DriveName::Pci(address, _) => pci::numa_node(root, address),
        DriveName::Path(path) => {
            let path = std::fs::canonicalize(root.path(&path)).ok()?;
            block::BlockDevice::by_name(root, path.file_name()?.to_str()?).ok()?.node
        }
        DriveName::Transport(..) | DriveName::Memory(_) => None,
    }
}

fn on(node: Option<u32>) -> String {
    node.map_or_else(String::new, |node| format!(" on NUMA node {node}"))
}
