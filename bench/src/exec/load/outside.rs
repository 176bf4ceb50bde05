//! One submitter that is not a worker: throughput, and the CPU time that the pool burns after it
//! has stopped.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::super::count::{count, counted};
use super::super::peers::Pool;
use super::super::spin::spin;
use super::window::{Window, warm_up};
use super::{Figures, Setting};
use crate::stopwatch::cpu_time;

/// How many items may be in flight.
const IN_FLIGHT: u64 = 10_000;

/// How long a submitter sleeps when it has filled a pool, at first and at most. It does not spin:
/// on a small machine that would take a CPU from the workers. Each sleep is twice the one before,
/// so that looking costs little, and the items in flight last longer than the last sleep.
const FULL: Duration = Duration::from_micros(50);
const FULL_MAX: Duration = Duration::from_millis(1);

/// How long a burst before the idle second lasts.
const BURST: Duration = Duration::from_millis(200);

/// How long the idle pool is watched.
const IDLE: Duration = Duration::from_secs(1);

/// The limit for pools to finish what they have.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// A submitter that bounds what is in flight. It looks at the counters only when it must.
pub(super) struct Submitter {
    bound: u64,
    submitted: u64,
    room: u64,
    before: u64,
}

impl Submitter {
    /// At most `bound` items are in flight.
    pub(super) fn new(bound: u64) -> Self {
        Self { bound, submitted: 0, room: bound, before: counted() }
    }

    /// How many items can be submitted now. It sleeps while there is no room. Once `deadline` has
    /// passed, it returns the room that there is, which may be 0.
    pub(super) fn room(&mut self, deadline: Instant) -> u64 {
        if self.room == 0 {
            let mut pause = FULL;
            loop {
                self.room = self.bound - self.in_flight();
                // Waiting until a quarter is free spares the workers' cache lines most of the
                // looks.
                if self.room >= self.bound / 4 || Instant::now() >= deadline {
                    break;
                }
                thread::sleep(pause);
                pause = (2 * pause).min(FULL_MAX);
            }
        }
        self.room
    }

    /// Notes that `count` items were submitted.
    pub(super) fn submitted(&mut self, count: u64) {
        self.submitted += count;
        self.room -= count;
    }

    fn in_flight(&self) -> u64 {
        self.submitted - (counted() - self.before)
    }

    fn drain(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + DRAIN_LIMIT;
        while self.in_flight() > 0 {
            ensure!(Instant::now() < deadline, "{} items are still not done", self.in_flight());
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }
}

/// Items of this many nanoseconds, as many as the pool takes.
pub(super) fn throughput<P: Pool>(
    pool: &'static P,
    setting: &Setting,
    nanoseconds: u64,
) -> anyhow::Result<Figures> {
    let steps = setting.steps(nanoseconds);
    let mut submitter = Submitter::new(IN_FLIGHT);
    submit_for(pool, &mut submitter, steps, warm_up(setting));
    let window = Window::open()?;
    submit_for(pool, &mut submitter, steps, setting.duration);
    Ok(window.close()?.throughput())
}

/// CPU time while there is nothing to do, right after there was a lot.
pub(super) fn idle_burn<P: Pool>(pool: &'static P, setting: &Setting) -> anyhow::Result<Figures> {
    let mut submitter = Submitter::new(IN_FLIGHT);
    submit_for(pool, &mut submitter, setting.steps(1_000), BURST);
    submitter.drain()?;
    let before = cpu_time();
    thread::sleep(IDLE);
    let burnt = cpu_time() - before;
    let figure = ("idle_cpu_us_per_s".to_owned(), burnt * 1e6 / IDLE.as_secs_f64());
    Ok(Figures::from([figure]))
}

pub(super) fn submit_for<P: Pool>(
    pool: &'static P,
    submitter: &mut Submitter,
    steps: u64,
    duration: Duration,
) {
    let deadline = Instant::now() + duration;
    while Instant::now() < deadline {
        // The clock is read between batches, not between items.
        let batch = submitter.room(deadline).min(128);
        for _ in 0..batch {
            pool.submit(move || {
                spin(steps);
                count();
            });
        }
        submitter.submitted(batch);
    }
}
