//! Tenants that cannot hurt each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use homing_cache::pages::{Background, CachedFile, Group, Job, PageCache};

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

/// Runs each job on its own thread.
struct Threads;

impl Background for Threads {
    fn spawn(&self, job: Job) {
        drop(std::thread::spawn(job));
    }
}

#[test]
fn a_tenant_whose_disk_hangs_holds_up_nobody_else() {
    for shards in [1, 3] {
        let (cache, _) = smallest(|bytes| {
            let builder = PageCache::builder(bytes).page_size(PAGE).shards(shards);
            builder.background(Threads).dirty(100, 100)
        });
        let frames = cache.stats().frames as u64;
        let [slow, other] = ["slow", "other"].map(|name| cache.group(name).build());
        let (file, disk) = open(&cache, &slow, frames);
        disk.hang(true);
        for page in 0..frames * 9 / 10 {
            file.write(page * PAGE as u64, &[1; PAGE]).unwrap();
        }
        let (done, ended) = std::sync::mpsc::channel();
        let (scan, own) = open(&cache, &other, 4 * frames);
        let user = std::thread::spawn(move || {
            touch(&scan, 0..4 * frames);
            (0..frames).for_each(|page| scan.write(page * PAGE as u64, &[2; PAGE]).unwrap());
            scan.flush(0, frames * PAGE as u64).unwrap();
            done.send(()).unwrap();
            scan
        });
        let in_time = ended.recv_timeout(std::time::Duration::from_secs(30)).is_ok();
        disk.hang(false);
        drop(user.join().unwrap());
        assert!(in_time, "it has waited for another one's disk");
        assert!(own.durable()[..frames as usize * PAGE].iter().all(|byte| *byte == 2));
        file.flush(0, frames * PAGE as u64).unwrap();
        assert!(disk.durable()[..PAGE * (frames * 9 / 10) as usize].iter().all(|byte| *byte == 1));
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
    // A larger maximum takes effect at once, a smaller one as frames are needed.
    group.set_max(20 * PAGE as u64);
    touch(&file, 0..20);
    assert_eq!(pages(&group), 20);
    group.set_max(0);
    touch(&file, 100..110);
    // For pages that are not worth a frame, none is asked for.
    let stats = cache.group_stats(&group);
    assert!(stats.bypasses + stats.declined > 0);
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
    // Whatever goes past the cache, a group may always replace its own pages.
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
    // More groups gave than are looked at for one victim.
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

#[test]
fn a_group_goes_when_its_files_are_closed() {
    let (cache, frames) = cache(2);
    let (gone, other) = (cache.group("gone").build(), cache.group("other").build());
    let (file, _) = open(&cache, &gone, 10);
    let (second, _) = open(&cache, &gone, 10);
    let (kept, _) = open(&cache, &other, frames);
    touch(&kept, 0..frames / 8);
    touch(&file, 0..10);
    file.write(0, &[1; PAGE]).unwrap();
    let refused = cache.remove_group(&gone).unwrap_err();
    assert_eq!((refused.group.as_str(), refused.files), ("gone", 2));
    drop(second);
    file.close().unwrap();
    let before = cache.stats().total;
    cache.remove_group(&gone).unwrap();
    assert_eq!(cache.stats().total, before, "what it did is not forgotten");
    assert!(before.misses >= 10 && before.write_backs == 1);
    // The group does not belong to this cache any more; another one may have its name.
    let refused = cache.open(Disk::new(PAGE), &gone).unwrap_err().to_string();
    assert!(refused.contains("gone") && refused.contains("removed"), "{refused}");
    cache.remove_group(&gone).unwrap();
    let (file, _) = open(&cache, &cache.group("gone").build(), 10);
    touch(&file, 0..10);
    let misses = cache.group_stats(&other).misses;
    touch(&kept, 0..frames / 8);
    assert_eq!(cache.group_stats(&other).misses, misses, "others keep their pages");
}

#[test]
fn a_group_may_go_with_its_last_file() {
    let (cache, _) = cache(2);
    let passing = cache.group("passing").until_closed().build();
    let (first, second) = (open(&cache, &passing, 4).0, open(&cache, &passing, 4).0);
    touch(&first, 0..4);
    drop(first);
    touch(&second, 0..4);
    let (third, disk) = open(&cache, &passing, 4);
    third.write(0, &[1; PAGE]).unwrap();
    drop(second);
    // A file that cannot be closed keeps the group, and its data.
    disk.failing.writes.store(1, SeqCst);
    let error = third.close().unwrap_err();
    assert!(cache.remove_group(&passing).is_err());
    disk.calm(|| error.file.close().unwrap());
    assert_eq!(disk.durable()[0], 1);
    assert!(cache.open(Disk::new(PAGE), &passing).is_err());
}

#[test]
fn groups_that_go_give_their_memory_back() {
    let builder = PageCache::builder(32 << 20).page_size(PAGE).shards(2);
    let cache = builder.background(ByHand::default()).build().unwrap();
    let frames = cache.stats().frames;
    let come_and_go = |rounds: u64| {
        for round in 0..rounds {
            let groups = (0..100).map(|at| cache.group(format!("{round}.{at}")).build());
            let files: Vec<_> = groups.map(|group| (open(&cache, &group, 200).0, group)).collect();
            for (file, _) in &files {
                touch(file, 0..200);
                touch(file, 0..200);
            }
            assert!(cache.stats().memory <= cache.stats().size);
            for (file, group) in files {
                file.close().unwrap();
                cache.remove_group(&group).unwrap();
            }
        }
    };
    come_and_go(1);
    let once = cache.stats();
    assert!(once.frames + frames / 50 >= frames, "{} of {frames} frames", once.frames);
    come_and_go(20);
    let often = cache.stats();
    assert!(often.frames + frames / 50 >= frames, "{} of {frames} frames", often.frames);
    assert!(often.memory <= often.size);
}

#[test]
fn what_is_known_of_thousands_of_groups_goes_with_them() {
    const GROUPS: usize = 10_000;
    let builder = PageCache::builder(32 << 20).page_size(PAGE).shards(1);
    let cache = builder.background(ByHand::default()).build().unwrap();
    let frames = cache.stats().frames;
    let groups = (0..GROUPS).map(|at| cache.group(at.to_string()).until_closed().build());
    let files: Vec<_> = groups.map(|group| open(&cache, &group, 1).0).collect();
    for file in &files {
        touch(file, [0]);
    }
    drop(files);
    // Less than this is not worth the copying.
    let step = (32 << 10) / PAGE;
    let after = cache.stats();
    assert!(after.frames + step >= frames, "{} of {frames} frames", after.frames);
}

#[test]
fn a_group_that_is_gone_has_not_the_hits_of_the_next_one() {
    let (cache, _) = cache(1);
    let first = cache.group("first").build();
    cache.remove_group(&first).unwrap();
    let second = cache.group("second").build();
    let (file, _) = open(&cache, &second, 10);
    touch(&file, [0; 1000]);
    assert_eq!((cache.group_stats(&first).hits, cache.group_stats(&second).hits), (0, 999));
}

/// A cache with half a MiB more than the smallest one, and groups with `each` pages each.
fn many_groups(count: u64, each: u64, low: u64) -> (PageCache, Vec<(Group, CachedFile)>) {
    let builder = |bytes| PageCache::builder(bytes).page_size(PAGE).shards(1);
    let (cache, least) = smallest(|bytes| builder(bytes).background(ByHand::default()));
    cache.set_size(least + (512 << 10)).unwrap();
    cache.set_readahead(false);
    let groups = (0..count).map(|at| {
        let group = cache.group(at.to_string()).low(low * PAGE as u64).build();
        let (file, _) = open(&cache, &group, each);
        touch(&file, 0..each);
        (group, file)
    });
    let groups = groups.collect();
    (cache, groups)
}

#[test]
fn low_of_many_groups_is_spared() {
    let (cache, spared) = many_groups(24, 16, 16);
    let frames = cache.stats().frames as u64;
    let (scan, _) = open(&cache, &cache.group("hog").build(), 20 * frames);
    touch(&scan, 0..20 * frames);
    let left: Vec<_> = spared.iter().map(|(group, _)| pages(group)).collect();
    assert_eq!(left, [16; 24]);
}

#[test]
fn what_one_of_many_groups_has_above_its_high_goes_first() {
    const HIGH: u64 = 100;
    let (cache, others) = many_groups(24, 16, 0);
    let hog = cache.group("hog").high(HIGH * PAGE as u64).build();
    let frames = cache.stats().frames as u64;
    let (scan, _) = open(&cache, &hog, frames);
    touch(&scan, 0..frames - 24 * 16 - 10);
    let before = pages(&hog);
    let (file, _) = open(&cache, &cache.group("new").build(), 1000);
    touch(&file, 0..before - HIGH);
    let left: Vec<_> = others.iter().map(|(group, _)| pages(group)).collect();
    assert_eq!(left, [16; 24], "the hog had {before} and has {}", pages(&hog));
}

#[test]
fn a_tenant_whose_disk_is_full_does_not_take_all_memory() {
    let cache = PageCache::builder(4 << 20).page_size(PAGE).shards(1).build().unwrap();
    let [a, b] = ["a", "b"].map(|name| cache.group(name).build());
    let frames = cache.stats().frames as u64;
    let ((of_a, disk), (of_b, _)) = (open(&cache, &a, 2 * frames), open(&cache, &b, 100));
    disk.fill(|_| 3);
    // Pages that were in the cache before make no difference.
    touch(&of_a, 0..frames);
    disk.failing.writes.store(1, SeqCst);
    let write = |page: u64, byte: u8| of_a.write(page * PAGE as u64, &[byte; PAGE]).is_ok();
    let accepted: Vec<_> = (0..2 * frames).map(|page| write(page, 7)).collect();
    let dirty = cache.group_stats(&a).dirty / PAGE as u64;
    assert!(dirty < frames / 4, "{dirty} of {frames} pages are dirty");
    assert_eq!(accepted.iter().filter(|accepted| **accepted).count() as u64, dirty);
    (0..20).for_each(|_| touch(&of_b, 0..100));
    let hits = cache.group_stats(&b).hits;
    assert!(hits > 1000, "{hits}");
    // What was accepted is on the disk; of what was refused, a part may be.
    disk.failing.writes.store(0, SeqCst);
    // The background may have been writing, too: its errors are returned by the next flush.
    assert!((0..10).any(|_| of_a.flush_all().is_ok()));
    for (page, accepted) in accepted.iter().enumerate() {
        let mut data = [0; PAGE];
        of_a.read((page * PAGE) as u64, &mut data).unwrap();
        assert!(!accepted || data == [7; PAGE] && disk.durable()[page * PAGE..][..PAGE] == data);
        assert!(data.iter().all(|byte| [3, 7].contains(byte)), "page {page}");
    }
    // The group can have dirty pages again.
    (0..frames / 10).for_each(|page| assert!(write(page, 9)));
    assert!(cache.group_stats(&a).dirty > 0);
}

#[test]
fn nobody_has_more_than_the_max_where_others_ask_for_pages_that_cannot_go() {
    const MAX: u64 = 20;
    let (cache, frames) = cache(4);
    cache.set_dirty(100, 100);
    let tenant = cache.group("tenant").max(MAX * PAGE as u64).build();
    let ((file, disk), over) = (open(&cache, &tenant, 4000), AtomicBool::new(false));
    disk.failing.writes.store(1, SeqCst);
    let most = std::thread::scope(|scope| {
        for asker in 0..2 {
            let (other, over) = (cache.group(asker.to_string()).build(), &over);
            let (scan, _) = open(&cache, &other, 20 * frames);
            scope.spawn(move || {
                while !over.load(SeqCst) {
                    touch(&scan, 0..20 * frames);
                }
            });
        }
        let mut most = 0;
        for page in 0..100_000 {
            let _ = file.write(page * 37 % 4000 * PAGE as u64, &[1; PAGE]);
            most = most.max(pages(&tenant));
        }
        over.store(true, SeqCst);
        most
    });
    assert!(most <= MAX, "{most}");
}

/// They are above their `low`, and so are asked before others that could give.
#[test]
fn groups_of_which_nothing_can_go_end_no_search_for_a_victim() {
    let (cache, _) = cache(1);
    cache.set_size(cache.stats().size + (512 << 10)).unwrap();
    cache.set_readahead(false);
    cache.set_dirty(100, 100);
    let group = |name: String, low| cache.group(name).low(low).build();
    let hung = (0..9).map(|at| open(&cache, &group(at.to_string(), 0), 60).0);
    let hung: Vec<_> = hung.collect();
    for file in &hung {
        // All jobs are lost, so nothing is written.
        file.write(0, &vec![1; 60 * PAGE]).unwrap();
    }
    let [donor, asker] = ["donor", "asker"].map(|name| group(name.to_owned(), u64::MAX));
    let frames = cache.stats().frames as u64;
    let [(first, _), (second, _)] = [&donor, &asker].map(|group| open(&cache, group, frames));
    touch(&first, 0..frames - cache.stats().used as u64);
    touch(&second, 0..100);
    let bypasses = cache.group_stats(&asker).bypasses;
    assert!(pages(&asker) > 90 && bypasses < 10, "{} pages, {bypasses} past", pages(&asker));
}
