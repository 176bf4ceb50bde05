//! Short items, one in ten of which waits for the kernel instead: 10 us of work, or 1 ms of
//! nothing.

use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::super::count::count;
use super::super::peers::Pool;
use super::super::spin::spin;
use super::outside::Submitter;
use super::window::{Window, add_latencies, warm_up};
use super::{Figures, Setting};
use crate::latency::record;

/// How long the short items compute, in nanoseconds.
const SHORT: u64 = 10_000;

/// How long the others block.
const BLOCKED: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// One item in this many blocks.
const ONE_IN: u64 = 10;

/// Items in flight for each worker: a deeper queue would hide what waits behind a blocked worker.
const IN_FLIGHT: u64 = 64;

thread_local! {
    static TIMER: OwnedFd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)
        .expect("a process may have as many timers as threads");
}

/// As many items as the pool takes. Latencies are those of the short items.
pub(super) fn mix<P: Pool>(pool: &'static P, setting: &Setting) -> anyhow::Result<Figures> {
    let steps = setting.steps(SHORT);
    let mut submitter = Submitter::new(IN_FLIGHT * setting.workers as u64);
    let mut items = (0..ONE_IN).cycle();
    submit_for(pool, &mut submitter, &mut items, steps, warm_up(setting));
    let window = Window::open()?;
    submit_for(pool, &mut submitter, &mut items, steps, setting.duration);
    let mut figures = window.close()?.throughput();
    add_latencies(&mut figures);
    Ok(figures)
}

fn submit_for<P: Pool>(
    pool: &'static P,
    submitter: &mut Submitter,
    items: &mut impl Iterator<Item = u64>,
    steps: u64,
    duration: Duration,
) {
    let deadline = Instant::now() + duration;
    while Instant::now() < deadline {
        let batch = submitter.room(deadline).min(2 * ONE_IN);
        for item in items.take(batch as usize) {
            if item == 0 {
                pool.submit_blocking(|| {
                    block();
                    count();
                });
            } else {
                let submitted = Instant::now();
                pool.submit(move || {
                    spin(steps);
                    record(submitted.elapsed());
                    count();
                });
            }
        }
        submitter.submitted(batch);
    }
}

/// A read that the kernel answers after a while: a pool cannot see it coming.
fn block() {
    let once = Itimerspec { it_interval: Timespec::default(), it_value: BLOCKED };
    TIMER.with(|timer| {
        let set = timerfd_settime(timer, TimerfdTimerFlags::empty(), &once);
        set.expect("the timer is valid");
        rustix::io::read(timer, &mut [0; 8]).expect("the timer expires");
    });
}
