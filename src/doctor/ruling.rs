//! What one check says, put together from what it finds on each CPU, drive or port.

use crate::error::Error;
use crate::host::drive::Fault;
use crate::host::fact::Fact;
use crate::host::finding::{Evidence, Finding, Mend, Outcome};

use super::check::Check;

/// From this share on a loss is a failure.
pub const FAILURE: f64 = 0.25;

/// How bad a hit is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Weight {
    /// Nothing will run.
    Stops,
    /// This share of what the hardware gives is lost, 0 to 1. See docs/TUNING.md for where each
    /// comes from.
    Loses(f64),
}

impl Weight {
    fn share(self) -> f64 {
        match self {
            Weight::Stops => 1.0,
            Weight::Loses(share) => share.clamp(0.0, 1.0),
        }
    }
}

#[derive(Debug)]
struct Hit {
    weight: Weight,
    what: String,
    evidence: Evidence,
    mends: Vec<Mend>,
}

/// The verdict in the making.
#[derive(Debug, Default)]
pub struct Ruling {
    fine: Vec<Evidence>,
    hits: Vec<Hit>,
    unread: Vec<String>,
    idle: Option<String>,
}

impl Ruling {
    /// Nothing looked at yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The check has nothing to look at, for this reason.
    pub fn skip(why: impl Into<String>) -> Self {
        Self { idle: Some(why.into()), ..Self::default() }
    }

    /// The value of a fact. One that is absent is passed over, one that could not be read is noted.
    pub fn read<'a, T>(&mut self, fact: &'a Fact<T>) -> Option<&'a T> {
        self.note(fact);
        fact.get()
    }

    /// Notes where a fact could not be read.
    pub fn note<T>(&mut self, fact: &Fact<T>) {
        if let Some(why) = fact.why_unread()
            && !self.unread.contains(&why)
        {
            self.unread.push(why);
        }
    }

    /// Notes something that could not be learned.
    pub fn unread(&mut self, why: impl Into<String>) {
        self.unread.push(why.into());
    }

    /// This is as it should be.
    pub fn fine(&mut self, file: impl Into<String>, value: impl ToString) {
        self.fine.push(Evidence { file: file.into(), value: value.to_string() });
    }

    /// This is not.
    pub fn hit(
        &mut self,
        weight: Weight,
        file: impl Into<String>,
        value: impl ToString,
        what: impl Into<String>,
        mends: Vec<Mend>,
    ) {
        let evidence = Evidence { file: file.into(), value: value.to_string() };
        self.hits.push(Hit { weight, what: what.into(), evidence, mends });
    }

    /// A loss.
    pub fn loses(
        &mut self,
        share: f64,
        file: impl Into<String>,
        value: impl ToString,
        what: impl Into<String>,
        mends: Vec<Mend>,
    ) {
        self.hit(Weight::Loses(share), file, value, what, mends);
    }

    /// What the program itself would say when it starts, in the same words.
    pub fn stops(&mut self, file: impl Into<String>, value: impl ToString, error: &Error) {
        let mends = error.remedy_text().map(|text| Mend::Do(text.to_owned()));
        let mends = mends.into_iter().collect();
        self.hit(Weight::Stops, file, value, error.what(), mends);
    }

    /// Adds a command that mends the last hit.
    pub fn mended_by(&mut self, command: &str) {
        if let Some(hit) = self.hits.last_mut() {
            hit.mends.insert(0, run(command));
        }
    }

    /// The same for an error that was kept as texts.
    pub fn stops_by(&mut self, file: impl Into<String>, value: impl ToString, fault: &Fault) {
        let mends = match fault.remedy.is_empty() {
            true => Vec::new(),
            false => vec![Mend::Do(fault.remedy.clone())],
        };
        self.hit(Weight::Stops, file, value, fault.what.clone(), mends);
    }

    /// What the check found, as a whole: as bad as its worst hit.
    pub fn finish(mut self, check: &Check) -> Finding {
        self.hits.sort_by(|a, b| b.weight.share().total_cmp(&a.weight.share()));
        let weight = self.hits.first().map_or(0.0, |hit| hit.weight.share());
        let stops = self.hits.iter().any(|hit| hit.weight == Weight::Stops);
        let outcome = match self.hits.is_empty() {
            false if stops || weight >= FAILURE => Outcome::Fail,
            false => Outcome::Warn,
            true if !self.unread.is_empty() => Outcome::Unread,
            true if !self.fine.is_empty() => Outcome::Pass,
            true => Outcome::NotApplicable,
        };
        let mut mends: Vec<Mend> = Vec::new();
        for mend in self.hits.iter().flat_map(|hit| &hit.mends) {
            if !mends.contains(mend) {
                mends.push(mend.clone());
            }
        }
        let mut texts = self.hits.iter().map(|hit| hit.what.clone());
        let what = texts.next();
        let also: Vec<String> = texts.collect();
        let what = what.unwrap_or_else(|| match outcome {
            Outcome::NotApplicable => {
                self.idle.unwrap_or_else(|| "this host has nothing of the kind".to_owned())
            }
            Outcome::Unread => "could not be checked".to_owned(),
            _ => String::new(),
        });
        Finding {
            id: check.id,
            outcome,
            stops,
            weight,
            what,
            also,
            why: check.why,
            evidence: match self.hits.is_empty() {
                true => self.fine,
                false => self.hits.into_iter().map(|hit| hit.evidence).collect(),
            },
            unread: self.unread,
            mends,
        }
    }
}

/// A command for the fix script.
pub fn run(command: impl Into<String>) -> Mend {
    Mend::Run(command.into())
}

/// An instruction for a person.
pub fn do_it(text: impl Into<String>) -> Mend {
    Mend::Do(text.into())
}
