//! How long issuers that wait for their items do so, learned from past waits.
//!
//! The CPU of such an issuer is free meanwhile. But a worker that is woken there keeps it for at
//! least one item, and an issuer that is held up delays all items to come. So this pays only if the
//! wait is as long.

use homing_topology::CpuId;

use crate::facts::Facts;
use crate::idle::Idle;
use crate::layout::Layout;
use crate::nice::Shares;
use crate::pull::{Next, before_park};

/// Decides whether a thread that has issued on `cpu`, and waits from now on, leaves the CPU to its
/// worker. Returns `cpu` if its worker is idle and would find an item, and if issuers wait for at
/// least half of the time that the item takes. Only how soon items run depends on it: what is left
/// waits for a worker that is awake, or for a tick.
///
/// ```
/// use homing_sched::{Affinity, Attributes, Layout, PoolId, Snapshot, issuer_waits};
/// use homing_topology::{CpuId, Machine, Scope};
///
/// let layout = Layout::new(&Machine::from_grid("2x2x1")?).ok_or("no CPU")?;
/// let attributes = Attributes::new(Affinity { scope: Scope::Cache, strict: false });
/// let mut facts = Snapshot::new(&layout, &[attributes]);
/// let cpu = CpuId::new(3).ok_or("?")?;
/// facts.idle = "3".parse()?;
/// assert_eq!(issuer_waits(&layout, &facts, cpu), None, "there is nothing to do");
/// facts.queue_items(&layout, PoolId(0), cpu, 1, facts.now_ns);
/// assert_eq!(issuer_waits(&layout, &facts, cpu), Some(cpu), "its worker takes what is left");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn issuer_waits(layout: &Layout, facts: &impl Facts, cpu: CpuId) -> Option<CpuId> {
    if !facts.idle().contains(cpu) {
        return None;
    }
    let next = before_park(layout, facts, cpu, Idle::Any, &Shares::NONE);
    let Next::Take { queue, .. } = next else { return None };
    let is_kept = facts.occupied(facts.item_ns(queue)).contains(cpu);
    (!is_kept).then_some(cpu)
}

/// One part in this many of what was measured goes into the mean.
const WEIGHT: u64 = 16;

/// No wait counts for longer than this: one that was meant to last would hide many brief ones.
const WAIT_MAX_NS: u64 = 1_000_000;

/// A running mean of issuers' waits.
///
/// ```
/// use homing_sched::IssuerWait;
///
/// let unknown = IssuerWait::default();
/// assert!(!unknown.is_brief(1_000_000));
/// let waits = (0..100).fold(unknown, |waits, _| waits.note(2_000));
/// assert!(waits.is_brief(5_000) && !waits.is_brief(1_000), "{} ns", waits.mean_ns());
/// assert_eq!(IssuerWait::from_ns(waits.mean_ns()), waits, "an atomic can hold it");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IssuerWait {
    mean_ns: u64,
}

impl IssuerWait {
    /// From [`IssuerWait::mean_ns`], for use in an atomic.
    pub const fn from_ns(mean_ns: u64) -> Self {
        Self { mean_ns }
    }

    /// The mean; 0 if nothing has been noted yet.
    pub const fn mean_ns(self) -> u64 {
        self.mean_ns
    }

    /// Notes that an issuer was called `wait_ns` after it had begun to wait. Any further wait for
    /// its CPU does not count: otherwise a wait would seem long because its CPU was used.
    #[must_use]
    pub const fn note(self, wait_ns: u64) -> Self {
        let wait_ns = if wait_ns < WAIT_MAX_NS { wait_ns } else { WAIT_MAX_NS };
        // At least 1: 0 means that nothing is known.
        Self { mean_ns: self.mean_ns - self.mean_ns.div_ceil(WEIGHT) + wait_ns / WEIGHT + 1 }
    }

    /// Whether issuers are called again before half of an item of this length has run: then the
    /// item takes more of their time than it uses of what they leave. Always true for items of more
    /// than twice the longest wait that counts, 1 ms.
    pub const fn is_brief(self, item_ns: u64) -> bool {
        self.mean_ns != 0 && self.mean_ns < item_ns / 2
    }
}

#[cfg(test)]
mod tests {
    use homing_topology::Scope;

    use super::*;
    use crate::test_facts::{Given, cpu_id, cpus, layout, loose};

    #[test]
    fn who_waits_leaves_his_cpu_to_what_is_left_unless_waits_are_brief() {
        let layout = layout("1x1x4x1");
        let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
        facts.idle = cpus("0-1");
        let waits = |facts: &Given| issuer_waits(&layout, facts, cpu_id(1));
        assert_eq!(waits(&facts), None, "nothing is left");
        facts.put(&layout, 0, 3, 1, 0);
        assert_eq!(waits(&facts), Some(cpu_id(1)));
        facts.waits = cpus("1");
        facts.issuer_wait = (0..200).fold(IssuerWait::default(), |wait, _| wait.note(10_000));
        facts.item_ns = 50_000;
        assert_eq!(waits(&facts), None, "the issuer is called before that is over");
        facts.item_ns = 5_000;
        assert_eq!(waits(&facts), Some(cpu_id(1)));
        facts.idle = cpus("0");
        assert_eq!(waits(&facts), None, "its worker is awake");
    }

    #[test]
    fn waits_are_brief_beside_items_that_take_longer() {
        assert!(!IssuerWait::default().is_brief(u64::MAX), "nothing is known");
        let noted = (0..200).fold(IssuerWait::default(), |wait, _| wait.note(10_000));
        assert!((9_000..=10_100).contains(&noted.mean_ns()), "{}", noted.mean_ns());
        assert!(noted.is_brief(50_000) && !noted.is_brief(19_000));
        let long = (0..16).fold(noted, |wait, _| wait.note(u64::MAX));
        assert!(!long.is_brief(500_000), "{}", long.mean_ns());
        assert!((0..100).fold(long, |wait, _| wait.note(0)).is_brief(50_000), "and brief again");
    }
}
