//! What fails, who hears of it, and what goes on meanwhile.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use homing_cache::pages::{Backing, CachedFile, FileError, PageCache};

use crate::disk::{ByHand, Disk, Shaky, smallest};

const PAGE: usize = 512;

pub(crate) fn open(backing: Arc<dyn Backing>) -> (PageCache, CachedFile, ByHand) {
    let jobs = ByHand::default();
    let (cache, _) =
        smallest(|bytes| PageCache::builder(bytes).page_size(PAGE).background(jobs.clone()));
    let group = cache.group("all").build();
    let file = cache.open(backing, &group).unwrap();
    (cache, file, jobs)
}

#[test]
fn a_failed_write_back_reaches_the_next_flush_once() {
    let disk = Disk::new(200 * PAGE);
    let (cache, file, jobs) = open(disk.clone());
    cache.set_dirty(0, 100);
    file.write(0, &[1; 10 * PAGE]).unwrap();
    file.write(0, &[2; 10 * PAGE]).unwrap();
    disk.failing.writes.store(1, SeqCst);
    assert!(jobs.run() > 0);
    let stats = cache.stats().total;
    assert!(stats.write_back_errors > 0 && stats.dirty == stats.usage, "{stats:?}");
    disk.failing.writes.store(0, SeqCst);
    let mut data = [0; 10 * PAGE];
    file.read(0, &mut data).unwrap();
    assert!(data == [2; 10 * PAGE], "what cannot be written is still there");
    // A flush returns the error once, even one of another range that could write all.
    let error = file.flush(100 * PAGE as u64, 1).unwrap_err();
    assert!(matches!(error, FileError::Write { .. }), "{error}");
    file.flush_all().unwrap();
    assert!(disk.durable()[..10 * PAGE] == [2; 10 * PAGE]);
}

#[test]
fn a_flush_that_fails_says_what_did() {
    let disk = Disk::new(200 * PAGE);
    let (cache, file, _) = open(disk.clone());
    file.write(PAGE as u64, &[1; PAGE]).unwrap();
    disk.failing.writes.store(1, SeqCst);
    let error = file.flush_all().unwrap_err();
    assert!(error.to_string().starts_with("writing 512 bytes at 512 failed: "), "{error}");
    assert_eq!(cache.stats().total.dirty, PAGE as u64);
    disk.failing.writes.store(0, SeqCst);
    disk.failing.flushes.store(1, SeqCst);
    assert!(matches!(file.flush_all(), Err(FileError::Flush(_))));
    let error = file.close().unwrap_err();
    disk.failing.flushes.store(0, SeqCst);
    error.file.close().unwrap();
    assert_eq!(disk.durable()[PAGE], 1);
}

#[test]
fn a_read_that_fails_leaves_nothing() {
    let disk = Disk::new(200 * PAGE);
    disk.fill(|_| 3);
    let (cache, file, _) = open(disk.clone());
    disk.failing.reads.store(1, SeqCst);
    let error = file.read(10, &mut [0; 3 * PAGE]).unwrap_err();
    assert!(matches!(error, FileError::Read { offset: 0, length: 2048, .. }), "{error}");
    let FileError::Read { source, .. } = &error else { unreachable!() };
    let (kind, text) = (source.kind(), error.to_string());
    let error = std::io::Error::from(error);
    assert_eq!((error.kind(), error.to_string()), (kind, text), "as those who use files know it");
    assert!(file.write(10, &[1; 10]).is_err(), "a part of a page that cannot be read");
    assert_eq!((cache.stats().used, cache.stats().total.usage), (0, 0));
    disk.failing.reads.store(0, SeqCst);
    let mut data = [0; 3 * PAGE];
    file.read(10, &mut data).unwrap();
    assert!(data == [3; 3 * PAGE]);
}

#[test]
fn with_all_frames_dirty_and_nothing_written_nobody_waits_for_ever() {
    let disk = Disk::new(400 * PAGE);
    disk.fill(|_| 3);
    let (cache, file, jobs) = open(disk.clone());
    cache.set_dirty(100, 100);
    disk.failing.writes.store(1, SeqCst);
    let frames = cache.stats().frames;
    let mut accepted = 0;
    for page in 0..400 {
        accepted += usize::from(file.write(page * PAGE as u64, &[9; PAGE]).is_ok());
    }
    assert_eq!(accepted, frames, "what goes past the cache fails");
    // Pages that are not dirty are read past the cache.
    let mut byte = [0];
    file.read(399 * PAGE as u64, &mut byte).unwrap();
    jobs.run();
    disk.failing.writes.store(0, SeqCst);
    file.flush_all().unwrap_err();
    file.flush_all().unwrap();
    assert!(disk.durable()[..frames * PAGE].iter().all(|&byte| byte == 9));
    file.write(399 * PAGE as u64, &[8; PAGE]).unwrap();
    file.flush_all().unwrap();
    assert_eq!(disk.durable()[399 * PAGE], 8);
}

/// A disk that stops in reads or writes until it is told how they end.
pub(crate) struct Gate {
    disk: Arc<Disk>,
    reads: bool,
    entered: Mutex<Sender<u64>>,
    leave: Mutex<Receiver<Answer>>,
}

pub(crate) enum Answer {
    Succeed,
    Fail,
    Panic,
}

impl Gate {
    pub(crate) fn new(disk: &Arc<Disk>, reads: bool) -> (Arc<Self>, Receiver<u64>, Sender<Answer>) {
        let ((entered, entries), (answers, leave)) = (channel(), channel());
        let (entered, leave) = (Mutex::new(entered), Mutex::new(leave));
        (Arc::new(Self { disk: disk.clone(), reads, entered, leave }), entries, answers)
    }

    fn pass(&self, offset: u64) -> io::Result<()> {
        self.entered.lock().unwrap().send(offset).unwrap();
        let answer = self.leave.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match answer.unwrap() {
            Answer::Succeed => Ok(()),
            Answer::Fail => Err(io::Error::from_raw_os_error(5)),
            Answer::Panic => panic!("a backing that panics"),
        }
    }
}

impl Backing for Gate {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if self.reads {
            self.pass(offset)?;
        }
        self.disk.read(offset, data)
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if !self.reads {
            self.pass(offset)?;
        }
        self.disk.write(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.disk.flush()
    }
}

#[test]
fn many_who_want_a_page_read_it_once() {
    for answer in [Answer::Succeed, Answer::Fail, Answer::Panic] {
        let disk = Disk::new(10 * PAGE);
        disk.fill(|_| 3);
        let (gate, entries, answers) = Gate::new(&disk, true);
        let (cache, file, _) = open(gate);
        thread::scope(|scope| {
            let read = || file.read(0, &mut [0; 10]).is_ok();
            let first = scope.spawn(read);
            entries.recv().unwrap();
            let others = [scope.spawn(read), scope.spawn(read)];
            let succeeds = matches!(answer, Answer::Succeed);
            answers.send(answer).unwrap();
            let first = first.join();
            if !succeeds {
                assert!(!first.unwrap_or(false));
                // One of the threads that waited tries it itself.
                entries.recv().unwrap();
                answers.send(Answer::Succeed).unwrap();
            }
            for other in others {
                assert!(other.join().unwrap());
            }
        });
        assert!(entries.try_recv().is_err(), "the page was read again");
        assert_eq!(cache.stats().used, 1);
    }
}

#[test]
fn a_page_that_is_being_written_is_read_written_and_kept() {
    for answer in [Answer::Succeed, Answer::Fail, Answer::Panic] {
        let disk = Disk::new(400 * PAGE);
        let (gate, entries, answers) = Gate::new(&disk, false);
        let (cache, file, _) = open(gate);
        file.write(0, &[1; PAGE]).unwrap();
        thread::scope(|scope| {
            let first = scope.spawn(|| file.flush_all());
            assert_eq!(entries.recv().unwrap(), 0);
            let mut data = [0; PAGE];
            file.read(0, &mut data).unwrap();
            assert_eq!(data, [1; PAGE]);
            // Asks for more than all other frames.
            file.read(PAGE as u64, &mut vec![0; 300 * PAGE]).unwrap();
            assert_eq!(cache.stats().total.dirty, PAGE as u64);
            file.write(0, &[2; PAGE]).unwrap();
            // Waits for the write that is on its way, and writes again.
            let second = scope.spawn(|| file.flush_all());
            let succeeds = matches!(answer, Answer::Succeed);
            answers.send(answer).unwrap();
            assert_eq!(entries.recv().unwrap(), 0);
            answers.send(Answer::Succeed).unwrap();
            assert_eq!(first.join().is_ok_and(|flushed| flushed.is_ok()), succeeds);
            second.join().unwrap().unwrap();
        });
        assert!(disk.durable()[..PAGE] == [2; PAGE]);
        assert!(entries.try_recv().is_err());
    }
}

/// Otherwise it would say that all is durable before the backing has got it.
#[test]
fn a_flush_waits_for_what_another_one_is_writing() {
    let disk = Disk::new(10 * PAGE);
    let (gate, entries, answers) = Gate::new(&disk, false);
    let (_, file, _) = open(gate);
    file.write(0, &[1; PAGE]).unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| file.flush_all());
        entries.recv().unwrap();
        let second = scope.spawn(|| file.flush(0, 1));
        thread::sleep(Duration::from_millis(100));
        let is_over = second.is_finished();
        answers.send(Answer::Succeed).unwrap();
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
        assert!(!is_over);
    });
}

#[test]
fn a_durable_write_waits_also_for_those_of_its_pages_that_are_being_written() {
    let disk = Disk::new(10 * PAGE);
    let (gate, entries, answers) = Gate::new(&disk, false);
    let (_, file, _) = open(gate);
    file.write(2 * PAGE as u64, &[1; PAGE]).unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| file.flush_all());
        assert_eq!(entries.recv().unwrap(), 2 * PAGE as u64);
        let through = scope.spawn(|| file.write_through(0, &[7; 4 * PAGE]));
        // The two pages before that one.
        assert_eq!(entries.recv().unwrap(), 0);
        (0..10).for_each(|_| answers.send(Answer::Succeed).unwrap());
        through.join().unwrap().unwrap();
        assert!(disk.durable()[..4 * PAGE] == [7; 4 * PAGE]);
        first.join().unwrap().unwrap();
    });
}

#[test]
fn what_is_written_to_a_page_that_is_being_read_stays() {
    let disk = Disk::new(10 * PAGE);
    disk.fill(|_| 3);
    let (gate, entries, answers) = Gate::new(&disk, true);
    let (_, file, _) = open(gate);
    thread::scope(|scope| {
        let read = scope.spawn(|| file.read(10, &mut [0; 10]).unwrap());
        entries.recv().unwrap();
        let write = scope.spawn(|| file.write(0, &[7; PAGE]).unwrap());
        thread::sleep(Duration::from_millis(100));
        answers.send(Answer::Succeed).unwrap();
        read.join().unwrap();
        write.join().unwrap();
    });
    let mut data = [0; PAGE];
    file.read(0, &mut data).unwrap();
    assert_eq!(data, [7; PAGE]);
    file.flush_all().unwrap();
    assert_eq!(disk.durable()[..PAGE], [7; PAGE]);
}

#[test]
fn a_flush_that_is_begun_has_a_short_last_page_too() {
    const SIZE: usize = 9 * PAGE + 100;
    let disk = Disk::new(SIZE);
    let (_, file, _) = open(disk.clone());
    file.write(0, &[7; SIZE]).unwrap();
    file.begin_flush().unwrap();
    assert!(disk.now() == [7; SIZE]);
}

/// The lack of room may be forgotten; the error may not.
#[test]
fn an_error_is_told_though_there_was_no_room_after_it() {
    let disk = Disk::new(200 * PAGE);
    let (cache, file, jobs) = open(disk.clone());
    cache.set_dirty(0, 100);
    (0..2).for_each(|_| file.write(0, &[1; 10 * PAGE]).unwrap());
    disk.failing.writes.store(1, SeqCst);
    assert!(jobs.run() > 0);
    disk.is_full.store(true, SeqCst);
    // Not at once, because the first page is left alone for a while.
    let tries = (0..1000).any(|round| {
        file.write((100 + round % 20) * PAGE as u64, &[1; PAGE]).unwrap();
        jobs.run() > 0
    });
    assert!(tries);
    disk.failing.writes.store(0, SeqCst);
    let error = file.flush_all().unwrap_err();
    assert!(matches!(&error, FileError::Write { source, .. } if source.raw_os_error() == Some(5)));
    file.flush_all().unwrap();
}

/// Lets other threads run as far as they can. Tests then check that something has not happened,
/// however far these got.
fn let_others_run() {
    (0..10_000).for_each(|_| thread::yield_now());
}

#[test]
fn what_is_being_zeroed_is_neither_loaded_nor_written_meanwhile() {
    let disk = Disk::new(10 * PAGE);
    disk.fill(|_| 3);
    let (gate, entries, answers) = Gate::new(&disk, false);
    let (_, file, _) = open(gate);
    // One page is in the cache, and dirty; the others are not in the cache.
    file.write(0, &[9; PAGE]).unwrap();
    thread::scope(|scope| {
        let zeroes = scope.spawn(|| file.write_zeroes(0, 4 * PAGE as u64));
        assert_eq!(entries.recv().unwrap(), 0);
        let flush = scope.spawn(|| file.flush(0, PAGE as u64));
        let read = scope.spawn(|| file.read(PAGE as u64, &mut [0; PAGE]));
        let write = scope.spawn(|| file.write_through(2 * PAGE as u64, &[7; PAGE]));
        let_others_run();
        assert!(entries.try_recv().is_err(), "two writes of a page at a time");
        // Now the other threads go on: the write after the zeroes, and perhaps that of the flush.
        (0..10).for_each(|_| answers.send(Answer::Succeed).unwrap());
        zeroes.join().unwrap().unwrap();
        flush.join().unwrap().unwrap();
        read.join().unwrap().unwrap();
        write.join().unwrap().unwrap();
    });
    let mut data = [1; 4 * PAGE];
    file.read(0, &mut data).unwrap();
    let expected: Vec<_> = (0..4 * PAGE).map(|at| if at / PAGE == 2 { 7 } else { 0 }).collect();
    assert!(data == expected[..]);
    assert!(disk.durable()[..4 * PAGE] == expected);
}

/// A disk that knows whether a page was read while it was written.
#[derive(Default)]
struct OneAtATime {
    writers: AtomicUsize,
    met: AtomicBool,
}

impl OneAtATime {
    fn look(&self) {
        if self.writers.load(SeqCst) > 0 {
            self.met.store(true, SeqCst);
        }
    }
}

impl Backing for OneAtATime {
    fn size(&self) -> u64 {
        4096
    }

    fn read(&self, _: u64, data: &mut [u8]) -> io::Result<()> {
        self.look();
        thread::yield_now();
        data.fill(0);
        self.look();
        Ok(())
    }

    fn write(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        self.writers.fetch_add(1, SeqCst);
        thread::yield_now();
        self.writers.fetch_sub(1, SeqCst);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn past_the_cache_no_page_is_read_while_it_is_written() {
    let backing = Arc::new(OneAtATime::default());
    let cache = PageCache::builder(4 << 20).build().unwrap();
    let nothing = cache.group("nothing").max(0).build();
    let file = cache.open(backing.clone(), &nothing).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| (0..5000).for_each(|_| file.write(0, &[1; 4096]).unwrap()));
        scope.spawn(|| (0..5000).for_each(|_| file.read(0, &mut [1; 4096]).unwrap()));
    });
    assert!(!backing.met.load(SeqCst));
}

/// A disk on which a write that includes such a page fails as a whole.
pub(crate) struct BadPages(pub(crate) Arc<Disk>, pub(crate) fn(u64) -> bool);

impl Backing for BadPages {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, data)
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let mut pages = offset / PAGE as u64..(offset + data.len() as u64).div_ceil(PAGE as u64);
        if pages.any(self.1) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.0.write(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn a_page_that_cannot_be_written_keeps_no_other_from_the_disk() {
    let flush = |file: &CachedFile, _: &ByHand| drop(file.flush_all().unwrap_err());
    let in_background = |file: &CachedFile, jobs: &ByHand| {
        file.write(0, &[7; PAGE]).unwrap();
        jobs.run();
    };
    for write in [&flush as &dyn Fn(&CachedFile, &ByHand), &in_background] {
        let disk = Disk::new(64 * PAGE);
        // The first page of a run is bad, and one within.
        let is_bad = |page| page == 40 || page == 44;
        let (cache, file, jobs) = open(Arc::new(BadPages(disk.clone(), is_bad)));
        cache.set_dirty(0, 100);
        file.write(0, &vec![7; 50 * PAGE]).unwrap();
        (0..3).for_each(|_| write(&file, &jobs));
        let now = disk.now();
        let lost: Vec<_> = (0..50).filter(|page| now[page * PAGE] != 7).collect();
        assert_eq!((lost, cache.stats().total.dirty), (vec![40, 44], 2 * PAGE as u64));
    }
}

/// A disk may take long to refuse each of them.
#[test]
fn bad_pages_are_not_tried_whenever_somebody_wants_a_frame() {
    const PAGES: u64 = 8192;
    let disk = Disk::new(PAGES as usize * PAGE);
    let jobs = ByHand::default();
    let builder = PageCache::builder(4 << 20).page_size(PAGE).background(jobs.clone());
    let cache = builder.build().unwrap();
    let group = cache.group("all").build();
    let file = cache.open(Arc::new(BadPages(disk.clone(), |page| page % 82 == 0)), &group).unwrap();
    let write = |page: u64| {
        file.write(page * PAGE as u64, &[7; PAGE]).unwrap();
        jobs.run();
    };
    (0..PAGES).step_by(82).for_each(write);
    // Then the others are written, four times each. The cache has room for a part of them.
    (0..4 * PAGES).map(|page| page % PAGES).filter(|page| page % 82 > 0).for_each(write);
    let total = cache.stats().total;
    let (good, vain) = (total.write_backs, total.write_back_errors);
    assert!(good > 3 * PAGES && vain < good / 4, "{good} were written, {vain} tries in vain");
    drop(file.flush_all().unwrap_err());
    let now = disk.now();
    let lost = (0..PAGES).filter(|page| now[*page as usize * PAGE] != 7);
    assert!(lost.eq((0..PAGES).step_by(82)), "none but these");
}

#[test]
fn a_file_dropped_while_its_disk_was_full_is_written_when_there_is_room() {
    let disk = Disk::new(64 * PAGE);
    let jobs = ByHand::default();
    let builder = PageCache::builder(4 << 20).page_size(PAGE).background(jobs.clone());
    let cache = builder.build().unwrap();
    let group = cache.group("all").build();
    let file = cache.open(disk.clone(), &group).unwrap();
    file.write(0, &[7; 10 * PAGE]).unwrap();
    disk.failing.writes.store(1, SeqCst);
    drop(file);
    let other = cache.open(Disk::new(2000 * PAGE), &group).unwrap();
    let read = || {
        for page in 0..2000 {
            other.read(page * PAGE as u64, &mut [0; 8]).unwrap();
            jobs.run();
        }
    };
    let flushes = || disk.counts.flushes.load(SeqCst);
    let before = flushes();
    (0..5).for_each(|_| read());
    let tried = flushes() - before;
    assert!((2..100).contains(&tried), "tried {tried} times");
    assert_eq!(group.dirty(), 10 * PAGE as u64);
    disk.failing.writes.store(0, SeqCst);
    (0..5).for_each(|_| read());
    assert_eq!((group.dirty(), &disk.durable()[..10 * PAGE]), (0, &[7; 10 * PAGE][..]));
    other.close().unwrap();
    cache.remove_group(&group).expect("no file of it is open");
}

#[test]
fn a_file_whose_backing_panics_as_it_is_closed_is_written_later() {
    for drops in [true, false] {
        let shaky = Shaky::new(Disk::new(64 * PAGE), usize::MAX);
        let jobs = ByHand::default();
        let builder = PageCache::builder(4 << 20).page_size(PAGE).background(jobs.clone());
        let cache = builder.build().unwrap();
        let group = cache.group("all").build();
        let file = cache.open(shaky.clone(), &group).unwrap();
        file.write(0, &[7; 10 * PAGE]).unwrap();
        let closed =
            catch_unwind(AssertUnwindSafe(
                || {
                    if drops { drop(file) } else { file.close().unwrap() }
                },
            ));
        assert_eq!((closed.is_ok(), group.dirty()), (drops, 10 * PAGE as u64));
        shaky.panics.store(0, SeqCst);
        let other = cache.open(Disk::new(2000 * PAGE), &group).unwrap();
        for page in 0..10_000 {
            other.read(page % 2000 * PAGE as u64, &mut [0; 8]).unwrap();
            jobs.run();
        }
        assert_eq!((group.dirty(), &shaky.disk.durable()[..10 * PAGE]), (0, &[7; 10 * PAGE][..]));
        other.close().unwrap();
        cache.remove_group(&group).expect("no file of it is open");
    }
}

/// Nobody would write it later, even if the disk has room by then.
#[test]
fn a_file_dropped_while_its_disk_was_full_is_written_when_the_cache_goes() {
    let (disk, jobs) = (Disk::new(64 * PAGE), ByHand::default());
    let builder = PageCache::builder(4 << 20).page_size(PAGE).background(jobs.clone());
    let cache = builder.build().unwrap();
    let group = cache.group("all").build();
    let file = cache.open(disk.clone(), &group).unwrap();
    file.write(0, &[7; 10 * PAGE]).unwrap();
    disk.failing.writes.store(1, SeqCst);
    drop(file);
    disk.failing.writes.store(0, SeqCst);
    assert_eq!(group.dirty(), 10 * PAGE as u64);
    drop((cache, group, jobs));
    assert_eq!(disk.durable()[..10 * PAGE], [7; 10 * PAGE]);
}

/// Nothing was lost.
#[test]
fn that_there_was_no_room_is_forgotten_once_there_is() {
    let part = |file: &CachedFile| file.flush(100 * PAGE as u64, 1);
    for flush in [CachedFile::flush_all, CachedFile::begin_flush, part] {
        for is_full in [true, false] {
            let disk = Disk::new(200 * PAGE);
            let (cache, file, jobs) = open(disk.clone());
            cache.set_dirty(0, 100);
            disk.is_full.store(is_full, SeqCst);
            disk.failing.writes.store(1, SeqCst);
            (0..2).for_each(|_| file.write(0, &[7; 10 * PAGE]).unwrap());
            assert!(jobs.run() > 0 && file.flush(0, PAGE as u64).is_err());
            (0..2).for_each(|_| file.write(0, &[7; 10 * PAGE]).unwrap());
            jobs.run();
            let kept = cache.stats().total.write_back_errors;
            disk.failing.writes.store(0, SeqCst);
            assert!(kept > 0 && (flush(&file).is_ok() || !is_full));
            flush(&file).unwrap();
            file.close().unwrap();
        }
    }
}
