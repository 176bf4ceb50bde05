//! homing compared with itself: throughput while a thread changes attributes, and the worst moment
//! of it.

use std::thread;
use std::time::{Duration, Instant};

use homing::{Nice, Scope};

use super::super::count::counted;
use super::super::peers::Peer;
use super::super::peers::homing::Homing;
use super::outside::{Submitter, submit_for};
use super::window::{Window, warm_up};
use super::{Figures, Setting};

/// How long each part of the measurement lasts, between two changes.
const PART: Duration = Duration::from_millis(10);

/// The values of `max_active`, in turn. They are never reached: `issue` measures limits that hold
/// items back.
const MAX_ACTIVE: [u32; 2] = [2048, 2047];

/// How many attributes there are to change.
const ATTRIBUTES: usize = 5;

/// Items of this many nanoseconds, from outside, and a change every 10 ms, or only a look.
pub(super) fn changes(peer: Peer, setting: &Setting, nanoseconds: u64) -> anyhow::Result<Figures> {
    let pool = Homing::start_as(setting.workers, |builder| builder.max_active(MAX_ACTIVE[0]))?;
    let pool = &*Box::leak(Box::new(pool));
    let steps = setting.steps(nanoseconds);
    let lasts = warm_up(setting) + setting.duration;
    let issuer = move || {
        let mut submitter = Submitter::new(u64::from(MAX_ACTIVE[1]));
        submit_for(pool, &mut submitter, steps, lasts);
    };
    thread::spawn(issuer);
    thread::sleep(warm_up(setting));
    let window = Window::open()?;
    let end = Instant::now() + setting.duration;
    let mut slowest = f64::INFINITY;
    let (mut began, mut before, mut change) = (Instant::now(), counted(), 0);
    while began + PART <= end {
        if matches!(peer, Peer::HomingChanged) {
            change_attribute(pool, change)?;
            change += 1;
        }
        thread::sleep((began + PART).saturating_duration_since(Instant::now()));
        let (now, done) = (Instant::now(), counted());
        slowest = slowest.min((done - before) as f64 / (now - began).as_secs_f64());
        (began, before) = (now, done);
    }
    let mut figures = window.close()?.throughput();
    figures.insert("slowest_10ms_items_per_s".to_owned(), slowest);
    Ok(figures)
}

/// No change takes CPUs away: only the change itself is measured.
fn change_attribute(pool: &Homing, change: usize) -> anyhow::Result<()> {
    let (attribute, turn) = (change % ATTRIBUTES, change / ATTRIBUTES % 2);
    let (queue, other) = (pool.queue(), turn == 0);
    match attribute {
        0 => queue.set_affinity_scope(if other { Scope::Numa } else { Scope::Cache }),
        1 => queue.set_affinity_strict(other),
        2 => queue.set_nice(if other { Nice::HIGHPRI } else { Nice::NORMAL }),
        3 => queue.set_cpumask(other.then(|| pool.cpus())),
        _ => queue.set_max_active(Some(MAX_ACTIVE[usize::from(other)])),
    }?;
    Ok(())
}
