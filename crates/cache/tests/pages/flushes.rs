//! Who hears what of a flush, and what it leaves.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use homing_cache::pages::FileError;

use crate::disk::Disk;
use crate::faults::{Answer, BadPages, Gate, open};

const PAGE: usize = 512;

#[test]
fn a_flush_fails_though_what_comes_after_can_be_written() {
    let disk = Disk::new(400 * PAGE);
    let (_cache, file, _) = open(Arc::new(BadPages(disk.clone(), |page| page == 3)));
    // Two runs.
    file.write(3 * PAGE as u64, &[7; PAGE]).unwrap();
    file.write(100 * PAGE as u64, &[7; PAGE]).unwrap();
    let error = file.flush_all().unwrap_err();
    assert!(matches!(error, FileError::Write { offset: 1536, .. }), "{error}");
    assert_eq!(disk.durable()[100 * PAGE], 7);
}

#[test]
fn a_page_that_could_be_written_after_all_ends_no_run() {
    let disk = Disk::new(400 * PAGE);
    let (cache, file, jobs) = open(disk.clone());
    cache.set_dirty(0, 100);
    disk.failing.writes.store(1, SeqCst);
    (0..2).for_each(|_| file.write(5 * PAGE as u64, &[7; PAGE]).unwrap());
    assert!(jobs.run() > 0);
    disk.failing.writes.store(0, SeqCst);
    file.flush_all().unwrap_err();
    file.flush_all().unwrap();
    disk.log.lock().unwrap().clear();
    (0..2).for_each(|_| file.write(0, &[8; 10 * PAGE]).unwrap());
    assert!(jobs.run() > 0);
    assert_eq!(*disk.log.lock().unwrap(), [(0, 10 * PAGE)]);
}

#[test]
fn all_who_wait_for_a_page_go_on_at_once() {
    let disk = Disk::new(10 * PAGE);
    let (gate, entries, answers) = Gate::new(&disk, false);
    let (_cache, file, _) = open(gate);
    file.write(0, &[1; PAGE]).unwrap();
    thread::scope(|scope| {
        let flush = || file.flush(0, 1);
        let first = scope.spawn(flush);
        entries.recv().unwrap();
        let others = [scope.spawn(flush), scope.spawn(flush), scope.spawn(flush)];
        // So that they wait.
        thread::sleep(Duration::from_millis(100));
        answers.send(Answer::Succeed).unwrap();
        for flushed in others.into_iter().chain([first]) {
            flushed.join().unwrap().unwrap();
        }
    });
}

/// Otherwise who discards might wait for ever for what is written back meanwhile.
#[test]
fn what_is_about_to_be_discarded_is_not_written_back_first() {
    let disk = Disk::new(10 * PAGE);
    let (gate, entries, answers) = Gate::new(&disk, false);
    let (_, file, _) = open(gate);
    file.write(0, &[1; PAGE]).unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| file.flush_all());
        assert_eq!(entries.recv().unwrap(), 0);
        file.write(2 * PAGE as u64, &[2; PAGE]).unwrap();
        let discards = scope.spawn(|| file.discard(0, 4 * PAGE as u64));
        thread::sleep(Duration::from_millis(100)); // by then it waits for the first page
        let second = scope.spawn(|| file.flush(2 * PAGE as u64, 1));
        let written = entries.recv_timeout(Duration::from_millis(100));
        (0..10).for_each(|_| answers.send(Answer::Succeed).unwrap());
        first.join().unwrap().unwrap();
        discards.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
        assert!(written.is_err(), "{written:?}");
    });
}
