//! Every scheduling decision, as a function of facts passed in.
//!
//! No threads, no clocks, no atomics, no I/O, no allocation once a [`Layout`] is built: the
//! threads of `homing-runtime` ask these functions, and so can a simulator. Facts may be stale;
//! the worst that a stale fact does is an extra wake-up or an extra look, never a lost item.
//!
//! The life of an item, and who decides:
//!
//! ```text
//!  queue(item)         submit        home queue, and the one idle CPU to wake, if any
//!  a worker is free    next_queue    own pods first, then outward; or park
//!  it takes the item   wake_next     the next idle CPU, while more waits
//!  before any of this  hand_off      whether queueing pays at all, or the issuer runs it
//! ```
//!
//! The rules behind them:
//!
//! * `SCHED-1` An item stands in exactly one queue: that of its home pod.
//! * `SCHED-2` Only a CPU that is idle is woken: a whole idle core of the pod, an idle sibling
//!   there, then (not strict) outward by distance. Where none is idle, nobody is woken.
//! * `SCHED-3` One insertion wakes at most one CPU; whoever starts an item while more wait wakes
//!   the next.
//! * `SCHED-4` A worker parks only where no queue that it may serve has work: it looks in its own
//!   pods, then in those of its LLC, of its node, of the other nodes, nearest first.
//! * `SCHED-5` Strict work is never taken outside its pod.
#![forbid(unsafe_code)]

mod decide;
mod hand_off;
mod layout;

pub use decide::{Facts, Found, Placement, Reach, next_queue, submit, wake_next};
pub use hand_off::{HAND_OFF_NS, HandOff, HandOffFacts, hand_off};
pub use layout::{Affinity, Layout, QueueId};
