//! Caches for objects and for pages, under one policy.
//!
//! Read on in this order: `habits` (what all shards of a cache share), [`pages`].
#![forbid(unsafe_code)]

mod habits;
pub mod pages;
mod sync;
