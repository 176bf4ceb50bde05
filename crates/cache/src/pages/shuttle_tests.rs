//! Fills, evictions, write-backs, zeroes and resizing of few pages by a few threads, under a
//! randomized scheduler: `cargo xtask shuttle`. A thread that waits forever is a deadlock, which is
//! reported.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use shuttle::thread;

use super::frame::{Flags, Key};
use super::{Background, Backing, BuildError, CachedFile, Job, PageCache};

const PAGE: usize = 512;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let given = std::env::var("HOMING_SHUTTLE_ITERATIONS").ok();
    let iterations = given.and_then(|text| text.parse().ok()).unwrap_or(3000);
    shuttle::check_pct(model, iterations, 4);
}

/// A disk in memory. It lets other threads run while it is used, and panics if a page is written by
/// two at a time, or read while it is written, unless that is allowed.
struct Disk {
    state: Mutex<State>,
    /// Whether a page may be read while it is written.
    meets: bool,
    /// One in this many writes fails; none if 0.
    failing: usize,
    /// Whether it lets other threads run.
    pauses: bool,
}

struct State {
    now: Vec<u8>,
    durable: Vec<u8>,
    writing: Vec<bool>,
    writes: usize,
}

impl Disk {
    fn new(pages: usize, failing: usize) -> Arc<Self> {
        let (now, durable) = (vec![0; pages * PAGE], vec![0; pages * PAGE]);
        let state = State { now, durable, writing: vec![false; pages], writes: 0 };
        // So both ways are modelled.
        Arc::new(Self { state: Mutex::new(state), meets: failing == 0, failing, pauses: true })
    }

    /// As fast as memory: a thread that uses it runs on until the scheduler stops it.
    fn fast(pages: usize, failing: usize) -> Arc<Self> {
        let mut disk = Self::new(pages, failing);
        Arc::get_mut(&mut disk).unwrap().pauses = false;
        disk
    }

    fn pause(&self) {
        if self.pauses {
            thread::yield_now();
        }
    }

    fn durable(&self, page: usize) -> u8 {
        self.state.lock().unwrap().durable[page * PAGE]
    }
}

impl Backing for Disk {
    fn size(&self) -> u64 {
        self.state.lock().unwrap().now.len() as u64
    }

    fn reads_may_meet_writes(&self) -> bool {
        self.meets
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.pause();
        let pages = offset as usize / PAGE..(offset as usize + data.len()) / PAGE;
        let state = self.state.lock().unwrap();
        assert!(self.meets || !state.writing[pages].contains(&true), "read while it is written");
        data.copy_from_slice(&state.now[offset as usize..][..data.len()]);
        drop(state);
        self.pause();
        Ok(())
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let pages = offset as usize / PAGE..(offset as usize + data.len()) / PAGE;
        for page in pages.clone() {
            let was = std::mem::replace(&mut self.state.lock().unwrap().writing[page], true);
            assert!(!was, "page {page} is written by two at a time");
        }
        self.pause();
        let mut state = self.state.lock().unwrap();
        state.writes += 1;
        let failed = self.failing > 0 && state.writes.is_multiple_of(self.failing);
        if !failed {
            state.now[offset as usize..][..data.len()].copy_from_slice(data);
        }
        state.writing[pages].fill(false);
        drop(state);
        self.pause();
        if failed { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }

    fn flush(&self) -> io::Result<()> {
        self.pause();
        let State { now, durable, .. } = &mut *self.state.lock().unwrap();
        durable.copy_from_slice(now);
        Ok(())
    }
}

struct Threads;

impl Background for Threads {
    fn spawn(&self, job: Job) {
        thread::spawn(job);
    }
}

fn build(more: usize) -> PageCache {
    let builder = |bytes| {
        PageCache::builder(bytes).page_size(PAGE).shards(1).background(Threads).dirty(0, 100)
    };
    let Err(BuildError::TooSmall { least, .. }) = builder(0).build() else { panic!() };
    builder(least + more * PAGE).build().unwrap()
}

/// A file of a group that may have this many pages.
fn open(cache: &PageCache, disk: &Arc<Disk>, frames: usize) -> Arc<CachedFile> {
    let group = cache.group("all").max((frames * PAGE) as u64).build();
    Arc::new(cache.open(disk.clone(), &group).unwrap())
}

fn first(file: &CachedFile, page: usize) -> u8 {
    let mut data = [0; PAGE];
    file.read((page * PAGE) as u64, &mut data).unwrap();
    assert!(data.iter().all(|&byte| byte == data[0]), "a torn page");
    data[0]
}

/// Writes a page until it is accepted: a write past the cache may fail.
fn put(file: &CachedFile, page: usize, byte: u8) {
    while file.write((page * PAGE) as u64, &[byte; PAGE]).is_err() {}
}

fn writers_and_readers(frames: usize, failing: usize) {
    check(move || {
        let cache = build(0);
        let disk = Disk::new(4, failing);
        let file = open(&cache, &disk, frames);
        let threads: Vec<_> = (0..2)
            .map(|me: usize| {
                let (file, disk) = (Arc::clone(&file), Arc::clone(&disk));
                thread::spawn(move || {
                    // Each thread has its own pages, among the other's.
                    let mut seen = 0;
                    for round in 1..=2 {
                        put(&file, me, round);
                        assert_eq!(first(&file, me), round);
                        let other = first(&file, 1 - me);
                        assert!(other >= seen, "what was read became older");
                        seen = other;
                        put(&file, me + 2, round);
                        if file.flush((me * PAGE) as u64, PAGE as u64).is_ok() {
                            assert_eq!(disk.durable(me), round);
                        }
                        assert_eq!(first(&file, me + 2), round);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(file.group().usage() <= (frames * PAGE) as u64);
        while file.flush_all().is_err() {}
        assert_eq!([0, 1, 2, 3].map(|page| disk.durable(page)), [2; 4]);
    });
}

#[test]
fn pages_are_filled_evicted_and_written() {
    writers_and_readers(2, 0);
}

#[test]
fn pages_are_kept_where_writing_fails() {
    writers_and_readers(3, 3);
}

#[test]
fn pages_go_past_a_cache_without_room() {
    writers_and_readers(0, 0);
}

#[test]
fn zeroes_come_before_or_after_a_write() {
    check(|| {
        let cache = build(0);
        let disk = Disk::new(2, 0);
        let file = open(&cache, &disk, 1);
        put(&file, 0, 1);
        let other = |run: fn(&CachedFile)| {
            let file = Arc::clone(&file);
            thread::spawn(move || run(&file))
        };
        let threads = [
            other(|file| file.write_zeroes(0, 2 * PAGE as u64).unwrap()),
            other(|file| put(file, 0, 2)),
            other(|file| assert!(first(file, 0) <= 2 && first(file, 1) == 0)),
        ];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let found = first(&file, 0);
        assert!(found == 0 || found == 2, "neither before nor after: {found}");
        file.flush_all().unwrap();
        assert_eq!(disk.durable(0), found);
    });
}

#[test]
fn zeroes_are_not_seen_before_what_was_written_before_them() {
    check(|| {
        let cache = build(0);
        let disk = Disk::new(2, 0);
        disk.state.lock().unwrap().now.fill(7);
        // Another page has the only frame, so page 1 is read past the cache.
        let file = open(&cache, &disk, 1);
        assert_eq!(first(&file, 0), 7);
        let writer = {
            let file = Arc::clone(&file);
            thread::spawn(move || {
                put(&file, 1, 1);
                file.write_zeroes(PAGE as u64, PAGE as u64).unwrap();
                assert_eq!(first(&file, 1), 0);
            })
        };
        let seen = [(); 3].map(|()| {
            let byte = first(&file, 1);
            [7, 1, 0].iter().position(|&it| it == byte).expect("one of what was there")
        });
        assert!(seen.is_sorted(), "what was read became older: {seen:?}");
        writer.join().unwrap();
    });
}

#[test]
fn sizes_change_while_pages_are_used() {
    check(|| {
        let cache = build(20);
        let disk = Disk::new(80, 0);
        let file = open(&cache, &disk, 1000);
        file.write(0, &[1; 80 * PAGE]).unwrap();
        let smaller = cache.stats().size - 20 * PAGE;
        let resizer = thread::spawn(move || {
            // It fails if it meets only pages in use.
            let _ = cache.set_size(smaller);
            assert!(cache.stats().memory <= cache.stats().size.max(smaller + 20 * PAGE));
        });
        let user = Arc::clone(&file);
        let user = thread::spawn(move || {
            put(&user, 79, 2);
            assert_eq!(first(&user, 79), 2);
            assert_eq!(first(&user, 3), 1);
        });
        user.join().unwrap();
        resizer.join().unwrap();
        file.flush_all().unwrap();
        assert_eq!((disk.durable(79), disk.durable(78)), (2, 1));
    });
}

#[test]
fn who_flushes_finds_the_only_dirty_page_though_it_is_moved() {
    check(|| {
        let cache = build(20);
        let (disk, other) = (Disk::fast(4, 0), Disk::fast(80, 0));
        let filler = open(&cache, &other, 1000);
        (0..60).for_each(|page| assert_eq!(first(&filler, page), 0));
        let group = cache.group("alone").build();
        let file = cache.open(disk.clone(), &group).unwrap();
        put(&file, 1, 7);
        let smaller = cache.stats().size - 20 * PAGE;
        let resizer = thread::spawn(move || _ = cache.set_size(smaller));
        file.flush_all().unwrap();
        assert_eq!(disk.durable(1), 7, "it was said to be durable");
        resizer.join().unwrap();
    });
}

/// Threads that can be waited for.
#[derive(Clone, Default)]
struct Joined(Arc<Mutex<Vec<thread::JoinHandle<()>>>>);

impl Background for Joined {
    fn spawn(&self, job: Job) {
        let thread = thread::spawn(job);
        self.0.lock().unwrap().push(thread);
    }
}

#[test]
fn a_closed_file_has_no_pages_though_they_were_read_ahead() {
    check(|| {
        let threads = Joined::default();
        let builder = PageCache::builder(8 << 20).page_size(PAGE).shards(1);
        let cache = builder.background(threads.clone()).build().unwrap();
        let group = cache.group("all").build();
        let file = cache.open(Disk::new(4, 0), &group).unwrap();
        file.prefetch(0, 4 * PAGE as u64);
        file.prefetch(PAGE as u64, PAGE as u64);
        file.close().unwrap();
        let spawned = std::mem::take(&mut *threads.0.lock().unwrap());
        spawned.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((cache.stats().used, group.usage()), (0, 0));
    });
}

#[test]
fn what_writes_for_a_closed_file_leaves_that_with_its_number_alone() {
    check(|| {
        let cache = build(0);
        let group = cache.group("all").build();
        let open = |disk: &Arc<Disk>| cache.open(disk.clone(), &group).unwrap();
        let (disk, next) = (Disk::fast(2, 2), Disk::fast(2, 0));
        let mut file = open(&disk);
        // Of the following writes, the first one of a job may fail. The job then tries each page
        // alone.
        file.write_through(0, &[1; PAGE]).unwrap();
        (0..3).for_each(|turn| put(&file, turn % 2, 2));
        while let Err(again) = file.close() {
            file = again.file;
        }
        // Its number is used again after the others had their turn.
        (0..2).for_each(|_| open(&next).close().unwrap());
        let file = open(&next);
        (0..2).for_each(|page| put(&file, page, 9));
        file.flush_all().unwrap();
        assert_eq!([0, 1].map(|page| (disk.durable(page), next.durable(page))), [(2, 9); 2]);
    });
}

#[test]
fn a_group_that_goes_leaves_the_others_pages_where_they_are() {
    check(|| {
        let cache = build(0);
        let kept = cache.group("kept").build();
        let disk = Disk::new(4, 0);
        let file = Arc::new(cache.open(disk.clone(), &kept).unwrap());
        let user = {
            let file = Arc::clone(&file);
            thread::spawn(move || {
                (0..4).for_each(|page| put(&file, page, page as u8 + 1));
                (0..4).for_each(|page| assert_eq!(first(&file, page), page as u8 + 1));
            })
        };
        let comers = [(); 2].map(|()| {
            let cache = cache.clone();
            thread::spawn(move || {
                let group = cache.group("passing").until_closed().build();
                let disk = Disk::new(2, 0);
                let file = cache.open(disk.clone(), &group).unwrap();
                file.prefetch(PAGE as u64, PAGE as u64);
                put(&file, 0, 9);
                assert_eq!(first(&file, 0), 9);
                file.close().unwrap();
                assert_eq!((disk.durable(0), group.usage()), (9, 0));
                assert!(cache.open(disk, &group).is_err());
            })
        });
        comers.into_iter().chain([user]).for_each(|thread| thread.join().unwrap());
        file.flush_all().unwrap();
        assert_eq!([0, 1, 2, 3].map(|page| disk.durable(page)), [1, 2, 3, 4]);
        assert_eq!(cache.stats().used as u64 * PAGE as u64, kept.usage());
    });
}

#[test]
fn who_reads_in_order_sees_what_was_written_while_others_read_ahead() {
    check(|| {
        let threads = Joined::default();
        let builder = PageCache::builder(4 << 20).page_size(PAGE).shards(1);
        let cache = builder.background(threads.clone()).build().unwrap();
        let group = cache.group("all").until_closed().build();
        let disk = Disk::new(12, 0);
        let file = Arc::new(cache.open(disk.clone(), &group).unwrap());
        let writer = {
            let file = Arc::clone(&file);
            thread::spawn(move || [3, 6, 9].into_iter().for_each(|page| put(&file, page, 5)))
        };
        let readers = [(); 2].map(|()| {
            let file = Arc::clone(&file);
            thread::spawn(move || {
                for page in 0..12 {
                    let seen = first(&file, page);
                    assert!(seen == 0 || seen == 5 && page % 3 == 0);
                    assert!(first(&file, page) >= seen, "what was read became older");
                }
            })
        });
        readers.into_iter().chain([writer]).for_each(|thread| thread.join().unwrap());
        let file = Arc::try_unwrap(file).unwrap_or_else(|_| panic!("all have ended"));
        file.close().unwrap();
        assert_eq!([3, 6, 9].map(|page| disk.durable(page)), [5; 3]);
        let spawned = std::mem::take(&mut *threads.0.lock().unwrap());
        spawned.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((cache.stats().used, group.usage()), (0, 0));
    });
}

/// A disk whose writes panic until the flag is set.
struct Panics(Arc<Disk>, AtomicBool);

impl Backing for Panics {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, data)
    }
    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if self.1.load(Ordering::SeqCst) {
            return self.0.write(offset, data);
        }
        std::panic::resume_unwind(Box::new(()))
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Clone)]
struct NoJobs;

impl Background for NoJobs {
    fn spawn(&self, job: Job) {
        drop(job);
    }
}

/// A write of nominated pages panics, and the rest of them goes back to its lists. Meanwhile a file
/// is closed, and another one, in another group, gets its number.
#[test]
fn what_a_panic_leaves_is_not_taken_for_another_files() {
    check(|| {
        let cache = PageCache::builder(4 << 20)
            .page_size(PAGE)
            .shards(1)
            .background(NoJobs)
            .dirty(100, 100)
            .build()
            .unwrap();
        cache.set_readahead(false);
        let (ours, others) = (cache.group("ours").build(), cache.group("others").build());
        let disk = Arc::new(Panics(Disk::fast(2, 0), AtomicBool::new(false)));
        let bad = cache.open(disk.clone(), &ours).unwrap();
        let closed = cache.open(Disk::fast(2, 0), &ours).unwrap();
        let other = cache.open(Disk::fast(2, 0), &others).unwrap();
        for file in [&bad, &closed, &other] {
            put(file, 0, 1);
        }
        let writer = {
            let cache = cache.clone();
            thread::spawn(move || {
                let keys = vec![Key::new(0, 0), Key::new(1, 0)];
                let run = AssertUnwindSafe(|| cache.core().write_ahead(keys));
                std::mem::forget(std::panic::catch_unwind(run));
            })
        };
        closed.close().unwrap();
        let reopened = cache.open(Disk::fast(2, 0), &others).unwrap();
        put(&reopened, 0, 7);
        let core = cache.core();
        core.shards[0].write().evict_down_to(0, true, &core.habits);
        writer.join().unwrap();
        let mut table = core.shards[0].write();
        let (frame, flags) = table.find(Key::new(1, 0)).unwrap();
        if !flags.has(Flags::OUT) {
            let local = table.known_local(&ours.0).unwrap();
            let victims: Vec<_> = std::iter::from_fn(|| table.policy.evict(local)).collect();
            assert!(victims.iter().all(|victim| victim.frame != frame));
            victims.iter().for_each(|victim| table.policy.put_back(local, victim.frame));
        }
        drop(table);
        // Otherwise the cache would stay forever.
        disk.1.store(true, Ordering::SeqCst);
        drop((bad, other, reopened));
    });
}
