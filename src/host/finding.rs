//! What a check of the host found. The checks are in `doctor`; results carry what they found.

use serde::Serialize;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// There is nothing here that it could look at.
    NotApplicable,
    /// All is well.
    Pass,
    /// Something could not be read, and the rest is well.
    Unread,
    /// It costs less than a quarter of what the hardware gives.
    Warn,
    /// It costs more, or nothing will run.
    Fail,
}

/// The file that gives it away, and what stands there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Path as on a running system; a system call where no file tells.
    pub file: String,
    /// Its value, in a few words.
    pub value: String,
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mend {
    /// A command for a shell, run as root.
    Run(String),
    /// Something that no command does: firmware, a slot, another flag.
    Do(String),
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Stable name of the check.
    pub id: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// True where nothing will run until it is mended.
    pub stops: bool,
    /// Estimated share of what the hardware gives that is lost: for the order only.
    pub weight: f64,
    /// What is wrong, with the figure. Empty where nothing is; the reason where nothing applies.
    pub what: String,
    /// Further faults of the same kind.
    pub also: Vec<String>,
    /// Why it matters.
    pub why: &'static str,
    /// Where it shows.
    pub evidence: Vec<Evidence>,
    /// What could not be read, and why.
    pub unread: Vec<String>,
    /// What to do.
    pub mends: Vec<Mend>,
}

impl Finding {
    /// True where a person should see it.
    pub fn is_trouble(&self) -> bool {
        self.outcome >= Outcome::Unread
    }
}

/// A finding as results carry it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checked {
    /// Stable name of the check.
    pub id: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// What is wrong; empty where nothing is.
    pub what: String,
    /// Where it shows, or that it does not, first of all.
    pub evidence: Option<Evidence>,
}

impl Checked {
    /// What applies of `findings`.
    pub fn of(findings: &[Finding]) -> Vec<Self> {
        let applies = findings.iter().filter(|f| f.outcome != Outcome::NotApplicable);
        let checked = applies.map(|finding| Self {
            id: finding.id,
            outcome: finding.outcome,
            what: finding.what.clone(),
            evidence: finding.evidence.first().cloned(),
        });
        checked.collect()
    }
}
