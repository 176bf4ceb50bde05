//! One figure for a policy over many cells.
//!
//! Hit ratios of different traces cannot be added up: on one trace the best policy is half a point
//! ahead, on another forty. So each cell counts by the share of the possible gain: FIFO is 0, the
//! optimum with bypass 1. Cells with hardly any possible gain are left out.

use super::{BAR, CEILING, Comparison, FLOOR};
use crate::size::Size;

/// Cells with less than this to gain are left out; a hit ratio, so half a point.
const GAIN_MIN: f64 = 0.005;

/// How a policy did over all cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The mean share of the distance from FIFO to the optimum; none if no cell counts.
    pub share: Option<f64>,
    /// How many cells count.
    pub counted: usize,
    /// The cell that is furthest behind LRU, or least ahead of it.
    pub worst: Option<WorstCell>,
}

/// The cell that is worst against LRU.
#[derive(Clone, Debug, PartialEq)]
pub struct WorstCell {
    /// The trace's name.
    pub trace: String,
    /// The size.
    pub size: Size,
    /// Hit ratio less that of LRU, in points of a per cent.
    pub points: f64,
}

impl Comparison {
    /// The summary of a policy; none if it did not take part.
    pub fn summary(&self, policy: &str) -> Option<Summary> {
        if !self.policies.iter().any(|name| name == policy) {
            return None;
        }
        let mut shares = Vec::new();
        let mut worst: Option<WorstCell> = None;
        for trace in 0..self.traces.len() {
            for size in 0..self.sizes.len() {
                let ratio = |policy| Some(self.cell(policy, trace, size)?.outcome.hit_ratio());
                let (own, floor) = (ratio(policy)?, ratio(FLOOR)?);
                let (bar, ceiling) = (ratio(BAR)?, ratio(CEILING)?);
                if ceiling - floor >= GAIN_MIN {
                    shares.push((own - floor) / (ceiling - floor));
                }
                let points = (own - bar) * 100.0;
                if worst.as_ref().is_none_or(|worst| points < worst.points) {
                    let (trace, size) = (self.traces[trace].clone(), self.sizes[size]);
                    worst = Some(WorstCell { trace, size, points });
                }
            }
        }
        let counted = shares.len();
        let share = (counted > 0).then(|| shares.iter().sum::<f64>() / counted as f64);
        Some(Summary { share, counted, worst })
    }

    /// The best hit ratio that a policy which was asked for, and does not see the future, has in a
    /// cell.
    pub fn best(&self, trace: usize, size: usize) -> Option<f64> {
        let online = self.policies().iter().filter(|name| !name.starts_with("opt"));
        let ratios = online.filter_map(|name| self.cell(name, trace, size));
        ratios.map(|cell| cell.outcome.hit_ratio()).max_by(f64::total_cmp)
    }
}
