//! Reports: one JSON with everything, a Markdown summary, and one HTML page with plots, drawn from
//! that JSON alone.

mod html;
mod markdown;
mod plots;
mod style;
mod svg;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::analysis::{self, Comparison, Point};
use super::explain::{self, Explanation};
use super::fairness::{self, Fairness};
use super::matrix::Matrix;
use super::record::{LeftOut, Run};
use super::run::Measured;
use crate::bench::Tool;
use crate::error::{Context, Error, Kind, Result};
use crate::host::Root;
use crate::host::facts::Facts;

/// Version of the JSON. schema/compare.schema.json describes it.
pub const SCHEMA: &str = "millrace.compare/1";

/// The whole result.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// What made it: name, version, revision, `debug_build`.
    pub tool: Value,
    /// The host, at the end.
    pub host: Value,
    /// What was compared.
    pub matrix: Matrix,
    /// What could not run here, and why.
    pub left_out: Vec<LeftOut>,
    /// Serial numbers of the drives, by name.
    pub drives: Value,
    /// Whether it can be believed.
    pub fairness: Fairness,
    /// Medians by variant and load.
    pub points: Vec<Point>,
    /// Ratios with intervals.
    pub comparisons: Vec<Comparison>,
    /// Which resource is the wall, and which switch moved it.
    pub explanation: Explanation,
    /// Every run.
    pub runs: Vec<Run>,
}

/// Paths of what was written.
#[derive(Debug)]
pub struct Written {
    /// The JSON.
    pub json: PathBuf,
    /// The summary.
    pub markdown: PathBuf,
    /// The page.
    pub html: PathBuf,
}

impl Report {
    /// Of measured rounds; there is at least one.
    pub fn of((header, runs): Measured) -> Result<Self> {
        let value = |what: &str, value: serde_json::Result<Value>| {
            value.map_err(|e| {
                Error::new(Kind::Data, format!("{what} cannot be written as JSON")).caused_by(e)
            })
        };
        let tool = Tool::this();
        let points = analysis::points(&header, &runs);
        let comparisons = analysis::comparisons(&header.matrix, &runs);
        let explanation = explain::of(&header.matrix, &points, &comparisons, &runs);
        Ok(Self {
            schema: SCHEMA.into(),
            fairness: fairness::judge(&header, &runs, tool.debug_build),
            tool: value("the tool", serde_json::to_value(&tool))?,
            host: value("the host", serde_json::to_value(Facts::read(&Root::system())))?,
            matrix: header.matrix,
            left_out: header.left_out,
            drives: header.drives,
            points,
            comparisons,
            explanation,
            runs,
        })
    }

    /// From the JSON in `dir`.
    ///
    /// # Errors
    ///
    /// Where there is none, or of another schema.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join("compare.json");
        let text = std::fs::read_to_string(&path)
            .context(|| format!("cannot read {}", path.display()))
            .map_err(|e| e.remedy("name the folder that was given as --out"))?;
        let damaged =
            |e| Error::new(Kind::Data, format!("{} is not a result", path.display())).caused_by(e);
        let value: Value = serde_json::from_str(&text).map_err(damaged)?;
        match value["schema"].as_str() {
            Some(SCHEMA) => serde_json::from_value(value).map_err(damaged),
            other => Err(Error::new(
                Kind::Data,
                format!("{} has the schema {other:?}; this program knows {SCHEMA}", path.display()),
            )
            .remedy("use the millrace that wrote it")),
        }
    }

    /// The JSON.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map(|text| text + "\n")
            .map_err(|e| Error::new(Kind::Data, "the result cannot be written").caused_by(e))
    }

    /// The summary.
    pub fn markdown(&self) -> String {
        markdown::page(self)
    }

    /// Writes all three into `dir`.
    pub fn write(&self, dir: &Path) -> Result<Written> {
        let put = |name: &str, text: String| -> Result<PathBuf> {
            let path = dir.join(name);
            // Whole or not at all: a reader may have the old one open.
            let new = dir.join(format!("{name}.new"));
            std::fs::write(&new, text)
                .and_then(|()| std::fs::rename(&new, &path))
                .context(|| format!("cannot write {}", path.display()))?;
            Ok(path)
        };
        Ok(Written {
            json: put("compare.json", self.json()?)?,
            markdown: put("compare.md", self.markdown())?,
            html: put("compare.html", html::page(self))?,
        })
    }

    /// Numbers of loads that have any point.
    fn loads(&self) -> Vec<usize> {
        let mut loads: Vec<usize> = self.points.iter().map(|point| point.load).collect();
        loads.dedup();
        loads
    }

    fn point(&self, load: usize, variant: usize) -> Option<&Point> {
        self.points.iter().find(|point| (point.load, point.variant) == (load, variant))
    }

    fn name(&self, variant: usize) -> &str {
        &self.matrix.variants[variant].name
    }

    /// Figures that any point lacks, each with its reason, once.
    fn missing(&self) -> Vec<(String, String)> {
        let mut notes: Vec<(String, String)> = self
            .points
            .iter()
            .flat_map(|point| &point.notes)
            .map(|(name, why)| (name.clone(), why.clone()))
            .collect();
        notes.sort();
        notes.dedup();
        notes
    }
}

/// Bytes per second in words.
fn rate(bytes: f64) -> String {
    match bytes {
        b if b >= f64::from(1 << 30) => format!("{:.2} GiB/s", b / f64::from(1 << 30)),
        b if b >= f64::from(1 << 20) => format!("{:.1} MiB/s", b / f64::from(1 << 20)),
        b => format!("{:.1} KiB/s", b / 1024.0),
    }
}

/// A count with thousands set apart.
fn count(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < -0.5 { format!("-{text}") } else { text }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
