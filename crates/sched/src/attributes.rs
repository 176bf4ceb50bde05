//! What a user may say about the items of a workqueue, as far as scheduling goes.

use homing_topology::Scope;
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::nice::Nice;
use crate::pull_cost::PullCost;

/// Where the items of a workqueue may run: the kernel's `affinity_scope` and `affinity_strict`.
///
/// ```
/// use homing_sched::Affinity;
/// use homing_topology::Scope;
///
/// let here = Affinity { scope: Scope::Cache, strict: true };
/// assert_eq!(Affinity::ALL[here.index()], here);
/// assert_eq!(Affinity::ALL.len(), 12, "six scopes, strict or not");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Affinity {
    /// The size of the home pod.
    pub scope: Scope,
    /// Whether items may never run outside their home pod.
    pub strict: bool,
}

impl Affinity {
    /// Every affinity there is.
    pub const ALL: [Self; 2 * Scope::ALL.len()] = {
        let mut all = [Self { scope: Scope::Cpu, strict: false }; 2 * Scope::ALL.len()];
        let mut index = 0;
        while index < all.len() {
            all[index] = Self { scope: Scope::ALL[index / 2], strict: index % 2 == 1 };
            index += 1;
        }
        all
    };

    /// The affinity of workqueues that ask for none: [`Scope::CacheShard`], loose, as the kernel's
    /// since 7.1.
    ///
    /// If cores share no cache, that scope would give each core its own home, and everything that
    /// the issuer's core does not run itself would count as fetched. On such machines the default
    /// is the narrowest of the wider scopes that puts several cores together. Simulated: 3.7 % more
    /// at low load, the same at medium and high.
    ///
    /// ```
    /// use homing_sched::{Affinity, Layout};
    /// use homing_topology::{Machine, Scope};
    ///
    /// let layout = |grid| Layout::new(&Machine::from_grid(grid).ok()?);
    /// let of = |grid| layout(grid).map(|layout| Affinity::default_on(&layout).scope);
    /// assert_eq!(of("2x4x8x2"), Some(Scope::CacheShard));
    /// assert_eq!(of("2x4x1x2"), Some(Scope::Numa), "caches of one core, four in a node");
    /// assert_eq!(of("2x1x1x2"), Some(Scope::System), "nodes of one core, too");
    /// ```
    pub fn default_on(layout: &Layout) -> Self {
        let cores = layout.pods(Scope::Smt);
        let holds_several = |scope: &Scope| !layout.pods(*scope).iter().eq(cores.iter());
        let wide = [Scope::CacheShard, Scope::Numa, Scope::System].into_iter().find(holds_several);
        Self { scope: wide.unwrap_or(Scope::CacheShard), strict: false }
    }

    /// The position in [`Affinity::ALL`].
    pub const fn index(self) -> usize {
        self.scope.index() * 2 + self.strict as usize
    }
}

/// Everything that the queues of a pool have in common. Workqueues with equal attributes share
/// them.
///
/// ```
/// use homing_sched::{Affinity, Attributes, Level};
/// use homing_topology::Scope;
///
/// let wide = Attributes::new(Affinity { scope: Scope::System, strict: false });
/// assert_eq!(wide.level(), Level::Shard, "one queue would be too much for all CPUs");
/// assert_eq!(Attributes { localize: true, ..wide }.level(), Level::Cpu);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attributes {
    /// Scope and strictness.
    pub affinity: Affinity,
    /// Try the issuing CPU before the rest of the pod: the published `+LOCAL` variant. This does
    /// not apply while an issuer that is not a worker occupies that CPU.
    pub localize: bool,
    /// The share of a CPU's time (`SCHED-6`).
    pub nice: Nice,
    /// How long its items are left to their own pod (`SCHED-4`).
    pub pull_cost: PullCost,
}

impl Attributes {
    /// Plain attributes with this affinity.
    pub const fn new(affinity: Affinity) -> Self {
        Self { affinity, localize: false, nice: Nice::NORMAL, pull_cost: PullCost::USUAL }
    }

    /// How finely the queues of these attributes are divided.
    pub const fn level(self) -> Level {
        match self.affinity.scope {
            _ if self.localize => Level::Cpu,
            Scope::Cpu => Level::Cpu,
            Scope::Smt => Level::Smt,
            Scope::CacheShard | Scope::Cache | Scope::Numa | Scope::System => Level::Shard,
        }
    }
}

/// How many CPUs share one queue. A pod wider than a shard of the cache has a queue per shard, so
/// that a queue never has more than about 8 cores at it; all of its queues are home to the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// A queue for each CPU.
    Cpu,
    /// A queue for each core.
    Smt,
    /// A queue for each shard of a last-level cache.
    Shard,
}

impl Level {
    /// All of them, finest first.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Smt, Self::Shard];

    /// The scope whose pods are the CPUs of a queue.
    ///
    /// ```
    /// use homing_sched::{Affinity, Attributes, Level};
    /// use homing_topology::Scope;
    ///
    /// let machine = Attributes::new(Affinity { scope: Scope::System, strict: false });
    /// assert_eq!(machine.level(), Level::Shard);
    /// assert_eq!(Level::Shard.scope(), Scope::CacheShard, "many queues are home to this pod");
    /// ```
    pub const fn scope(self) -> Scope {
        match self {
            Self::Cpu => Scope::Cpu,
            Self::Smt => Scope::Smt,
            Self::Shard => Scope::CacheShard,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinities_are_numbered_as_listed() {
        for (index, affinity) in Affinity::ALL.into_iter().enumerate() {
            assert_eq!(affinity.index(), index);
        }
    }

    #[test]
    fn a_localized_pool_has_a_queue_for_each_cpu() {
        for affinity in Affinity::ALL {
            let plain = Attributes::new(affinity);
            assert_eq!(Attributes { localize: true, ..plain }.level(), Level::Cpu);
            assert!(plain.level().scope() <= affinity.scope, "a queue is never wider than its pod");
        }
    }
}
