//! What is measured of a workqueue while its scope is chosen.

use serde::{Deserialize, Serialize};

use crate::pull::Reach;
use crate::pull_cost::PullCost;

/// How much of the waiting counts at most, in lengths of an item. If items wait for longer, a CPU
/// that was idle for a moment is not what they waited for.
const WAIT_LENGTHS: u64 = 4;

/// This many fetched items, and this many of their own pod, must have run to compare them.
pub(crate) const COMPARED_ITEMS: u64 = 64;

/// The items of a window that were taken from a given distance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// How many ended.
    pub items: u64,
    /// How long they ran in total, in nanoseconds.
    pub ran_ns: u64,
}

/// What was measured in a window.
///
/// ```
/// use homing_sched::{Reach, Taken, Window};
///
/// let mut window = Window { elapsed_ns: 1_000_000, ..Window::default() };
/// window.taken[Reach::Home as usize] = Taken { items: 100, ran_ns: 1_000_000 };
/// window.waited_ns = 4_000; // each, on average
/// assert_eq!((window.items(), window.cost_ns()), (100, 10_000), "no CPU was idle");
/// window.idle_ns = 500_000; // half of a CPU
/// assert_eq!(window.cost_ns(), 12_000, "half of the time somebody could have run them");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// How long it lasted, in nanoseconds.
    pub elapsed_ns: u64,
    /// The items that ended, by how far away they were taken: in the order of [`Reach::ALL`].
    pub taken: [Taken; Reach::ALL.len()],
    /// How long one of them waited in its queue, on average, in nanoseconds.
    pub waited_ns: u64,
    /// How long CPUs that may run its items ran none, added up, in nanoseconds.
    pub idle_ns: u64,
}

impl Window {
    /// How many items ended.
    pub fn items(&self) -> u64 {
        sum(self.taken.map(|taken| taken.items))
    }

    pub(crate) fn length_ns(&self) -> u64 {
        sum(self.taken.map(|taken| taken.ran_ns)) / self.items().max(1)
    }

    /// The cost of an item, in nanoseconds: its run time, and how long it waited beside an idle
    /// CPU.
    pub fn cost_ns(&self) -> u64 {
        let length_ns = self.length_ns();
        let idle = u128::from(self.idle_ns.min(self.elapsed_ns));
        let waited_ns = u128::from(self.waited_ns.min(length_ns.saturating_mul(WAIT_LENGTHS)));
        let beside_idle_ns = waited_ns * idle / u128::from(self.elapsed_ns.max(1));
        length_ns.saturating_add(beside_idle_ns as u64)
    }

    /// By how much fetched items were longer than those of their own pod, and what is usual; both
    /// for all of them together.
    pub(crate) fn pull_costs(&self) -> Option<(u64, u64)> {
        let home = self.taken[Reach::Home as usize];
        if home.items < COMPARED_ITEMS {
            return None;
        }
        let home_ns = home.ran_ns / home.items;
        let far = || Reach::ALL.into_iter().zip(self.taken).skip(1);
        let items = sum(far().map(|(_, taken)| taken.items));
        let ran_ns = sum(far().map(|(_, taken)| taken.ran_ns));
        let usual_ns = sum(far().map(|(reach, taken)| {
            taken.items.saturating_mul(PullCost::USUAL.age_ns(reach, home_ns))
        }));
        let more_ns = ran_ns.saturating_sub(items.saturating_mul(home_ns));
        (items >= COMPARED_ITEMS).then_some((more_ns, usual_ns))
    }
}

/// Recorded windows may hold anything.
fn sum(all: impl IntoIterator<Item = u64>) -> u64 {
    all.into_iter().fold(0, u64::saturating_add)
}
