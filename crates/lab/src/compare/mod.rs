//! Policies side by side: each on each trace with each size, on all CPUs.
//!
//! FIFO, LRU and the optimum with bypass always run, besides the policies that are asked for: a
//! policy is measured by them (`summary`).

mod candidate;
mod summary;

pub use candidate::Candidate;
pub use summary::{Summary, WorstCell};

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::policy::Setup;
use crate::replay::Outcome;
use crate::size::Size;
use crate::trace::Trace;

/// The floor, the reference and the ceiling.
const FLOOR: &str = "fifo";
const BAR: &str = "lru";
pub(crate) const CEILING: &str = "opt-bypass";

/// What is to be compared.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The traces.
    pub traces: &'a [Trace],
    /// The sizes of the cache.
    pub sizes: &'a [Size],
    /// The policies.
    pub candidates: &'a [Candidate],
    /// How many threads work on it. Only with one thread are the times of the cells meaningful.
    pub threads: usize,
}

/// How far a comparison is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Requests replayed, for all cells.
    pub done: u64,
    /// Requests that there are.
    pub all: u64,
}

/// One policy on one trace with one size.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The policy's name.
    pub policy: String,
    /// The trace's name.
    pub trace: String,
    /// The size that was asked for.
    pub size: Size,
    /// That size in pages.
    pub capacity: usize,
    /// How many different pages the trace has.
    pub pages: usize,
    /// The result of the replay.
    pub outcome: Outcome,
    /// How long the replay took, without what was read and computed before.
    pub elapsed: Duration,
}

/// The result of a comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Names of the policies that were asked for, in order; those that always run come last.
    policies: Vec<String>,
    asked: usize,
    traces: Vec<String>,
    sizes: Vec<Size>,
    /// In order of policy, then trace, then size.
    cells: Vec<Cell>,
}

impl Plan<'_> {
    /// Replays everything. `progress` is called now and then, by any thread.
    pub fn run(&self, progress: &(dyn Fn(Progress) + Sync)) -> Comparison {
        let mut candidates = self.candidates.to_vec();
        for name in [FLOOR, BAR, CEILING] {
            if candidates.iter().all(|candidate| candidate.name() != name) {
                candidates.push(Candidate::named(name).expect("these three are in the list"));
            }
        }
        let cells = self.replay(&candidates, progress);
        Comparison {
            policies: candidates.iter().map(|candidate| candidate.name().to_owned()).collect(),
            asked: self.candidates.len(),
            traces: self.traces.iter().map(|trace| trace.name().to_owned()).collect(),
            sizes: self.sizes.to_vec(),
            cells,
        }
    }

    /// Replays the candidates of the plan and nothing else.
    pub fn cells(&self, progress: &(dyn Fn(Progress) + Sync)) -> Vec<Cell> {
        self.replay(self.candidates, progress)
    }

    fn replay(&self, candidates: &[Candidate], progress: &(dyn Fn(Progress) + Sync)) -> Vec<Cell> {
        let mut jobs = Vec::new();
        for candidate in candidates {
            for trace in self.traces {
                jobs.extend(self.sizes.iter().map(|size| (candidate, trace, *size)));
            }
        }
        // The longest jobs come first, so that no thread begins one at the end.
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(jobs[*index].1.len()));
        let all = jobs.iter().map(|(_, trace, _)| trace.len() as u64).sum();
        let done = AtomicU64::new(0);
        let tell = |more: u64| {
            let done = done.fetch_add(more, Ordering::Relaxed) + more;
            progress(Progress { done, all });
        };
        let next = AtomicUsize::new(0);
        let cells = Mutex::new(vec![None; jobs.len()]);
        let work = || {
            while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (candidate, trace, size) = jobs[index];
                let cell = Cell::replay(candidate, trace, size, &tell);
                cells.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(cell);
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.threads.min(jobs.len()) {
                scope.spawn(work);
            }
            work();
        });
        let cells = cells.into_inner().unwrap_or_else(PoisonError::into_inner);
        cells.into_iter().map(|cell| cell.expect("every job was taken and done")).collect()
    }
}

impl Cell {
    fn replay(candidate: &Candidate, trace: &Trace, size: Size, tell: &dyn Fn(u64)) -> Self {
        let capacity = size.capacity(trace.pages());
        let mut policy = candidate.build(&Setup::new(trace, capacity));
        let mut told = 0;
        let began = Instant::now();
        let outcome = policy.replay_with(trace, &mut |done| {
            tell((done - told) as u64);
            told = done;
        });
        Self {
            policy: candidate.name().to_owned(),
            trace: trace.name().to_owned(),
            size,
            capacity,
            pages: trace.pages(),
            outcome,
            elapsed: began.elapsed(),
        }
    }

    /// Requests a second.
    pub fn speed(&self) -> f64 {
        self.outcome.requests as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

impl Comparison {
    /// Names of the policies that were asked for.
    pub fn policies(&self) -> &[String] {
        &self.policies[..self.asked]
    }

    /// Names of the traces, in the plan's order.
    pub fn traces(&self) -> &[String] {
        &self.traces
    }

    /// The sizes, in the plan's order.
    pub fn sizes(&self) -> &[Size] {
        &self.sizes
    }

    /// The cells of the policies that were asked for: by policy, then trace, then size.
    pub fn cells(&self) -> &[Cell] {
        &self.cells[..self.asked * self.traces.len() * self.sizes.len()]
    }

    /// The cell of a policy, by its name and the positions of trace and size; none if there was no
    /// such policy, or the positions are beyond the plan's.
    pub fn cell(&self, policy: &str, trace: usize, size: usize) -> Option<&Cell> {
        let row = self.policies.iter().position(|name| name == policy)?;
        if trace >= self.traces.len() || size >= self.sizes.len() {
            return None;
        }
        self.cells.get((row * self.traces.len() + trace) * self.sizes.len() + size)
    }
}
