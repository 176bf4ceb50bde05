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

/// Children of a root.
pub(super) const CHILDREN: usize = GROUPS * GROUP;

/// Two cache lines: they are fetched in pairs.
#[repr(align(128))]
struct Countdown(AtomicUsize);

/// The children of one root that have not ended.
pub(super) struct Children {
    groups: [Countdown; GROUPS],
    left: Countdown,
}

impl Children {
    /// None.
    pub(super) const fn new() -> Self {
        Self {
            groups: [const { Countdown(AtomicUsize::new(0)) }; GROUPS],
            left: Countdown(AtomicUsize::new(0)),
        }
    }

    /// All of them, before the first is issued.
    pub(super) fn begin(&self) {
        for group in &self.groups {
            group.0.store(GROUP, Ordering::Relaxed);
        }
        self.left.0.store(GROUPS, Ordering::Relaxed);
    }

    /// One has ended. Returns whether it was the last.
    pub(super) fn end(&self, child: usize) -> bool {
        let last = |countdown: &Countdown| countdown.0.fetch_sub(1, Ordering::AcqRel) == 1;
        // Neighbours are in different groups: they are likely to run at the same time.
        last(&self.groups[child % GROUPS]) && last(&self.left)
    }
}

struct Tree<P: 'static> {
    pool: &'static P,
    steps: u64,
    children: Children,
}

/// Children of this many nanoseconds, as many as the pool runs. Roots are not counted.
pub(super) fn throughput<P: Pool>(
    pool: &'static P,
    setting: &Setting,
    nanoseconds: u64,
) -> anyhow::Result<Figures> {
    let tree: &'static Tree<P> = Box::leak(Box::new(Tree {
        pool,
        steps: setting.steps(nanoseconds),
        children: Children::new(),
    }));
    pool.submit(move || tree.root());
    Ok(Window::watch(setting)?.throughput())
}

impl<P: Pool> Tree<P> {
    fn root(&'static self) {
        self.children.begin();
        self.pool.fan_out((0..CHILDREN).map(move |child| move || self.child(child)));
    }

    fn child(&'static self, child: usize) {
        spin(self.steps);
        count();
        if self.children.end(child) {
            self.pool.submit(move || self.root());
        }
    }
}
