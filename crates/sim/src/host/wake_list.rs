//! The shared wakequeue as posted in June 2023, for the baselines: for each cache, or for each
//! shard of one, a list of threads that were woken and wait, under a lock.
//!
//! A lock costs what it costs its users: a thread that comes while it is held waits, and its line
//! travels each time that it changes hands under contention.

use std::collections::VecDeque;

use super::{Host, State, ThreadId};
use crate::agenda::Ns;
use crate::geometry::CpuIndex;

/// How the lists are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwQueue {
    /// One for each last-level cache: the first version.
    PerCache,
    /// One for each group of this many cores of a cache: later versions.
    Sharded(usize),
}

#[derive(Debug, Default)]
pub(super) struct WakeLists {
    lists: Vec<List>,
    /// For each CPU its list, and for each list those of the same cache.
    of: Vec<usize>,
    near: Vec<Vec<usize>>,
    /// For each thread the list that it is in.
    held: Vec<Option<usize>>,
}

#[derive(Debug, Default)]
struct List {
    waiting: VecDeque<ThreadId>,
    /// When the lock is free again.
    free_at_ns: Ns,
}

impl Host {
    /// Sets the lists up as the rules say.
    pub(super) fn lay_out_wake_lists(&mut self) {
        let Some(kind) = self.rules.swqueue else { return };
        let mut lists = WakeLists { of: vec![0; self.geometry.len()], ..WakeLists::default() };
        for cache in self.geometry.llcs() {
            let cores: Vec<CpuIndex> = {
                let first = |cpu: &&CpuIndex| self.geometry.siblings(**cpu)[0] == **cpu;
                cache.iter().filter(first).copied().collect()
            };
            let per_list = match kind {
                SwQueue::PerCache => cores.len(),
                SwQueue::Sharded(cores) => cores.max(1),
            };
            let first = lists.lists.len();
            for shard in cores.chunks(per_list) {
                for core in shard {
                    let number = lists.lists.len();
                    self.geometry.siblings(*core).iter().for_each(|cpu| lists.of[*cpu] = number);
                }
                lists.lists.push(List::default());
            }
            let all: Vec<usize> = (first..lists.lists.len()).collect();
            lists.near.extend(all.iter().map(|_| all.clone()));
        }
        self.wake_lists = lists;
    }

    /// Takes and gives back the lock of a list. Returns how long that took.
    fn lock_list(&mut self, list: usize) -> Ns {
        let now_ns = self.now_ns();
        let (hold_ns, travel_ns) = (self.costs.lock_ns.value, self.costs.lock_travel_ns.value);
        let list = &mut self.wake_lists.lists[list];
        let contended = list.free_at_ns > now_ns;
        let begins_ns = now_ns.max(list.free_at_ns);
        list.free_at_ns = begins_ns + hold_ns + if contended { travel_ns } else { 0 };
        let ns = list.free_at_ns - now_ns;
        self.lock_wait_ns += begins_ns - now_ns + if contended { travel_ns } else { 0 };
        ns
    }

    /// A woken thread waits on `cpu`: puts it on the list, at the expense of `waker`.
    pub(super) fn list_woken(&mut self, thread: ThreadId, cpu: CpuIndex, waker: Option<ThreadId>) {
        let list = self.wake_lists.of[cpu];
        let ns = self.lock_list(list);
        if let Some(waker) = waker {
            self.charge(waker, ns);
        }
        self.wake_lists.lists[list].waiting.push_back(thread);
        let index = thread.0 as usize;
        let held = &mut self.wake_lists.held;
        held.resize(held.len().max(index + 1), None);
        held[index] = Some(list);
    }

    /// A thread runs, or goes elsewhere: takes it off its list, at its own expense.
    pub(super) fn unlist(&mut self, thread: ThreadId) {
        let held = self.wake_lists.held.get_mut(thread.0 as usize);
        let Some(list) = held.and_then(Option::take) else { return };
        let ns = self.lock_list(list);
        self.charge(thread, ns);
        self.wake_lists.lists[list].waiting.retain(|id| *id != thread);
    }

    /// Takes the first waiting thread of the cache. Returns whether there was one.
    pub(super) fn pull_from_wake_list(&mut self, cpu: CpuIndex) -> bool {
        let own = self.wake_lists.of[cpu];
        let near = self.wake_lists.near[own].clone();
        let start = near.iter().position(|list| *list == own).unwrap_or(0);
        for list in near[start..].iter().chain(&near[..start]) {
            while let Some(thread) = self.wake_lists.lists[*list].waiting.front().copied() {
                let own = &self.threads[thread.0 as usize];
                let fits =
                    own.state == State::Queued && own.allowed.contains(self.geometry.id(cpu));
                self.unlist(thread);
                if fits {
                    self.dequeue(thread);
                    self.enqueue(thread, cpu);
                    return true;
                }
            }
        }
        false
    }
}
