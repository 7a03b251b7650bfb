//! The order of runs: A-B-B-A.

use super::matrix::Matrix;

/// One run: numbers of the round, the load and the variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// From 0.
    pub round: usize,
    /// In [`Matrix::loads`].
    pub load: usize,
    /// In [`Matrix::variants`].
    pub variant: usize,
}

/// The runs of one round, in order. Every second round goes backward, so that whatever changes
/// steadily favours no variant. Where drives change their driver, a variant runs all its loads
/// before the next; else variants alternate under each load, so that pairs are closer in time.
pub fn round(matrix: &Matrix, round: usize) -> Vec<Cell> {
    let mut cells = Vec::new();
    if matrix.changes_driver() {
        // Those of one driver together: one change of the driver in a round.
        let mut variants: Vec<usize> = (0..matrix.variants.len()).collect();
        variants.sort_by_key(|n| matrix.variants[*n].switches.uses_spdk());
        for variant in variants {
            cells.extend((0..matrix.loads.len()).map(|load| Cell { round, load, variant }));
        }
    } else {
        for load in 0..matrix.loads.len() {
            cells.extend((0..matrix.variants.len()).map(|variant| Cell { round, load, variant }));
        }
    }
    if round % 2 == 1 {
        cells.reverse();
    }
    cells
}
