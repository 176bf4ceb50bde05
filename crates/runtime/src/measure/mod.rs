//! What is measured, for decisions and for users.

pub(crate) mod books;
#[cfg(not(loom))]
pub(crate) mod books_cache;
pub(crate) mod clock;
pub(crate) mod cpu_shares;
#[cfg(not(loom))]
pub(crate) mod laps;
#[cfg(not(loom))]
pub(crate) mod latency;
#[cfg(all(feature = "metrics", not(loom)))]
pub(crate) mod metrics;
#[cfg(not(loom))]
pub(crate) mod spare;
