//! Caches for objects and for pages, under one policy.
//!
//! Read on in this order: `habits` (what all shards of a cache share).
#![forbid(unsafe_code)]

mod habits;
mod sync;
