//! Files that were dropped and could not be closed, and what comes after them.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use homing_cache::pages::{Backing, OpenError, PageCache};

use crate::disk::{ByHand, Disk};

const PAGE: usize = 4096;

/// Has writes fail for want of room, or succeed again.
fn fill(disk: &Disk, full: bool) {
    disk.is_full.store(full, SeqCst);
    disk.failing.writes.store(full.into(), SeqCst);
}

/// One of several ways to a disk.
struct Way {
    disk: Arc<Disk>,
    identity: Option<(u64, u64)>,
}

impl Backing for Way {
    fn size(&self) -> u64 {
        self.disk.size()
    }
    fn identity(&self) -> Option<(u64, u64)> {
        self.identity
    }
    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, data)
    }
    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.disk.write(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.disk.flush()
    }
}

/// A caller that opens a file again sees what was written to it before, and what that caller writes
/// stays.
#[test]
fn what_a_dropped_handle_could_not_write_never_goes_over_what_came_after_it() {
    for (first, second) in [(None, None), (Some((1, 2)), Some((1, 2))), (Some((1, 2)), None)] {
        let cache = PageCache::builder(4 << 20).build().unwrap();
        let group = cache.group("tenant").build();
        let disk = Disk::new(64 * PAGE);
        let open =
            |identity| cache.open(Arc::new(Way { disk: Arc::clone(&disk), identity }), &group);
        let file = open(first).unwrap();
        file.write(0, b"old").unwrap();
        fill(&disk, true);
        drop(file);
        fill(&disk, false);
        let file = open(second).unwrap();
        let mut seen = [0; 3];
        file.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"old");
        file.write(0, b"new").unwrap();
        file.flush_all().unwrap();
        drop(file);
        drop((cache, group));
        assert_eq!(&disk.durable()[..3], b"new");
    }
}

#[test]
fn a_file_is_not_opened_before_what_was_written_to_it_is_written_or_given_up() {
    let cache = PageCache::builder(4 << 20).build().unwrap();
    let (group, other) = (cache.group("tenant").build(), cache.group("other").build());
    let disk = Disk::new(64 * PAGE);
    let file = cache.open(disk.clone(), &group).unwrap();
    file.write(0, b"old").unwrap();
    fill(&disk, true);
    drop(file);
    // Whichever group it is opened for.
    for group in [&group, &other] {
        let refused = cache.open(disk.clone(), group).unwrap_err();
        let OpenError::Unwritten(error) = &refused else { panic!("{refused}") };
        assert!(
            error.to_string().contains("space") && refused.to_string().contains("abandon_dropped"),
            "{refused}"
        );
    }
    let another = cache.open(Disk::new(PAGE), &group).unwrap();
    assert_eq!((cache.abandon_dropped(&other), cache.abandon_dropped(&group)), (0, 1));
    assert_eq!((cache.abandon_dropped(&group), group.dirty()), (0, 0));
    cache.open(disk.clone(), &other).unwrap();
    another.close().unwrap();
    cache.remove_group(&group).unwrap();
}

/// A disk that keeps nothing, and answers writes with the result of this.
struct Answers<W>(W);

impl<W: Fn() -> io::Result<()> + Send + Sync> Backing for Answers<W> {
    fn size(&self) -> u64 {
        64 * PAGE as u64
    }
    fn read(&self, _: u64, data: &mut [u8]) -> io::Result<()> {
        data.fill(0);
        Ok(())
    }
    fn write(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        (self.0)()
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Other files of its size are opened, whatever becomes of it.
#[test]
fn a_file_that_cannot_be_closed_is_told_from_others() {
    for panics in [false, true] {
        let cache = PageCache::builder(4 << 20).build().unwrap();
        let group = cache.group("tenant").build();
        let now_panics = Arc::new(AtomicBool::new(false));
        let panic = Arc::clone(&now_panics);
        let broken = Arc::new(Answers(move || {
            assert!(!panic.load(SeqCst), "on purpose, as it writes");
            Err(io::ErrorKind::StorageFull.into())
        }));
        let file = cache.open(broken.clone(), &group).unwrap();
        file.write(0, b"old").unwrap();
        drop(file);
        now_panics.store(panics, SeqCst);
        cache.open(Disk::new(64 * PAGE), &group).unwrap().close().unwrap();
        let refused = cache.open(broken.clone(), &group).unwrap_err();
        assert!(matches!(refused, OpenError::Unwritten(_)), "{refused}");
        assert_eq!(cache.abandon_dropped(&group), 1);
        cache.open(broken, &group).unwrap();
    }
}

#[test]
fn abandoning_loses_what_was_not_written_and_nothing_else() {
    let cache = PageCache::builder(4 << 20).build().unwrap();
    let group = cache.group("tenant").build();
    let disk = Disk::new(64 * PAGE);
    let file = cache.open(disk.clone(), &group).unwrap();
    file.write(0, b"kept").unwrap();
    file.flush_all().unwrap();
    file.write(0, b"lost").unwrap();
    file.write(5 * PAGE as u64, b"lost").unwrap();
    file.abandon();
    assert_eq!((group.dirty(), group.usage()), (0, 0));
    assert_eq!(&disk.now()[..4], b"kept");
    assert_eq!(&disk.now()[5 * PAGE..][..4], &[0; 4]);
    cache.remove_group(&group).unwrap();
}

/// Sets the flag when it is dropped, whatever happens.
struct End(Arc<AtomicBool>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// The job of the group closes the file while it is being opened.
#[test]
fn one_at_a_time_closes_a_dropped_file() {
    let cache = PageCache::builder(4 << 20).build().unwrap();
    let group = cache.group("tenant").build();
    let (disk, busy) = (Disk::new(64 * PAGE), Disk::new(2048 * PAGE));
    let busy = cache.open(busy, &group).unwrap();
    thread::scope(|scope| {
        let end = End(Arc::default());
        let ends = Arc::clone(&end.0);
        // Lets epochs pass, so that closing is tried again and again.
        scope.spawn(move || {
            let mut page = 0;
            while !ends.load(SeqCst) {
                busy.write(page % 2048 * PAGE as u64, &[1; PAGE]).unwrap();
                page += 1;
            }
        });
        for round in 1..=100_u8 {
            let file = cache.open(disk.clone(), &group).unwrap();
            let mut seen = [0];
            file.read(0, &mut seen).unwrap();
            assert_eq!(seen, [round - 1]);
            file.write(0, &[round]).unwrap();
            fill(&disk, true);
            drop(file);
            fill(&disk, false);
            if round % 2 == 0 {
                thread::yield_now();
            }
        }
    });
    cache.open(disk.clone(), &group).unwrap().close().unwrap();
    assert_eq!(disk.durable()[0], 100);
}

/// Writes fail until a job's write has failed, which waits until it is told to go on. Then they
/// succeed.
#[derive(Default)]
struct Stuck {
    job: AtomicBool,
    at_it: AtomicBool,
    goes_on: Arc<AtomicBool>,
    heals: AtomicBool,
    /// The thread that has written.
    by: Mutex<Option<ThreadId>>,
}

impl Stuck {
    fn write(&self) -> io::Result<()> {
        if self.heals.load(SeqCst) {
            *self.by.lock().unwrap() = Some(thread::current().id());
            return Ok(());
        }
        if self.job.load(SeqCst) {
            self.at_it.store(true, SeqCst);
            while !self.goes_on.load(SeqCst) {
                thread::yield_now();
            }
            self.heals.store(true, SeqCst);
        }
        Err(io::ErrorKind::StorageFull.into())
    }
}

/// While a job is closing the file, the last handle waits for the job, and then tries once more.
#[test]
fn the_last_handle_tries_once_more_beside_a_job() {
    let jobs = ByHand::default();
    let cache = PageCache::builder(4 << 20).background(jobs.clone()).build().unwrap();
    let (disk, other) = (Arc::new(Stuck::default()), Disk::new(2048 * PAGE));
    let asked = Arc::clone(&disk);
    let group = cache.group("tenant").build();
    let file = cache.open(Arc::new(Answers(move || asked.write())), &group).unwrap();
    file.write(0, b"kept").unwrap();
    drop(file);
    // Lets epochs pass until closing is to be tried again.
    let busy = cache.open(other, &group).unwrap();
    (0..20_000).for_each(|page| busy.read(page % 256 * PAGE as u64, &mut [0; PAGE]).unwrap());
    busy.close().unwrap();
    disk.job.store(true, SeqCst);
    thread::scope(|scope| {
        let goes_on = End(Arc::clone(&disk.goes_on));
        scope.spawn(|| jobs.run());
        while !disk.at_it.load(SeqCst) {
            thread::yield_now();
        }
        let ends = scope.spawn(|| {
            drop(cache);
            thread::current().id()
        });
        (0..1_000).for_each(|_| thread::yield_now());
        assert!(!ends.is_finished(), "it waits for who is at it");
        drop(goes_on);
        let last = ends.join().unwrap();
        assert_eq!((*disk.by.lock().unwrap(), group.dirty()), (Some(last), 0));
    });
}
