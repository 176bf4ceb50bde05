//! `affinity_scope=auto`: finds the scope and the pull cost with which a workqueue does best.
//!
//! **The scope is found by trying.** Now and then a neighboring scope has a trial: short windows
//! with it and with the settled scope alternate, and each pair is a sample of its gain. More items
//! a second are better: a thread that waits for its items issues more of them if they are done
//! sooner, and workers in the way of issuers show nowhere else. If there are as many, because the
//! load comes from outside, a scope is better if an item costs less: the time it runs, which remote
//! caches make longer, and the time it waits while a CPU is idle, which too small pods make longer.
//! What it waits while none is idle is load, not the scope's fault.
//!
//! A scope that is far worse is given up after a pair or two. After these, windows are longer, so
//! small differences show. A scope is taken once the mean gain is four standard errors above zero
//! and more than [`GAIN_MIN`]; it is given up as soon as that is unlikely. Then it rests, twice as
//! long each time, until the load changes. So a wrong scope costs some hundredths of a second now
//! and then, and a lucky window changes nothing.
//!
//! **The pull cost is measured**: how much longer fetched items ran than those of their own pod,
//! relative to the usual assumption. It says how long items are left to their pod ([`PullCost`]);
//! their length always enters there.
//!
//! Limits: a load that swings as fast as a trial's windows looks like noise, and the scope stays.
//! It climbs to the nearest optimum, one scope at a time. It knows nothing of other workqueues. If
//! fetched items are longer for another reason, it takes fetching to be dear. Strictness stays.

use homing_topology::Scope;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

use crate::layout::Layout;
use crate::pull_cost::PullCost;
use crate::window::Window;

/// A window outside a trial lasts at least this long, in nanoseconds.
pub const WINDOW_NS: u64 = 100_000_000;

/// A window of a trial lasts at least this long, in nanoseconds.
pub const TRIAL_NS: u64 = 10_000_000;

/// It also lasts this many times as long as items wait: otherwise most were queued before it.
const TRIAL_WAITS: u64 = 4;

/// A window has at least this many items.
const WINDOW_ITEMS: u64 = 1024;

/// Once it is clear that a scope on trial is not far worse, its windows are this many times as
/// long: then small differences show, and cost little to find out.
const LONGER: u64 = 4;

/// This many pairs of windows come before that.
const PROBES: usize = 2;

/// At least this many windows lie between two trials of a scope,
const REST_MIN: u32 = 4;

/// and at most this many: half a minute and more.
const REST_MAX: u32 = 256;

/// Gains are in parts of this.
const WHOLE: i64 = 1 << 16;

/// What must be gained at least: half a per cent. It is what running in two scopes is worth less
/// than.
const GAIN_MIN: i64 = WHOLE / 200;

/// A scope that loses more in the first pair has no second one.
const LOSS_MAX: i64 = WHOLE / 8;

/// A scope is found better by at least this many pairs of windows,
const PAIRS_MIN: usize = 6;

/// and at most this many.
const PAIRS_MAX: usize = 12;

/// The load has changed if items are this many times as long, or as many, as when the rests were
/// set, or the other way round; in the mean of some windows.
const CHANGED: u64 = 2;

/// The search for the best scope of one workqueue.
///
/// ```
/// use homing_sched::{Auto, Layout, Reach, Taken, Window};
/// use homing_topology::{Machine, Scope};
///
/// let layout = Layout::new(&Machine::from_grid("2x4x2")?).ok_or("no CPU")?;
/// let mut auto = Auto::new(&layout, Scope::System);
/// for _ in 0..200 {
///     // Items that fetch from another cache run for longer; those in pods too small wait.
///     let (ran_ns, waited_ns) = match auto.scope() {
///         Scope::Numa | Scope::System => (13_000, 0),
///         Scope::Cache | Scope::CacheShard => (10_000, 100),
///         Scope::Smt | Scope::Cpu => (10_000, 9_000),
///     };
///     let elapsed_ns = auto.window_ns(); // one CPU was idle, the others were not
///     let mut window = Window { elapsed_ns, waited_ns, idle_ns: elapsed_ns, ..Window::default() };
///     window.taken[Reach::Home as usize] = Taken { items: auto.window_items(), ran_ns: auto.window_items() * ran_ns };
///     auto.note(&window);
/// }
/// assert_eq!(auto.scope(), Scope::CacheShard, "the narrowest name of a cache that is one shard");
/// assert_eq!(auto.pull_cost(), homing_sched::PullCost::USUAL, "nothing was fetched");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Auto {
    /// The scopes that differ on this machine, narrowest first.
    candidates: Vec<Candidate>,
    /// The one in use, as an index.
    settled: usize,
    trial: Option<Trial>,
    /// What the load was when the rests were set, and what it has been lately.
    loads: Option<(Load, Load)>,
    pull_cost: PullCost,
}

/// How long an item runs, and how long it is from one to the next, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Load {
    length_ns: u64,
    pace_ns: u64,
}

impl Load {
    /// An eighth of the way to another one.
    fn toward(self, to: Self) -> Self {
        let between = |from: u64, to: u64| from - from / 8 + to / 8;
        Self {
            length_ns: between(self.length_ns, to.length_ns),
            pace_ns: between(self.pace_ns, to.pace_ns),
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        let like = |one: u64, other: u64| {
            one <= other.saturating_mul(CHANGED) && other <= one.saturating_mul(CHANGED)
        };
        like(self.length_ns, other.length_ns) && like(self.pace_ns, other.pace_ns)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Candidate {
    scope: Scope,
    /// How many windows lie before its next trial, and how many before the one after that.
    rest: u32,
    next_rest: u32,
}

/// Windows by turns with the settled scope and with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Trial {
    candidate: usize,
    /// Whether it may still be far worse.
    probes: bool,
    window_ns: u64,
    /// The window with the settled one; `None` while that lasts.
    settled: Option<Measured>,
    /// The gains in the time from one item to the next, and in what an item costs.
    pace: Gains,
    cost: Gains,
}

/// What a window is judged by, in nanoseconds: the less the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Measured {
    /// From one item to the next.
    pace_ns: u64,
    cost_ns: u64,
}

/// What was gained in each pair of windows, the least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Gains {
    pairs: usize,
    sorted: [i64; PAIRS_MAX],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    Better,
    /// Not better, or by so little that it does not matter, or unlikely to turn out so.
    NotBetter,
    Worse,
    Unclear,
}

impl Gains {
    fn note(&mut self, settled_ns: u64, candidate_ns: u64) {
        let (settled, candidate) = (i128::from(settled_ns.max(1)), i128::from(candidate_ns));
        let whole = i128::from(WHOLE);
        let gain = ((settled - candidate) * whole / settled).clamp(-whole, whole) as i64;
        self.sorted[self.pairs] = gain;
        self.pairs += 1;
        self.sorted[..self.pairs].sort_unstable();
    }

    /// What was gained in all pairs together.
    fn sorted_sum(&self) -> i64 {
        self.sorted[..self.pairs].iter().sum()
    }

    fn finding(&self) -> Finding {
        let gains = match &self.sorted[..self.pairs] {
            // The extremes are left out: what happens once, as the load begins, decides nothing.
            [_, rest @ .., _] if rest.len() > 1 => rest,
            all => all,
        };
        let count = i64::try_from(gains.len()).unwrap_or(i64::MAX);
        let mean = gains.iter().sum::<i64>() / count.max(1);
        if count < 2 {
            return match mean {
                ..0 if mean < -LOSS_MAX => Finding::Worse,
                ..=0 => Finding::NotBetter,
                _ => Finding::Unclear,
            };
        }
        let squares: i64 = gains.iter().map(|gain| (gain - mean).pow(2)).sum();
        let error = (squares / (count - 1) / count).isqrt();
        if self.pairs >= PAIRS_MIN && mean >= GAIN_MIN && mean > 4 * error {
            Finding::Better
        } else if mean <= -GAIN_MIN && mean < -2 * error {
            Finding::Worse
        } else if mean <= 0 || mean + error < GAIN_MIN {
            Finding::NotBetter
        } else {
            Finding::Unclear
        }
    }
}

impl Trial {
    fn note(&mut self, settled: Measured, candidate: Measured) {
        self.pace.note(settled.pace_ns, candidate.pace_ns);
        self.cost.note(settled.cost_ns, candidate.cost_ns);
    }

    /// Whether the candidate is better, once that is clear. It never is if fewer items were done.
    fn verdict(&mut self) -> Option<bool> {
        let verdict = match (self.pace.finding(), self.cost.finding()) {
            (Finding::Better, _) => Some(true),
            (Finding::NotBetter, Finding::Better) => Some(self.pace.sorted_sum() >= 0),
            (Finding::Worse, _) | (Finding::NotBetter, Finding::Worse) => Some(false),
            (Finding::NotBetter, Finding::NotBetter) if self.pace.pairs > 1 => Some(false),
            _ => (self.pace.pairs >= PAIRS_MAX).then_some(false),
        };
        if verdict.is_none() && self.probes && self.pace.pairs == PROBES {
            self.probes = false;
            self.window_ns *= LONGER;
            (self.pace, self.cost) = (Gains::default(), Gains::default());
        }
        verdict
    }
}

impl Auto {
    /// Begins with the scope that is nearest to `first`.
    pub fn new(layout: &Layout, first: Scope) -> Self {
        let mut candidates: Vec<Candidate> = Vec::new();
        for scope in Scope::ALL {
            let pods = layout.pods(scope);
            let known = |known: &Candidate| layout.pods(known.scope).iter().eq(pods.iter());
            if !candidates.iter().any(known) {
                candidates.push(Candidate { scope, rest: REST_MIN, next_rest: REST_MIN });
            }
        }
        // Of scopes that are the same on this machine, the narrowest is kept.
        let settled = candidates.iter().rposition(|of| of.scope <= first).unwrap_or(0);
        Self { candidates, settled, trial: None, loads: None, pull_cost: PullCost::USUAL }
    }

    /// The scope to use until the next window is over.
    pub fn scope(&self) -> Scope {
        let in_use = match self.trial {
            Some(Trial { candidate, settled: Some(_), .. }) => candidate,
            _ => self.settled,
        };
        self.candidates[in_use].scope
    }

    /// The pull cost to use until the next window is over.
    pub fn pull_cost(&self) -> PullCost {
        self.pull_cost
    }

    /// The least number of items that the window has to have.
    pub fn window_items(&self) -> u64 {
        match self.trial {
            Some(Trial { probes: false, .. }) => LONGER * WINDOW_ITEMS,
            _ => WINDOW_ITEMS,
        }
    }

    /// The least time that the window has to last, in nanoseconds. It also lasts until it has
    /// [`Auto::window_items`].
    pub fn window_ns(&self) -> u64 {
        match self.trial {
            None => WINDOW_NS,
            Some(trial) => trial.window_ns,
        }
    }

    /// Takes note of a window, and decides on the next one: see [`Auto::scope`].
    pub fn note(&mut self, window: &Window) {
        if let Some((more_ns, usual_ns)) = window.pull_costs() {
            self.pull_cost = self.pull_cost.follow(more_ns, usual_ns);
        }
        let load = Load {
            length_ns: window.length_ns(),
            pace_ns: window.elapsed_ns / window.items().max(1),
        };
        let measured = Measured { pace_ns: load.pace_ns, cost_ns: window.cost_ns() };
        self.trial = match self.trial.take() {
            None => self.note_settled(load, window.waited_ns),
            Some(trial) => self.note_trial(trial, load, measured),
        };
    }

    /// Notes a window between trials. Returns the trial that begins, if any.
    fn note_settled(&mut self, load: Load, waited_ns: u64) -> Option<Trial> {
        let (then, late) = self.loads.unwrap_or((load, load));
        let late = late.toward(load);
        self.loads = Some((then, late));
        if !late.is_like(&then) {
            self.begin_anew(late);
        }
        let neighbours = [self.settled + 1, self.settled.wrapping_sub(1)];
        for of in neighbours {
            if let Some(candidate) = self.candidates.get_mut(of) {
                candidate.rest = candidate.rest.saturating_sub(1);
            }
        }
        let due = |of: &usize| self.candidates.get(*of).is_some_and(|of| of.rest == 0);
        let due = neighbours.into_iter().filter(due);
        // Of two, the one that has been tried less often.
        let candidate = due.min_by_key(|of| self.candidates[*of].next_rest)?;
        let (pace, cost) = (Gains::default(), Gains::default());
        let window_ns = waited_ns.saturating_mul(TRIAL_WAITS).clamp(TRIAL_NS, 2 * WINDOW_NS);
        Some(Trial { candidate, probes: true, window_ns, settled: None, pace, cost })
    }

    /// Notes a window of a trial. Returns the trial if it goes on.
    fn note_trial(&mut self, mut trial: Trial, load: Load, measured: Measured) -> Option<Trial> {
        let Some(settled) = trial.settled.take() else {
            return Some(Trial { settled: Some(measured), ..trial });
        };
        trial.note(settled, measured);
        let Some(better) = trial.verdict() else { return Some(trial) };
        if better {
            let left = std::mem::replace(&mut self.settled, trial.candidate);
            self.begin_anew(load);
            // The best may lie further on in the same direction, not where we come from.
            self.candidates[left].rest = 2 * REST_MIN;
        } else {
            let candidate = &mut self.candidates[trial.candidate];
            candidate.rest = candidate.next_rest;
            candidate.next_rest = (candidate.next_rest * 2).min(REST_MAX);
        }
        None
    }

    fn begin_anew(&mut self, load: Load) {
        self.loads = Some((load, load));
        for candidate in &mut self.candidates {
            (candidate.rest, candidate.next_rest) = (REST_MIN, 2 * REST_MIN);
        }
    }
}

/// What is read need not come from a trusted source: it is refused if a window could not be noted.
impl<'de> Deserialize<'de> for Auto {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            candidates: Vec<Candidate>,
            settled: usize,
            trial: Option<Trial>,
            loads: Option<(Load, Load)>,
            pull_cost: PullCost,
        }
        let Fields { candidates, settled, trial, loads, pull_cost } = Fields::deserialize(from)?;
        let known = |of: usize| of < candidates.len();
        let rests = |of: &Candidate| of.rest <= REST_MAX && of.next_rest <= REST_MAX;
        let gains = |of: &Gains| {
            of.pairs < PAIRS_MAX && of.sorted.iter().all(|gain| (-WHOLE..=WHOLE).contains(gain))
        };
        let sound = |of: &Trial| {
            let longest_ns = 2 * WINDOW_NS * LONGER;
            known(of.candidate) && of.window_ns <= longest_ns && gains(&of.pace) && gains(&of.cost)
        };
        if !known(settled) || !candidates.iter().all(rests) || !trial.iter().all(sound) {
            return Err(D::Error::custom("no search for a scope is ever in this state"));
        }
        Ok(Self { candidates, settled, trial, loads, pull_cost })
    }
}

#[cfg(test)]
mod tests;
