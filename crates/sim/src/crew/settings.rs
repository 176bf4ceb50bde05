//! What can be set of homing's crew.

use std::fmt;

use homing_sched::{Affinity, Features, PullCost};

/// The attributes of its workqueue, and of the simulation of it.
#[derive(Clone, Debug, PartialEq)]
pub struct HomingSettings {
    /// Scope and strictness; `None`: the machine's default ([`Affinity::default_on`]).
    pub affinity: Option<Affinity>,
    /// Whether the issuing CPU is tried first.
    pub localize: bool,
    /// Whether the scope is chosen by what is measured, from `affinity` on.
    pub auto: bool,
    /// The parts of the policy that are on.
    pub features: Features,
    /// How dear fetching an item is taken to be.
    pub pull_cost: PullCost,
    /// Whether issuers ask if queueing pays at all, as `homing serve` does.
    pub hand_off: bool,
    /// How old the facts that a worker sees of the others may be, in nanoseconds.
    pub stale_ns: u64,
    /// Something that is broken on purpose, to see that the checks find it.
    pub broken: Option<Broken>,
}

/// What can be broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// One wake-up in this many is lost.
    LostWake(u32),
    /// Nobody pulls from other pods, and nobody is woken to do so.
    NoFarPull,
}

impl Default for HomingSettings {
    fn default() -> Self {
        Self {
            affinity: None,
            localize: false,
            auto: false,
            features: Features::ALL,
            pull_cost: PullCost::USUAL,
            hand_off: true,
            stale_ns: 0,
            broken: None,
        }
    }
}

impl fmt::Display for HomingSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.affinity {
            _ if self.auto => f.write_str("homing auto")?,
            Some(affinity) => write!(f, "homing {}", affinity.scope)?,
            None => f.write_str("homing default")?,
        }
        f.write_str(if self.affinity.is_some_and(|of| of.strict) { "+strict" } else { "" })?;
        f.write_str(if self.localize { "+localize" } else { "" })?;
        f.write_str(if self.hand_off { "" } else { ", all queued" })?;
        if self.features != Features::ALL {
            write!(f, " ({})", self.features)?;
        }
        if self.pull_cost != PullCost::USUAL {
            write!(f, " pull_cost {}", self.pull_cost.percent())?;
        }
        if self.stale_ns > 0 {
            write!(f, " stale {} ns", self.stale_ns)?;
        }
        match self.broken {
            Some(Broken::LostWake(_)) => f.write_str(" LOSES WAKES"),
            Some(Broken::NoFarPull) => f.write_str(" NEVER PULLS"),
            None => Ok(()),
        }
    }
}
