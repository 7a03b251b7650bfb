//! `--config FILE.toml`: a server of several shards. docs/DEPLOY.md describes the file.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::plan::{Plan, ShardPlan};
use crate::commands::options::{Backend, OnOff, StorageArgs};
use crate::error::{Context, Error, Result};
use crate::fabric::address::{Address, FabricKind};
use crate::host::{Root, affinity, topology};
use crate::limits::{DEFAULT_CONNECTIONS, DEFAULT_CREDITS, DEFAULT_DEPTH, DEFAULT_SLOT_SIZE};
use crate::memory::Pages;
use crate::units;
use crate::wire::CheckMode;

/// A value that keeps its place in the file.
type Field<T> = Option<Spanned<T>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    raw: Option<bool>,
    writable: Option<bool>,
    token_file: Option<PathBuf>,
    insecure: Option<bool>,
    metrics: Field<String>,
    metrics_public: Option<bool>,
    deadline: Field<String>,
    drain: Field<String>,
    /// What holds for all shards that do not say otherwise.
    #[serde(default)]
    defaults: Table,
    #[serde(default)]
    shard: Vec<Spanned<Table>>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: Field<String>,
    node: Field<u32>,
    backend: Field<String>,
    drives: Option<Vec<String>>,
    fabric: Field<String>,
    listen: Field<String>,
    cores: Field<String>,
    workers: Field<usize>,
    depth: Field<u32>,
    slot_size: Field<String>,
    credits: Field<u16>,
    max_connections: Field<usize>,
    hugepages: Field<String>,
    command_timeout: Field<String>,
    check: Field<String>,
    regbufs: Option<bool>,
    regfiles: Option<bool>,
    regring: Option<bool>,
    iopoll: Option<bool>,
    sqpoll: Option<bool>,
}

/// The text of a file, to tell lines by.
struct Source<'a> {
    name: String,
    text: &'a str,
}

impl Source<'_> {
    fn line(&self, at: usize) -> usize {
        self.text[..at.min(self.text.len())].matches('\n').count() + 1
    }

    fn origin(&self, at: usize) -> String {
        format!("{}:{}", self.name, self.line(at))
    }

    /// An error about one value: file, line, the line itself (which has field and value), reason.
    fn wrong(&self, at: usize, reason: &str, remedy: Option<&str>) -> Error {
        let line = self.text.lines().nth(self.line(at) - 1).unwrap_or_default().trim();
        let error = Error::usage(format!("{}: \"{line}\": {reason}", self.origin(at)));
        match remedy {
            Some(remedy) => error.remedy(remedy),
            None => error.remedy("docs/DEPLOY.md describes the fields and shows a whole file"),
        }
    }

    fn with<T>(
        &self,
        field: &Field<String>,
        parse: impl Fn(&str) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(value) = field else { return Ok(None) };
        let wrong = |e: Error| self.wrong(value.span().start, e.what(), e.remedy_text());
        parse(value.get_ref()).map(Some).map_err(wrong)
    }

    fn parsed<T: FromStr<Err = Error>>(&self, field: &Field<String>) -> Result<Option<T>> {
        self.with(field, str::parse)
    }
}

/// Reads the plan from a file.
///
/// # Errors
///
/// `Usage` with file, line and field for what is misspelt, out of range or missing.
pub(super) fn read(path: &Path, root: &Root) -> Result<Plan> {
    let text =
        std::fs::read_to_string(path).context(|| format!("cannot read {}", path.display()))?;
    parse(&path.display().to_string(), &text, root)
}

/// Reads the plan from the text of the file `name`.
pub(super) fn parse(name: &str, text: &str, root: &Root) -> Result<Plan> {
    let source = Source { name: name.to_owned(), text };
    let file: File = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        source.wrong(at, error.message().trim(), None)
    })?;
    if file.shard.is_empty() {
        return Err(Error::usage(format!("{name} describes no shard"))
            .remedy("add a [[shard]] with name, drives, listen and cores; see docs/DEPLOY.md"));
    }
    if let Some(name) = &file.defaults.name {
        let reason = "each shard needs a name of its own";
        return Err(source.wrong(name.span().start, reason, None));
    }
    let duration = |field: &Field<String>, default| {
        let given = source.with(field, units::parse_duration)?;
        Ok::<_, Error>(given.unwrap_or(Duration::from_secs(default)))
    };
    let shards = file.shard.iter().map(|shard| one(&source, shard, &file.defaults, root));
    Ok(Plan {
        shards: shards.collect::<Result<_>>()?,
        raw: file.raw.unwrap_or(false),
        writable: file.writable.unwrap_or(false),
        token_file: file.token_file,
        insecure: file.insecure.unwrap_or(false),
        metrics: source.parsed(&file.metrics)?,
        metrics_public: file.metrics_public.unwrap_or(false),
        deadline: duration(&file.deadline, 30)?,
        drain: duration(&file.drain, 10)?,
    })
}

/// One shard: its own fields, else those of the defaults, else those of the flags.
fn one(
    source: &Source,
    table: &Spanned<Table>,
    defaults: &Table,
    root: &Root,
) -> Result<ShardPlan> {
    let at = table.span().start;
    let own = table.get_ref();
    macro_rules! field {
        ($name:ident) => {
            own.$name.clone().or_else(|| defaults.$name.clone())
        };
    }
    let missing = |what: &str, example: &str| {
        let name = own.name.as_ref().map_or("without name", |name| name.get_ref());
        Error::usage(format!("{}: shard \"{name}\" has no {what}", source.origin(at)))
            .remedy(format!("add {example}"))
    };
    fn plain<T: Copy>(field: Field<T>, default: T) -> T {
        field.map_or(default, |value| *value.get_ref())
    }
    let name = own.name.as_ref().ok_or_else(|| missing("name", "name = \"node0\""))?;
    if name.get_ref().is_empty() || name.get_ref().contains(['"', '\\', '\n']) {
        let reason = "a name has at least one character, and no quotes, backslashes or line breaks";
        return Err(source.wrong(name.span().start, reason, Some("choose one such as \"node0\"")));
    }
    let devices = field!(drives).filter(|drives| !drives.is_empty()).ok_or_else(|| {
        missing("drives", "drives = [\"/dev/nvme0n1\"], or PCI addresses like \"0000:5e:00.0\"")
    })?;
    let node = field!(node).map(|node| *node.get_ref());
    let switch = |value: Option<bool>, default: bool| match value.unwrap_or(default) {
        true => OnOff::On,
        false => OnOff::Off,
    };
    let backend =
        |text: &str| match text {
            "uring" => Ok(Backend::Uring),
            "spdk" => Ok(Backend::Spdk),
            "mem" => Ok(Backend::Mem),
            _ => Err(Error::usage(format!("\"{text}\" is no backend"))
                .remedy("choose uring, spdk or mem")),
        };
    let listen = field!(listen);
    Ok(ShardPlan {
        name: name.get_ref().clone(),
        origin: Some(source.origin(at)),
        storage: StorageArgs {
            backend: source.with(&field!(backend), backend)?.unwrap_or(Backend::Uring),
            devices,
            hugepages: source.parsed::<Pages>(&field!(hugepages))?.unwrap_or(Pages::Auto),
            node,
            regbufs: switch(field!(regbufs), true),
            regfiles: switch(field!(regfiles), true),
            regring: switch(field!(regring), true),
            iopoll: switch(field!(iopoll), false),
            sqpoll: switch(field!(sqpoll), false),
            command_timeout: source
                .with(&field!(command_timeout), units::parse_duration)?
                .unwrap_or(Duration::from_secs(10)),
            check: source.parsed::<CheckMode>(&field!(check))?.unwrap_or(CheckMode::Crc),
        },
        fabric: source.parsed::<FabricKind>(&field!(fabric))?.unwrap_or(FabricKind::Tcp),
        listen: source
            .parsed::<Address>(&listen)?
            .ok_or_else(|| missing("listen", "listen = \"10.0.0.1:4790\", the NIC's address"))?,
        cores: cores(source, at, &field!(cores), &field!(workers), node, root)?,
        depth: plain(field!(depth), DEFAULT_DEPTH),
        slot_size: source
            .with(&field!(slot_size), units::parse_size)?
            .unwrap_or(DEFAULT_SLOT_SIZE as u64),
        credits: plain(field!(credits), DEFAULT_CREDITS),
        max_connections: plain(field!(max_connections), DEFAULT_CONNECTIONS),
    })
}

/// The CPUs of a shard: those that are named, or as many of its node's as it wants workers.
fn cores(
    source: &Source,
    at: usize,
    list: &Field<String>,
    workers: &Field<usize>,
    node: Option<u32>,
    root: &Root,
) -> Result<Vec<usize>> {
    let wanted = workers.as_ref().map(|workers| (*workers.get_ref(), workers.span().start));
    let found = match (source.with(list, affinity::parse_list)?, node, wanted) {
        (Some(list), _, _) => list,
        (None, Some(number), Some(_)) => {
            let nodes = topology::nodes(root)?;
            let own = nodes.iter().find(|node| node.number == number).ok_or_else(|| {
                let known: Vec<_> = nodes.iter().map(|node| node.number.to_string()).collect();
                let reason =
                    format!("this machine has no NUMA node {number}, but {}", known.join(", "));
                source.wrong(at, &reason, Some("name a node that there is, or cores"))
            })?;
            topology::by_preference(root, &own.cpus)
        }
        (None, _, _) => {
            let reason = "the shard has neither cores, nor node and workers";
            let remedy = "add cores = \"2-9\", or node = 0 and workers = 8";
            return Err(source.wrong(at, reason, Some(remedy)));
        }
    };
    match wanted {
        None => Ok(found),
        Some((0, at)) => Err(source.wrong(at, "no worker at all", Some("write 1 or more"))),
        Some((count, at)) if count > found.len() => {
            let reason = format!("there are {} CPUs for them", found.len());
            Err(source.wrong(at, &reason, Some("ask for fewer workers, or name more cores")))
        }
        Some((count, _)) => Ok(found[..count].to_vec()),
    }
}

#[cfg(test)]
mod tests;
