//! How many files are synced side by side: what the disk rewards.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use homing_durable::{Durable, Failure, Kind, Strategy, System};
use homing_runtime::Runtime;

/// A disk for which each sync takes as long, however many there are; or, if it is `narrow`, longer
/// the more there are.
#[derive(Clone, Default)]
struct Disk(Arc<Inner>);

#[derive(Default)]
struct Inner {
    narrow: AtomicBool,
    running: AtomicUsize,
    most: AtomicUsize,
}

impl System for Disk {
    fn sync(&self, _: &File, _: Kind) -> Result<(), Failure> {
        let running = self.0.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.most.fetch_max(running, Ordering::Relaxed);
        let waste = if self.0.narrow.load(Ordering::Relaxed) { running * running / 64 } else { 0 };
        thread::sleep(Duration::from_micros(10_000 + 200 * waste as u64));
        self.0.running.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
    fn sync_filesystem(&self, _: &File) -> Result<(), Failure> {
        unreachable!("commits are forbidden")
    }
    fn check(&self, _: &File) -> Result<(), Failure> {
        Ok(())
    }
    fn flush_device(&self, _: &File) -> Result<(), Failure> {
        Ok(())
    }
}

impl Disk {
    /// The most syncs that ran at a time since this was asked last.
    fn most(&self) -> usize {
        self.0.most.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn more_are_synced_side_by_side_while_the_disk_rewards_it() {
    let (runtime, disk) = (Runtime::new().unwrap(), Disk::default());
    let durable = Durable::with_system(&runtime, disk.clone()).unwrap();
    durable.set_strategy(Strategy::Files);
    let files: Vec<_> = (0..900).map(|_| tempfile::tempfile().unwrap()).collect();
    let bulk = || {
        assert!(durable.fsync_many(&files).wait().iter().all(Result::is_ok));
        disk.most()
    };
    let until = |is_it: &dyn Fn(usize) -> bool| {
        let began = Instant::now();
        // Several bulks in a row: a trial is no decision.
        let mut in_a_row = 0;
        while in_a_row < 4 {
            let most = bulk();
            in_a_row = if is_it(most) { in_a_row + 1 } else { 0 };
            let limit = Duration::from_secs(180);
            assert!(began.elapsed() < limit, "{most} at a time, after {limit:?}");
        }
    };
    until(&|most| most > 200);
    disk.0.narrow.store(true, Ordering::Relaxed);
    until(&|most| most <= 64);
    disk.0.narrow.store(false, Ordering::Relaxed);
    until(&|most| most > 200);
    // What is set is in force, whatever has been measured.
    durable.set_depth(8);
    assert!(bulk() <= 8);
    durable.set_depth(None);
    assert!(bulk() > 200, "what was measured is still known");
}

#[test]
fn callers_with_a_file_each_are_many_enough_to_find_out() {
    let (runtime, disk) = (Runtime::new().unwrap(), Disk::default());
    let durable = Durable::with_system(&runtime, disk.clone()).unwrap();
    durable.set_strategy(Strategy::Files);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..150 {
            scope.spawn(|| {
                let file = tempfile::tempfile().unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    durable.fsync(&file).wait().unwrap();
                }
            });
        }
        let began = Instant::now();
        while disk.most() < 140 && began.elapsed() < Duration::from_secs(180) {
            thread::sleep(Duration::from_millis(50));
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(began.elapsed() < Duration::from_secs(180), "64 at a time to the end");
    });
}
