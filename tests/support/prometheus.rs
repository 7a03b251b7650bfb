//! A strict reader of the text format 0.0.4, for tests: it accepts nothing that the format leaves
//! to a scraper's kindness.

use std::collections::{BTreeMap, HashSet};

/// One sample: metric name, labels, value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// A metric with all of its samples.
#[derive(Debug, Default)]
pub struct Family {
    pub kind: String,
    pub samples: Vec<Sample>,
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Reads a page; panics with the line where it breaks the format.
pub fn parse(page: &str) -> BTreeMap<String, Family> {
    assert!(page.ends_with('\n'), "the last line ends");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut helped = HashSet::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(name) && !help.trim().is_empty(), "{line}");
            assert!(helped.insert(name.to_owned()), "a second HELP: {line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(helped.contains(name), "TYPE before HELP: {line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            let family = Family { kind: kind.to_owned(), samples: Vec::new() };
            assert!(families.insert(name.to_owned(), family).is_none(), "a second TYPE: {line}");
            current = name.to_owned();
        } else {
            let sample = sample(line);
            let family = families.get_mut(&current).unwrap_or_else(|| panic!("no TYPE: {line}"));
            let ending = sample.name.strip_prefix(&current).unwrap_or_else(|| panic!("{line}"));
            match family.kind.as_str() {
                "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&ending), "{line}"),
                _ => assert_eq!(ending, "", "{line}"),
            }
            assert!(sample.value >= 0.0, "{line}");
            let again = family
                .samples
                .iter()
                .any(|s| (&s.name, &s.labels) == (&sample.name, &sample.labels));
            assert!(!again, "a second sample: {line}");
            family.samples.push(sample);
        }
    }
    for (name, family) in &families {
        assert!(!family.samples.is_empty(), "{name} has no sample");
        if family.kind == "histogram" {
            check_histogram(name, family);
        }
    }
    families
}

fn sample(line: &str) -> Sample {
    let (head, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
    let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
    let (name, mut rest) = match head.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}').unwrap_or_else(|| panic!("{line}"))),
        None => (head, ""),
    };
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
        assert!(is_name(label), "{line}");
        let mut text = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next().unwrap_or_else(|| panic!("no closing quote: {line}")) {
                (at, '"') => break at + 1,
                (_, '\\') => text.push(match letters.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, c @ ('\\' | '"'))) => c,
                    other => panic!("escape {other:?}: {line}"),
                }),
                (_, letter) => text.push(letter),
            }
        };
        assert!(labels.insert(label.to_owned(), text).is_none(), "a label twice: {line}");
        rest = &after[end..];
        if let Some(more) = rest.strip_prefix(',') {
            assert!(!more.is_empty(), "{line}");
            rest = more;
        } else {
            assert!(rest.is_empty(), "{line}");
        }
    }
    Sample { name: name.to_owned(), labels, value }
}

/// Buckets rise, the last is +Inf and equals the count, and each histogram has its sum.
fn check_histogram(name: &str, family: &Family) {
    type Labels = Vec<(String, String)>;
    let mut of: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    let (mut sums, mut counts) = (HashSet::new(), BTreeMap::new());
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        let bound = labels.remove("le");
        let key: Vec<_> = labels.into_iter().collect();
        if sample.name.ends_with("_bucket") {
            let bound = bound.unwrap_or_else(|| panic!("{name}: a bucket without le"));
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() };
            of.entry(key).or_default().push((bound, sample.value));
        } else {
            assert!(bound.is_none(), "{name}: le on {}", sample.name);
            match sample.name.ends_with("_sum") {
                true => assert!(sums.insert(key)),
                false => assert!(counts.insert(key, sample.value).is_none()),
            }
        }
    }
    assert!(!of.is_empty(), "{name} has no buckets");
    for (labels, buckets) in of {
        assert!(buckets.windows(2).all(|w| w[0].0 < w[1].0), "{name} {labels:?}: bounds rise");
        assert!(buckets.windows(2).all(|w| w[0].1 <= w[1].1), "{name} {labels:?}: cumulative");
        let last = buckets.last().unwrap();
        assert_eq!(last.0, f64::INFINITY, "{name} {labels:?}: the last is +Inf");
        assert_eq!(counts.get(&labels), Some(&last.1), "{name} {labels:?}: count");
        assert!(sums.contains(&labels), "{name} {labels:?}: sum");
    }
}

/// The sum of a family's samples that have all of these labels.
pub fn total(family: &Family, labels: &[(&str, &str)]) -> f64 {
    let has = |s: &&Sample| {
        labels.iter().all(|(name, value)| s.labels.get(*name).map(String::as_str) == Some(*value))
    };
    family.samples.iter().filter(has).map(|s| s.value).sum()
}
