//! Recently used pages stay, and what that means for others.

use std::sync::Arc;

use homing_cache::pages::{CachedFile, Group, PageCache};

use crate::disk::{ByHand, Disk, smallest};

const PAGE: usize = 512;
const HOUR_MS: u64 = 3_600_000;

fn cache() -> (PageCache, u64, usize) {
    let builder =
        |bytes| PageCache::builder(bytes).page_size(PAGE).shards(1).background(ByHand::default());
    let (cache, least) = smallest(builder);
    let frames = cache.stats().frames as u64;
    (cache, frames, least)
}

fn open(cache: &PageCache, group: &Group, pages: u64) -> (CachedFile, Arc<Disk>) {
    let disk = Disk::new(pages as usize * PAGE);
    (cache.open(disk.clone(), group).unwrap(), disk)
}

fn touch(file: &CachedFile, pages: impl IntoIterator<Item = u64>) {
    for page in pages {
        file.read(page * PAGE as u64, &mut [0; 8]).unwrap();
    }
}

#[test]
fn the_working_set_stays_and_what_is_too_much_goes_past() {
    let (cache, frames, _) = cache();
    cache.set_min_ttl_ms(HOUR_MS);
    let (set, other) = (cache.group("set").build(), cache.group("other").build());
    let (file, _) = open(&cache, &set, frames);
    touch(&file, 0..frames);
    let misses = cache.group_stats(&set).misses;
    // Other groups find no frame; they are served nevertheless.
    let (scan, disk) = open(&cache, &other, 4 * frames);
    disk.fill(|at| (at / PAGE) as u8);
    for page in 0..4 * frames {
        let mut data = [0; 8];
        scan.read(page * PAGE as u64, &mut data).unwrap();
        assert_eq!(data, [page as u8; 8]);
        scan.write(page * PAGE as u64, &[7; PAGE]).unwrap();
    }
    scan.flush_all().unwrap();
    assert_eq!(disk.durable(), vec![7; 4 * frames as usize * PAGE]);
    let stats = cache.group_stats(&other);
    assert_eq!((other.usage(), stats.misses, stats.bypasses), (0, 8 * frames, 8 * frames));
    touch(&file, 0..frames);
    assert_eq!(cache.group_stats(&set).misses, misses, "all of it is there");
    // A group does not replace its own pages either. Without protection it does.
    cache.set_min_ttl_ms(0);
    touch(&scan, 0..2 * frames);
    assert!(other.usage() > 0);
}

#[test]
fn what_was_not_used_since_goes_first() {
    let (cache, frames, _) = cache();
    let group = cache.group("all").build();
    let (file, _) = open(&cache, &group, 8 * frames);
    touch(&file, 0..frames);
    // Some epochs pass before the protected time is set.
    (0..4).for_each(|_| touch(&file, frames / 2..frames));
    cache.set_min_ttl_ms(HOUR_MS);
    touch(&file, 0..frames / 2);
    let misses = |file: &CachedFile, pages: std::ops::Range<u64>| {
        let before = cache.group_stats(&group).misses;
        touch(file, pages);
        cache.group_stats(&group).misses - before
    };
    touch(&file, 2 * frames..8 * frames);
    assert_eq!(misses(&file, 0..frames / 2), 0, "what was used since stays");
    assert!(cache.group_stats(&group).evictions > 0, "what was used before went");
}

#[test]
fn a_cache_is_made_smaller_and_files_are_closed_all_the_same() {
    let (cache, frames, least) = cache();
    cache.set_size(least + 100 * PAGE).unwrap();
    cache.set_min_ttl_ms(HOUR_MS);
    let group = cache.group("all").build();
    let (file, _) = open(&cache, &group, 4 * frames);
    touch(&file, 0..4 * frames);
    assert!(cache.stats().used as u64 > frames);
    cache.set_size(least).unwrap();
    assert!(cache.stats().used as u64 <= frames);
    file.close().unwrap();
    assert_eq!(group.usage(), 0);
}

#[test]
fn dirty_pages_stay_where_swappiness_is_0_and_go_where_it_is_200() {
    for (swappiness, dirty_stays) in [(0, true), (200, false)] {
        let jobs = ByHand::default();
        let (cache, _) = smallest(|bytes| {
            let builder = PageCache::builder(bytes).page_size(PAGE).shards(1);
            builder.background(jobs.clone()).dirty(100, 100)
        });
        let frames = cache.stats().frames as u64;
        let group = cache.group("all").build();
        group.set_swappiness(swappiness);
        assert_eq!(group.swappiness(), swappiness);
        let (file, disk) = open(&cache, &group, frames);
        for page in 0..frames / 2 {
            file.write(page * PAGE as u64, &[1; PAGE]).unwrap();
        }
        touch(&file, frames / 2..frames);
        // Another group needs a quarter.
        let other = cache.group("other").build();
        let (scan, _) = open(&cache, &other, frames);
        other.set_min(u64::MAX);
        for page in 0..frames / 4 {
            touch(&scan, [page]);
            jobs.run();
        }
        let written = disk.log.lock().unwrap().len();
        assert_eq!(written == 0, dirty_stays, "{written} of {frames} at {swappiness}");
        assert_eq!(group.dirty() / PAGE as u64 == frames / 2, dirty_stays);
    }
}
