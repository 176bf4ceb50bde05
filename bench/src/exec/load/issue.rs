//! homing compared with itself: the cost of running an item, by the way it is queued and by the
//! kind of its workqueue. The loops around it are the same for all.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use homing::{Work, Workqueue};

use super::super::count::count;
use super::super::peers::Peer;
use super::super::peers::homing::Homing;
use super::super::spin::spin;
use super::super::workload::Side;
use super::fan_out::{CHILDREN, Children};
use super::outside::Submitter;
use super::window::{Window, warm_up};
use super::{Figures, Setting};

/// How many items may be in flight when they are issued from outside. There are as many work items,
/// issued in turn: their memory is to fit in the caches, as that of closures does.
const IN_FLIGHT: usize = 2_000;

/// The `max_active` of a limited workqueue. It is less than the items in flight: items wait for
/// their turn.
const MAX_ACTIVE: u32 = 64;

/// The work of an item. Its argument is the item's number.
type Function = &'static (dyn Fn(usize) + Sync);

/// A way to run a function.
trait Way: Send + Sync + 'static {
    /// Makes it, for items with numbers below `bound`.
    fn new(queue: &Workqueue, bound: usize, function: Function) -> Self;

    /// Queues the item with this number. Returns whether it will run once more.
    fn issue(&self, number: usize) -> bool;
}

/// Closures that nobody waits for.
struct Execute(Workqueue, Function);

impl Way for Execute {
    fn new(queue: &Workqueue, _bound: usize, function: Function) -> Self {
        Self(queue.clone(), function)
    }

    fn issue(&self, number: usize) -> bool {
        let function = self.1;
        self.0.execute(move || function(number));
        true
    }
}

/// Closures with a handle, which is dropped at once: keeping and joining it would cost more.
struct Handle(Workqueue, Function);

impl Way for Handle {
    fn new(queue: &Workqueue, _bound: usize, function: Function) -> Self {
        Self(queue.clone(), function)
    }

    fn issue(&self, number: usize) -> bool {
        let function = self.1;
        drop(self.0.queue(move || function(number)));
        true
    }
}

/// Work items that are made beforehand.
struct Works(Vec<Work>);

impl Way for Works {
    fn new(queue: &Workqueue, bound: usize, function: Function) -> Self {
        Self((0..bound).map(|number| queue.work(move |_| function(number))).collect())
    }

    fn issue(&self, number: usize) -> bool {
        self.0[number].queue()
    }
}

/// Items of a plain workqueue, queued one by one.
pub(super) fn ways(
    peer: Peer,
    setting: &Setting,
    side: Side,
    nanoseconds: u64,
) -> anyhow::Result<Figures> {
    let pool = Homing::start_as(setting.workers, |builder| builder)?;
    let steps = if nanoseconds == 0 { 0 } else { setting.steps(nanoseconds) };
    match peer {
        Peer::HomingHandle => measure::<Handle>(pool, setting, side, steps),
        Peer::HomingWork => measure::<Works>(pool, setting, side, steps),
        _ => measure::<Execute>(pool, setting, side, steps),
    }
}

/// Closures that nobody waits for, in a workqueue that may hold them back.
pub(super) fn gates(peer: Peer, setting: &Setting, side: Side) -> anyhow::Result<Figures> {
    let pool = Homing::start_as(setting.workers, |builder| match peer {
        Peer::HomingLimited => builder.max_active(MAX_ACTIVE),
        Peer::HomingOrdered => builder.ordered(),
        Peer::HomingFreezable => builder.freezable(),
        _ => builder,
    })?;
    measure::<Execute>(pool, setting, side, setting.steps(50))
}

fn measure<W: Way>(
    pool: Homing,
    setting: &Setting,
    side: Side,
    steps: u64,
) -> anyhow::Result<Figures> {
    // The end of a pool would wait for items that continue as long as the process.
    let pool = &*Box::leak(Box::new(pool));
    match side {
        Side::Outside => outside::<W>(pool.queue(), setting, steps),
        Side::Inside => inside::<W>(pool.queue(), setting, steps),
    }
}

/// The work of an item. An empty one counts, and does nothing else.
fn item(steps: u64) {
    if steps > 0 {
        spin(steps);
    }
    count();
}

fn outside<W: Way>(queue: &Workqueue, setting: &Setting, steps: u64) -> anyhow::Result<Figures> {
    let way = W::new(queue, IN_FLIGHT, Box::leak(Box::new(move |_| item(steps))));
    let mut submitter = Submitter::new(IN_FLIGHT as u64);
    let mut number = 0;
    let mut issue_for = |duration: Duration| {
        let deadline = Instant::now() + duration;
        while Instant::now() < deadline {
            let mut issued = 0;
            for _ in 0..submitter.room(deadline).min(128) {
                // A work item that is still pending is passed over.
                issued += u64::from(way.issue(number));
                number = (number + 1) % IN_FLIGHT;
            }
            submitter.submitted(issued);
        }
    };
    issue_for(warm_up(setting));
    let window = Window::open()?;
    issue_for(setting.duration);
    Ok(window.close()?.throughput())
}

/// A root and its children. The root's number follows those of its children.
struct Tree<W> {
    way: OnceLock<W>,
    steps: u64,
    children: Children,
}

/// As in `fan_out`, but children are issued one by one.
fn inside<W: Way>(queue: &Workqueue, setting: &Setting, steps: u64) -> anyhow::Result<Figures> {
    let tree = Tree { way: OnceLock::<W>::new(), steps, children: Children::new() };
    let tree = &*Box::leak(Box::new(tree));
    let function = Box::leak(Box::new(|number| tree.run(number)));
    let way = tree.way.get_or_init(|| W::new(queue, CHILDREN + 1, function));
    way.issue(CHILDREN);
    Ok(Window::watch(setting)?.throughput())
}

impl<W: Way> Tree<W> {
    fn run(&self, number: usize) {
        if number == CHILDREN {
            self.children.begin();
            // A child is issued only after it has begun, so none is still pending.
            (0..CHILDREN).for_each(|child| _ = self.issue(child));
            return;
        }
        item(self.steps);
        if self.children.end(number) {
            self.issue(CHILDREN);
        }
    }

    fn issue(&self, number: usize) -> bool {
        self.way.get().is_some_and(|way| way.issue(number))
    }
}
