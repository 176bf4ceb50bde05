//! What the test of the contract writes down while it goes on, and what must come out in the end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use homing_runtime::{Work, Workqueue};

/// Threads that issue.
pub(crate) const ISSUERS: usize = 3;

/// The greatest limit of a workqueue that has one.
pub(crate) const LIMIT: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Limited,
    Ordered,
    PerCpu,
    Freezable,
    MemReclaim,
}

/// A workqueue, and all that happened to its items.
pub(crate) struct Place {
    pub(crate) queue: Workqueue,
    pub(crate) kind: Kind,
    /// Somebody drains it now and then: then new items are refused, and what fires is not.
    pub(crate) drains: bool,
    /// Its items may block, and many do.
    pub(crate) blocks: bool,
    /// How many of its items may run at a time.
    pub(crate) at_most: u64,
    now: AtomicU64,
    pub(crate) closures: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) closures_ran: AtomicU64,
    pub(crate) works_ran: AtomicU64,
    /// For an ordered workqueue, by issuer: the number of the closure that ran last.
    last: [AtomicU64; ISSUERS],
}

/// An item that runs, counted as long as this exists.
pub(crate) struct Inside<'a>(&'a Place);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::SeqCst)
}

impl Place {
    pub(crate) fn new(queue: Workqueue, kind: Kind, drains: bool, nodes: u64) -> Self {
        let at_most = match kind {
            Kind::Ordered => 1,
            // Each node may have that many, by `min_active`, and pods that span nodes.
            Kind::Limited => u64::from(LIMIT) * if nodes == 1 { 1 } else { nodes + 1 },
            _ => u64::MAX,
        };
        Self {
            queue,
            kind,
            drains,
            blocks: false,
            at_most,
            now: AtomicU64::new(0),
            closures: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            closures_ran: AtomicU64::new(0),
            works_ran: AtomicU64::new(0),
            last: [const { AtomicU64::new(0) }; ISSUERS],
        }
    }

    /// An item begins.
    pub(crate) fn enter(&self) -> Inside<'_> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        if now > self.at_most {
            die(&format!("{now} items of {:?} at a time", self.queue));
        }
        Inside(self)
    }

    /// How many items run.
    pub(crate) fn running(&self) -> u64 {
        read(&self.now)
    }

    /// To be called when the closure of this number begins. Each issuer queues its closures one
    /// after the other.
    pub(crate) fn check_order(&self, issuer: usize, number: u64) {
        let before = self.last[issuer].swap(number, Ordering::SeqCst);
        if self.kind == Kind::Ordered && before >= number {
            die(&format!("{number} of issuer {issuer} began after {before} in {:?}", self.queue));
        }
    }

    /// To be called when nothing is queued any more.
    pub(crate) fn check_end(&self) {
        let counters = self.queue.counters();
        let (closures, works) = (read(&self.closures_ran), read(&self.works_ran));
        assert_eq!(counters.in_flight(), 0, "{counters:?}");
        assert_eq!(counters.completed, closures + works, "{:?}", self.queue);
        assert_eq!(counters.started, counters.completed, "{:?}", self.queue);
        let ended = closures + read(&self.cancelled);
        if self.drains {
            // Refused closures that nobody waits for are not heard of again.
            assert!(ended <= read(&self.closures), "{:?}", self.queue);
        } else {
            assert_eq!(ended, read(&self.closures), "{:?}", self.queue);
        }
    }
}

/// What may happen to a work item. If all of this happened to each, the runs could not be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It is only queued: what was written before is seen in the end.
    Queued,
    /// It is cancelled and moved: whether a move was accepted is known only where nobody disables.
    Moved,
    /// It is cancelled and disabled.
    Disabled,
    /// Anything.
    Anything,
}

/// A work item's books.
pub(crate) struct Ledger {
    pub(crate) life: Life,
    /// How often it was queued, at once or with a delay.
    queued: AtomicU64,
    /// How often the pending instance was taken back.
    cancelled: AtomicU64,
    /// How often `mod_delayed` found nothing pending: then it queued the work item, unless that was
    /// disabled.
    moved: AtomicU64,
    runs: AtomicU64,
    runs_now: AtomicBool,
    /// Written before the work item is queued, by the thread that queues it; read when it runs.
    wanted: AtomicU64,
    seen: AtomicU64,
}

impl Ledger {
    pub(crate) fn new(life: Life) -> Self {
        Self {
            life,
            queued: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            runs_now: AtomicBool::new(false),
            wanted: AtomicU64::new(0),
            seen: AtomicU64::new(0),
        }
    }

    /// To be called before it is queued.
    pub(crate) fn want(&self) {
        self.wanted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn queued(&self, accepted: bool) {
        self.queued.fetch_add(accepted.into(), Ordering::Relaxed);
    }

    pub(crate) fn cancelled(&self, was_pending: bool) {
        self.cancelled.fetch_add(was_pending.into(), Ordering::Relaxed);
    }

    /// A pending instance that was replaced and the one that replaced it cancel out.
    pub(crate) fn moved(&self, was_pending: bool) {
        self.moved.fetch_add((!was_pending).into(), Ordering::Relaxed);
    }

    /// A run; `own` is the count that the function keeps by itself.
    pub(crate) fn run(&self, own: u64, body: impl FnOnce()) {
        if self.runs_now.swap(true, Ordering::Relaxed) {
            die("a work item ran twice at a time");
        }
        self.seen.store(self.wanted.load(Ordering::Relaxed), Ordering::Relaxed);
        if self.runs.fetch_add(1, Ordering::Relaxed) + 1 != own {
            die("a run did not see the state that the one before left");
        }
        body();
        self.runs_now.store(false, Ordering::Relaxed);
    }

    /// To be called when nothing is queued any more.
    pub(crate) fn check_end(&self, work: &Work, place: &Place) {
        assert!(!work.is_pending() && !work.is_running() && !work.is_disabled(), "{work:?}");
        let [queued, cancelled] = [&self.queued, &self.cancelled].map(read);
        let (least, runs) = (queued.saturating_sub(cancelled), read(&self.runs));
        let most = queued + read(&self.moved) - cancelled;
        let life = self.life;
        if life == Life::Anything {
            assert!((least..=most).contains(&runs), "{runs} runs, not {least} to {most}: {work:?}");
        } else {
            assert_eq!(runs, most, "{queued} queued, {cancelled} cancelled, {life:?}: {work:?}");
        }
        // A workqueue that drains refuses items, so what was wanted last may not be done.
        if life == Life::Queued && !place.drains {
            assert_eq!(read(&self.seen), read(&self.wanted), "{work:?}");
        }
    }
}

/// Ends the test: a panic in an item would only be counted.
pub(crate) fn die(why: &str) -> ! {
    eprintln!("{why}");
    std::process::abort();
}

/// Waits until `so` returns `true`.
pub(crate) fn until(what: &str, so: impl Fn() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < Duration::from_secs(30), "not in time: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}
