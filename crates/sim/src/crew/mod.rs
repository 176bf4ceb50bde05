//! What runs deferred work: homing's runtime, or the kernel's workqueues as a baseline.
//!
//! Both own threads of the [`Host`]; the workload defines what an item is and how long it takes.

mod board;
mod chooser;
mod exposure;
mod homing;
mod kernel;
mod settings;
mod spare;

use std::fmt;

pub use homing::Homing;
pub use kernel::{Kernel, KernelSettings};
pub use settings::{Broken, HomingSettings};

use homing_sched::HandOff;

use crate::geometry::CpuIndex;
use crate::host::{Host, ThreadId};

/// A piece of work, by a number that the workload gives it.
pub type Item = u32;

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Runs an item.
    Begin(Item),
    /// Looks around for this long.
    Look(u64),
    /// Sleeps.
    Rest,
}

/// Tokens of the crew's own timers have this bit.
pub const CREW_TOKEN: u64 = 1 << 63;

/// What runs the work, and how.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// The kernel's workqueues.
    Kernel(KernelSettings),
    /// homing's runtime.
    Homing(HomingSettings),
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(settings) => settings.fmt(f),
            Self::Homing(settings) => settings.fmt(f),
        }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrewCounts {
    /// Items that have been run,
    pub done: u64,
    /// that were run by a CPU outside their home pod.
    pub pulled: u64,
    /// Workers that were woken for items.
    pub wakes: u64,
    /// The longest that an item waited while a CPU that could have run it was idle, in nanoseconds;
    /// `None` if nobody looked (homing's runtime only).
    pub exposed_max_ns: Option<u64>,
    /// Workers that sleep although they were called (homing's runtime only): a mistake.
    pub lost_wakes: u64,
}

impl CrewCounts {
    /// What was done since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            done: self.done - before.done,
            pulled: self.pulled - before.pulled,
            wakes: self.wakes - before.wakes,
            exposed_max_ns: self.exposed_max_ns,
            lost_wakes: self.lost_wakes,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub enum Crew {
    /// The kernel's workqueues.
    Kernel(Kernel),
    /// homing's runtime.
    Homing(Box<Homing>),
}

impl Crew {
    /// Threads that wait for work.
    pub fn new(policy: &Policy, host: &mut Host, machine: &homing_topology::Machine) -> Self {
        match policy {
            Policy::Kernel(settings) => Self::Kernel(Kernel::new(settings.clone(), machine)),
            Policy::Homing(settings) => {
                Self::Homing(Box::new(Homing::new(settings.clone(), host, machine)))
            }
        }
    }

    /// Whether a thread is one of its workers.
    pub fn owns(&self, thread: ThreadId) -> bool {
        match self {
            Self::Kernel(crew) => crew.owns(thread),
            Self::Homing(crew) => crew.owns(thread),
        }
    }

    /// Whether an item of this length is worth queueing to an issuer that has more to do; the
    /// kernel always queues.
    pub fn hand_off(&mut self, host: &Host, item_ns: u64, issuer: ThreadId) -> HandOff {
        match self {
            Self::Kernel(_) => HandOff::Queue,
            Self::Homing(crew) => crew.hand_off(host, item_ns, issuer),
        }
    }

    /// Queues an item for `cpu`. `by` is the thread that does it and pays for it, if it is a
    /// thread.
    pub fn queue(&mut self, host: &mut Host, item: Item, cpu: CpuIndex, by: Option<ThreadId>) {
        match self {
            Self::Kernel(crew) => crew.queue(host, item, cpu, by),
            Self::Homing(crew) => crew.queue(host, item, cpu, by),
        }
    }

    /// Says that an issuer is about to sleep until its items are over.
    pub fn issuer_waits(&mut self, host: &mut Host, issuer: ThreadId) {
        if let Self::Homing(crew) = self {
            crew.issuer_waits(host, issuer);
        }
    }

    /// Says that what an issuer that may sleep waits for is over: the workload is about to wake it.
    pub fn issuer_is_called(&mut self, host: &Host, issuer: ThreadId) {
        if let Self::Homing(crew) = self {
            crew.issuer_is_called(host, issuer);
        }
    }

    /// A worker has ended its item, or was woken: what it does next.
    pub fn next(&mut self, host: &mut Host, worker: ThreadId) -> Next {
        match self {
            Self::Kernel(crew) => crew.next(host, worker),
            Self::Homing(crew) => crew.next(host, worker),
        }
    }

    /// Says that one of the crew's own timers is due.
    pub fn event(&mut self, host: &mut Host, token: u64) {
        match self {
            Self::Kernel(_) => {}
            Self::Homing(crew) => crew.event(host, token),
        }
    }

    /// What was done.
    pub fn counts(&self) -> CrewCounts {
        match self {
            Self::Kernel(crew) => crew.counts,
            Self::Homing(crew) => crew.counts(),
        }
    }
}
