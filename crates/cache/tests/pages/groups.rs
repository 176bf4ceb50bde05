//! Tenants that cannot hurt each other.

use std::sync::Arc;

use homing_cache::pages::{CachedFile, Group, PageCache};

use crate::disk::{ByHand, Disk, smallest};

const PAGE: usize = 512;

fn cache(shards: usize) -> (PageCache, u64) {
    let (cache, _) = smallest(|bytes| {
        PageCache::builder(bytes).page_size(PAGE).shards(shards).background(ByHand::default())
    });
    let frames = cache.stats().frames as u64;
    (cache, frames)
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

fn pages(group: &Group) -> u64 {
    group.usage() / PAGE as u64
}

#[test]
fn a_scan_does_not_push_others_below_their_min() {
    for dirty in [false, true] {
        let (cache, frames) = cache(2);
        let tenant = cache.group("tenant").min(frames / 4 * PAGE as u64).build();
        let (file, _) = open(&cache, &tenant, frames / 2);
        touch(&file, 0..frames / 2);
        let scanner = cache.group("scanner").build();
        let (scan, _) = open(&cache, &scanner, 20 * frames);
        for page in 0..20 * frames {
            if dirty {
                scan.write(page * PAGE as u64, &[1; PAGE]).unwrap();
            } else {
                touch(&scan, [page]);
            }
            assert!(pages(&tenant) >= frames / 4, "{} at {page}", pages(&tenant));
        }
        assert_eq!(pages(&tenant), frames / 4, "what is above the min goes");
        let stats = cache.stats();
        assert_eq!(stats.used, stats.frames);
    }
}

#[test]
fn nobody_has_more_than_the_max() {
    let (cache, frames) = cache(3);
    let group = cache.group("small").max(10 * PAGE as u64).build();
    let (file, _) = open(&cache, &group, 4 * frames);
    for page in 0..4 * frames {
        touch(&file, [page]);
        assert!(pages(&group) <= 10);
    }
    assert_eq!(pages(&group), 10);
    assert_eq!(cache.group_stats(&group).bypasses, 0);
    // Room for more at once, and for less as frames are needed.
    group.set_max(20 * PAGE as u64);
    touch(&file, 0..20);
    assert_eq!(pages(&group), 20);
    group.set_max(0);
    touch(&file, 100..110);
    assert!(cache.group_stats(&group).bypasses > 0);
}

#[test]
fn who_is_over_a_higher_limit_gives_first() {
    let (cache, frames) = cache(1);
    let limit = |share: u64| frames / share * PAGE as u64;
    let over_high = cache.group("over high").high(limit(8)).build();
    let over_low = cache.group("over low").low(limit(8)).build();
    let below_low = cache.group("below low").low(limit(2)).build();
    let files = [&over_high, &over_low, &below_low].map(|group| open(&cache, group, frames));
    for (file, _) in &files {
        touch(file, 0..frames / 4);
    }
    let newcomer = cache.group("newcomer").build();
    let (file, _) = open(&cache, &newcomer, frames);
    let left = |group: &Group| pages(group) >= frames / 4;
    let mut first_lost = Vec::new();
    for page in 0..frames {
        newcomer.set_min(u64::MAX);
        touch(&file, [page]);
        for (at, group) in [&over_high, &over_low, &below_low].into_iter().enumerate() {
            if !left(group) && !first_lost.contains(&at) {
                first_lost.push(at);
            }
        }
    }
    assert_eq!(first_lost, [0, 1, 2]);
}

#[test]
fn where_all_is_promised_requests_go_past() {
    let (cache, frames) = cache(1);
    let tenant = cache.group("tenant").min(u64::MAX).build();
    let (file, _) = open(&cache, &tenant, frames);
    touch(&file, 0..frames);
    let other = cache.group("other").build();
    let (file, disk) = open(&cache, &other, 10);
    file.write(3, &[7; 2 * PAGE]).unwrap();
    let mut data = [0; 2 * PAGE];
    file.read(3, &mut data).unwrap();
    assert_eq!((data, disk.now()[3]), ([7; 2 * PAGE], 7));
    file.flush_all().unwrap();
    assert_eq!(disk.durable()[2 * PAGE], 7);
    assert_eq!((pages(&other), pages(&tenant)), (0, frames));
    // Past the cache or not, a group may always replace pages of its own.
    let misses = cache.group_stats(&tenant).misses;
    let (file, _) = open(&cache, &tenant, frames);
    touch(&file, 0..frames);
    assert_eq!(cache.group_stats(&tenant).misses, misses + frames);
    assert_eq!(cache.group_stats(&tenant).bypasses, 0);
}

#[test]
fn many_groups_are_asked_in_turn() {
    let (cache, frames) = cache(1);
    let groups: Vec<_> = (0..frames / 4).map(|at| cache.group(at.to_string()).build()).collect();
    let files: Vec<_> = groups.iter().map(|group| open(&cache, group, 8)).collect();
    for (file, _) in &files {
        touch(file, 0..4);
    }
    let used = cache.stats().used as u64;
    let newcomer = cache.group("newcomer").build();
    let (file, _) = open(&cache, &newcomer, frames);
    newcomer.set_min(u64::MAX);
    touch(&file, 0..frames / 2);
    assert!(cache.stats().used as u64 >= used.min(frames / 2));
    let lost = groups.iter().filter(|group| pages(group) < 4).count();
    // More than are looked at for one victim.
    assert!(lost > 8, "{lost} of {} gave", groups.len());
}

#[test]
fn a_thousand_groups_give_alike() {
    const GROUPS: u64 = 1000;
    let background = ByHand::default();
    let builder = PageCache::builder(64 << 20).page_size(PAGE).shards(1).background(background);
    let cache = builder.build().unwrap();
    let groups: Vec<_> = (0..GROUPS).map(|group| cache.group(group.to_string()).build()).collect();
    let each = cache.stats().frames as u64 / GROUPS * 4;
    let files: Vec<_> = groups.iter().map(|group| open(&cache, group, each).0).collect();
    for page in 0..each {
        for file in &files {
            touch(file, [page]);
        }
    }
    let given = groups.iter().map(|group| cache.group_stats(group).evictions as f64);
    let given: Vec<f64> = given.collect();
    let mean = given.iter().sum::<f64>() / GROUPS as f64;
    let variance = given.iter().map(|given| (given - mean).powi(2)).sum::<f64>() / GROUPS as f64;
    let spread = variance.sqrt() / mean;
    println!("{mean:.0} pages of each of {GROUPS} groups went, stddev/mean {spread:.3}");
    assert!(mean > each as f64 / 2.0 && spread < 0.2, "{mean} {spread}");
}
