//! The report for people, and the same as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::case::Case;
use super::ceiling::Ceiling;
use super::checks::{ALL, split_of};
use crate::error::{Error, Kind, Result};
use crate::host::finding::{Evidence, Finding, Mend, Outcome};
use crate::host::split::{Buffer, Limits, Split};
use crate::units::format_size;

/// Version of the JSON. docs/TUNING.md describes it.
pub const SCHEMA: &str = "millrace.doctor/1";

/// Lines of evidence that a person is shown; JSON has all.
const SHOWN: usize = 4;

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    tool: &'static str,
    revision: &'static str,
    exit_code: u8,
    findings: &'a [Finding],
    ceiling: &'a Ceiling,
    requests: Vec<Requests<'a>>,
    facts: &'a Case,
}

/// Into how many requests a read is cut, by drive.
#[derive(Serialize)]
struct Requests<'a> {
    drive: &'a str,
    limits: Limits,
    buffer: Buffer,
    #[serde(flatten)]
    split: Split,
}

/// Exit code of `doctor`: 0 all well, 3 warnings (or something that could not be read), 4
/// failures.
pub fn exit_code(findings: &[Finding]) -> u8 {
    match findings.iter().map(|finding| finding.outcome).max() {
        Some(Outcome::Fail) => 4,
        Some(Outcome::Warn | Outcome::Unread) => 3,
        _ => 0,
    }
}

/// Everything as JSON.
pub fn json(case: &Case, findings: &[Finding], ceiling: &Ceiling) -> Result<String> {
    let requests = case.drives.iter().filter_map(|drive| {
        let (limits, buffer, split) = split_of(case, drive)?;
        Some(Requests { drive: &drive.name, limits, buffer, split })
    });
    let document = Document {
        schema: SCHEMA,
        tool: concat!("millrace ", env!("CARGO_PKG_VERSION")),
        revision: env!("MILLRACE_REVISION"),
        exit_code: exit_code(findings),
        findings,
        ceiling,
        requests: requests.collect(),
        facts: case,
    };
    serde_json::to_string_pretty(&document)
        .map_err(|e| Error::new(Kind::Data, "the report cannot be written as JSON").caused_by(e))
}

/// The report for a person: what is wrong, first what costs most; what could not be read; the
/// ceiling.
pub fn table(case: &Case, findings: &[Finding], ceiling: &Ceiling) -> String {
    let mut text = String::new();
    for finding in findings.iter().filter(|f| f.outcome >= Outcome::Warn) {
        describe(&mut text, finding);
    }
    let unread: Vec<&Finding> = findings.iter().filter(|f| !f.unread.is_empty()).collect();
    if !unread.is_empty() {
        text.push_str("could not be read:\n");
        for finding in unread {
            for why in &finding.unread {
                let _ = writeln!(text, "  {}: {why}", finding.id);
            }
        }
        text.push('\n');
    }
    requests(&mut text, case);
    parts(&mut text, case, ceiling);
    let count = |outcome| findings.iter().filter(|f| f.outcome == outcome).count();
    let _ = writeln!(
        text,
        "{} checks: {} passed, {} warnings, {} failures, {} could not be read, {} do not apply",
        ALL.len(),
        count(Outcome::Pass),
        count(Outcome::Warn),
        count(Outcome::Fail),
        count(Outcome::Unread),
        count(Outcome::NotApplicable),
    );
    text
}

fn describe(text: &mut String, finding: &Finding) {
    let mark = match (finding.outcome, finding.stops) {
        (_, true) => "STOPS",
        (Outcome::Fail, false) => "FAIL",
        _ => "WARN",
    };
    let _ = writeln!(text, "{mark:5} {}: {}", finding.id, finding.what);
    for also in finding.also.iter().take(SHOWN) {
        let _ = writeln!(text, "      also: {also}");
    }
    if finding.also.len() > SHOWN {
        let _ = writeln!(text, "      and {} more", finding.also.len() - SHOWN);
    }
    let _ = writeln!(text, "      why   {}", finding.why);
    for Evidence { file, value } in finding.evidence.iter().take(SHOWN) {
        let _ = writeln!(text, "      see   {file}: {value}");
    }
    for mend in &finding.mends {
        let _ = match mend {
            Mend::Run(command) => writeln!(text, "      run   {command}"),
            Mend::Do(what) => writeln!(text, "      mend  {what}"),
        };
    }
    text.push('\n');
}

fn requests(text: &mut String, case: &Case) {
    let mut lines: Vec<(String, Vec<&str>)> = Vec::new();
    for drive in &case.drives {
        let Some((limits, buffer, split)) = split_of(case, drive) else { continue };
        let count = match split.least == split.most {
            true => split.most.to_string(),
            false => format!("{} to {}", split.least, split.most),
        };
        let line = format!(
            "a read of {} on {} pages is {} segment(s); {} segments and {} at most in a request: \
             {count} request(s)",
            format_size(case.job.io_size),
            format_size(buffer.page),
            split.pieces,
            limits.segments,
            format_size(limits.bytes),
        );
        match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, drives)) => drives.push(&drive.name),
            None => lines.push((line, vec![&drive.name])),
        }
    }
    for (line, drives) in lines {
        let _ = writeln!(text, "{}: {line}\n", drives.join(", "));
    }
}

fn parts(text: &mut String, case: &Case, ceiling: &Ceiling) {
    text.push_str("what each part can carry:\n");
    for part in &ceiling.parts {
        let rate = match part.bytes_per_sec {
            Some(rate) => format!("{:.2} GiB/s", rate / f64::from(1 << 30)),
            None => "?".to_owned(),
        };
        let least = if ceiling.least == Some(part.part) { "  <- least" } else { "" };
        let _ = writeln!(text, "  {:14} {rate:>14}   {}{least}", part.part, part.how);
    }
    if let (Some(least), Some(reads)) = (ceiling.least, ceiling.reads_per_sec) {
        let size = format_size(case.job.io_size);
        let _ = writeln!(text, "  the ceiling is {least}: {reads:.0} reads/s of {size}");
    }
    text.push('\n');
}
