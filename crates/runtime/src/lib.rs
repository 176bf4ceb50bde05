//! The threads that run the work: one worker per CPU, home queues per pod, handles to wait on.
//!
//! ```
//! use homing_runtime::{Runtime, Scope};
//!
//! let runtime = Runtime::new()?;
//! let crypt = runtime.workqueue("crypt").affinity_scope(Scope::Cache).build()?;
//! let answer = crypt.queue(|| 6 * 7);
//! assert_eq!(answer.join()?, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What happens to an item: it waits in the home queue of the CPU that issued it, in the
//! workqueue's scope. If a CPU is idle, it is woken for the item. A CPU that would go idle looks
//! for items, in the nearest queues first, and takes them. `homing-sched` makes these decisions;
//! this crate carries them out.
//!
//! Read the modules in this order:
//!
//! * `README.md` next to this folder: how no wake-up is lost;
//! * the protocol: `item`, `queues`, `dispatch`;
//! * the threads that work: `threads`; the one that watches them: `monitor`;
//! * what users hold: `runtime` and its `builder`, `workqueues`, `handles`;
//! * what is counted, for decisions and for users: `measure`; what can be looked at and changed
//!   while the runtime works: `attributes`;
//! * what holds everything together: `shared`, `extensions`, `sync`.
// The models drive the protocol and the items; the rest of these files is idle there.
#![cfg_attr(loom, allow(dead_code, unused_imports, unreachable_pub))]

/// A `tracing` event, where that feature is on.
#[cfg(not(loom))]
macro_rules! tracing_event {
    ($($event:tt)*) => {{
        #[cfg(feature = "tracing")]
        tracing::info!($($event)*);
    }};
}

mod dispatch;
mod extensions;
mod item;
mod measure;
mod monitor;
mod queues;
mod sync;
mod threads;
mod workqueues;

#[cfg(all(feature = "control", not(loom)))]
mod attributes;
#[cfg(not(loom))]
mod builder;
mod handles;
#[cfg(all(test, any(loom, shuttle)))]
mod models;
#[cfg(not(loom))]
mod runtime;
#[cfg(not(loom))]
mod shared;

/// The types that [`Runtime::take_decisions`] and [`Runtime::layout`] return: decisions, the facts
/// that they were made from, and the queues that they are about.
#[cfg(not(loom))]
pub mod recorded {
    pub use homing_sched::{
        Asked, Decided, DecisionLog, DecisionLogError, HandOffFacts, Idle, Layout, Next, PoolId,
        QueueId, Record, Running, Taken, Verdict, Window,
    };
}

#[cfg(all(feature = "control", not(loom)))]
pub use attributes::RuntimeAttributes;
#[cfg(not(loom))]
pub use {
    builder::{Builder, RuntimeError},
    handles::{
        abort_on_drop::AbortOnDrop,
        giving_way::{consume_budget, yield_now},
        handle::JoinHandle,
        scope::WorkScope,
        work::Work,
    },
    homing_sched::{Affinity, Features, HandOff, Nice, ParseFeaturesError, PullCost, Reach},
    homing_topology::{CpuId, CpuSet, NodeId, ParseScopeError, Scope},
    item::{ItemPanic, JoinError, quietly},
    measure::{
        books::{Counters, CpuCounters, QueueAges},
        latency::{LatencyMatrix, core_to_core},
    },
    monitor::stall::Stall,
    runtime::{Runtime, ShutdownError},
    threads::{affinity::unpinned, lend::blocking},
    workqueues::{
        builder::{WorkqueueBuilder, WorkqueueError},
        workqueue::Workqueue,
    },
};
