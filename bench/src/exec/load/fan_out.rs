//! Items that make items: a root fans out into a thousand children, and the last child to finish
//! starts the next root. There is one root at a time: sharing the children is the pool's task.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::count::count;
use super::super::peers::Pool;
use super::super::spin::spin;
use super::window::Window;
use super::{Figures, Setting};

/// Groups of children. Each counts down by itself, so that children seldom meet at a counter.
const GROUPS: usize = 20;

/// Children in a group.
const GROUP: usize = 50;

/// Two cache lines: they are fetched in pairs.
#[repr(align(128))]
struct Countdown(AtomicUsize);

struct Tree<P: 'static> {
    pool: &'static P,
    steps: u64,
    groups: [Countdown; GROUPS],
    left: Countdown,
}

/// Children of so many nanoseconds, as many as the pool runs. Roots do not count.
pub(super) fn throughput<P: Pool>(
    pool: &'static P,
    setting: &Setting,
    nanoseconds: u64,
) -> anyhow::Result<Figures> {
    let tree: &'static Tree<P> = Box::leak(Box::new(Tree {
        pool,
        steps: setting.steps(nanoseconds),
        groups: [const { Countdown(AtomicUsize::new(0)) }; GROUPS],
        left: Countdown(AtomicUsize::new(0)),
    }));
    pool.submit(move || tree.root());
    Ok(Window::watch(setting)?.throughput())
}

impl<P: Pool> Tree<P> {
    fn root(&'static self) {
        for group in &self.groups {
            group.0.store(GROUP, Ordering::Relaxed);
        }
        self.left.0.store(GROUPS, Ordering::Relaxed);
        // Neighbours are of different groups: they are likely to run at the same time.
        let children = (0..GROUPS * GROUP).map(move |child| move || self.child(child % GROUPS));
        self.pool.fan_out(children);
    }

    fn child(&'static self, group: usize) {
        spin(self.steps);
        count();
        let last = |countdown: &Countdown| countdown.0.fetch_sub(1, Ordering::AcqRel) == 1;
        if last(&self.groups[group]) && last(&self.left) {
            self.pool.submit(move || self.root());
        }
    }
}
