//! Why: which resource is the wall of each variant, and which switch moved it. Pure functions from
//! measured evidence; every sentence has its figures; where they do not suffice, it says what to
//! run next.

mod evidence;
mod switches;
mod walls;

use serde::{Deserialize, Serialize};

use super::analysis::{Comparison, Point};
use super::matrix::Matrix;
use super::record::Run;
pub use evidence::Evidence;
pub use switches::{Effect, ratio_text};
pub use walls::{Finding, Named, Wall, explain};

/// What is said of one variant under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PointFinding {
    /// Number of the load.
    pub load: usize,
    /// Number of the variant.
    pub variant: usize,
    /// What was found.
    #[serde(flatten)]
    pub finding: Finding,
}

/// What several experiments show together, under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chain {
    /// Number of the load.
    pub load: usize,
    /// What it shows.
    #[serde(flatten)]
    pub shows: Named,
}

/// All that is said.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The wall of each variant under each load.
    pub walls: Vec<PointFinding>,
    /// What each switch did.
    pub switches: Vec<Effect>,
    /// What they show together.
    pub chain: Vec<Chain>,
}

/// Explains a whole comparison.
pub fn of(
    matrix: &Matrix,
    points: &[Point],
    comparisons: &[Comparison],
    runs: &[Run],
) -> Explanation {
    let mut all = Explanation::default();
    for point in points {
        let finding = explain(&Evidence::of(matrix, point, points, runs));
        all.walls.push(PointFinding { load: point.load, variant: point.variant, finding });
    }
    let wall = |load, variant| {
        let found = all.walls.iter().find(|w| (w.load, w.variant) == (load, variant))?;
        found.finding.wall.as_ref().map(|named| named.wall)
    };
    for comparison in comparisons {
        let point =
            |variant| points.iter().find(|p| (p.load, p.variant) == (comparison.load, variant));
        let (Some(before), Some(after)) = (point(comparison.from), point(comparison.variant))
        else {
            continue;
        };
        let walls =
            (wall(comparison.load, comparison.from), wall(comparison.load, comparison.variant));
        all.switches.extend(switches::effect(matrix, comparison, before, after, walls));
    }
    for load in 0..matrix.loads.len() {
        let shown = switches::chain(matrix, load, comparisons);
        all.chain.extend(shown.into_iter().map(|shows| Chain { load, shows }));
    }
    all
}

#[cfg(test)]
mod tests;
