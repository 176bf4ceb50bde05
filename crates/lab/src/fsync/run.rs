//! Rounds over all strategies and numbers of issuers, interleaved.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::device::{Counts, Device};
use super::error::FsyncError;
use super::files::Files;
use super::issue::{Ended, Engine};
use super::rows::Report;
use super::setup::Setup;
use super::strategy::Strategy;
use crate::cpu_time::cpu_time;
use crate::experiments::Progress;

/// One measurement.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) round: usize,
    pub(super) strategy: Strategy,
    pub(super) issuers: usize,
    pub(super) files_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) cpu_s: f64,
    /// What the device was asked for; `None` if the filesystem has no device of its own.
    pub(super) device: Option<Counts>,
    pub(super) aggregation: Option<f64>,
}

impl Setup {
    /// Measures. Once `stop` is set what is under way is given up, its files are removed, and the
    /// report is of the rounds that had ended by then.
    ///
    /// `progress` is called after each measurement. Raises this process's limit of open files, if
    /// it has to. Blocks for as long as it takes: a slow disk needs some 5 to 20 ms for each file
    /// that is synced by itself.
    ///
    /// # Errors
    /// [`FsyncError`], before anything is written where that can be known; the files are removed.
    pub fn run(
        &self,
        stop: &AtomicBool,
        progress: impl Fn(Progress),
    ) -> Result<Report, FsyncError> {
        self.check()?;
        let cells = self.cells();
        let of = self.measurements();
        let mut outcomes = Vec::with_capacity(of);
        'rounds: for round in 0..self.rounds {
            for turn in 0..cells.len() {
                // The cell that comes first in one round comes late in the next.
                let at = (turn + round * step(cells.len())) % cells.len();
                let (strategy, issuers) = cells[at];
                match self.measure(round, strategy, issuers, stop) {
                    Ok(outcome) => outcomes.push(outcome),
                    Err(Ended::Stopped) => break 'rounds,
                    Err(Ended::Io(action, error)) => {
                        return Err(FsyncError::Io { action, dir: self.dir.clone(), error });
                    }
                    Err(Ended::Failed(error)) => return Err(error),
                }
                progress(Progress { done: outcomes.len(), of });
            }
        }
        Ok(Report::new(&cells, self.rounds, outcomes))
    }

    fn measure(
        &self,
        round: usize,
        strategy: Strategy,
        issuers: usize,
        stop: &AtomicBool,
    ) -> Result<Outcome, Ended> {
        let make = |error| Ended::Io("making files", error);
        let files = Files::new(&self.dir, self.size).map_err(make)?;
        let paths = (0..self.files).map(|number| {
            if stop.load(Ordering::Relaxed) {
                return Err(Ended::Stopped);
            }
            let name = number.to_string();
            files.make(&name).map_err(make)?;
            Ok(files.path().join(name))
        });
        let paths = paths.collect::<Result<Vec<_>, _>>()?;
        let engine = Engine::of(strategy)?;
        let device = Device::below(files.path());
        let counts = || device.as_ref().and_then(Device::counts);

        let before = counts();
        let (cpu, began) = (cpu_time(), Instant::now());
        let ended = thread::scope(|scope| {
            let issue = |share| {
                let engine = &engine;
                let issuer = move || engine.sync(strategy, share, stop);
                thread::Builder::new().spawn_scoped(scope, issuer)
            };
            let threads: io::Result<Vec<_>> = shares(&paths, issuers).map(issue).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join();
            Ok(threads?.into_iter().map(join).collect::<Vec<_>>())
        });
        let ended = ended.map_err(|error| Ended::Io("creating a thread for each issuer", error))?;
        let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_time().saturating_sub(cpu));
        let after = counts();

        let mut latencies = Vec::with_capacity(paths.len());
        for share in ended {
            let share = share.map_err(|_| FsyncError::Panicked)??;
            latencies.extend(share.iter().map(|latency| latency.as_secs_f64() * 1e6));
        }
        assert_eq!(latencies.len(), paths.len(), "each file is synced once");
        latencies.sort_by(f64::total_cmp);
        files.close().map_err(|error| Ended::Io("removing the files", error))?;
        let device = after.zip(before).map(|(after, before)| after.since(before));
        Ok(Outcome {
            round,
            strategy,
            issuers,
            files_per_s: latencies.len() as f64 / seconds,
            p50_us: percentile(&latencies, 50),
            p99_us: percentile(&latencies, 99),
            cpu_s: cpu.as_secs_f64(),
            device,
            aggregation: device.and_then(|did| did.aggregation(latencies.len())),
        })
    }
}

/// By how many cells the order is turned from round to round: about half of them, so that in as
/// many rounds as there are cells, each comes first once.
fn step(cells: usize) -> usize {
    let divides =
        |a: usize, b: usize| (2..=a.min(b)).any(|by| a.is_multiple_of(by) && b.is_multiple_of(by));
    (1..=cells.div_ceil(2)).rev().find(|&step| !divides(step, cells)).unwrap_or(1)
}

/// Divides into as many shares as there are issuers, whose lengths differ by at most one.
fn shares<T>(all: &[T], issuers: usize) -> impl Iterator<Item = &[T]> {
    let end = move |issuer: usize| all.len() * issuer / issuers;
    (0..issuers).map(move |issuer| &all[end(issuer)..end(issuer + 1)])
}

/// The least of the sorted figures that `percent` per cent of them do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_leave_nothing_out() {
        let all: Vec<usize> = (0..11).collect();
        let lengths: Vec<usize> = shares(&all, 4).map(<[usize]>::len).collect();
        assert_eq!(lengths, [2, 3, 3, 3]);
        assert_eq!(shares(&all, 4).flatten().copied().collect::<Vec<_>>(), all);
    }

    #[test]
    fn in_as_many_rounds_each_comes_first_once() {
        for cells in 1..40 {
            let first: std::collections::BTreeSet<usize> =
                (0..cells).map(|round| round * step(cells) % cells).collect();
            assert_eq!(first.len(), cells);
        }
    }

    #[test]
    fn percentiles_are_latencies_that_were_seen() {
        let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
        let found = (percentile(&sorted, 50), percentile(&sorted, 99), percentile(&sorted, 100));
        assert_eq!(found, (100.0, 198.0, 200.0));
        assert_eq!((percentile(&[7.0], 50), percentile(&[], 50)), (7.0, 0.0));
    }
}
