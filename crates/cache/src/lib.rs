//! Caches for objects and for pages, under one policy.
//!
//! Read on in this order: `habits` (what all shards of a cache share), `objects`, [`pages`].
#![forbid(unsafe_code)]

mod habits;
mod objects;
pub mod pages;
mod sync;

pub use objects::{BuildError, Builder, Cache, Cause, Group, GroupStats, Pinned, Stats};
