//! `--auto-shard`: writes the file that `--config` reads, from what this host is. One shard for
//! each NUMA node that has free NVMe drives, with that node's NIC and CPUs.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::ServeArgs;
use crate::commands::options::{Backend, OnOff};
use crate::device::Drive;
use crate::error::{Error, Kind, Result};
use crate::fabric::address::{Address, FabricKind};
use crate::host::fact::list_text as list;
use crate::host::topology::Node;

/// Most workers that a shard gets unasked: what the figures of docs/SCALING.md need to fill a NIC
/// of 400 Gbit/s.
const WORKERS: usize = 8;

/// What the host has, as far as this needs to know.
#[derive(Debug, Clone, Default)]
pub(super) struct Host {
    /// NUMA nodes; CPUs in the order in which workers should take them.
    pub nodes: Vec<Node>,
    pub drives: Vec<Drive>,
    pub nics: Vec<Nic>,
}

/// An address that can be listened on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Nic {
    pub name: String,
    pub address: IpAddr,
    pub node: Option<u32>,
}

/// The text of a configuration for this host, with a comment on each choice.
///
/// # Errors
///
/// `NotFound` where no drive is free, or a node with drives has no NIC: nothing is shared between
/// nodes unasked.
pub(super) fn write(host: &Host, args: &ServeArgs) -> Result<String> {
    let backend = args.storage.backend;
    let mut text = String::from("# Made by millrace serve --auto-shard --print-config.\n");
    let mut put = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    put("raw = true");
    if let Some(file) = &args.token_file {
        put(&format!("token_file = {:?}", file.display().to_string()));
    }
    if args.insecure {
        put("insecure = true");
    }
    if let Some(metrics) = &args.metrics {
        put(&format!("metrics = \"{metrics}\""));
        put(&format!("metrics_public = {}", args.metrics_public));
    }
    put(&format!("deadline = \"{}ms\"", args.deadline.as_millis()));
    put(&format!("drain = \"{}ms\"", args.drain.as_millis()));
    put("");
    put("[defaults]");
    put(&format!("backend = \"{}\"", format!("{backend:?}").to_lowercase()));
    put(&format!("fabric = \"{}\"", args.fabric));
    put(&format!("depth = {}", args.depth));
    put(&format!("slot_size = \"{}\"", args.slot_size));
    put(&format!("credits = {}", args.credits));
    put(&format!("max_connections = {}", args.max_connections));
    put(&format!("hugepages = {}", quoted(&args.storage.hugepages)?));
    let timeout = args.storage.command_timeout.as_millis();
    put(&format!("command_timeout = \"{timeout}ms\""));
    put(&format!("check = {}", quoted(&args.storage.check)?));
    for (name, switch) in [
        ("regbufs", args.storage.regbufs),
        ("regfiles", args.storage.regfiles),
        ("regring", args.storage.regring),
        ("iopoll", args.storage.iopoll),
        ("sqpoll", args.storage.sqpoll),
    ] {
        put(&format!("{name} = {}", switch == OnOff::On));
    }
    let mut shards = String::new();
    for node in &host.nodes {
        shards.push_str(&shard(host, node, args)?);
    }
    if !shards.contains("[[shard]]") {
        return Err(Error::new(
            Kind::NotFound,
            format!("no NVMe drive is free for {backend:?}: {}", skipped(host, backend)),
        )
        .remedy("see millrace device list; name drives yourself with --device or --config"));
    }
    text.push_str(&shards);
    Ok(text)
}

/// The text of a value as the flags take it.
fn quoted<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|e| Error::new(Kind::Data, "a setting cannot be written").caused_by(e))
}

/// A drive's name for the backend, or why it is not taken.
fn usable(drive: &Drive, backend: Backend) -> Result<String, String> {
    if let Some(in_use) = drive.uses.first() {
        return Err(format!("in use: {}", in_use.describe()));
    }
    match (backend, drive.driver.as_deref()) {
        (Backend::Uring, Some("nvme")) => match &drive.disks[..] {
            [] => Err("it has no namespace".into()),
            // A name that stays the same over restarts; the first namespace, as by PCI address.
            _ => Ok(drive.address.to_string()),
        },
        (Backend::Spdk, Some("vfio-pci")) => Ok(drive.address.to_string()),
        (Backend::Mem, _) => Err("--backend mem has no drives".into()),
        (_, driver) => Err(format!("its driver is {}", driver.unwrap_or("none"))),
    }
}

fn skipped(host: &Host, backend: Backend) -> String {
    let one = |drive: &Drive| Some(format!("{}: {}", drive.title(), usable(drive, backend).err()?));
    let why: Vec<String> = host.drives.iter().filter_map(one).collect();
    if why.is_empty() { "there is none at all".into() } else { why.join("; ") }
}

fn shard(host: &Host, node: &Node, args: &ServeArgs) -> Result<String> {
    let here = |at: Option<u32>| at == Some(node.number) || (at.is_none() && host.nodes.len() == 1);
    let (mut names, mut comments) = (Vec::new(), Vec::new());
    for drive in host.drives.iter().filter(|drive| here(drive.numa_node)) {
        match usable(drive, args.storage.backend) {
            Ok(name) => names.push(name),
            Err(why) => comments.push(format!("# not {}: {why}", drive.title())),
        }
    }
    let comments = comments.join("\n") + if comments.is_empty() { "" } else { "\n" };
    if names.is_empty() {
        return Ok(if comments.is_empty() { comments } else { format!("\n{comments}") });
    }
    let nics: Vec<&Nic> = host.nics.iter().filter(|nic| here(nic.node)).collect();
    let nic = nics.first().ok_or_else(|| {
        let what = if args.fabric == FabricKind::Rdma { "RDMA device" } else { "NIC" };
        let known: Vec<String> = host
            .nics
            .iter()
            .map(|n| format!("{} {} on {}", n.name, n.address, at(n.node)))
            .collect();
        let known = if known.is_empty() { "none at all".into() } else { known.join(", ") };
        Error::new(
            Kind::NotFound,
            format!("NUMA node {} has drives and no {what} with an address ({known})", node.number),
        )
        .remedy("give its NIC an address, or write a file for --config, which may cross nodes")
    })?;
    let workers = node.cpus.len().min(args.workers.unwrap_or(WORKERS));
    if workers == 0 || args.workers.is_some_and(|wanted| wanted > workers) {
        return Err(Error::usage(format!(
            "{} workers on NUMA node {}, of which this process may use {} CPUs",
            args.workers.unwrap_or(0),
            node.number,
            node.cpus.len()
        ))
        .remedy("ask for fewer --workers, or widen the cpuset"));
    }
    let listen = Address { fabric: None, host: nic.address.to_string(), port: args.listen.port };
    let mut text = String::from("\n[[shard]]\n");
    let mut put = |line: String| writeln!(text, "{line}").expect("a String takes all");
    put(format!("name = \"node{}\"", node.number));
    if host.nodes.len() > 1 {
        put(format!("node = {}", node.number));
    }
    put(format!("listen = \"{listen}\"  # {}", nic.name));
    for other in &nics[1..] {
        put(format!("# also on this node: {} {}", other.name, other.address));
    }
    put(format!("cores = \"{}\"", list(&node.cpus[..workers])));
    put(format!("{comments}drives = ["));
    names.iter().for_each(|name| put(format!("    \"{name}\",")));
    put("]".into());
    Ok(text)
}

fn at(node: Option<u32>) -> String {
    node.map_or_else(|| "no node".into(), |node| format!("node {node}"))
}

#[cfg(test)]
mod tests;
