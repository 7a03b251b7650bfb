//! A check, and running all of them.

use super::case::Case;
use super::checks::{ALL, Family};
use super::ruling::Ruling;
use crate::error::{Error, Kind, Result};
use crate::host::finding::{Finding, Mend, Outcome};

/// A check.
#[derive(Debug)]
pub struct Check {
    /// Stable name.
    pub id: &'static str,
    /// What it is about.
    pub family: Family,
    /// Why it matters, in one sentence.
    pub why: &'static str,
    /// The check itself.
    pub rule: fn(&Case) -> Ruling,
}

impl Check {
    /// Runs it.
    pub fn run(&self, case: &Case) -> Finding {
        (self.rule)(case).finish(self)
    }
}

/// Runs every check. What stops a run comes first, then by what it costs; the rest follows in the
/// order of docs/TUNING.md.
pub fn examine(case: &Case) -> Vec<Finding> {
    let mut findings: Vec<Finding> = ALL.iter().map(|check| check.run(case)).collect();
    findings.sort_by(|a, b| {
        (b.stops, b.weight).partial_cmp(&(a.stops, a.weight)).expect("weights are numbers")
    });
    findings
}

/// Faults that the program tells itself, in the same words, when it gets there: it knows more of
/// them than files do.
const LATER: [&str; 4] = ["cpu-allowed", "drive-found", "drive-driver", "drive-poll"];

/// Runs every check before a job of the program: what would stop it, does so here, with the
/// finding's own words. The rest is for [`log_findings`] and the result.
///
/// # Errors
///
/// The first finding that stops a run; further ones are named in its cause.
pub fn preflight(case: &Case) -> Result<Vec<Finding>> {
    let findings = examine(case);
    let stops = |finding: &&Finding| finding.stops && !LATER.contains(&finding.id);
    let stopping: Vec<&Finding> = findings.iter().filter(stops).collect();
    if let Some((first, rest)) = stopping.split_first() {
        let mends = first.mends.iter().map(|mend| match mend {
            Mend::Run(text) | Mend::Do(text) => text.as_str(),
        });
        let mut error = Error::new(Kind::Unsupported, first.what.clone());
        let remedy: Vec<&str> = mends.collect();
        if !remedy.is_empty() {
            error = error.remedy(remedy.join("; "));
        }
        if !rest.is_empty() {
            let more: Vec<&str> = rest.iter().map(|finding| finding.what.as_str()).collect();
            error = error.caused_by(format!("and besides: {}", more.join("; ")));
        }
        return Err(error);
    }
    Ok(findings)
}

/// Logs what merely costs and what could not be read, each once.
pub fn log_findings(findings: &[Finding]) {
    let mut said: Vec<String> = Vec::new();
    for finding in findings {
        let (level, text) = match finding.outcome {
            Outcome::Fail | Outcome::Warn => {
                (log::Level::Warn, format!("{}: {}", finding.id, finding.what))
            }
            Outcome::Unread => {
                (log::Level::Info, format!("{}: {}", finding.id, finding.unread.join("; ")))
            }
            Outcome::Pass | Outcome::NotApplicable => continue,
        };
        if !said.contains(&text) {
            log::log!(level, "{text}");
            said.push(text);
        }
    }
}
