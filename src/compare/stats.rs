//! Medians, and the interval of a ratio over paired rounds.
//!
//! A ratio is taken within each round, between two runs that were minutes apart at most, so the
//! machine's drift is in both. The interval is that of the *median* of these ratios: rounds are
//! drawn with replacement, as many as there are, [`DRAWS`] times, and the middle 99 % of the
//! medians are kept. With few rounds a bootstrap is too narrow; at 99 % its true coverage from 6
//! rounds on is above 95 %, which docs/COMPARE.md shows. A seed makes it repeatable.

use serde::{Deserialize, Serialize};

use super::matrix::Matrix;

/// Draws of the bootstrap.
pub const DRAWS: usize = 4000;
/// Share of the medians that lies outside of the interval.
pub const OUTSIDE: f64 = 0.01;

/// What a ratio shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval is above 1.
    Above,
    /// The whole interval is below 1.
    Below,
    /// The interval holds 1.
    NoDifferenceShown,
    /// Fewer rounds than an interval needs.
    TooFewRounds,
}

impl Verdict {
    /// True where a difference was shown.
    pub fn differs(self) -> bool {
        matches!(self, Verdict::Above | Verdict::Below)
    }
}

/// A ratio with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median of the rounds' ratios.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Rounds that had both.
    pub rounds: usize,
    /// What it shows.
    pub verdict: Verdict,
}

/// Ends of an interval within which a difference is too small to matter: only then is "no
/// difference shown" more than too little evidence.
const SAME: (f64, f64) = (0.9, 1.1);

impl Ratio {
    /// True where the interval leaves room for a small difference at most.
    pub fn rules_out(&self) -> bool {
        self.verdict == Verdict::NoDifferenceShown && self.low > SAME.0 && self.high < SAME.1
    }
}

/// The middle of some figures, with the least and the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Middle {
    /// Median.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
}

/// The median; sorts. There is at least one value.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    }
}

/// Median and range; `None` of nothing.
pub fn middle(values: &[f64]) -> Option<Middle> {
    let mut sorted = values.to_vec();
    (!sorted.is_empty()).then(|| {
        let median = median(&mut sorted);
        Middle { median, min: sorted[0], max: sorted[sorted.len() - 1] }
    })
}

/// The ratio of `pairs` (of one round each), second to first. `None` where no pair has a ratio.
pub fn ratio(pairs: &[(f64, f64)], seed: u64) -> Option<Ratio> {
    drawn(pairs, seed, DRAWS)
}

fn drawn(pairs: &[(f64, f64)], seed: u64, draws: usize) -> Option<Ratio> {
    let ratios: Vec<f64> =
        pairs.iter().map(|(from, to)| to / from).filter(|r| r.is_finite() && *r > 0.0).collect();
    let rounds = ratios.len();
    let center = middle(&ratios)?.median;
    let mut random = Random(seed);
    let mut drawn = vec![0.0; rounds];
    let mut medians: Vec<f64> = (0..draws)
        .map(|_| {
            drawn.iter_mut().for_each(|one| *one = ratios[random.below(rounds)]);
            median(&mut drawn)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let edge = (draws as f64 * OUTSIDE / 2.0) as usize;
    let (low, high) = (medians[edge], medians[draws - 1 - edge]);
    let verdict = match (low, high) {
        _ if rounds < Matrix::FEW_ROUNDS => Verdict::TooFewRounds,
        (low, _) if low > 1.0 => Verdict::Above,
        (_, high) if high < 1.0 => Verdict::Below,
        _ => Verdict::NoDifferenceShown,
    };
    Some(Ratio { ratio: center, low, high, rounds, verdict })
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws of the tests, which make thousands of intervals in a build without optimisation.
    const FEW: usize = 600;

    /// About normal, by twelve uniform draws.
    fn noise(random: &mut Random) -> f64 {
        (0..12).map(|_| random.bits() as f64 / u64::MAX as f64).sum::<f64>() - 6.0
    }

    /// Rounds A-B-B-A on a machine that drifts by a factor of two within them and has noise of
    /// 5 %, with outliers; `effect` is B's true ratio.
    fn rounds(random: &mut Random, count: usize, effect: f64) -> Vec<(f64, f64)> {
        let slope = noise(random) / 2.0;
        let mut at = 0.0;
        let mut run = |random: &mut Random| {
            at += 1.0;
            let outlier = if random.below(20) == 0 { 0.6 } else { 1.0 };
            (slope * at / (2.0 * count as f64)).exp2() * (0.05 * noise(random)).exp() * outlier
        };
        let pairs = (0..count).map(|round| {
            let (first, second) = (run(random), run(random));
            let (a, b) = if round % 2 == 0 { (first, second) } else { (second, first) };
            (a, b * effect)
        });
        pairs.collect()
    }

    #[test]
    fn one_path_with_itself_shows_no_difference_in_nineteen_of_twenty() {
        let mut random = Random(7);
        for count in [6, 8, 12] {
            let shown = (0..200)
                .filter(|n| {
                    drawn(&rounds(&mut random, count, 1.0), *n, FEW).unwrap().verdict.differs()
                })
                .count();
            assert!(shown <= 200 / 20, "{shown} of 200 with {count} rounds");
        }
    }

    #[test]
    fn a_real_difference_is_shown() {
        let mut random = Random(8);
        for (count, most_of) in [(8, 75), (16, 90)] {
            let found = (0..100)
                .filter(|n| {
                    let ratio = drawn(&rounds(&mut random, count, 1.3), *n, FEW).unwrap();
                    ratio.verdict == Verdict::Above && ratio.low < 1.3 && ratio.high > 1.2
                })
                .count();
            assert!(found >= most_of, "{found} of 100 with {count} rounds");
        }
    }

    #[test]
    fn few_rounds_show_nothing_and_the_seed_repeats_it() {
        let few = ratio(&[(1.0, 2.0); 5], 1).unwrap();
        assert_eq!((few.ratio, few.verdict), (2.0, Verdict::TooFewRounds));
        let pairs: Vec<_> = (1..=8).map(|n| (1.0, 1.0 + f64::from(n) / 100.0)).collect();
        assert_eq!(ratio(&pairs, 5), ratio(&pairs, 5));
        assert_eq!(ratio(&pairs, 5).unwrap().verdict, Verdict::Above);
        assert_eq!(ratio(&[(0.0, 1.0)], 1), None);
        assert_eq!(ratio(&[], 1), None);
        assert_eq!(middle(&[3.0, 1.0, 2.0, 10.0]).unwrap().median, 2.5);
    }
}
