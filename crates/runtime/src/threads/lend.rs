//! `blocking`: an item that waits leaves its CPU to others meanwhile.

use std::sync::atomic::Ordering;

use homing_topology::CpuId;

use crate::measure::clock::now_ns;
use crate::measure::cpu_shares::UnderWay;
use crate::measure::laps::Moment;
use crate::threads::local;

/// Runs `work`, which may block, and meanwhile lets another thread use this worker's CPU.
///
/// On a thread that is not a worker, it only runs `work`. Items that this worker had taken go back
/// to their queue. `work` may take any time. If another thread was needed and got the CPU, what the
/// item does after `work` competes with that thread, until it has run for some milliseconds and
/// another CPU is idle: then the kernel may move it there.
///
/// If items do little else, give them a workqueue that is
/// [`blocking`](crate::WorkqueueBuilder::blocking): that is cheaper where CPUs are busy.
///
/// The number of threads has no bound: 3,000 items that block at the same time take 3,000 threads.
/// Bound it by [`WorkqueueBuilder::max_active`](crate::WorkqueueBuilder::max_active).
///
/// ```
/// use homing_runtime::{Runtime, blocking};
///
/// let runtime = Runtime::new()?;
/// let there = runtime.queue(|| blocking(|| std::fs::exists("/")));
/// assert!(there.join()??);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    let _lent = local::current().and_then(Lent::lend);
    work()
}

/// A slot that its owner has offered to others; taken back at the end if nobody wanted it.
struct Lent {
    local: local::Local,
    cpu: CpuId,
    since: Moment,
    under_way: UnderWay,
}

impl Lent {
    fn lend(local: local::Local) -> Option<Self> {
        let (cpu, shared, me) = (local::current_cpu(), &local.shared, &local.member);
        let dispatch = &shared.dispatch;
        // The monitor and rescuers work for no CPU.
        if !local::is_worker_of(shared) || !dispatch.slot(cpu).is_owned_by(me.id) {
            return None;
        }
        shared.rescue(me, Some(cpu));
        let unsettled = me.unsettled.swap(0, Ordering::Relaxed);
        // Items of this batch have ended, and this one may not end for long.
        if let Some(workqueue) =
            (unsettled != 0).then(|| shared.workqueues.find(unsettled)).flatten()
        {
            workqueue.settle(!0);
        }
        let since = Moment::now();
        let under_way = dispatch.slot(cpu).shares.loses(since.ns);
        if !dispatch.slot(cpu).vacate(me.id) {
            return None;
        }
        me.had_ns.store(under_way.had_ns, Ordering::Relaxed);
        me.lends.store(true, Ordering::Relaxed);
        dispatch.offer(&**shared, cpu);
        Some(Self { local, cpu, since, under_way })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let dispatch = &self.local.shared.dispatch;
        let me = &self.local.member;
        me.lends.store(false, Ordering::Relaxed);
        me.away.slept_since(self.since);
        let now_ns = now_ns();
        me.running_since_ns.store(now_ns, Ordering::Relaxed);
        // Fails if another thread has the slot already: then that thread keeps it.
        let shared = &self.local.shared;
        if dispatch.take_offer_back(&**shared, self.cpu, me.id) {
            me.had_ns.store(0, Ordering::Relaxed);
            let shares = &dispatch.slot(self.cpu).shares;
            shares.comes_back(self.under_way, now_ns, |pool| dispatch.pools.nice(pool));
            shared.somebody_works();
        }
    }
}
