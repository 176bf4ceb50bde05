//! The published experiment of asynchronous fsync, on real files of this machine: files are written
//! into the page cache, and then all are opened, made durable and closed, by the clock.
//!
//! ```text
//! Setup ─▶ rounds: each strategy with each number of issuers   run
//!            │ new files, written and closed                   files
//!            │ the clock: opened, synced, closed               issue: pool, asynchronous
//!            │ what the device was asked for meanwhile         device
//!            ▼
//!          Outcomes ─▶ rows: medians over the rounds           rows
//! ```
//!
//! The simulated form is `aio-fsync` of [`experiments`](crate::experiments). Peers from the
//! registry are not here: `homing-bench fsync` has them, with the same files and the same device's
//! counters.
//!
//! Read on in this order: `strategy`, `setup`, `issue`, `run`, `rows`.

mod asynchronous;
mod device;
mod error;
mod files;
mod issue;
mod pool;
mod rows;
mod run;
mod setup;
mod strategy;

pub use device::{Counts, Device};
pub use error::FsyncError;
pub use files::{Files, allow_open};
pub use rows::{Report, Row};
pub use setup::Setup;
pub use strategy::Strategy;

/// What it is called among the experiments.
pub const NAME: &str = "fsync";

/// What it is.
pub const ABOUT: &str =
    "aio-fsync on real files of this machine: fsync waited for, by threads, by homing";
