//! The shared wakequeue as posted in June 2023, for the baselines: for each cache a list of threads
//! that were woken and wait, under one lock, or one lock for each shard.

use std::collections::VecDeque;

use super::{Host, State, ThreadId};
use crate::agenda::Ns;
use crate::geometry::CpuIndex;

#[derive(Debug, Default)]
pub(super) struct WakeLists {
    lists: Vec<List>,
}

#[derive(Debug, Default)]
struct List {
    waiting: VecDeque<ThreadId>,
    /// When the lock is free again.
    free_at_ns: Ns,
}

impl WakeLists {
    pub(super) fn new(caches: usize) -> Self {
        Self { lists: (0..caches).map(|_| List::default()).collect() }
    }

    /// Whether it stood in a list.
    pub(super) fn remove(&mut self, thread: ThreadId) {
        for list in &mut self.lists {
            if let Some(place) = list.waiting.iter().position(|id| *id == thread) {
                list.waiting.remove(place);
                return;
            }
        }
    }
}

impl Host {
    pub(super) fn list_woken(&mut self, thread: ThreadId, cache: usize) {
        self.wake_lists.lists[cache].waiting.push_back(thread);
    }

    /// Takes the first waiting thread of the cache. Whether there was one.
    pub(super) fn pull_from_wake_list(&mut self, cpu: CpuIndex) -> bool {
        let cache = self.geometry.llc_of(cpu);
        while let Some(thread) = self.wake_lists.lists[cache].waiting.pop_front() {
            let own = &self.threads[thread.0 as usize];
            if own.state == State::Queued && own.allowed.contains(self.geometry.id(cpu)) {
                self.dequeue(thread);
                self.enqueue(thread, cpu);
                return true;
            }
        }
        false
    }
}
