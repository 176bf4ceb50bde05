//! Every scheduling decision, as a function of facts passed in.
//!
//! No threads, no clocks, no atomics, no I/O, and no allocation once a [`Layout`] is built: the
//! threads of `homing-runtime` call these functions, and so can a simulator. Facts may be stale.
//! The worst that a stale fact causes is an extra wake-up or an extra look, never a lost item.
//!
//! The life of an item, and the function that decides at each step:
//!
//! ```text
//!  queue(item)          submit       home queue, and the one idle CPU to wake, if any
//!  a worker is free     before_park  own pods first, then outward; or park
//!  it begins an item    start        the next idle CPU, while more waits
//!  it has run           complete     how long items are: how many to take at once
//!  now and then         tick         blocked and CPU-intensive items, items overdue
//!  before any of this   hand_off     whether queueing pays at all, or the issuer runs it
//! ```
//!
//! The rules behind them:
//!
//! * `SCHED-1` An item stands in exactly one queue: that of the CPU it is meant for, in the home
//!   pod of its scope.
//! * `SCHED-2` Only an idle CPU is woken. The order is: a whole idle core of the pod, then an idle
//!   sibling there (an issuer's last), then, if the affinity is not strict, outward by distance.
//!   For items of 20 us and more, a whole idle core elsewhere comes before a sibling at home. A CPU
//!   on which an issuer runs comes last, and is woken only for more work than the awake workers
//!   have to do, or for long items. If no CPU is idle, none is woken. Nor is one if workers that
//!   are awake, and sure to come by, will finish all that waits in about the time that a wake-up
//!   takes.
//! * `SCHED-3` One insertion wakes at most one CPU, and none if a worker of the pod is already
//!   searching. A worker that starts an item while more wait wakes the next CPU.
//! * `SCHED-4` A worker parks only if no queue that it may serve has ripe work. It looks in its
//!   own pods, then in those of its LLC, of its node, of the other nodes, nearest first. Where it
//!   begins in each of these is fixed for each CPU, and spread over the CPUs of a cache: it does
//!   not rotate from search to search, because that would take a shared counter or a clock, and
//!   the CPUs that search at one time are spread all the same. Work of another pod is ripe when it
//!   has waited for longer than fetching it costs, and for longer than the pod may be given for it.
//!   It is also ripe if the worker was woken for something as far away, or has been idle for long
//!   (beyond its cache this counts only if some issuer waits). For a worker that has slept lately
//!   and has no issuer on its CPU, it is also ripe if an item waits for each CPU of the queue.
//! * `SCHED-5` Strict work is never taken outside its pod while the pod has a worker.
//! * `SCHED-6` A worker takes from the pool that has had the least of its CPU's time, by the weight
//!   of its `nice`. So each pool gets its share, and none is starved.
//! * `SCHED-7` A pool with a `cpumask` is served by no other CPU while a CPU of the mask has a
//!   worker.
//!
//! Sources: the kernel's `workqueue.rst` (scopes, strictness, one wake-up per insertion, chained
//! wake-ups), the shared wakequeue and `SIS_NODE` postings of 2023 (pulling before idling, looking
//! further when waking), and a simulation of both sides together, which neither had.
#![forbid(unsafe_code)]

mod active;
mod attributes;
mod auto;
mod decision_log;
mod facts;
mod features;
mod hand_off;
mod idle;
mod issuer_time;
mod issuer_wait;
mod layout;
mod length;
mod mask;
mod nice;
mod patience;
mod pick;
mod place;
mod pull;
mod pull_cost;
mod record;
mod search;
mod snapshot;
#[cfg(test)]
mod test_facts;
mod tick;
mod wake_delay;
mod window;

pub use active::{MAX_ACTIVE_MAX, MIN_ACTIVE, node_max_active};
pub use attributes::{Affinity, Attributes, Level};
pub use auto::{Auto, TRIAL_NS, WINDOW_NS};
pub use decision_log::{DecisionLog, DecisionLogError};
pub use facts::Facts;
pub use features::{Features, ParseFeaturesError};
pub use hand_off::{HAND_OFF_NS, HandOff, HandOffFacts, ISSUERS_OF_LATE, IssuersPlaces, hand_off};
pub use idle::{IDLE_PATIENCE_NS, Idle, RESTED_NS};
pub use issuer_time::{IssuerClock, IssuerTime};
pub use issuer_wait::{IssuerWait, issuer_waits};
pub use layout::{Layout, PoolId, PoolSet, QueueId};
pub use length::{BACKLOG_BATCH_NS, BATCH_ITEMS_MAX, BATCH_NS, ItemLength};
pub use mask::{home_cpus, may_serve};
pub use nice::{Nice, Shares};
pub use patience::{LEFT_ITEM_MAX_NS, WAKE_DELAY_MAX_NS};
pub use place::{
    OCCUPIED_BACKLOG_ITEMS, OCCUPIED_BACKLOG_NS, OCCUPIED_ITEM_MAX_NS, Placement, TINY_BACKLOG_NS,
    TINY_ITEM_NS, WHOLE_CORE_ITEM_NS, calls_for_decision, home, start, submit,
};
pub use pull::{Next, PULL_AGE_MAX_NS, Reach, before_park, reach};
pub use pull_cost::PullCost;
pub use record::{Asked, Decided, Record, Recording};
pub use search::{SLEEP_COST_NS, Search};
pub use snapshot::{Snapshot, Waiting};
pub use tick::{
    BLOCKED_NS, CPU_INTENSIVE_NS, OCCUPIED_TICK_AGE_NS, Running, TICK_AGE_NS, Verdict, is_stranded,
    overdue, tick,
};
pub use wake_delay::WakeDelays;
pub use window::{Taken, Window};
