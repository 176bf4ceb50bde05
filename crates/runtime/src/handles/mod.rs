//! What users wait with, and what they queue again and again.

#[cfg(not(loom))]
pub(crate) mod abort_on_drop;
#[cfg(not(loom))]
pub(crate) mod futures;
#[cfg(not(loom))]
pub(crate) mod giving_way;
#[cfg(not(loom))]
pub(crate) mod handle;
#[cfg(not(loom))]
pub(crate) mod scope;
pub(crate) mod waits;
#[cfg(not(loom))]
pub(crate) mod work;
