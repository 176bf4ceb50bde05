//! Workqueues, and an item's way through them to its home queue.

#[cfg(not(loom))]
pub(crate) mod builder;
pub(crate) mod flush;
#[cfg(not(loom))]
pub(crate) mod flushing;
#[cfg(not(loom))]
pub(crate) mod gate;
#[cfg(not(loom))]
pub(crate) mod live;
#[cfg(not(loom))]
pub(crate) mod queueing;
#[cfg(not(loom))]
pub(crate) mod registry;
#[cfg(not(loom))]
pub(crate) mod state;
#[cfg(not(loom))]
pub(crate) mod workqueue;
