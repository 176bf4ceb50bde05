//! `affinity_scope=auto`: measures what [`Auto`] decides by.

use std::collections::VecDeque;

use homing_sched::{Auto, Layout, PullCost, Reach, Taken, Window};
use homing_topology::Scope;

use super::Item;

/// How many items are measured at a time.
const SAMPLED: usize = 4;

#[derive(Debug)]
pub(super) struct Chooser {
    auto: Auto,
    began_ns: u64,
    taken: [Taken; Reach::ALL.len()],
    waited_ns: u64,
    samples: u64,
    /// The items whose waiting is measured, and since when.
    sampled: Vec<(Item, u64)>,
}

impl Chooser {
    pub(super) fn new(layout: &Layout, first: Scope) -> Self {
        Self::begin(Auto::new(layout, first), 0)
    }

    fn begin(auto: Auto, began_ns: u64) -> Self {
        Self {
            auto,
            began_ns,
            taken: Default::default(),
            waited_ns: 0,
            samples: 0,
            sampled: Vec::new(),
        }
    }

    pub(super) fn queued(&mut self, item: Item, now_ns: u64) {
        if self.sampled.len() < SAMPLED {
            self.sampled.push((item, now_ns));
        }
    }

    pub(super) fn taken(&mut self, batch: &VecDeque<Item>, now_ns: u64) {
        self.sampled.retain(|(item, since_ns)| {
            let taken = batch.contains(item);
            if taken {
                self.waited_ns += now_ns - since_ns;
                self.samples += 1;
            }
            !taken
        });
    }

    pub(super) fn ran(&mut self, reach: Reach, items: u32, elapsed_ns: u64) {
        let taken = &mut self.taken[reach as usize];
        taken.items += u64::from(items);
        taken.ran_ns += elapsed_ns;
    }

    /// If a window is over, returns what to use next.
    pub(super) fn choose(&mut self, now_ns: u64, cpus: u64) -> Option<(Scope, PullCost)> {
        let elapsed_ns = now_ns - self.began_ns;
        let ran_ns = self.taken.iter().map(|taken| taken.ran_ns).sum();
        let window = Window {
            elapsed_ns,
            taken: self.taken,
            waited_ns: self.waited_ns / self.samples.max(1),
            idle_ns: (cpus * elapsed_ns).saturating_sub(ran_ns),
        };
        if elapsed_ns < self.auto.window_ns() || window.items() < self.auto.window_items() {
            return None;
        }
        let mut auto = self.auto.clone();
        auto.note(&window);
        let sampled = std::mem::take(&mut self.sampled);
        *self = Self { sampled, ..Self::begin(auto, now_ns) };
        Some((self.auto.scope(), self.auto.pull_cost()))
    }
}
