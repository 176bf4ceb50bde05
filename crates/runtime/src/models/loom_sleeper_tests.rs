//! The word that a worker sleeps at, under the model checker: `cargo xtask loom`. The kernel's part
//! is that a waiter compares the word and goes to sleep in one step.

use std::sync::atomic::Ordering::Relaxed;

use loom::sync::atomic::AtomicBool;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::models::loom_bed::check;
use crate::sync::Ordering;
use crate::threads::sleeper::{Token, Wakes};

struct Bed {
    token: Token,
    kernel: Mutex<()>,
    woken: Condvar,
    /// Whether a waker is registered, and whether the reactor was notified.
    waker: Mutex<bool>,
    reactor: Mutex<bool>,
}

impl Bed {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            token: Token::none(),
            kernel: Mutex::new(()),
            woken: Condvar::new(),
            waker: Mutex::new(false),
            reactor: Mutex::new(false),
        })
    }

    /// `futex_wait`, without a time limit.
    fn wait(&self) {
        let kernel = self.kernel.lock().unwrap();
        if self.token.word().load(Ordering::Relaxed) == Token::ASLEEP {
            drop(self.woken.wait(kernel).unwrap());
        }
    }

    fn sleep(&self) -> bool {
        self.token.take(|| {
            self.wait();
            false
        })
    }

    fn wake(&self) {
        match self.token.leave() {
            Wakes::Nobody => {}
            Wakes::Sleeper => {
                let _kernel = self.kernel.lock().unwrap();
                self.woken.notify_one();
            }
            Wakes::Driver => {
                // As `AtomicWaker::wake`, and the reactor then ends its wait.
                let waker = std::mem::take(&mut *self.waker.lock().unwrap());
                if waker {
                    *self.reactor.lock().unwrap() = true;
                    self.woken.notify_one();
                }
            }
        }
    }

    /// `Sleeper::sleep_driving_io`, without a time limit.
    fn drive(&self) -> bool {
        loop {
            *self.waker.lock().unwrap() = true;
            if !self.token.begin_driving() {
                return self.token.end_driving();
            }
            let mut reactor = self.reactor.lock().unwrap();
            while !*reactor {
                reactor = self.woken.wait(reactor).unwrap();
            }
            *reactor = false;
        }
    }
}

/// How a worker waits for a token: at the word, or driving the reactor.
const WAYS: [fn(&Bed) -> bool; 2] = [Bed::sleep, Bed::drive];

/// A thread that writes something and then wakes the worker.
fn write_and_wake(bed: &Arc<Bed>) -> (Arc<AtomicBool>, thread::JoinHandle<()>) {
    let written = Arc::new(AtomicBool::new(false));
    let (bed, writes) = (bed.clone(), written.clone());
    let waker = thread::spawn(move || {
        writes.store(true, Relaxed);
        bed.wake();
    });
    (written, waker)
}

#[test]
fn a_sleeper_is_woken_and_sees_what_was_written_before() {
    for sleep in WAYS {
        check(3, move || {
            let bed = Bed::new();
            let (written, waker) = write_and_wake(&bed);
            assert!(sleep(&bed));
            assert!(written.load(Relaxed));
            waker.join().unwrap();
        });
    }
}

/// Tokens of several wakers are one. The worker that takes it looks at what each of them wrote.
#[test]
fn of_two_wakers_none_is_missed() {
    for sleep in WAYS {
        check(3, move || {
            let bed = Bed::new();
            let written = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let wakers = [0, 1].map(|number| {
                let (bed, written) = (bed.clone(), written.clone());
                thread::spawn(move || {
                    written[number].store(true, Relaxed);
                    bed.wake();
                })
            });
            while !written.iter().all(|written| written.load(Relaxed)) {
                assert!(sleep(&bed));
            }
            for waker in wakers {
                waker.join().unwrap();
            }
        });
    }
}

/// The time may be up at any moment, even as the token comes.
#[test]
fn a_token_that_comes_as_the_time_is_up_is_taken_now_or_kept() {
    check(3, || {
        let bed = Bed::new();
        let (written, waker) = write_and_wake(&bed);
        let taken = bed.token.take(|| true);
        if !taken {
            assert!(bed.sleep());
        }
        assert!(written.load(Relaxed));
        waker.join().unwrap();
    });
}

/// The canary: whoever registers its waker only when it drives already is not woken.
#[test]
#[should_panic(expected = "it sleeps on")]
fn a_worker_that_registers_its_waker_too_late_sleeps_on() {
    check(3, || {
        let bed = Bed::new();
        let waker = {
            let bed = bed.clone();
            thread::spawn(move || bed.wake())
        };
        let drives = bed.token.begin_driving();
        *bed.waker.lock().unwrap() = true;
        waker.join().unwrap();
        assert!(!drives || *bed.reactor.lock().unwrap(), "it sleeps on");
    });
}
