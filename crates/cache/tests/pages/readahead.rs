//! Reading ahead for readers in order: it happens, it takes no more than it may, and nobody is
//! worse off.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use homing_cache::pages::{Background, CachedFile, Group, Job, PageCache};

use crate::disk::{ByHand, Disk};

const PAGE: usize = 4096;

struct World {
    cache: PageCache,
    jobs: ByHand,
    group: Group,
    disk: Arc<Disk>,
    file: CachedFile,
}

fn open(cache_pages: usize, file_pages: usize) -> World {
    let jobs = ByHand::default();
    let builder = PageCache::builder(cache_pages * PAGE).shards(2).background(jobs.clone());
    let cache = builder.build().unwrap();
    let group = cache.group("all").build();
    let disk = Disk::new(file_pages * PAGE);
    disk.fill(|at| (at / PAGE) as u8);
    let file = cache.open(disk.clone(), &group).unwrap();
    World { cache, jobs, group, disk, file }
}

impl World {
    /// Reads pages in order, with the background at work after each.
    fn read(&self, pages: std::ops::Range<usize>) {
        for page in pages {
            let mut data = vec![0; PAGE];
            self.file.read((page * PAGE) as u64, &mut data).unwrap();
            assert!(data.iter().all(|&byte| byte == page as u8), "page {page}");
            self.jobs.run();
        }
    }

    fn misses(&self) -> u64 {
        self.cache.group_stats(&self.group).misses
    }
}

/// Runs jobs on the thread that asks for them.
struct AtOnce;

impl Background for AtOnce {
    fn spawn(&self, job: Job) {
        job();
    }
}

#[test]
fn an_error_ends_a_stream_whoever_runs_the_job() {
    let builder = PageCache::builder(4000 * PAGE).shards(2).background(AtOnce);
    let cache = builder.build().unwrap();
    let disk = Disk::new(2000 * PAGE);
    let file = cache.open(disk.clone(), &cache.group("all").build()).unwrap();
    let read = |page: u64| file.read(page * PAGE as u64, &mut [0; PAGE]);
    disk.failing.reads.store(1, SeqCst);
    read(0).unwrap_err();
    disk.failing.reads.store(0, SeqCst);
    read(1).unwrap();
    let read_ahead = cache.stats().total.read_ahead;
    assert_eq!(read_ahead, 0, "somebody who reads on is one that is not known");
}

#[test]
fn who_reads_in_order_finds_pages_there() {
    let world = open(4000, 2000);
    world.read(300..1300);
    assert_eq!(world.misses(), 2);
    let reads = world.disk.counts.reads.load(SeqCst);
    assert!(reads <= 40, "{reads} reads");
    let stats = world.cache.group_stats(&world.group);
    assert!(stats.read_ahead >= 998 && stats.read_ahead <= 998 + 128, "{stats:?}");
    // In this cache, a window is a 64th of the frames.
    assert!(world.group.usage() <= ((1000 + 2 * 64) * PAGE) as u64);
}

#[test]
fn it_can_be_switched_off_and_limited_at_any_time() {
    let world = open(4000, 4000);
    world.cache.set_readahead(false);
    world.read(0..100);
    assert_eq!((world.misses(), world.cache.stats().total.read_ahead), (100, 0));
    world.cache.set_readahead(true);
    world.cache.set_readahead_max(8 * PAGE);
    for page in 1000..1100 {
        let before = world.cache.stats().total.read_ahead;
        world.read(page..page + 1);
        assert!(world.cache.stats().total.read_ahead - before <= 8);
    }
    assert!(world.cache.stats().total.read_ahead >= 90);
    world.cache.set_readahead(false);
    let before = world.misses();
    world.read(2000..2100);
    assert_eq!(world.misses() - before, 100);
    // Pages of a hint are read nevertheless.
    world.file.prefetch((3000 * PAGE) as u64, PAGE as u64);
    world.jobs.run();
    world.read(3000..3001);
    assert_eq!(world.misses() - before, 100);
}

#[test]
fn a_reader_does_not_wait_for_what_is_read_ahead() {
    let world = open(4000, 2000);
    // The background never runs, so all pages are read by the requests themselves.
    for page in 0..1000 {
        let mut data = vec![0; PAGE];
        world.file.read((page * PAGE) as u64, &mut data).unwrap();
        assert_eq!(data[0], page as u8);
    }
    assert_eq!((world.misses(), world.cache.stats().total.read_ahead), (1000, 0));
    // When it does, few ranges wait for it, and it reads nothing that is there.
    world.jobs.run();
    assert!(world.cache.stats().total.read_ahead <= 2 * 64);
}

#[test]
fn an_error_is_nobodys_until_the_page_is_asked_for() {
    let world = open(4000, 2000);
    world.read(100..102);
    world.disk.failing.reads.store(1, SeqCst);
    let read = |page: usize, data: &mut [u8]| world.file.read((page * PAGE) as u64, data);
    // Pages that are there can be read; the window after them fails.
    let there = (102..200).take_while(|page| {
        let found = read(*page, &mut [0; PAGE]).is_ok();
        world.jobs.run();
        found
    });
    assert!(there.count() >= 3);
    world.file.flush_all().unwrap();
    world.disk.failing.reads.store(0, SeqCst);
    world.read(102..400);
    assert_eq!(world.group.usage() % PAGE as u64, 0);
}

#[test]
fn what_others_are_promised_is_not_taken() {
    for low in [false, true] {
        let world = open(1000, 8000);
        let frames = world.cache.stats().frames;
        let limit = (frames / 2 * PAGE) as u64;
        let tenant = world.cache.group("tenant");
        let tenant = if low { tenant.low(limit).build() } else { tenant.min(limit).build() };
        let theirs = world.cache.open(Disk::new(frames * PAGE), &tenant).unwrap();
        theirs.read(0, &mut vec![0; frames / 2 * PAGE]).unwrap();
        world.read(0..8000);
        assert_eq!(tenant.usage(), limit, "low: {low}");
    }
}

#[test]
fn what_nobody_has_asked_for_takes_nothing_below_low() {
    let world = open(1000, 8000);
    let tenant = world.cache.group("tenant").low(u64::MAX).build();
    let theirs = world.cache.open(Disk::new(2000 * PAGE), &tenant).unwrap();
    theirs.read(0, &mut vec![0; 2000 * PAGE]).unwrap();
    // The background frees the few frames that it keeps free.
    world.jobs.run();
    let pages = |group: &Group| group.usage() as usize / PAGE;
    let reads = |page: usize, hint: bool| {
        let (before, read_ahead) = (pages(&tenant), world.cache.stats().total.read_ahead);
        if hint {
            world.file.prefetch((page * PAGE) as u64, (64 * PAGE) as u64);
            world.jobs.run();
        } else {
            world.read(page..page + 64);
        }
        (before - pages(&tenant), world.cache.stats().total.read_ahead - read_ahead)
    };
    assert_eq!((reads(5000, false).0, reads(6000, true).0, reads(7000, false).0), (0, 0, 0));
    // That was because of `low`.
    tenant.set_low(0);
    assert!(reads(7300, false).0 >= 60);
    // Hints still take nothing of others, and are read if pages of their own group can go.
    assert_eq!(reads(7500, true), (0, 64));
}

#[test]
fn a_group_stays_within_its_max() {
    let world = open(4000, 4000);
    world.group.set_max((400 * PAGE) as u64);
    for page in 0..1000 {
        world.read(page..page + 1);
        assert!(world.group.usage() <= (400 * PAGE) as u64);
    }
    let stats = world.cache.group_stats(&world.group);
    // Windows are short, as the group is small, but nothing is read twice.
    assert!(stats.misses <= 20 && stats.read_ahead_wasted <= 20, "{stats:?}");
    world.group.set_max((255 * PAGE) as u64);
    let before = world.cache.group_stats(&world.group).read_ahead;
    world.read(2000..2200);
    assert_eq!(world.cache.group_stats(&world.group).read_ahead, before);
}

#[test]
fn what_nobody_came_for_goes_and_is_counted() {
    let world = open(1000, 20_000);
    // Begins many streams, and leaves them.
    for start in 0..40 {
        world.read(start * 500 + 1..start * 500 + 6);
    }
    let frames = world.cache.stats().frames;
    world.cache.set_readahead(false);
    for page in 0..3 * frames {
        let page = page * 7919 % 20_000;
        world.read(page..page + 1);
    }
    let stats = world.cache.group_stats(&world.group);
    assert!(stats.read_ahead_wasted > 0 && stats.read_ahead_wasted <= stats.read_ahead);
    assert!(stats.read_ahead_wasted * 10 >= stats.read_ahead * 7, "{stats:?}");
}
