//! A reader-writer lock for values that are seldom written. While nobody writes, its readers write
//! to no memory that they share, and wait only for the memory that they read.
//!
//! ```
//! use homing_rwlock::BiasedRwLock;
//!
//! let limits = BiasedRwLock::new(vec![1, 2]);
//! limits.write().push(3);
//! assert_eq!(*limits.read(), [1, 2, 3]);
//! ```
//!
//! Read on in this order: the protocol (`README.md`), `lock`, `readers`, `fence`.

mod fence;
#[allow(unsafe_code, reason = "an island: README.md says why it is sound")]
mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
mod readers;
#[allow(unsafe_code, reason = "the cell of `lock`")]
mod sync;

pub use lock::{BiasedRwLock, ReadGuard, WriteGuard};
pub use readers::thread_number;
