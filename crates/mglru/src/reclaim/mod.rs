//! Reclaim over groups of pages: how many pages each group gives up, when its pages age, and when
//! they are written rather than dropped.
//!
//! ```text
//!  reclaim          anybody who lacks memory       ─┐  groups in turn from where the last pass
//!  run_background   keeps memory free ahead of that ├─▶ stopped, each with a budget fixed when its
//!  reclaim_group    a group above its limit        ─┘  turn begins, batch by batch
//! ```
//!
//! * A *pass* visits each group once, under a priority p: a group's budget is its evictable pages,
//!   shifted right by p. A caller that does not get enough comes again with p - 1.
//! * A pass over all groups ends as soon as there is enough. A *cookie* remembers where, and the
//!   next pass begins there. The pass of a single group is never cut short. Both serve fairness.
//! * `min` is never touched. A group within `low` is passed over until nothing else is left. A dead
//!   group is evicted completely.
//! * The background run has three [flags](Flags), because of which it neither ages nor writes while
//!   some group can do without.
//!
//! The pages of a group are anything that implements [`Pages`]: the kernel's algorithm with a
//! [`Sink`] for its victims ([`LruvecPages`]), or another policy. The code is compiled for each.
//!
//! Sources: `mm/vmscan.c` as described by its comments and postings ("mm: multi-gen LRU: optimize
//! multiple memcgs", versions 8 and 14 of 2022; the reclaim cookie of December 2025; the budget
//! that is computed once of 2026). Groups are flat here.
//!
//! Read on in this order: `pages`, `groups`, `flags`, `pass`.

mod flags;
mod groups;
mod pages;
mod pass;

pub use flags::{Background, Flags, Step, Visit};
pub use groups::{Group, GroupId, Groups, Limits};
pub use pages::{Batch, Fate, LruvecPages, Pages, Sink};
pub use pass::{Goal, Outcome};
