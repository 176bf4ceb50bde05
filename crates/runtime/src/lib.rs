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
//! * the protocol: `item`, `home_queue`, `lanes`, `pools`, `cpu_bits`, `dispatch`;
//! * the threads: `affinity`, `local`, `sleeper`, `slot`, `crew`, `worker`, `lend`;
//! * the thread that watches them: `monitor`, with `monitor_bed`, `alarm`, `next_look`, `watched`;
//! * what users hold: `workqueue`, `handle`, `abort_on_drop`, `scope`, `futures`, `builder`,
//!   `runtime`;
//! * the way from a workqueue to a home queue: `queueing`, `gate` (limits, order, freezing),
//!   `flush` and `flushing`;
//! * work that is queued again and again: `work`, `waits` and `timers`;
//! * what can be changed while the runtime works: `live` and `attributes`;
//! * for bad days: `rescuer` and `help`;
//! * what is measured, for decisions and for users: `clock`, `laps`, `cpu_shares`,
//!   `issuers`, `occupied`, `books`, `books_cache`, `tape`, `metrics`;
//! * what holds everything together: `state`, `registry`, `extensions`, `shared`;
//! * on their own: `sync`, `spare`, `giving_way` and `latency`.
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

#[cfg(not(loom))]
mod affinity;
mod alarm;
mod books;
mod clock;
mod cpu_bits;
mod cpu_shares;
mod dispatch;
mod extensions;
mod flush;
mod home_queue;
mod issuers;
mod item;
mod next_look;
mod pools;
mod sleeper;
mod slot;
mod sync;
mod tape;
mod waits;

#[cfg(not(loom))]
mod abort_on_drop;
#[cfg(all(feature = "control", not(loom)))]
mod attributes;
#[cfg(not(loom))]
mod books_cache;
#[cfg(not(loom))]
mod builder;
#[cfg(not(loom))]
mod crew;
#[cfg(not(loom))]
mod flushing;
#[cfg(not(loom))]
mod futures;
#[cfg(not(loom))]
mod gate;
#[cfg(not(loom))]
mod giving_way;
#[cfg(not(loom))]
mod handle;
#[cfg(not(loom))]
mod help;
mod lanes;
#[cfg(not(loom))]
mod laps;
#[cfg(not(loom))]
mod latency;
#[cfg(not(loom))]
mod lend;
#[cfg(not(loom))]
mod live;
#[cfg(not(loom))]
mod local;
#[cfg(all(feature = "metrics", not(loom)))]
mod metrics;
#[cfg(not(loom))]
mod monitor;
mod monitor_bed;
mod occupied;
#[cfg(not(loom))]
mod queueing;
#[cfg(not(loom))]
mod registry;
#[cfg(not(loom))]
mod rescuer;
#[cfg(not(loom))]
mod runtime;
#[cfg(not(loom))]
mod scope;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod spare;
#[cfg(not(loom))]
mod state;
#[cfg(not(loom))]
mod timers;
#[cfg(not(loom))]
mod watched;
#[cfg(not(loom))]
mod work;
#[cfg(not(loom))]
mod worker;
#[cfg(not(loom))]
mod workqueue;
#[cfg(not(loom))]
mod workqueue_builder;

#[cfg(all(loom, test))]
mod loom_bed;
#[cfg(all(loom, test))]
mod loom_flush_tests;
#[cfg(all(loom, test))]
mod loom_monitor_bed_tests;
#[cfg(all(loom, test))]
mod loom_next_look_tests;
#[cfg(all(loom, test))]
mod loom_sleeper_tests;
#[cfg(all(loom, test))]
mod loom_tests;
#[cfg(all(loom, test))]
mod loom_work_tests;
#[cfg(all(shuttle, test))]
mod shuttle_contract_tests;
#[cfg(all(shuttle, test))]
mod shuttle_tests;

/// The types that [`Runtime::take_decisions`] and [`Runtime::layout`] return: decisions, the facts
/// that they were made from, and the queues that they are about.
#[cfg(not(loom))]
pub mod recorded {
    pub use homing_sched::{
        Asked, Decided, DecisionLog, DecisionLogError, HandOffFacts, Layout, Next, PoolId, QueueId,
        Record, Running, Taken, Verdict, Window,
    };
}

#[cfg(all(feature = "control", not(loom)))]
pub use attributes::RuntimeAttributes;
#[cfg(not(loom))]
pub use {
    abort_on_drop::AbortOnDrop,
    affinity::unpinned,
    books::{Counters, CpuCounters, QueueAges},
    builder::{Builder, RuntimeError},
    giving_way::{consume_budget, yield_now},
    handle::JoinHandle,
    homing_sched::{Affinity, Features, HandOff, Nice, ParseFeaturesError, PullCost, Reach},
    homing_topology::{CpuId, CpuSet, NodeId, ParseScopeError, Scope},
    item::{ItemPanic, JoinError, quietly},
    latency::{LatencyMatrix, core_to_core},
    lend::blocking,
    monitor::stall::Stall,
    runtime::{Runtime, ShutdownError},
    scope::WorkScope,
    work::Work,
    workqueue::Workqueue,
    workqueue_builder::{WorkqueueBuilder, WorkqueueError},
};
