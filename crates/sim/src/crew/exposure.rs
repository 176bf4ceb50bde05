//! How long items wait while a CPU is idle.

use super::Item;

#[derive(Debug, Default)]
pub(super) struct Exposure {
    /// Since when there has always been an idle CPU that nobody else uses.
    idle_since_ns: Option<u64>,
    /// When each item was queued.
    queued_ns: Vec<u64>,
    /// The longest so far.
    pub(super) max_ns: u64,
}

impl Exposure {
    pub(super) fn queued(&mut self, item: Item, now_ns: u64) {
        let index = item as usize;
        self.queued_ns.resize(self.queued_ns.len().max(index + 1), 0);
        self.queued_ns[index] = now_ns;
    }

    /// Notes items that are taken, or that still wait.
    pub(super) fn note(&mut self, items: impl Iterator<Item = Item>, now_ns: u64) {
        let Some(idle_since_ns) = self.idle_since_ns else { return };
        for item in items {
            let since_ns = idle_since_ns.max(self.queued_ns[item as usize]);
            self.max_ns = self.max_ns.max(now_ns.saturating_sub(since_ns));
        }
    }

    /// Sets whether some CPU is idle from now on. `heads` are the oldest items of all queues.
    pub(super) fn idle(&mut self, idle: bool, heads: impl Iterator<Item = Item>, now_ns: u64) {
        if !idle {
            self.note(heads, now_ns);
        }
        self.idle_since_ns = idle.then(|| self.idle_since_ns.unwrap_or(now_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_waits_beside_an_idle_cpu_from_when_there_are_both() {
        let mut exposure = Exposure::default();
        exposure.queued(3, 100);
        exposure.note([3].into_iter(), 200);
        assert_eq!(exposure.max_ns, 0, "no CPU is idle");
        exposure.idle(true, [3].into_iter(), 300);
        exposure.idle(true, [3].into_iter(), 400);
        exposure.queued(7, 450);
        exposure.note([7].into_iter(), 500);
        assert_eq!(exposure.max_ns, 50, "since it was queued");
        exposure.idle(false, [3].into_iter(), 600);
        assert_eq!(exposure.max_ns, 300, "since the CPU was idle");
        exposure.note([3].into_iter(), 10_000);
        assert_eq!(exposure.max_ns, 300, "no CPU is idle any more");
    }
}
