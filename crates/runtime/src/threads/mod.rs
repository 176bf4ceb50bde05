//! The threads that work: who has which CPU's slot, and how a thread sleeps, lends its CPU and
//! helps out.

#[cfg(not(loom))]
pub(crate) mod affinity;
#[cfg(not(loom))]
pub(crate) mod crew;
#[cfg(not(loom))]
pub(crate) mod help;
#[cfg(not(loom))]
pub(crate) mod lend;
#[cfg(not(loom))]
pub(crate) mod local;
#[cfg(not(loom))]
pub(crate) mod rescuer;
pub(crate) mod sleeper;
pub(crate) mod slot;
#[cfg(not(loom))]
pub(crate) mod worker;
