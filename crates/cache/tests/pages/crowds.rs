//! Many groups in little memory: the size bounds what it takes for them, too.

use std::sync::Arc;

use homing_cache::pages::{Background, CachedFile, Job, PageCache, ResizeError};

use crate::disk::{ByHand, Disk, smallest};

const PAGE: usize = 512;

/// Drops all jobs.
struct Nobody;

impl Background for Nobody {
    fn spawn(&self, _: Job) {}
}

fn open(cache: &PageCache, number: usize, disk: &Arc<Disk>) -> CachedFile {
    cache.open(disk.clone(), &cache.group(number.to_string()).build()).unwrap()
}

/// Reads and writes pages of a file in many ways, so that there are pages of many classes.
fn use_pages(file: &CachedFile, round: usize) {
    for turn in 0..24 {
        let page = turn * (round + 1) % 40;
        if turn % 5 == 0 {
            file.write((page * PAGE) as u64, &[page as u8; PAGE]).unwrap();
        } else {
            let mut data = [0; PAGE];
            file.read((page * PAGE) as u64, &mut data).unwrap();
            assert!(data.iter().all(|&byte| byte == page as u8));
        }
    }
}

fn check(cache: &PageCache) {
    let stats = cache.stats();
    assert!(stats.memory <= stats.size, "{stats:?}");
    assert!(stats.frames > 0, "{stats:?}");
}

fn crowd(cache: &PageCache, jobs: &ByHand, groups: usize) -> (Vec<CachedFile>, Arc<Disk>) {
    let disk = Disk::new(40 * PAGE);
    disk.fill(|at| (at / PAGE) as u8);
    let files: Vec<_> = (0..groups).map(|number| open(cache, number, &disk)).collect();
    let mut hits = 0;
    for round in 0..6 {
        for file in &files {
            use_pages(file, round);
            jobs.run();
            check(cache);
            let now = cache.stats().total.hits;
            assert!(now >= hits, "of {hits} hits {now} are known");
            hits = now;
        }
    }
    (files, disk)
}

#[test]
fn memory_keeps_to_the_least_size_with_sixty_groups() {
    for shards in [1, 3] {
        let jobs = ByHand::default();
        let (cache, least) = smallest(|bytes| {
            PageCache::builder(bytes).page_size(PAGE).shards(shards).background(jobs.clone())
        });
        crowd(&cache, &jobs, 60);
        cache.set_size(2 * least).unwrap();
        check(&cache);
    }
}

#[test]
fn memory_keeps_to_the_size_with_a_thousand_groups() {
    for (size, shards) in [(1 << 20, 1), (4 << 20, 4), (16 << 20, 8)] {
        let jobs = ByHand::default();
        let builder = PageCache::builder(size).page_size(PAGE).shards(shards);
        let cache = builder.background(jobs.clone()).build().unwrap();
        crowd(&cache, &jobs, 1000);
        assert!(cache.stats().memory > size - size / 20, "{:?}", cache.stats());
    }
}

/// As if all disks hung: dirty pages cannot be written.
#[test]
fn memory_keeps_to_the_size_with_a_thousand_groups_of_which_nothing_is_written() {
    let builder = PageCache::builder(1 << 20).page_size(PAGE).shards(1).background(Nobody);
    let cache = builder.build().unwrap();
    let disk = Disk::new(40 * PAGE);
    let files: Vec<_> = (0..1000).map(|number| open(&cache, number, &disk)).collect();
    for turn in 0..5_000 {
        let file = &files[turn * 7 % 1000];
        file.write((turn / 1000 * 7 * PAGE) as u64, &[1; PAGE]).unwrap();
        if turn % 20 > 0 {
            continue;
        }
        let stats = cache.stats();
        // Looking for pages that can go may take some memory.
        assert!(stats.memory <= stats.size + stats.size / 200, "{stats:?}");
    }
}

#[test]
fn a_size_with_no_room_for_the_groups_is_refused() {
    let (cache, least) = smallest(|bytes| {
        PageCache::builder(bytes).page_size(PAGE).shards(1).background(ByHand::default())
    });
    cache.set_size(4 << 20).unwrap();
    let disk = Disk::new(40 * PAGE);
    let files: Vec<_> = (0..60).map(|number| open(&cache, number, &disk)).collect();
    for file in &files {
        file.read(0, &mut vec![0; 40 * PAGE]).unwrap();
        file.read(0, &mut vec![0; 40 * PAGE]).unwrap();
    }
    let before = cache.stats();
    let refused = cache.set_size(least).unwrap_err();
    let ResizeError::TooManyGroups { bytes, groups, least: with_groups } = refused else {
        panic!("{refused}")
    };
    assert_eq!((bytes, groups, cache.stats()), (least, 60, before));
    cache.set_size(with_groups).unwrap();
    let after = cache.stats();
    assert!(after.memory <= with_groups && after.frames >= 16, "{after:?}");
    drop(files);
    // Groups without pages are forgotten if their memory is needed.
    cache.set_size(least).unwrap();
    assert!(cache.stats().memory <= least && cache.stats().frames > 48);
}

#[test]
fn what_was_learnt_of_groups_does_not_keep_pages_out_for_ever() {
    let jobs = ByHand::default();
    let (cache, _) = smallest(|bytes| {
        PageCache::builder(bytes).page_size(PAGE).shards(1).background(jobs.clone())
    });
    cache.set_readahead(false);
    let disk = Disk::new(40 * PAGE);
    let files: Vec<_> = (0..12).map(|number| open(&cache, number, &disk)).collect();
    let mut random = 1_u64;
    for turn in 0..100_000_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let drawn = (random >> 40) as usize;
        // For some of the time few files are used, and some pages more often than others.
        let file = &files[if turn / 1000 % 3 == 0 { drawn % 2 } else { drawn % 12 }];
        let page = (drawn / 16 % 6) * (drawn / 128 % 7);
        if (drawn / 2048).is_multiple_of(4) {
            file.write((page * PAGE) as u64, &[1; PAGE]).unwrap();
        } else {
            file.read((page * PAGE) as u64, &mut [0; PAGE]).unwrap();
        }
        jobs.run();
        if turn % 1000 == 0 {
            check(&cache);
        }
    }
    let stats = cache.stats().total;
    assert!(stats.bypasses < 100, "{stats:?}");
}
