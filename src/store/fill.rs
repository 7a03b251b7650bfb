//! Objects whose contents whoever reads them can compute.

use crate::error::{Error, Result};
use crate::object::{KeyName, content};
use crate::storage::Queue;
use crate::units::{format_size, parse_size};

use super::Progress;
use super::puts::{PutOutcome, PutReport, Puts, Source};

/// Sizes of a fill's objects: drawn evenly from both bounds, which may be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Least bytes.
    pub least: u64,
    /// Most bytes.
    pub most: u64,
}

impl std::str::FromStr for Sizes {
    type Err = Error;

    /// Parses `1MiB`, or `4KiB..1MiB`.
    fn from_str(text: &str) -> Result<Self> {
        let (least, most) = text.split_once("..").unwrap_or((text, text));
        let (least, most) = (parse_size(least)?, parse_size(most)?);
        if least == 0 || least > most {
            return Err(Error::usage(format!("\"{text}\" is no size of objects"))
                .remedy("write it like 1MiB, or 4KiB..1MiB; the least is 1 byte"));
        }
        Ok(Self { least, most })
    }
}

/// What a fill writes.
#[derive(Debug, Clone)]
pub struct FillOptions {
    /// Objects.
    pub count: u64,
    /// Number of the first of them.
    pub first: u64,
    /// Their sizes; `None`: the store's limit.
    pub sizes: Option<Sizes>,
    /// Seed of contents and sizes.
    pub seed: u64,
    /// What keys begin with; the number of the object follows, in ten digits.
    pub prefix: String,
}

impl FillOptions {
    /// Key of object number `number`.
    pub fn key(&self, number: u64) -> Result<KeyName> {
        Ok(KeyName::new(format!("{}{number:010}", self.prefix).as_bytes())?)
    }

    /// Bytes of the object with this key, in a store with this limit.
    pub fn size(&self, key: &KeyName, limit: u32) -> u64 {
        let Some(Sizes { least, most }) = self.sizes else { return limit.into() };
        // Of the digest, so that it follows from the key.
        let drawn = self.seed.rotate_left(32) ^ key.digest().words()[0];
        least + ((u128::from(drawn) * (u128::from(most - least) + 1)) >> 64) as u64
    }
}

struct Seeded<'a> {
    options: &'a FillOptions,
    limit: u32,
    next: u64,
}

impl Source for Seeded<'_> {
    fn next(&mut self, data: &mut [u8]) -> Result<Option<(KeyName, u32)>> {
        let FillOptions { first, count, seed, .. } = *self.options;
        if self.next == count {
            return Ok(None);
        }
        let key = self.options.key(first + self.next)?;
        self.next += 1;
        let size = self.options.size(&key, self.limit) as usize;
        content::fill(seed, key.bytes(), &mut data[..size]);
        Ok(Some((key, size as u32)))
    }
}

/// Puts seeded objects, whose contents are [`content::fill`] of seed and key.
///
/// # Errors
///
/// `Usage` for sizes above `limit`, the store's; else as [`Puts::run`].
pub fn fill<Q: Queue>(
    puts: &mut Puts<Q>,
    limit: u32,
    options: &FillOptions,
    progress: &Progress,
    each: &mut dyn FnMut(&KeyName, PutOutcome),
) -> Result<PutReport> {
    if let Some(sizes) = options.sizes.filter(|sizes| sizes.most > limit.into()) {
        return Err(Error::usage(format!(
            "objects of {}; the store's limit is {}",
            format_size(sizes.most),
            format_size(limit.into())
        ))
        .remedy("choose a smaller --size, or make a store with a larger --object-size"));
    }
    // Checked before the first is put: the last number has the most digits.
    options.key(options.first.saturating_add(options.count))?;
    progress.begin(options.count);
    puts.run(&mut Seeded { options, limit, next: 0 }, progress, each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_are_kept() {
        let one: Sizes = "1MiB".parse().unwrap();
        assert_eq!((one.least, one.most), (1 << 20, 1 << 20));
        for text in ["0", "2KiB..1KiB", "x", "1..", "0..1"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
        let options = FillOptions {
            count: 1,
            first: 0,
            sizes: Some("1..9".parse().unwrap()),
            seed: 1,
            prefix: "p/".into(),
        };
        let sizes: std::collections::BTreeSet<u64> =
            (0..200).map(|number| options.size(&options.key(number).unwrap(), 100)).collect();
        assert_eq!(sizes.into_iter().collect::<Vec<_>>(), (1..=9).collect::<Vec<_>>());
        assert_eq!(options.key(7).unwrap().bytes(), b"p/0000000007");
    }
}
