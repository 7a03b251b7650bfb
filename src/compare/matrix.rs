//! What is compared: variants, each a set of switches, under loads, each a size and a depth; and
//! the TOML in which a person writes that down.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::switches::{Change, Switches};
use crate::error::{Context, Error, Result};
use crate::fabric::address::FabricKind;
use crate::units::{format_size, parse_size};

/// A named set of switches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// Its name in reports.
    pub name: String,
    /// The variant it is compared to; `None` for the first.
    pub from: Option<String>,
    /// All of its switches.
    pub switches: Switches,
}

/// One load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LoadPoint {
    /// Bytes of each read.
    pub io_size: u32,
    /// Reads in flight: per worker without a fabric, per connection with one.
    pub depth: u32,
    /// Reads per second, at fixed intervals; `None`: a closed loop.
    pub rate: Option<f64>,
}

impl LoadPoint {
    /// In words: `4KiB x 32`.
    pub fn title(&self) -> String {
        let size = format_size(self.io_size.into());
        match self.rate {
            None => format!("{size} depth {}", self.depth),
            Some(rate) => format!("{size} depth {}, {rate} reads/s", self.depth),
        }
    }
}

/// Everything that is compared, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Matrix {
    /// `paths`, `article`, or the name in the file.
    pub name: String,
    /// `local`, `tcp` or `rdma`.
    pub fabric: String,
    /// Rounds: in each, every variant runs once under every load.
    pub rounds: usize,
    /// Seconds measured in each run.
    pub seconds: f64,
    /// Seconds before that.
    pub warmup: f64,
    /// Seed of the offsets: the same for all variants.
    pub seed: u64,
    /// CPUs of the workers.
    pub cores: Vec<usize>,
    /// CPUs of the client's threads; empty: not pinned. Without a fabric there is none.
    pub client_cores: Vec<usize>,
    /// Connections of the client.
    pub connections: usize,
    /// Names of the drives.
    pub devices: Vec<String>,
    /// Loads.
    pub loads: Vec<LoadPoint>,
    /// Variants; the first is the baseline.
    pub variants: Vec<Variant>,
    /// A variant that cannot run here is left out, with its reason, instead of ending it all.
    pub may_leave_out: bool,
}

impl Matrix {
    /// Fewest rounds from which an interval can tell anything.
    pub const FEW_ROUNDS: usize = 6;

    /// Checks that it can be run, before any of it is.
    ///
    /// # Errors
    ///
    /// `Usage`, with what is wrong.
    pub fn validate(&self) -> Result<()> {
        if self.variants.len() < 2 {
            let what = format!("{} variant in \"{}\"", self.variants.len(), self.name);
            return Err(Error::usage(what).remedy("a comparison needs two or more"));
        }
        if self.loads.is_empty() || self.rounds == 0 {
            return Err(Error::usage("loads and rounds must be 1 or more"));
        }
        if self.devices.is_empty() {
            return Err(Error::usage("no drive to compare on").remedy("give --device"));
        }
        if !(self.seconds >= 0.01 && self.warmup >= 0.0 && self.seconds < 86_400.0) {
            return Err(Error::usage(format!(
                "runs of {} s after {} s of warm-up",
                self.seconds, self.warmup
            ))
            .remedy("measure 10ms or more in each run"));
        }
        for (number, variant) in self.variants.iter().enumerate() {
            let earlier = &self.variants[..number];
            if earlier.iter().any(|other| other.name == variant.name) {
                return Err(Error::usage(format!("two variants are called \"{}\"", variant.name)));
            }
            if let Some(from) = &variant.from
                && !earlier.iter().any(|other| other.name == *from)
            {
                return Err(Error::usage(format!(
                    "the variant \"{}\" is compared to \"{from}\", which is not before it",
                    variant.name
                )));
            }
            variant.switches.validate(self.fabric == "local")?;
            if variant.switches.workers() > self.cores.len() {
                return Err(Error::usage(format!(
                    "\"{}\" has {} workers, and there are {} CPUs for them",
                    variant.name,
                    variant.switches.workers(),
                    self.cores.len()
                ))
                .remedy("give more --cores, or fewer workers"));
            }
            if let Some(load) = self.loads.iter().find(|load| load.rate.is_some())
                && variant.switches.get("wait") == "block"
            {
                return Err(Error::usage(format!(
                    "\"{}\" sleeps for completions, which an open loop ({}) cannot",
                    variant.name,
                    load.title()
                ))
                .remedy("set wait = \"spin\", or leave out the rate"));
            }
        }
        Ok(())
    }

    /// The variant called `name`.
    pub fn variant(&self, name: &str) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.name == name)
    }

    /// What distinguishes a variant from the one that it is compared to.
    pub fn changes(&self, variant: &Variant) -> Vec<Change> {
        let from = variant.from.as_deref().and_then(|name| self.variant(name));
        from.map(|from| from.switches.changes(&variant.switches)).unwrap_or_default()
    }

    /// True where drives have to go from one driver to the other within a round.
    pub fn changes_driver(&self) -> bool {
        self.variants.iter().any(|v| v.switches.uses_spdk())
            && self.variants.iter().any(|v| v.switches.uses_kernel())
    }

    /// Without the variants of these names, and without those compared to them.
    #[must_use]
    pub fn without(mut self, names: &[String]) -> Self {
        let mut gone = names.to_vec();
        self.variants.retain(|variant| {
            let lost = variant.from.as_ref().is_some_and(|from| gone.contains(from));
            if lost {
                gone.push(variant.name.clone());
            }
            !lost && !gone.contains(&variant.name)
        });
        self
    }
}

/// A file as a person writes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    name: Option<String>,
    rounds: Option<usize>,
    seconds: Option<f64>,
    warmup: Option<f64>,
    seed: Option<u64>,
    connections: Option<usize>,
    load: Option<FileLoad>,
    #[serde(default)]
    base: BTreeMap<String, toml::Value>,
    #[serde(default)]
    variant: Vec<FileVariant>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileLoad {
    io_size: Option<Vec<String>>,
    depth: Option<Vec<u32>>,
    rate: Option<Vec<f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileVariant {
    name: String,
    from: Option<String>,
    #[serde(default)]
    set: BTreeMap<String, toml::Value>,
}

/// A matrix in which what the command line says stands already: the file adds its own.
pub fn from_file(path: &Path, matrix: Matrix) -> Result<Matrix> {
    let text = std::fs::read_to_string(path)
        .context(|| format!("cannot read the set {}", path.display()))
        .map_err(|e| e.remedy("--set takes paths, article, or the name of a TOML file"))?;
    from_text(&text, matrix).map_err(|error| {
        let what = format!("the set {} cannot be used", path.display());
        let outer = Error::usage(what);
        match error.remedy_text() {
            Some(remedy) => outer.remedy(remedy.to_owned()).caused_by(error),
            None => outer.remedy("docs/COMPARE.md has the format").caused_by(error),
        }
    })
}

/// The same from its text.
pub fn from_text(text: &str, mut matrix: Matrix) -> Result<Matrix> {
    let file: File = toml::from_str(text)
        .map_err(|e| Error::usage(e.message().to_owned() + &place(text, e.span())))?;
    let base = changed(&Switches::default(), &file.base)?;
    matrix.name = file.name.unwrap_or(matrix.name);
    matrix.rounds = file.rounds.unwrap_or(matrix.rounds);
    matrix.seconds = file.seconds.unwrap_or(matrix.seconds);
    matrix.warmup = file.warmup.unwrap_or(matrix.warmup);
    matrix.seed = file.seed.unwrap_or(matrix.seed);
    matrix.connections = file.connections.unwrap_or(matrix.connections);
    if let Some(load) = file.load {
        let sizes = load.io_size.unwrap_or_else(|| vec!["1MiB".into()]);
        matrix.loads = loads(&sizes, &load.depth.unwrap_or_else(|| vec![16]), &load.rate)?;
    }
    matrix.variants.clear();
    for entry in file.variant {
        let first = matrix.variants.first().map(|variant| variant.name.clone());
        let from = entry.from.or(first);
        let start = match &from {
            None => base.clone(),
            Some(name) => match matrix.variant(name) {
                Some(variant) => variant.switches.clone(),
                None => {
                    return Err(Error::usage(format!(
                        "\"{}\" is compared to \"{name}\", which is not before it",
                        entry.name
                    )));
                }
            },
        };
        let switches = changed(&start, &entry.set)?;
        matrix.variants.push(Variant { name: entry.name, from, switches });
    }
    Ok(matrix)
}

/// Every size with every depth and every rate.
pub fn loads(sizes: &[String], depths: &[u32], rates: &Option<Vec<f64>>) -> Result<Vec<LoadPoint>> {
    let rates: Vec<Option<f64>> = match rates {
        None => vec![None],
        Some(rates) => rates.iter().copied().map(Some).collect(),
    };
    let mut loads = Vec::new();
    for size in sizes {
        let io_size = u32::try_from(parse_size(size)?)
            .map_err(|_| Error::usage(format!("{size} is more than one read can be")))?;
        for depth in depths {
            if *depth == 0 {
                return Err(Error::usage("a depth of 0"));
            }
            for rate in &rates {
                if rate.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
                    return Err(Error::usage(format!("a rate of {} reads/s", rate.unwrap_or(0.0))));
                }
                loads.push(LoadPoint { io_size, depth: *depth, rate: *rate });
            }
        }
    }
    Ok(loads)
}

fn changed(start: &Switches, changes: &BTreeMap<String, toml::Value>) -> Result<Switches> {
    let mut switches = start.clone();
    for (name, value) in changes {
        let text = match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Boolean(true) => "on".to_owned(),
            toml::Value::Boolean(false) => "off".to_owned(),
            other => {
                let what = format!("the switch {name} does not take a {}", other.type_str());
                return Err(Error::usage(what).remedy("write text, a whole number, or a boolean"));
            }
        };
        switches.set(name, &text)?;
    }
    Ok(switches)
}

fn place(text: &str, span: Option<std::ops::Range<usize>>) -> String {
    span.map_or(String::new(), |span| {
        format!(" (line {})", text[..span.start].matches('\n').count() + 1)
    })
}

/// The word of a fabric: `local` where there is none.
pub fn fabric_name(fabric: Option<FabricKind>) -> String {
    fabric.map_or("local".to_owned(), |kind| kind.to_string())
}

#[cfg(test)]
#[path = "matrix_tests.rs"]
mod tests;
