//! Caches for objects and for pages, which share one replacement policy.
//!
//! Read on in this order: `habits` (what all shards of a cache share), `heard`, `min_ttl`, `limits`
//! (of groups), `claims`, `panics`, `objects`, [`pages`].

mod claims;
mod cpus;
mod habits;
mod heard;
mod limits;
mod min_ttl;
mod objects;
pub mod pages;
mod panics;
mod sync;

#[cfg(feature = "control")]
pub use objects::CacheAttributes;
pub use objects::{
    BuildError, Builder, Cache, Cause, DefaultHasher, Group, GroupStats, Pinned, RandomState, Stats,
};
