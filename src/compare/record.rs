//! What was measured, and the file in which finished rounds are kept: DIR/rounds.jsonl. Its first
//! line is the header, each further line one whole round.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::facts::RunFacts;
use super::matrix::Matrix;
use crate::bench::{Counters, Summary};
use crate::error::{Context, Error, Kind, Result};

/// One run of one variant under one load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// Number of the round, from 0.
    pub round: usize,
    /// Number of the load.
    pub load: usize,
    /// Number of the variant.
    pub variant: usize,
    /// Its figures.
    pub summary: Summary,
    /// What was counted; of a server where there is one.
    pub counters: Option<Counters>,
    /// Its memory, in words.
    pub arena: Option<String>,
    /// Facts of the host before, during and after.
    pub facts: RunFacts,
}

/// A variant that could not be run here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its name.
    pub variant: String,
    /// The reason.
    pub why: String,
}

/// What a comparison is, decided before its first round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Header {
    /// [`RECORD_SCHEMA`].
    pub schema: String,
    /// Git revision of the program.
    pub revision: String,
    /// Kernel release.
    pub kernel: String,
    /// What was asked for, without what is left out.
    pub matrix: Matrix,
    /// What is left out.
    pub left_out: Vec<LeftOut>,
    /// One traced run for each variant, under the first load: for counts only.
    pub traced: Vec<Run>,
    /// What is known of the drives.
    pub drives: Value,
    /// Of 64 places of the drives, those that held zeros only; `null` where they were not looked
    /// at.
    pub zeros: Option<usize>,
}

/// Version of the file's lines.
pub const RECORD_SCHEMA: &str = "millrace.compare-rounds/1";

#[derive(Serialize, Deserialize)]
struct Line {
    round: usize,
    runs: Vec<Run>,
}

/// The file, open for the next rounds.
pub struct Record {
    path: PathBuf,
    file: File,
}

fn path_in(dir: &Path) -> PathBuf {
    dir.join("rounds.jsonl")
}

fn line<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value)
        .map(|text| text + "\n")
        .map_err(|e| Error::new(Kind::Data, "a round cannot be written as JSON").caused_by(e))
}

impl Record {
    /// Begins a new file.
    pub fn create(dir: &Path, header: &Header) -> Result<Self> {
        let path = path_in(dir);
        let file = File::create(&path).context(|| format!("cannot write {}", path.display()))?;
        let mut record = Self { path, file };
        record.append(&line(header)?)?;
        Ok(record)
    }

    /// Goes on with a file; what an interruption left of a line is cut off.
    pub fn resume(dir: &Path) -> Result<Self> {
        let path = path_in(dir);
        let why = || format!("cannot go on with {}", path.display());
        let text = std::fs::read_to_string(&path).context(why)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let file = OpenOptions::new().append(true).open(&path).context(why)?;
        file.set_len(whole as u64).context(why)?;
        Ok(Self { path, file })
    }

    /// Adds a finished round; it is on disk when this returns.
    pub fn add(&mut self, round: usize, runs: &[Run]) -> Result<()> {
        self.append(&line(&Line { round, runs: runs.to_vec() })?)
    }

    fn append(&mut self, text: &str) -> Result<()> {
        self.file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data())
            .context(|| format!("cannot write {}", self.path.display()))
    }
}

/// What a file holds: the header and the finished rounds in order. `None` where there is none.
///
/// # Errors
///
/// `Data` where it is not such a file.
pub fn read(dir: &Path) -> Result<Option<(Header, Vec<Run>)>> {
    let path = path_in(dir);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).context(|| format!("cannot read {}", path.display())),
    };
    let damaged = |number: usize, why: String| {
        let what = format!("line {number} of {} is damaged: {why}", path.display());
        Error::new(Kind::Data, what).remedy("choose another --out, or remove the file")
    };
    // Only whole lines count: the last may have been cut short.
    let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).enumerate();
    let Some((_, first)) = lines.next() else { return Ok(None) };
    let header: Header = serde_json::from_str(first).map_err(|e| damaged(1, e.to_string()))?;
    if header.schema != RECORD_SCHEMA {
        return Err(damaged(1, format!("its schema is {}, not {RECORD_SCHEMA}", header.schema)));
    }
    let mut runs = Vec::new();
    for (number, text) in lines {
        let line: Line =
            serde_json::from_str(text).map_err(|e| damaged(number + 1, e.to_string()))?;
        runs.extend(line.runs);
    }
    Ok(Some((header, runs)))
}

/// Checks that what is asked for now is what the file was begun with.
///
/// # Errors
///
/// `Usage`, with the first thing that differs.
pub fn same(header: &Header, asked: &Matrix, revision: &str, kernel: &str) -> Result<()> {
    let differs = |what: &str, then: &str, now: &str| {
        Err(Error::usage(format!("--out holds another comparison: {what} was {then}, is {now}"))
            .remedy("ask for the same to go on with it, or choose another --out"))
    };
    let then = &header.matrix;
    let gone: Vec<String> = header.left_out.iter().map(|left| left.variant.clone()).collect();
    let now = asked.clone().without(&gone);
    if header.revision != revision {
        return differs("the program's revision", &header.revision, revision);
    }
    if header.kernel != kernel {
        return differs("the kernel", &header.kernel, kernel);
    }
    let fields = |matrix: &Matrix| {
        // More rounds may be asked for; everything else makes it another comparison.
        let mut value = serde_json::to_value(matrix).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            fields.remove("rounds");
        }
        value
    };
    let (old, new) = (fields(then), fields(&now));
    for (name, value) in old.as_object().into_iter().flatten() {
        if new.get(name) != Some(value) {
            let now = new.get(name).cloned().unwrap_or_default();
            return differs(name, &value.to_string(), &now.to_string());
        }
    }
    Ok(())
}
