//! Caches of objects by key.
//!
//! Read on in this order: `cache` (what programs call), `requests`, `compute`, `shard` (a part with
//! its own lock), `load` and `flight` (one caller loads, all others wait), `common`, `group`,
//! `expiry`, `hash`, `index`, `bytes`, `slots`, `pin`, `removal`, `stats`, `metrics`, `attributes`.

#[cfg(feature = "control")]
mod attributes;
mod builder;
#[allow(unsafe_code, reason = "the instruction that compares sixteen bytes at once")]
mod bytes;
mod cache;
mod common;
mod compute;
mod expiry;
mod flight;
mod group;
mod hash;
mod index;
mod load;
#[cfg(feature = "metrics")]
mod metrics;
mod pin;
mod removal;
mod requests;
mod shard;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod slots;
mod stats;

#[cfg(feature = "control")]
pub use attributes::CacheAttributes;
pub use builder::{BuildError, Builder};
pub use cache::Cache;
pub use group::{Group, GroupStats};
pub use hash::{DefaultHasher, RandomState};
pub use pin::Pinned;
pub use removal::Cause;
pub use stats::Stats;
