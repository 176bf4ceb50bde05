//! Runs cells on all CPUs, on homing's own runtime.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use homing::{Runtime, RuntimeError};

use super::{Cell, Measure};

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many cells have ended.
    pub done: usize,
    /// How many cells there are.
    pub of: usize,
}

/// Runs the cells until `stop` is set, and returns those that have ended, in the order of their
/// keys. Cells of a simulated host that are under way at a stop are given up.
///
/// `ended` is called after each cell, by whichever thread ran it, for one at a time.
pub fn run(
    cells: &[Cell],
    stop: &AtomicBool,
    ended: impl Fn(&Measure, Progress) + Sync,
) -> Result<Vec<Measure>, RuntimeError> {
    // A large machine makes a cell long: cells that wait behind it are not a stall.
    let runtime = Runtime::builder().watchdog_thresh(Duration::ZERO).build()?;
    let measures = Mutex::new(Vec::with_capacity(cells.len()));
    let one = |cell: &Cell| {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let Some(values) = (cell.run)(stop) else { return };
        let mut all = measures.lock().unwrap_or_else(PoisonError::into_inner);
        let measure = Measure { key: cell.key.clone(), values };
        ended(&measure, Progress { done: all.len() + 1, of: cells.len() });
        all.push(measure);
    };
    runtime.scope(|scope| {
        for cell in cells.iter().filter(|cell| !cell.alone) {
            let one = &one;
            scope.queue(move || one(cell));
        }
    });
    cells.iter().filter(|cell| cell.alone).for_each(one);
    let mut measures = measures.into_inner().unwrap_or_else(PoisonError::into_inner);
    measures.sort_by(|one, other| one.key.cmp(&other.key));
    Ok(measures)
}
