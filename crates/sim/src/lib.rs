//! Machines that one does not own, simulated: homing's own decisions on them, the kernel's
//! workqueues and scheduler as baselines, and the published experiments.
//!
//! ```text
//! workloads    what is asked: dm-crypt, ...                              which device, which costs
//!    │
//!   crew       who runs deferred work: homing (the real `homing_sched`), the kernel's workqueues
//!    │
//!   host       which thread runs on which CPU: Linux's fair scheduler, or variants of it
//!    │
//! memory       what two tenants share, evicted by the real `homing_mglru`
//! geometry     a machine of `homing_topology`; costs: what things cost there, and who says so
//! agenda       events, in order of time
//! ```
//!
//! The same seed gives the same run, event by event: time is integer, random numbers are our own,
//! nothing depends on addresses or hash order.
#![forbid(unsafe_code)]

mod agenda;
mod costs;
mod crew;
mod device;
mod geometry;
mod host;
mod memory;
mod presets;
mod rng;
mod workloads;

pub use homing_mglru::reclaim::Flags;
pub use homing_sched::{Affinity, Features, Layout, PullCost};
pub use homing_topology::{Machine, Scope, TopologyError};

pub use agenda::{Agenda, Ns};
pub use costs::{Cost, Costs, Source};
pub use crew::{
    Broken, CREW_TOKEN, Crew, CrewCounts, Homing, HomingSettings, Item, Kernel, KernelSettings,
    Next, Policy,
};
pub use device::Ssd;
pub use geometry::{CpuIndex, Far, Geometry};
pub use host::{Host, HostModel, Kind, Model, Rules, Step, SwQueue, ThreadId};
pub use memory::MemoryModel;
pub use presets::{PRESETS, Preset};
pub use rng::Rng;
pub use workloads::{
    Build, CryptLoad, DmCrypt, GroupCommit, GroupCommitReport, IssuerPlaces, Items, Pairs, Report,
    Tenants, TenantsReport, Trial,
};
