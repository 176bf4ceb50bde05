//! Clients, which are not workers, that submit an item and wait for it: one now and then on an idle
//! pool, or several at once as fast as they can.

use std::thread;
use std::time::{Duration, Instant};

use super::super::count::count;
use super::super::peers::Pool;
use super::super::signal::Signal;
use super::window::{Window, add_latencies, warm_up};
use super::{Figures, Setting};
use crate::latency::record;

/// How far apart pings are.
const PING: Duration = Duration::from_millis(1);

/// One item each millisecond.
pub(super) fn ping<P: Pool>(pool: &'static P, setting: &Setting) -> anyhow::Result<Figures> {
    let signal = Signal::to_this_thread();
    ping_for(pool, signal, warm_up(setting));
    let window = Window::open()?;
    ping_for(pool, signal, setting.duration);
    let span = window.close()?;
    let mut figures = span.figures([("cpu_us_per_trip", span.cpu * 1e6 / span.count as f64)]);
    add_latencies(&mut figures);
    Ok(figures)
}

fn ping_for<P: Pool>(pool: &'static P, signal: &'static Signal, duration: Duration) {
    let end = Instant::now() + duration;
    let mut next = Instant::now();
    while next < end {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        trip(pool, signal);
        // A ping that took too long is not caught up with.
        next = (next + PING).max(Instant::now());
    }
}

/// This many clients at once, without a pause.
pub(super) fn pairs<P: Pool>(
    pool: &'static P,
    setting: &Setting,
    clients: usize,
) -> anyhow::Result<Figures> {
    for _ in 0..clients {
        thread::Builder::new().spawn(move || {
            let signal = Signal::to_this_thread();
            loop {
                trip(pool, signal);
            }
        })?;
    }
    let span = Window::watch(setting)?;
    let trips = span.count as f64;
    let mut figures = span.figures([
        ("trips_per_s", trips / span.seconds),
        ("cpu_us_per_trip", span.cpu * 1e6 / trips),
    ]);
    add_latencies(&mut figures);
    Ok(figures)
}

fn trip<P: Pool>(pool: &'static P, signal: &'static Signal) {
    let submitted = Instant::now();
    pool.submit(move || signal.give());
    signal.wait();
    record(submitted.elapsed());
    count();
}
