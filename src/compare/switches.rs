//! Switches: what can be set for a variant, and to what. Each is a flag of `millrace local` and
//! `millrace serve`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::memory::Pages;
use crate::wire::CheckMode;

/// What a switch takes.
#[derive(Debug, Clone, Copy)]
enum Takes {
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A whole number from 1 on, or `default` where the second is true.
    Number,
    /// A NUMA node, or `auto`.
    Node,
    /// A size of pages.
    Pages,
    /// A way to check.
    Check,
}

const ON_OFF: Takes = Takes::OneOf(&["on", "off"]);

/// Name, values, and the value of a variant that says nothing.
const SWITCHES: [(&str, Takes, &str); 11] = [
    ("backend", Takes::OneOf(&["uring", "spdk", "mem"]), "uring"),
    ("regbufs", ON_OFF, "on"),
    ("regfiles", ON_OFF, "on"),
    ("regring", ON_OFF, "on"),
    ("iopoll", ON_OFF, "off"),
    ("sqpoll", ON_OFF, "off"),
    ("hugepages", Takes::Pages, "auto"),
    ("node", Takes::Node, "auto"),
    ("check", Takes::Check, "crc"),
    ("workers", Takes::Number, "1"),
    ("wait", Takes::OneOf(&["spin", "block"]), "spin"),
];

/// The value of every switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Switches(BTreeMap<String, String>);

/// One switch between two variants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Name of the switch.
    pub switch: String,
    /// Its value before.
    pub from: String,
    /// And after.
    pub to: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} → {}", self.switch, self.from, self.to)
    }
}

impl Default for Switches {
    fn default() -> Self {
        let all = SWITCHES.iter().map(|(name, _, value)| ((*name).into(), (*value).into()));
        Self(all.collect())
    }
}

impl Switches {
    /// The value of a switch; empty for a name that is none.
    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Sets one.
    ///
    /// # Errors
    ///
    /// `Usage` for a switch that does not exist, or a value that it does not take.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let Some((_, takes, _)) = SWITCHES.iter().find(|(known, _, _)| *known == name) else {
            let known: Vec<&str> = SWITCHES.iter().map(|(name, _, _)| *name).collect();
            return Err(Error::usage(format!("there is no switch \"{name}\""))
                .remedy(format!("choose from {}", known.join(", "))));
        };
        let bad = |remedy: String| {
            Error::usage(format!("the switch {name} does not take \"{value}\"")).remedy(remedy)
        };
        match takes {
            Takes::OneOf(words) if words.contains(&value) => {}
            Takes::OneOf(words) => return Err(bad(format!("choose from {}", words.join(", ")))),
            Takes::Number => {
                let number: u32 =
                    value.parse().map_err(|_| bad("give a whole number".to_owned()))?;
                if number == 0 {
                    return Err(bad("give 1 or more".to_owned()));
                }
            }
            Takes::Node if value == "auto" => {}
            Takes::Node => {
                value.parse::<u32>().map_err(|_| bad("give a node's number, or auto".into()))?;
            }
            Takes::Pages => {
                value.parse::<Pages>()?;
            }
            Takes::Check => {
                value.parse::<CheckMode>()?;
            }
        }
        self.0.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    /// These with some changed.
    pub fn with(&self, changes: &[(&str, &str)]) -> Result<Self> {
        let mut next = self.clone();
        changes.iter().try_for_each(|(name, value)| next.set(name, value))?;
        Ok(next)
    }

    /// What differs in `other`.
    pub fn changes(&self, other: &Switches) -> Vec<Change> {
        let differing = self.0.iter().filter(|(name, value)| other.get(name) != *value);
        differing
            .map(|(name, value)| Change {
                switch: name.clone(),
                from: value.clone(),
                to: other.get(name).to_owned(),
            })
            .collect()
    }

    /// Reading threads.
    pub fn workers(&self) -> usize {
        self.get("workers").parse().expect("checked when it was set")
    }

    /// True where the kernel's driver must have the drives.
    pub fn uses_kernel(&self) -> bool {
        self.get("backend") == "uring"
    }

    /// True where vfio-pci must have the drives.
    pub fn uses_spdk(&self) -> bool {
        self.get("backend") == "spdk"
    }

    /// True where completions are looked for, not announced by interrupts.
    pub fn polls_drive(&self) -> bool {
        self.uses_spdk() || self.get("iopoll") == "on"
    }

    /// Flags of `local` or `serve`. `wait` is a flag of `local` only.
    pub fn flags(&self, local: bool) -> Vec<String> {
        let mut flags = Vec::new();
        for (name, value) in &self.0 {
            let skip = match name.as_str() {
                "workers" => true,
                "wait" => !local,
                "node" => value == "auto",
                "regbufs" | "regfiles" | "regring" | "iopoll" | "sqpoll" => !self.uses_kernel(),
                _ => false,
            };
            if !skip {
                flags.extend([format!("--{name}"), value.clone()]);
            }
        }
        flags
    }

    /// Combinations that no run could have.
    pub fn validate(&self, local: bool) -> Result<()> {
        if self.get("wait") == "block" && !(local && self.uses_kernel()) {
            return Err(Error::usage("wait = \"block\" is for io_uring without a fabric")
                .remedy("use wait = \"spin\", as a server does"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_know_their_values() {
        let mut switches = Switches::default();
        for (name, value) in [("regbufs", "off"), ("hugepages", "1g"), ("workers", "8")] {
            switches.set(name, value).unwrap();
            assert_eq!(switches.get(name), value);
        }
        for (name, value, says) in [
            ("speed", "on", "no switch \"speed\""),
            ("regbufs", "maybe", "\"maybe\""),
            ("workers", "0", "\"0\""),
            ("node", "near", "\"near\""),
            ("hugepages", "3k", "3k"),
            ("check", "md5", "md5"),
        ] {
            let error = switches.set(name, value).unwrap_err();
            assert!(error.what().contains(says), "{error}");
            assert!(error.remedy_text().is_some(), "{error}");
        }
    }

    #[test]
    fn changes_are_named() {
        let base = Switches::default();
        let other = base.with(&[("regbufs", "off")]).unwrap();
        let changes = base.changes(&other);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].to_string(), "regbufs on → off");
        assert!(base.changes(&base).is_empty());
    }

    #[test]
    fn flags_are_those_of_the_backend() {
        let uring = Switches::default();
        assert!(uring.flags(true).windows(2).any(|pair| pair == ["--regbufs", "on"]));
        assert!(uring.flags(true).contains(&"--wait".to_owned()));
        assert!(!uring.flags(false).contains(&"--wait".to_owned()));
        let spdk = uring.with(&[("backend", "spdk")]).unwrap();
        assert!(!spdk.flags(true).contains(&"--regbufs".to_owned()));
        let sleeping = uring.with(&[("wait", "block")]).unwrap();
        assert!(sleeping.validate(true).is_ok());
        assert!(sleeping.validate(false).is_err());
    }
}
