//! Which bytes are read next: seeded, so that two runs can read the same sequence.

use crate::error::{Error, Result};
use crate::units::format_size;

/// Order of offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Uniformly random drive and offset.
    Random,
    /// Drive after drive in turn, each from its start on, and around.
    Sequential,
}

/// What is read.
#[derive(Debug, Clone, Copy)]
pub struct PatternOptions {
    /// Bytes of each read.
    pub io_size: u32,
    /// Offsets are multiples of this many bytes.
    pub align: u64,
    /// Order of offsets.
    pub order: Order,
    /// Seed; jobs add their number to it.
    pub seed: u64,
}

/// An endless sequence of reads over drives.
#[derive(Debug, Clone)]
pub struct Pattern {
    places: Vec<u64>,
    cursors: Vec<u64>,
    next_drive: usize,
    options: PatternOptions,
    state: u64,
}

impl Pattern {
    /// A sequence over drives of these sizes and block sizes in bytes.
    ///
    /// # Errors
    ///
    /// `Usage` where a drive is smaller than one read, or size and alignment do not suit its
    /// blocks.
    pub fn new(drives: &[(u64, u32)], options: PatternOptions) -> Result<Self> {
        if drives.is_empty() {
            return Err(Error::usage("no drive to read from"));
        }
        let (len, align) = (u64::from(options.io_size), options.align);
        let mut places = Vec::with_capacity(drives.len());
        for (number, (capacity, block)) in drives.iter().copied().enumerate() {
            let block = u64::from(block);
            for (what, value) in [("I/O size", len), ("alignment of offsets", align)] {
                if value == 0 || !value.is_multiple_of(block) {
                    return Err(Error::usage(format!(
                        "an {what} of {} does not suit drive {number}: its blocks are of {}",
                        format_size(value),
                        format_size(block)
                    ))
                    .remedy(format!("choose a multiple of {}", format_size(block))));
                }
            }
            if capacity < len {
                return Err(Error::usage(format!(
                    "drive {number} has {}, which is less than one I/O of {}",
                    format_size(capacity),
                    format_size(len)
                ))
                .remedy("choose a smaller --io-size"));
            }
            places.push((capacity - len) / align + 1);
        }
        let cursors = vec![0; places.len()];
        Ok(Self { places, cursors, next_drive: 0, options, state: options.seed })
    }

    /// The next read: number of the drive, and byte offset.
    pub fn advance(&mut self) -> (u16, u64) {
        match self.options.order {
            Order::Random => {
                let drive = self.below(self.places.len() as u64) as usize;
                let place = self.below(self.places[drive]);
                (drive as u16, place * self.options.align)
            }
            Order::Sequential => {
                let drive = self.next_drive;
                self.next_drive = (drive + 1) % self.places.len();
                let offset = self.cursors[drive];
                let step = u64::from(self.options.io_size).next_multiple_of(self.options.align);
                let last = (self.places[drive] - 1) * self.options.align;
                self.cursors[drive] = if offset + step > last { 0 } else { offset + step };
                (drive as u16, offset)
            }
        }
    }

    /// Bytes of each read.
    pub fn io_size(&self) -> u32 {
        self.options.io_size
    }

    /// A number below `bound`, by SplitMix64 and a multiplication instead of a division.
    fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        ((u128::from(z) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(order: Order) -> PatternOptions {
        PatternOptions { io_size: 8192, align: 4096, order, seed: 1 }
    }

    #[test]
    fn random_reads_stay_inside_and_reach_both_ends() {
        let drives = [(16_384, 512), (8192, 4096)];
        let mut pattern = Pattern::new(&drives, options(Order::Random)).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let (drive, offset) = pattern.advance();
            assert!(offset + 8192 <= drives[usize::from(drive)].0);
            seen.insert((drive, offset));
        }
        assert_eq!(Vec::from_iter(seen), [(0, 0), (0, 4096), (0, 8192), (1, 0)]);
    }

    #[test]
    fn one_seed_is_one_sequence() {
        let take = |seed| {
            let options = PatternOptions { seed, ..options(Order::Random) };
            let mut pattern = Pattern::new(&[(1 << 30, 4096)], options).unwrap();
            (0..16).map(|_| pattern.advance()).collect::<Vec<_>>()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }

    #[test]
    fn sequential_reads_take_turns_and_wrap() {
        let drives = [(16_384, 4096), (8192, 4096)];
        let mut pattern = Pattern::new(&drives, options(Order::Sequential)).unwrap();
        let seen: Vec<_> = (0..6).map(|_| pattern.advance()).collect();
        assert_eq!(seen, [(0, 0), (1, 0), (0, 8192), (1, 0), (0, 0), (1, 0)]);
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let one = |capacity, block, io_size, align| {
            let options = PatternOptions { io_size, align, ..options(Order::Random) };
            Pattern::new(&[(capacity, block)], options)
        };
        assert!(one(4096, 4096, 8192, 4096).unwrap_err().what().contains("less than one I/O"));
        assert!(one(1 << 20, 4096, 512, 512).unwrap_err().what().contains("blocks are of 4KiB"));
        assert!(one(1 << 20, 512, 4096, 0).is_err());
        assert!(Pattern::new(&[], options(Order::Random)).is_err());
    }
}
