//! `affinity_scope=auto`: which scope a workqueue does best with, found by trying.
//!
//! What an item costs is the time it runs, which remote caches make longer, and the time it waits,
//! which pods that are too small make longer; both are measured. Now and then a neighbouring scope
//! is tried for one window. It is taken when it was better twice running, each time by more than
//! the noise. So a wrong scope costs at most one window in [`TRY_EVERY`], and a lucky window
//! changes nothing.
//!
//! Limits: it compares windows that follow each other, so a load that swings faster than a window
//! looks like noise; it climbs to the nearest optimum, one scope at a time; it knows nothing of
//! other workqueues. Where the scopes differ by less than [`MARGIN`] it stays where it is. Of
//! attributes it changes the scope alone, never the strictness.

use homing_topology::{Machine, Scope};

/// A window lasts at least this long, in nanoseconds,
pub const WINDOW_NS: u64 = 100_000_000;

/// and has at least so many items.
pub const WINDOW_ITEMS: u64 = 256;

/// One window in so many tries another scope.
pub const TRY_EVERY: u32 = 16;

/// By this much the other scope must be better: one part in so many.
const MARGIN: u64 = 20;

/// How much of the waiting counts at most, in lengths of an item: under overload all wait for long
/// in any scope.
const WAIT_LENGTHS: u64 = 4;

/// What was measured in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Items that ended.
    pub items: u64,
    /// How long they ran together.
    pub ran_ns: u64,
    /// How long one of them waited in its queue, on average.
    pub waited_ns: u64,
}

impl Window {
    /// What an item cost, in nanoseconds.
    fn cost_ns(&self) -> u64 {
        let length_ns = self.ran_ns / self.items.max(1);
        length_ns + self.waited_ns.min(length_ns * WAIT_LENGTHS)
    }
}

/// The state of one workqueue.
///
/// ```
/// use homing_sched::{Auto, Window};
/// use homing_topology::{Machine, Scope};
///
/// let mut auto = Auto::new(&Machine::from_grid("2x4x2")?, Scope::System);
/// for _ in 0..200 {
///     // Items that fetch from another cache run for longer; those in pods too small wait.
///     let (ran_ns, waited_ns) = match auto.scope() {
///         Scope::Numa | Scope::System => (13_000, 0),
///         Scope::Cache | Scope::CacheShard => (10_000, 100),
///         Scope::Smt | Scope::Cpu => (10_000, 9_000),
///     };
///     auto.note(&Window { items: 1000, ran_ns: 1000 * ran_ns, waited_ns });
/// }
/// assert_eq!(auto.scope(), Scope::CacheShard, "the narrowest name of a cache that is one shard");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Auto {
    /// The scopes that differ on this machine, narrowest first.
    scopes: Vec<Scope>,
    /// The one in use, as an index.
    settled: usize,
    phase: Phase,
    /// Whether the next try is for a wider one.
    wider: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// So many windows with the settled scope; the cost of the last one.
    Settled { windows: u32, cost_ns: u64 },
    /// One window with another one, which has been better so often.
    Trying { candidate: usize, cost_before_ns: u64, wins: u32 },
    /// One window with the settled one between two tries.
    Between { candidate: usize },
}

impl Auto {
    /// Begins with the scope that is nearest to `first`.
    pub fn new(machine: &Machine, first: Scope) -> Self {
        let mut scopes: Vec<Scope> = Vec::new();
        for scope in Scope::ALL {
            let pods = machine.pods(scope);
            let known = |known: &Scope| machine.pods(*known).iter().eq(pods.iter());
            if !scopes.iter().any(known) {
                scopes.push(scope);
            }
        }
        // Of scopes that are the same here the narrowest is kept.
        let settled = scopes.iter().rposition(|scope| *scope <= first).unwrap_or(0);
        Self { scopes, settled, phase: Phase::Settled { windows: 0, cost_ns: 0 }, wider: true }
    }

    /// The scope to use until the next window is over.
    pub fn scope(&self) -> Scope {
        self.scopes[match self.phase {
            Phase::Trying { candidate, .. } => candidate,
            Phase::Settled { .. } | Phase::Between { .. } => self.settled,
        }]
    }

    /// Takes note of a window, and decides on the next one: see [`Auto::scope`].
    pub fn note(&mut self, window: &Window) {
        let cost_ns = window.cost_ns();
        self.phase = match self.phase {
            Phase::Settled { windows, .. } if windows + 1 < TRY_EVERY => {
                Phase::Settled { windows: windows + 1, cost_ns }
            }
            Phase::Settled { .. } => match self.neighbour() {
                Some(candidate) => Phase::Trying { candidate, cost_before_ns: cost_ns, wins: 0 },
                None => Phase::Settled { windows: 0, cost_ns },
            },
            Phase::Trying { candidate, cost_before_ns, wins } => {
                let better = cost_ns < cost_before_ns - cost_before_ns / MARGIN;
                match (better, wins) {
                    (true, 0) => Phase::Between { candidate },
                    (true, _) => {
                        // The same direction again: the best may lie further on.
                        self.wider = candidate > self.settled;
                        self.settled = candidate;
                        Phase::Settled { windows: 0, cost_ns }
                    }
                    (false, _) => Phase::Settled { windows: 0, cost_ns: cost_before_ns },
                }
            }
            Phase::Between { candidate } => {
                Phase::Trying { candidate, cost_before_ns: cost_ns, wins: 1 }
            }
        };
    }

    /// The next one to try: wider and narrower by turns.
    fn neighbour(&mut self) -> Option<usize> {
        let wider = Some(self.settled + 1).filter(|next| *next < self.scopes.len());
        let narrower = self.settled.checked_sub(1);
        let (first, second) = if self.wider { (wider, narrower) } else { (narrower, wider) };
        self.wider = !self.wider;
        first.or(second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `windows` windows in which an item costs what `cost` says of the scope; in how many
    /// of them each scope was used.
    fn drive(auto: &mut Auto, windows: usize, cost: impl Fn(Scope, usize) -> u64) -> [usize; 6] {
        let mut used = [0; 6];
        for number in 0..windows {
            let scope = auto.scope();
            used[scope.index()] += 1;
            let ran_ns = cost(scope, number) * 1000;
            auto.note(&Window { items: 1000, ran_ns, waited_ns: 0 });
        }
        used
    }

    fn auto() -> Auto {
        Auto::new(&Machine::from_grid("2x2x2x24x2").unwrap(), Scope::CacheShard)
    }

    #[test]
    fn finds_the_cheapest_scope_and_seldom_leaves_it() {
        for best in Scope::ALL {
            let mut auto = auto();
            let cost =
                |scope: Scope, _| 10_000 + 2_000 * scope.index().abs_diff(best.index()) as u64;
            drive(&mut auto, 200, cost);
            let used = drive(&mut auto, 1600, cost);
            assert!(used[best.index()] >= 1490, "{best}: {used:?}");
        }
    }

    #[test]
    fn noise_within_the_margin_changes_nothing() {
        let mut auto = auto();
        let noise = |_, number: usize| 10_000 + (number as u64).wrapping_mul(2_654_435_761) % 300;
        let used = drive(&mut auto, 2000, noise);
        assert!(used[Scope::CacheShard.index()] > 1850, "{used:?}");
    }

    #[test]
    fn waiting_counts_but_overload_does_not_hide_the_rest() {
        let window = Window { items: 10, ran_ns: 10_000, waited_ns: 500 };
        assert_eq!(window.cost_ns(), 1_500);
        assert_eq!(Window { waited_ns: 1 << 40, ..window }.cost_ns(), 5_000);
        assert_eq!(Window { items: 0, ran_ns: 0, waited_ns: 0 }.cost_ns(), 0);
    }

    #[test]
    fn a_machine_with_one_cpu_has_nothing_to_try() {
        let mut auto = Auto::new(&Machine::from_grid("1x1x1").unwrap(), Scope::System);
        let used = drive(&mut auto, 100, |_, _| 10_000);
        assert_eq!(used[Scope::Cpu.index()], 100);
    }
}
