//! Whether the monitor looks while somebody works, under the model checker: `cargo xtask loom`.

use loom::sync::Arc;
use loom::thread;

use crate::models::loom_bed::check;
use crate::monitor::next_look::NextLook;
use crate::sync::{AtomicU32, Ordering, fence};

/// Workers that work, a bit for each, as the words of their slots say, and the monitor's next look.
struct Crew {
    working: [AtomicU32; 2],
    next_look: NextLook,
}

impl Crew {
    /// The given workers work. The monitor has looked, and nothing is in the way of its rest.
    fn new(working: [u32; 2]) -> Arc<Self> {
        let next_look = NextLook::new();
        next_look.looks(1, true);
        next_look.set(1);
        Arc::new(Self { working: working.map(AtomicU32::new), next_look })
    }

    /// As `Shared::somebody_works`, after `Slot::rise`. The alarm is set by whoever is told to.
    fn works(&self, worker: usize) {
        self.working[worker].store(1, Ordering::Release);
        let _ = self.next_look.begin(|| 1);
    }

    /// As `Shared::somebody_sleeps`, after `Slot::lie_down` and the fence of `Dispatch::announce`.
    fn sleeps(&self, worker: usize) {
        self.working[worker].store(0, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.next_look.may_put_off(1) {
            let _ = self.next_look.put_off(1, || self.all_sleep());
        }
    }

    fn all_sleep(&self) -> bool {
        self.working.iter().all(|worker| worker.load(Ordering::SeqCst) == 0)
    }

    /// What has to hold once nobody changes anything any more.
    fn assert_watched(&self) {
        assert!(self.all_sleep() || !self.next_look.rests(), "nobody looks at who works");
    }
}

#[test]
fn the_monitor_does_not_rest_while_somebody_works() {
    check(3, || {
        let crew = Crew::new([0, 1]);
        let one = {
            let crew = Arc::clone(&crew);
            thread::spawn(move || crew.works(0))
        };
        crew.sleeps(1);
        one.join().unwrap();
        crew.assert_watched();
        crew.sleeps(0);
        assert!(crew.next_look.rests(), "the last one sleeps");
    });
}

#[test]
fn nor_if_two_go_to_sleep_and_one_of_them_is_woken() {
    check(3, || {
        let crew = Crew::new([1, 1]);
        let one = {
            let crew = Arc::clone(&crew);
            thread::spawn(move || {
                crew.sleeps(0);
                crew.works(0);
            })
        };
        crew.sleeps(1);
        one.join().unwrap();
        crew.assert_watched();
    });
}

#[test]
fn nor_if_the_monitor_itself_goes_to_rest_meanwhile() {
    check(3, || {
        let crew = Crew::new([0, 1]);
        let monitor = {
            let crew = Arc::clone(&crew);
            thread::spawn(move || crew.next_look.rest(1, || crew.all_sleep()))
        };
        let one = {
            let crew = Arc::clone(&crew);
            thread::spawn(move || crew.works(0))
        };
        crew.sleeps(1);
        one.join().unwrap();
        monitor.join().unwrap();
        crew.assert_watched();
    });
}

/// The canary: without the fences between what each side writes and then reads, neither sees the
/// other.
#[test]
#[should_panic(expected = "nobody looks")]
fn without_its_fences_the_monitor_rests_while_somebody_works() {
    check(3, || {
        let (working, rests) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let one = {
            let (working, rests) = (Arc::clone(&working), Arc::clone(&rests));
            thread::spawn(move || {
                working.store(1, Ordering::Release);
                if rests.load(Ordering::Relaxed) == 1 {
                    rests.store(0, Ordering::Relaxed);
                }
            })
        };
        rests.store(1, Ordering::Relaxed);
        if working.load(Ordering::Acquire) == 1 {
            rests.store(0, Ordering::Relaxed);
        }
        one.join().unwrap();
        assert_eq!(rests.load(Ordering::Relaxed), 0, "nobody looks");
    });
}
