//! Experiments without a server: the published ones on simulated machines ([`experiments`]), that
//! of fsync on this machine's files ([`fsync`]), and access traces replayed against cache policies,
//! to see what a policy is worth before it is built.
//!
//! ```text
//! a file ─▶ Trace            requests by dense page number, read once        trace
//!             │
//!             ├─ Size        5 % of its pages, or 4096 pages                 size
//!             ▼
//!           Policy           decides what to evict; knows no clock, no key   policy, policies
//!             ▼
//!           Outcome          hits, evictions, write-backs, I/O               replay
//!             │
//!           Comparison       many of these, what they amount to, a plot      compare, plot
//! ```
//!
//! ```
//! use homing_lab::{Setup, Trace, policies};
//!
//! let trace = Trace::from_keys("a loop", [10, 11, 12, 10, 11, 12].map(|key| (key, false)))?;
//! let mut lru = policies::build("lru", &Setup::new(&trace, 2))?;
//! assert_eq!(lru.replay(&trace).hits, 0);
//! let mut opt = policies::build("opt", &Setup::new(&trace, 2))?;
//! assert_eq!(opt.replay(&trace).hits, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not here: printing, arguments, caches that hold data. A policy sees page numbers and nothing
//! else, which is what makes tens of millions of requests a second possible.
//!
//! Read on in this order: `trace`, `size`, `policy`, `replay`, `audit`, any of
//! `policies`, then `compare` and `plot`; `experiments`, `fsync` and `decisions` each by itself.
#![forbid(unsafe_code)]

pub mod audit;
pub mod compare;
mod cpu;
mod cpu_time;
mod decisions;
pub mod experiments;
pub mod fsync;
mod plot;
pub mod policies;
mod policy;
mod replay;
mod size;
mod trace;

pub use cpu::cpu_model;
pub use decisions::{Difference, Kind, Replayed};
pub use plot::PlotError;
pub use policy::{AnyPolicy, Page, Policy, Request, Setup};
pub use replay::{Outcome, TenantOutcome, replay, replay_with};
pub use size::{ParseSizeError, Size};
pub use trace::{Column, Format, PAGES_MAX, REQUESTS_MAX, Trace, TraceError};
