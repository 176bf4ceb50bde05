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
mod tests {
    use homing_topology::Machine;

    use super::*;
    use crate::pull::Reach;
    use crate::window::{COMPARED_ITEMS, Taken};

    fn window(length_ns: u64, window_ns: u64) -> Window {
        window_of(1000, length_ns, window_ns)
    }

    fn window_of(items: u64, length_ns: u64, window_ns: u64) -> Window {
        let mut window = Window { elapsed_ns: window_ns, ..Window::default() };
        window.taken[0] = Taken { items, ran_ns: length_ns * items };
        window
    }

    /// Runs for `windows` windows in which an item costs what `cost` says of the scope. Returns for
    /// how many nanoseconds each scope was used.
    fn drive(auto: &mut Auto, windows: usize, cost: impl Fn(Scope, usize) -> u64) -> [u64; 6] {
        let mut used = [0; 6];
        for number in 0..windows {
            let scope = auto.scope();
            used[scope.index()] += auto.window_ns();
            auto.note(&window(cost(scope, number), auto.window_ns()));
        }
        used
    }

    /// The same, but scopes differ in the items a millisecond, too.
    fn drive_at(auto: &mut Auto, at: impl Fn(Scope) -> (u64, u64)) -> [u64; 6] {
        let mut used = [0; 6];
        for _ in 0..3_000 {
            let (scope, window_ns) = (auto.scope(), auto.window_ns());
            used[scope.index()] += window_ns;
            let (a_ms, length_ns) = at(scope);
            auto.note(&window_of(a_ms * window_ns / 1_000_000, length_ns, window_ns));
        }
        used
    }

    #[test]
    fn more_items_a_second_are_better_whatever_one_costs() {
        let used = drive_at(&mut auto(), |scope| match scope {
            Scope::Cache => (110, 21_000),
            _ => (100, 20_000),
        });
        assert!(share(&used, Scope::Cache) > 0.8, "{used:?}");
        let used = drive_at(&mut auto(), |scope| match scope {
            Scope::Cache => (90, 18_000),
            _ => (100, 20_000),
        });
        assert!(share(&used, Scope::CacheShard) > 0.8, "{used:?}");
    }

    fn share(used: &[u64; 6], scope: Scope) -> f64 {
        used[scope.index()] as f64 / used.iter().sum::<u64>() as f64
    }

    fn auto() -> Auto {
        let layout = Layout::new(&Machine::from_grid("2x2x2x24x2").unwrap());
        Auto::new(&layout.unwrap(), Scope::CacheShard)
    }

    /// A number from 0 to 1000 that looks random.
    fn noise(number: usize) -> u64 {
        let drawn = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((drawn ^ drawn >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) % 1001
    }

    #[test]
    fn finds_the_cheapest_scope_and_seldom_leaves_it() {
        for best in Scope::ALL {
            let mut auto = auto();
            // Two per cent a scope, and noise of as much.
            let cost = |scope: Scope, number| {
                let away = scope.index().abs_diff(best.index()) as u64;
                100_000 + 2_000 * away + 2 * noise(number)
            };
            drive(&mut auto, 300, cost);
            let used = drive(&mut auto, 1_600, cost);
            assert!(share(&used, best) > 0.995, "{best}: {used:?}");
        }
    }

    /// If all scopes are alike, it does not matter which is used, but changing costs.
    #[test]
    fn noise_seldom_changes_anything() {
        let mut auto = auto();
        let (mut windows, mut changes) = (0, 0);
        while windows < 20_000 {
            let settled = auto.settled;
            let length_ns = 80_000 + 40 * noise(windows);
            auto.note(&window(length_ns, auto.window_ns()));
            changes += u32::from(auto.settled != settled);
            windows += 1;
        }
        assert!(changes < 20, "{changes}");
    }

    /// What a trial costs if the neighbours are far worse.
    #[test]
    fn a_wrong_scope_costs_little() {
        let mut auto = auto();
        let cost = |scope: Scope, _| if scope == Scope::CacheShard { 10_000 } else { 20_000 };
        let used = drive(&mut auto, 60, cost);
        assert!(share(&used, Scope::CacheShard) > 0.975, "from the start: {used:?}");
        let used = drive(&mut auto, 2_000, cost);
        assert!(share(&used, Scope::CacheShard) > 0.998, "later: {used:?}");
    }

    #[test]
    fn a_change_of_load_is_followed_soon() {
        let mut auto = auto();
        let narrow = |scope: Scope, _| 10_000 + 1_000 * scope.index() as u64;
        drive(&mut auto, 3_000, narrow);
        assert_eq!(auto.scope(), Scope::Cpu);
        let wide = |scope: Scope, _| 60_000 - 5_000 * scope.index() as u64;
        let used = drive(&mut auto, 120, wide);
        assert_eq!(auto.scope(), Scope::System, "{used:?}");
    }

    #[test]
    fn waiting_counts_where_a_cpu_was_idle() {
        let busy = Window { waited_ns: 500, ..window(1_000, 1 << 20) };
        assert_eq!(busy.cost_ns(), 1_000);
        assert_eq!(Window { idle_ns: 1 << 19, ..busy }.cost_ns(), 1_250);
        assert_eq!(Window { idle_ns: 1 << 20, ..busy }.cost_ns(), 1_500);
        let many = Window { idle_ns: u64::MAX, ..busy };
        assert_eq!(many.cost_ns(), 1_500, "no more than it waited");
        let long = Window { waited_ns: 1 << 40, ..many };
        assert_eq!(long.cost_ns(), 5_000, "overload does not hide the rest");
        assert_eq!(Window::default().cost_ns(), 0);
    }

    #[test]
    fn the_pull_cost_is_what_fetched_items_were_longer() {
        let mut auto = auto();
        let mut note = |fetched, items, ran_ns| {
            let mut window = window(10_000, WINDOW_NS);
            window.taken[fetched as usize] = Taken { items, ran_ns: items * ran_ns };
            auto.note(&window);
            auto.pull_cost().percent()
        };
        assert_eq!(note(Reach::Node, COMPARED_ITEMS - 1, 90_000), 100, "too few");
        assert_eq!(note(Reach::Node, 200, 18_000), 200, "8 us, not 4");
        assert_eq!(note(Reach::Remote, 200, 15_000), 50, "5 us, not 10");
        assert_eq!(note(Reach::Llc, 200, 9_000), 25, "nothing");
        assert_eq!(note(Reach::Remote, 200, 90_000), 400, "as much as there is");
    }

    #[test]
    fn a_machine_with_one_cpu_has_nothing_to_try() {
        let layout = Layout::new(&Machine::from_grid("1x1x1").unwrap());
        let mut auto = Auto::new(&layout.unwrap(), Scope::System);
        let used = drive(&mut auto, 100, |_, _| 10_000);
        assert!(share(&used, Scope::Cpu) >= 1.0);
    }

    #[test]
    fn a_load_is_like_another_up_to_twice_as_much_either_way() {
        let load = |length_ns, pace_ns| Load { length_ns, pace_ns };
        for other in [load(200, 100), load(100, 200), load(50, 100), load(100, 50)] {
            assert!(load(100, 100).is_like(&other), "{other:?}");
        }
        for other in [load(201, 100), load(100, 201), load(49, 100), load(100, 49)] {
            assert!(!load(100, 100).is_like(&other), "{other:?}");
        }
    }

    #[test]
    fn of_two_neighbours_the_one_tried_less_often_is_next_and_its_windows_suit_the_waits() {
        let mut auto = auto();
        for (of, next_rest) in [(auto.settled + 1, 64), (auto.settled - 1, 8)] {
            (auto.candidates[of].rest, auto.candidates[of].next_rest) = (1, next_rest);
        }
        for (waited_ns, window_ns) in
            [(0, TRIAL_NS), (20_000_000, 80_000_000), (u64::MAX, 2 * WINDOW_NS)]
        {
            let mut auto = auto.clone();
            auto.note(&Window { waited_ns, ..window(10_000, WINDOW_NS) });
            let trial = auto.trial.unwrap();
            assert_eq!((trial.candidate, trial.window_ns), (auto.settled - 1, window_ns));
            assert_eq!((auto.window_ns(), auto.window_items()), (window_ns, WINDOW_ITEMS));
        }
    }

    #[test]
    fn after_the_probes_a_trial_begins_anew_with_longer_windows() {
        let mut auto = auto();
        auto.candidates[auto.settled + 1].rest = 1;
        auto.note(&window(10_000, WINDOW_NS));
        for _ in 0..PROBES {
            auto.note(&window(10_000, TRIAL_NS));
            auto.note(&window(9_000, TRIAL_NS));
        }
        let trial = auto.trial.unwrap();
        assert_eq!((trial.probes, trial.pace.pairs, trial.cost.pairs), (false, 0, 0));
        assert_eq!(
            (auto.window_ns(), auto.window_items()),
            (LONGER * TRIAL_NS, LONGER * WINDOW_ITEMS)
        );
    }

    fn gains(of: &[i64]) -> Gains {
        let mut gains = Gains::default();
        for gain in of {
            gains.note(10_000, (10_000 - gain).cast_unsigned());
        }
        gains
    }

    #[test]
    fn one_window_that_is_unlike_the_others_decides_nothing() {
        assert_eq!(gains(&[300, 310, -9_000, 290, 300, 305, 295, 300]).finding(), Finding::Better);
        assert_eq!(gains(&[300, 310, -9_000, 290]).finding(), Finding::Unclear, "too few");
        // It may be as good, by what is known.
        assert_eq!(gains(&[-4_000, 3_000, -4_000, 3_000, -1_000, 0]).finding(), Finding::NotBetter);
    }

    #[test]
    fn what_costs_less_is_no_better_where_fewer_items_are_done() {
        let verdict = |pace: i64| {
            let pace = gains(&[pace; 8]);
            let cost = gains(&[500; 8]);
            let (settled, window_ns) = (None, TRIAL_NS);
            Trial { candidate: 0, probes: false, window_ns, settled, pace, cost }.verdict()
        };
        assert_eq!([verdict(-10), verdict(0), verdict(10)], [Some(false), Some(true), Some(true)]);
    }

    #[test]
    fn where_it_came_from_is_tried_later_and_nothing_rests_for_ever() {
        let mut auto = auto();
        let first = auto.settled;
        let wider = |scope: Scope, _| 20_000 - 1_000 * scope.index() as u64;
        while auto.settled == first {
            drive(&mut auto, 1, wider);
        }
        let rests = |auto: &Auto| auto.candidates.iter().map(|of| of.rest).collect::<Vec<_>>();
        assert_eq!(rests(&auto)[first], 2 * REST_MIN);
        assert!(rests(&auto).iter().filter(|rest| **rest == REST_MIN).count() > 2);
        drive(&mut auto, 5_000, wider);
        assert!(auto.candidates.iter().all(|of| of.next_rest <= REST_MAX), "{auto:?}");
        assert!(auto.candidates.iter().any(|of| of.next_rest == REST_MAX), "{auto:?}");
    }

    #[test]
    fn begins_with_the_narrowest_name_of_the_scope_that_is_asked_for() {
        let layout = Layout::new(&Machine::from_grid("2x4x2").unwrap()).unwrap();
        assert_eq!(Auto::new(&layout, Scope::Cache).scope(), Scope::CacheShard);
    }

    #[test]
    fn the_pull_cost_of_long_items_is_by_their_length_and_needs_enough_of_both_kinds() {
        let mut auto = auto();
        let mut note = |home, fetched_ns: u64| {
            let mut window = window_of(home, 320_000, WINDOW_NS);
            window.taken[Reach::Node as usize] = Taken { items: 200, ran_ns: 200 * fetched_ns };
            auto.note(&window);
            auto.pull_cost().percent()
        };
        assert_eq!(note(COMPARED_ITEMS - 1, 900_000), 100, "too few");
        assert_eq!(note(1_000, 340_000), 100, "20 us are a 16th");
    }
}
