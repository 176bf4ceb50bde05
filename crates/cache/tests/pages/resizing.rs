//! Another size while there are pages.

use std::sync::atomic::Ordering::SeqCst;

use homing_cache::pages::{BuildError, PageCache, ResizeError};

use crate::disk::{ByHand, Disk, smallest};

const PAGE: usize = 512;

#[test]
fn pages_survive_and_memory_keeps_to_the_size() {
    let (cache, least) = smallest(|bytes| {
        PageCache::builder(bytes).page_size(PAGE).shards(2).background(ByHand::default())
    });
    let group = cache.group("all").build();
    let disk = Disk::new(400 * PAGE);
    let file = cache.open(disk.clone(), &group).unwrap();
    for round in 0..20u8 {
        let size = least + [0, 200, 10, 400][round as usize % 4] * PAGE;
        for page in 0..100 {
            file.write(page * PAGE as u64, &[round; PAGE]).unwrap();
        }
        cache.set_size(size).unwrap();
        let stats = cache.stats();
        assert!(stats.memory <= size && stats.size == size && stats.used <= stats.frames);
        // In each shard there is room left for the lists of groups.
        let room = 2 * (16 << 10) + 4 * PAGE;
        assert!(stats.memory > size - room, "{stats:?}: memory is not used");
        let mut data = vec![0; 100 * PAGE];
        file.read(0, &mut data).unwrap();
        assert!(data.iter().all(|&byte| byte == round));
    }
    let reads = disk.counts.reads.load(SeqCst);
    let mut data = vec![0; 100 * PAGE];
    file.read(0, &mut data).unwrap();
    assert_eq!(disk.counts.reads.load(SeqCst), reads, "where there is room, pages stay");
}

#[test]
fn dirty_pages_that_cannot_be_written_are_kept() {
    let (cache, least) = smallest(|bytes| {
        PageCache::builder(bytes).page_size(PAGE).background(ByHand::default()).dirty(100, 100)
    });
    cache.set_size(least + 100 * PAGE).unwrap();
    let group = cache.group("all").build();
    let disk = Disk::new(400 * PAGE);
    let file = cache.open(disk.clone(), &group).unwrap();
    let frames = cache.stats().frames;
    for page in 0..frames as u64 {
        file.write(page * PAGE as u64, &[7; PAGE]).unwrap();
    }
    disk.failing.writes.store(1, SeqCst);
    assert!(matches!(cache.set_size(least), Err(ResizeError::Held { .. })));
    assert_eq!(cache.stats().frames, frames);
    disk.failing.writes.store(0, SeqCst);
    file.flush_all().unwrap_err();
    file.flush_all().unwrap();
    assert!(disk.durable()[..frames * PAGE].iter().all(|&byte| byte == 7));
    cache.set_size(least).unwrap();
}

#[test]
fn a_size_that_is_too_small_changes_nothing() {
    let (cache, least) = smallest(|bytes| PageCache::builder(bytes).page_size(PAGE));
    let before = cache.stats();
    let error = cache.set_size(least - 1).unwrap_err();
    assert!(matches!(error, ResizeError::Size(BuildError::TooSmall { .. })), "{error}");
    assert_eq!(cache.stats(), before);
}

#[test]
fn what_is_too_small_says_what_would_do() {
    for (shards, page_size) in [(1, 512), (8, 65_536), (64, 4096), (64, 65_536), (300, 512)] {
        let builder = |bytes| PageCache::builder(bytes).shards(shards).page_size(page_size);
        let Err(BuildError::TooSmall { least, .. }) = builder(0).build() else { panic!() };
        builder(least).build().unwrap();
    }
    let cache = PageCache::builder(8 << 20).size_max(1 << 20).build().unwrap();
    cache.set_size(8 << 20).unwrap();
}

#[test]
fn dirty_pages_go_however_many_there_are() {
    let disk = Disk::new(256 << 20);
    let builder = PageCache::builder(64 << 20).shards(1).dirty(100, 100);
    let cache = builder.background(ByHand::default()).build().unwrap();
    let file = cache.open(disk, &cache.group("all").build()).unwrap();
    for page in 0..cache.stats().frames as u64 {
        // Not neighbours, which would be written together.
        file.write(page * 40_503 % (1 << 16) * 4096, &[1; 4096]).unwrap();
    }
    cache.set_size(16 << 20).unwrap();
    assert!(cache.stats().memory <= 16 << 20);
}

#[test]
fn sizes_that_cannot_be_are_refused_however_large() {
    for shards in [1, usize::MAX / 2, usize::MAX] {
        assert!(PageCache::builder(usize::MAX).shards(shards).build().is_err());
        assert!(shards == 1 || PageCache::builder(1 << 30).shards(shards).build().is_err());
    }
    let cache = PageCache::builder(4 << 20).shards(1).build().unwrap();
    let before = cache.stats();
    assert!(cache.set_size(usize::MAX).is_err());
    assert_eq!(cache.stats(), before);
}
