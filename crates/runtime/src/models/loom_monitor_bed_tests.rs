//! Whether the monitor sleeps through anything, under the model checker: `cargo xtask loom`.

use loom::sync::Arc;
use loom::thread;

use crate::models::loom_bed::check;
use crate::monitor::bed::MonitorBed;
use crate::sync::{AtomicU64, Ordering, fence};

/// The only time there is: everything that is set for it is due.
const NOW_NS: u64 = 1;
const NEVER_NS: u64 = u64::MAX >> 1;

/// The monitor, and the next timer. In the runtime a lock guards the timers; the bed does not need
/// it.
struct Monitor {
    bed: MonitorBed,
    timer_ns: AtomicU64,
}

impl Monitor {
    /// Nothing is to be done.
    fn new() -> Arc<Self> {
        let bed = MonitorBed::new();
        bed.next_look.set(NEVER_NS);
        Arc::new(Self { bed, timer_ns: AtomicU64::new(NEVER_NS) })
    }

    fn next_timer_ns(&self) -> u64 {
        self.timer_ns.load(Ordering::Relaxed)
    }

    /// Does what is due and sleeps, until `over`. A sleep that nobody ends is a deadlock, which
    /// loom reports.
    fn serve(&self, over: impl Fn(Done) -> bool) {
        let mut done = Done::default();
        loop {
            if self.next_timer_ns() == NOW_NS {
                self.timer_ns.store(NEVER_NS, Ordering::Relaxed);
                done.fired = true;
            }
            if self.bed.is_due(NOW_NS) {
                self.bed.next_look.set(NEVER_NS);
                done.looked = true;
            }
            done.closed = self.bed.is_closed();
            if over(done) {
                return;
            }
            self.bed.sleep(|| self.next_timer_ns());
        }
    }

    fn set_timer(&self) {
        self.timer_ns.store(NOW_NS, Ordering::Relaxed);
        self.bed.timer_set(NOW_NS, || self.next_timer_ns());
    }

    /// As workers do that go to sleep, and those that begin to work.
    fn change_look(&self, at_ns: u64) {
        self.bed.next_look.set(at_ns);
        self.bed.set_alarm(|| self.next_timer_ns());
    }
}

#[derive(Clone, Copy, Default)]
struct Done {
    fired: bool,
    looked: bool,
    closed: bool,
}

/// Runs these beside the monitor, which ends when it has done what is `over`.
fn side_by_side<const N: usize>(
    preemptions: usize,
    others: [fn(&Monitor); N],
    over: fn(Done) -> bool,
) {
    check(preemptions, move || {
        let monitor = Monitor::new();
        let threads = others.map(|other| {
            let monitor = Arc::clone(&monitor);
            thread::spawn(move || other(&monitor))
        });
        monitor.serve(over);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_timer_is_not_slept_through() {
    side_by_side(4, [Monitor::set_timer], |done| done.fired);
}

#[test]
fn nor_if_somebody_else_puts_the_look_off_meanwhile() {
    let put_off = |monitor: &Monitor| monitor.change_look(NEVER_NS + 1);
    side_by_side(2, [Monitor::set_timer, put_off], |done| done.fired);
}

#[test]
fn a_look_that_is_due_is_not_slept_through() {
    side_by_side(4, [|monitor| monitor.change_look(NOW_NS)], |done| done.looked);
}

#[test]
fn nor_if_a_timer_is_set_meanwhile() {
    let look = |monitor: &Monitor| monitor.change_look(NOW_NS);
    side_by_side(2, [look, Monitor::set_timer], |done| done.looked && done.fired);
}

#[test]
fn a_call_is_not_slept_through_nor_a_close() {
    let call = |monitor: &Monitor| monitor.bed.call(|| monitor.next_timer_ns());
    side_by_side(4, [call], |done| done.looked);
    let close = |monitor: &Monitor| monitor.bed.close(|| monitor.next_timer_ns());
    side_by_side(2, [close, Monitor::set_timer], |done| done.closed);
}

/// The canary: whoever sets the alarm does not say so before it reads the timers.
#[test]
#[should_panic(expected = "slept through")]
fn if_the_alarm_is_set_unannounced_a_timer_is_slept_through() {
    check(3, || {
        let (timer_ns, set_to_ns) = (Arc::new(AtomicU64::new(9)), Arc::new(AtomicU64::new(3)));
        let other = {
            let (timer_ns, set_to_ns) = (Arc::clone(&timer_ns), Arc::clone(&set_to_ns));
            thread::spawn(move || {
                timer_ns.store(5, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                if 5 < set_to_ns.load(Ordering::Relaxed) {
                    set_to_ns.store(5, Ordering::Relaxed);
                }
            })
        };
        fence(Ordering::SeqCst);
        set_to_ns.store(timer_ns.load(Ordering::Relaxed), Ordering::Relaxed);
        other.join().unwrap();
        assert!(set_to_ns.load(Ordering::Relaxed) <= 5, "slept through");
    });
}
