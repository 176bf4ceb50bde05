//! Which CPUs may be used, while the runtime works: the affinity mask, the cpuset and the quota.

use std::path::Path;
use std::sync::atomic::Ordering;

use homing_sched::Facts;
use homing_topology::Allowed;

use crate::shared::Shared;
use crate::sync::lock;
use crate::threads::affinity::{LET_GO, MOVED, Mask, NOWHERE, STRAY, may_leave, read_mask};

/// How often the CPU mask is read.
const MASK_NS: u64 = 250_000_000;

/// How often the CPU quota is read, which takes some files for each level of the cgroup.
const QUOTA_NS: u64 = 1_000_000_000;

pub(super) struct MaskFollower {
    read_ns: u64,
    quota_read_ns: u64,
    /// The affinity mask when the allowed CPUs were last read.
    mask: Option<Mask>,
}

impl MaskFollower {
    pub(super) fn new(now_ns: u64) -> Self {
        Self { read_ns: now_ns, quota_read_ns: now_ns, mask: None }
    }

    /// Follows what has changed, now and then.
    pub(super) fn look(&mut self, shared: &Shared, now_ns: u64) {
        if now_ns.saturating_sub(self.read_ns) < MASK_NS {
            return;
        }
        self.read_ns = now_ns;
        if self.follow(shared, now_ns) {
            find_moved(shared);
        }
    }

    /// Follows changes of the affinity mask, the cpuset and the quota: CPUs that are gone lose
    /// their worker, new ones get one. Returns whether it is known which CPUs these are.
    fn follow(&mut self, shared: &Shared, now_ns: u64) -> bool {
        let dispatch = &shared.dispatch;
        let mask = read_mask();
        if shared.settings.mask_is_fixed || mask.is_none() {
            return true;
        }
        // The kernel keeps the mask within the cpuset: if the mask is the same, only the quota can
        // have changed.
        let same = mask == self.mask;
        if same && now_ns.saturating_sub(self.quota_read_ns) < QUOTA_NS {
            return true;
        }
        self.quota_read_ns = now_ns;
        let machine = dispatch.layout().machine();
        // Tried again at the next look.
        let Ok(allowed) = Allowed::read(Path::new("/"), machine) else { return same };
        *lock(&shared.mask) = mask;
        self.mask = mask;
        let allowed = Allowed {
            cpus: shared.settings.wanted.map_or(allowed.cpus, |wanted| wanted.and(&allowed.cpus)),
            ..allowed
        };
        let (now, before) = (allowed.worker_cpus(machine), dispatch.active());
        if now != before && !now.is_empty() {
            tracing_event!(before = %before, now = %now, "the CPUs of the runtime have changed");
            before.minus(&now).iter().for_each(|cpu| dispatch.retire(shared, cpu));
            now.minus(&before).iter().for_each(|cpu| dispatch.activate(shared, cpu));
            for workqueue in shared.workqueues.with_items() {
                shared.share_limits(&workqueue);
            }
        }
        true
    }
}

/// Has workers pin themselves again if somebody else has let them run elsewhere, by a change of
/// the masks of all threads (also to what ours was) or of one. Also those that could not be
/// pinned because their CPU was offline. To be called only when they can see which CPUs are not
/// to be used any more.
fn find_moved(shared: &Shared) {
    if !shared.settings.pinned {
        return;
    }
    for member in shared.crew.members() {
        let number = member.pinned_to.load(Ordering::Relaxed);
        let tid = member.kernel_tid.load(Ordering::Relaxed);
        let is_moved = match number {
            NOWHERE => true,
            MOVED | LET_GO | STRAY => false,
            _ => may_leave(tid, number),
        };
        if is_moved {
            let (order, on_failure) = (Ordering::Relaxed, Ordering::Relaxed);
            // If this fails, the worker has been placed again meanwhile.
            let _ = member.pinned_to.compare_exchange(number, MOVED, order, on_failure);
        }
    }
}
