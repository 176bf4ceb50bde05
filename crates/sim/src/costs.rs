//! What things cost on a simulated machine, each figure with its source.

use std::fmt;

use crate::agenda::Ns;
use crate::geometry::Far;

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It was published.
    Published(&'static str),
    /// `homing-bench` or `homing topo --measure` has measured it, on another machine.
    Measured(&'static str),
    /// Chosen so that the simulation meets these published figures.
    Fitted(&'static str),
    /// The usual magnitude.
    Guessed(&'static str),
    /// Whoever asked for the simulation gave it.
    Given,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, what) = match self {
            Self::Published(what) => ("published", what),
            Self::Measured(what) => ("measured", what),
            Self::Fitted(what) => ("fitted", what),
            Self::Guessed(what) => ("guessed", what),
            Self::Given => return f.write_str("given"),
        };
        write!(f, "{kind}: {what}")
    }
}

/// A figure: nanoseconds, or per mille where its name says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The figure.
    pub value: u64,
    /// Where it comes from.
    pub source: Source,
}

macro_rules! costs {
    ($($(#[$doc:meta])* $name:ident = $value:expr, $kind:ident($what:expr);)*) => {
        /// All of them. Change one with [`Costs::set`].
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Costs {
            $($(#[$doc])* pub $name: Cost,)*
        }

        impl Default for Costs {
            fn default() -> Self {
                Self { $($name: Cost { value: $value, source: Source::$kind($what) },)* }
            }
        }

        impl Costs {
            /// Every figure with its name.
            pub fn all(&self) -> Vec<(&'static str, Cost)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// Sets a figure by its name. Returns whether there is such a figure.
            pub fn set(&mut self, name: &str, cost: Cost) -> bool {
                match name {
                    $(stringify!($name) => self.$name = cost,)*
                    _ => return false,
                }
                true
            }
        }
    };
}

costs! {
    /// How fast a thread runs while a sibling does, per mille of its speed alone.
    smt_per_mille = 560, Fitted("SYSTEM, LOW: CPU utilisation");
    /// A thread's switch to another one.
    switch_ns = 1_200, Guessed("usual magnitude, 1 to 2 us with cold caches");
    /// What waking a thread costs the waker: a system call, and an interrupt to another CPU.
    wake_ns = 800, Guessed("usual magnitude; measured on a virtual machine: 2 to 5 us");
    /// The time until a CPU that was idle runs its first instruction.
    idle_exit_ns = 3_000, Guessed("shallow idle states: 1 to 10 us");
    /// A thread's first run on another core of its cache,
    move_llc_ns = 1_000, Guessed("part of a first-level cache and its TLB, refilled");
    /// behind another cache,
    move_node_ns = 2_500, Guessed("a few hundred lines from another cache");
    /// on another node.
    move_remote_ns = 5_000, Guessed("twice that of another cache");
    /// Looking whether a CPU of another cache is idle, if a search goes that far (`SIS_NODE`).
    look_node_ns = 85, Published("a line of its run queue: AnandTech, Zen 2 core to core, across CCX");
    /// A device's interrupt.
    interrupt_ns = 2_000, Guessed("usual magnitude of an NVMe completion");
    /// Finding 32 KiB in another core's private cache, within the same last-level cache,
    cold_llc_ns = 0, Guessed("contained in every figure that was fitted");
    /// in another last-level cache,
    cold_node_ns = 2_500, Guessed("512 lines x (2.6 - 1) x 30 ns / 10 in flight; the latencies are published (AnandTech, Zen 2 core to core), how many lines are in flight is not");
    /// on another node.
    cold_remote_ns = 6_500, Guessed("2.6 times that of another cache");
    /// homing's runtime: putting an item into its queue when no worker is idle.
    queue_ns = 150, Measured("homing-bench exec, outside-50ns: CPU time an item");
    /// Deciding which worker to wake, when some are idle.
    place_ns = 100, Measured("homing-bench decide: 71 ns for a CPU of the pod, 120 for the farthest of 64");
    /// Looking for the next item, and taking it.
    take_ns = 150, Measured("homing-bench exec, outside-50ns: CPU time an item");
    /// Finding that there is none, and announcing it,
    look_ns = 200, Measured("homing-bench exec, idle burn");
    /// and in addition for each queue of the machine that is looked at, as when taking the work of
    /// others.
    look_queue_ns = 8, Measured("homing-bench decide: 72 ns for 8 queues, 508 for 64");
    /// The kernel's workqueues: queueing an item.
    kernel_queue_ns = 300, Guessed("a pool's lock and a list");
    /// Taking a lock that nobody else wants, working under it, and giving it back.
    lock_ns = 60, Guessed("two atomic operations and a list");
    /// The extra cost when others want the lock: its line travels.
    lock_travel_ns = 250, Guessed("the lock's line and two of the list's, between cores of a large mesh");
    /// Creating a kworker.
    kernel_create_ns = 20_000, Guessed("kthread_create and its first switch");
}

impl Costs {
    /// The cost for a thread to continue on another CPU.
    pub(crate) fn moving(&self, far: Far) -> Ns {
        match far {
            Far::Core => 0,
            Far::Llc => self.move_llc_ns.value,
            Far::Node => self.move_node_ns.value,
            Far::Remote => self.move_remote_ns.value,
        }
    }

    /// The cost of using 32 KiB that were last used elsewhere.
    pub fn cold(&self, far: Far) -> Ns {
        match far {
            Far::Core => 0,
            Far::Llc => self.cold_llc_ns.value,
            Far::Node => self.cold_node_ns.value,
            Far::Remote => self.cold_remote_ns.value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_set_by_name_and_tell_their_source() {
        let mut costs = Costs::default();
        let mine = Cost { value: 7, source: Source::Measured("here") };
        assert!(costs.set("wake_ns", mine) && !costs.set("wake", mine));
        let all = costs.all();
        let wake = all.iter().find(|(name, _)| *name == "wake_ns").unwrap();
        assert_eq!((wake.1.value, wake.1.source.to_string()), (7, "measured: here".to_owned()));
        assert!(costs.cold(Far::Remote) > costs.cold(Far::Node));
    }
}
