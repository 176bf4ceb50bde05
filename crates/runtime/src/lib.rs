//! The threads that carry the work: one worker per CPU, home queues per pod, handles to wait on.
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
//! What happens to an item: it stands in the home queue of the CPU that issued it, in the
//! workqueue's scope; an idle CPU is woken for it if there is one; a CPU that would go idle comes
//! and takes it, nearest first. The decisions are `homing-sched`'s; this crate carries them out.
//!
//! Read on in this order: `README.md` beside this file (how no wake-up is lost), `idle_set`,
//! `sleeper`, `queues`, `worker`, `task`, `workqueue`, `runtime`; `spare` and `latency` stand
//! alone.
#![forbid(unsafe_code)]

mod idle_set;
#[cfg_attr(loom, allow(dead_code))] // the models drive the protocol, not the books
mod queues;
mod sleeper;
mod sync;

#[cfg(not(loom))]
mod latency;
#[cfg(not(loom))]
mod runtime;
#[cfg(not(loom))]
mod spare;
#[cfg(not(loom))]
mod task;
#[cfg(not(loom))]
mod worker;
#[cfg(not(loom))]
mod workqueue;

#[cfg(all(loom, test))]
mod loom_tests;

#[cfg(not(loom))]
pub use {
    homing_sched::{Affinity, HandOff},
    homing_topology::{CpuId, CpuSet, ParseScopeError, Scope},
    latency::{LatencyMatrix, core_to_core},
    runtime::{Builder, Runtime, RuntimeError},
    task::{JoinError, JoinHandle},
    workqueue::{Counters, Workqueue, WorkqueueBuilder, WorkqueueError},
};
