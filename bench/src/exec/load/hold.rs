//! The memory of a queued item: a million items wait behind workers that are all held.

use std::hint::black_box;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::Context;

use super::super::count::count;
use super::super::peers::Pool;
use super::{Figures, Setting};
use crate::procfs;

/// How many items are queued.
const ITEMS: u64 = 1_000_000;

/// How long a pool may take until one more of its workers has begun.
const HOLD_LIMIT: Duration = Duration::from_secs(10);

/// Items that capture this many words. Resident memory is counted in pages, and a million items
/// even that out.
pub(super) fn memory<P: Pool, const WORDS: usize>(
    pool: &'static P,
    setting: &Setting,
) -> anyhow::Result<Figures> {
    let (held, holds) = channel();
    for number in 1..=setting.workers {
        let held = held.clone();
        pool.submit(move || {
            // The receiver waits for this message.
            let _ = held.send(());
            // The worker is held busy, since a pool may replace a worker that sleeps.
            loop {
                thread::yield_now();
            }
        });
        // One by one, since two such items in one worker's queue would hold only one worker.
        let started = holds.recv_timeout(HOLD_LIMIT);
        started.with_context(|| format!("worker {number} of {} is not held", setting.workers))?;
    }
    let process = std::process::id();
    let before = memory_of(process)?;
    for item in 0..ITEMS {
        let captured = [item; WORDS];
        pool.submit(move || {
            black_box(captured);
            count();
        });
    }
    let taken = memory_of(process)? - before;
    Ok(Figures::from([("bytes_per_item".to_owned(), taken / ITEMS as f64)]))
}

fn memory_of(process: u32) -> anyhow::Result<f64> {
    Ok(procfs::memory(process)? as f64)
}
