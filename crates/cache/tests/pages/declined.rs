//! Pages that are not worth a frame are read past the cache, and those that become worth one get
//! it.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use homing_cache::pages::{CachedFile, PageCache};

use crate::disk::{ByHand, Disk};

const PAGE: usize = 512;

fn open(pages: u64) -> (PageCache, CachedFile, Arc<Disk>) {
    let cache = PageCache::builder(2 << 20)
        .size_max(4 << 20)
        .page_size(PAGE)
        .shards(1)
        .background(ByHand::default())
        .build()
        .unwrap();
    let disk = Disk::new(pages as usize * PAGE);
    disk.fill(|at| (at / PAGE) as u8);
    let file = cache.open(disk.clone(), &cache.group("all").build()).unwrap();
    (cache, file, disk)
}

/// Reads `count` random runs of 8 pages among the first `pages`, and checks the data.
fn read_at_random(file: &CachedFile, pages: u64, count: u64, seed: u64) {
    let mut state = 88_172_645_463_325_252 + seed;
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let first = state % (pages / 8) * 8;
        let mut data = [0; 8 * PAGE];
        file.read(first * PAGE as u64, &mut data).unwrap();
        for (page, bytes) in (first..).zip(data.chunks(PAGE)) {
            assert!(bytes.iter().all(|&byte| byte == page as u8), "page {page}");
        }
    }
}

#[test]
fn pages_that_are_all_used_as_seldom_do_not_push_out_each_other() {
    // Each cache draws the sample from which it learns. One may draw badly, so there are three.
    let (mut hits, mut expected) = (0, 0);
    for _ in 0..3 {
        let (cache, file, disk) = open(1 << 16);
        let frames = cache.stats().frames as u64;
        let group = cache.group_stats(&file.group());
        assert_eq!(group.declined, 0);
        read_at_random(&file, 1 << 16, 40_000, 1);
        let before = cache.group_stats(&file.group());
        read_at_random(&file, 1 << 16, 10_000, 2);
        let after = cache.group_stats(&file.group());
        let (declined, misses) = (after.declined - before.declined, after.misses - before.misses);
        assert!(declined > misses / 2, "{declined} of {misses}");
        hits += after.hits - before.hits;
        expected += (8 * 10_000 * frames) >> 16;
        write_all(&file, &disk);
    }
    // There are as many hits as there would be in any case.
    assert!(hits > expected * 9 / 10, "{hits} of {expected}");
}

/// Declined pages can be written nevertheless.
fn write_all(file: &CachedFile, disk: &Disk) {
    for page in 0..1 << 16 {
        file.write(page * PAGE as u64, &[!page as u8; PAGE]).unwrap();
    }
    file.flush_all().unwrap();
    let written = |(page, data): (usize, &[u8])| data.iter().all(|&byte| byte == !(page as u8));
    assert!(disk.durable().chunks(PAGE).enumerate().all(written));
}

#[test]
fn most_are_read_without_a_trace_where_the_backing_is_fast_and_allows_it() {
    let (cache, file, disk) = open(1 << 16);
    read_at_random(&file, 1 << 16, 50_000, 1);
    assert_eq!(cache.group_stats(&file.group()).skimmed, 0, "not allowed");
    disk.meets.store(true, SeqCst);
    let before = cache.group_stats(&file.group());
    read_at_random(&file, 1 << 16, 20_000, 2);
    let after = cache.group_stats(&file.group());
    let (skimmed, misses) = (after.skimmed - before.skimmed, after.misses - before.misses);
    assert!(skimmed > misses / 3, "{skimmed} of {misses}");
    let expected = ((8 * 20_000 * cache.stats().frames) >> 16) as u64;
    let hits = after.hits - before.hits;
    assert!(hits > expected * 9 / 10, "{hits} of {expected}");
    // Pages that are used more often are noticed nevertheless.
    let hot = cache.stats().frames as u64 / 2 / 8 * 8;
    read_at_random(&file, hot, hot / 8 * 20, 3);
    let before = cache.group_stats(&file.group());
    read_at_random(&file, hot, hot / 8, 4);
    let after = cache.group_stats(&file.group());
    assert!(after.misses - before.misses < hot / 20, "{}", after.misses - before.misses);
    write_all(&file, &disk);
}

#[test]
fn while_there_is_room_nothing_is_declined() {
    let (cache, file, disk) = open(1 << 16);
    disk.meets.store(true, SeqCst);
    read_at_random(&file, 1 << 16, 50_000, 1);
    let before = cache.group_stats(&file.group());
    assert!(before.skimmed > 0 && before.declined > before.skimmed);
    let frames = cache.stats().frames;
    cache.set_size(4 << 20).unwrap();
    let more = (cache.stats().frames - frames) as u64;
    // Some of these are hits, so that there is still room at the end.
    read_at_random(&file, 1 << 16, more / 8, 2);
    let after = cache.group_stats(&file.group());
    assert_eq!((after.skimmed, after.declined), (before.skimmed, before.declined));
    read_at_random(&file, 1 << 16, 50_000, 3);
    assert!(cache.group_stats(&file.group()).skimmed > after.skimmed);
}

#[test]
fn who_discards_waits_for_no_reads_of_other_files_nor_for_later_ones() {
    let (cache, file, disk) = open(1 << 16);
    let file = &file;
    let other = cache.open(Disk::new(100 * PAGE), &cache.group("other").build()).unwrap();
    let skimmed = || cache.group_stats(&file.group()).skimmed;
    disk.meets.store(true, SeqCst);
    read_at_random(file, 1 << 15, 50_000, 1);
    let deadline = Instant::now() + Duration::from_secs(20);
    // The upper half of the file is for the threads that wait.
    let (mut seed, mut page) = (2, 1 << 15);
    thread::scope(|scope| {
        // A read without a trace that takes long.
        let reader = loop {
            assert!(Instant::now() < deadline, "none is read without a trace");
            page += 8;
            let (before, reads) = (skimmed(), disk.counts.reads.load(SeqCst));
            let offset = page * PAGE as u64;
            disk.hold(Some(offset));
            let reader = scope.spawn(move || file.read(offset, &mut [0; PAGE]));
            while disk.counts.reads.load(SeqCst) == reads && !reader.is_finished() {
                thread::yield_now();
            }
            if skimmed() > before {
                break reader;
            }
            disk.hold(None);
            reader.join().unwrap().unwrap();
        };
        let (done, ended) = channel();
        let elsewhere = scope.spawn(move || done.send(other.write_zeroes(0, 10 * PAGE as u64)));
        let no_other_waits = ended.recv_timeout(Duration::from_secs(10)).is_ok();
        let discarder = scope.spawn(|| file.discard((60_000 * PAGE) as u64, PAGE as u64));
        // Once it waits, nobody begins another read without a trace.
        let mut others_wait = false;
        while !others_wait && Instant::now() < deadline {
            let before = skimmed();
            seed += 1;
            read_at_random(file, 1 << 15, 200, seed);
            others_wait = skimmed() == before;
        }
        let is_waiting = !discarder.is_finished() && !reader.is_finished();
        // Done whatever the result, because the test would never end otherwise.
        disk.hold(None);
        reader.join().unwrap().unwrap();
        discarder.join().unwrap().unwrap();
        let _ = elsewhere.join().unwrap();
        assert!(no_other_waits, "for a read of another file");
        assert!(others_wait && is_waiting, "reads without a trace go on: {}", !others_wait);
    });
}

#[test]
fn a_loop_of_almost_the_size_of_the_cache_is_noticed() {
    let (cache, file, disk) = open(1 << 16);
    disk.meets.store(true, SeqCst);
    read_at_random(&file, 1 << 16, 50_000, 1);
    assert!(cache.group_stats(&file.group()).skimmed > 0);
    let pages = cache.stats().frames as u64 * 9 / 10;
    let pass = || {
        let before = cache.group_stats(&file.group());
        for turn in 0..pages {
            // In an order in which nothing is read ahead.
            file.read(turn * 7919 % pages * PAGE as u64, &mut [0; PAGE]).unwrap();
        }
        cache.group_stats(&file.group()).hits - before.hits
    };
    let passes: Vec<_> = (0..30).map(|_| pass()).collect();
    assert!(passes[29] > pages * 3 / 4, "{passes:?} of {pages}");
}

#[test]
fn a_group_below_its_min_gets_frames_whatever_was_declined_before() {
    let (cache, file, disk) = open(1 << 16);
    disk.meets.store(true, SeqCst);
    let other = cache.group("other").build();
    let mine = cache.open(disk.clone(), &other).unwrap();
    read_at_random(&file, 1 << 16, 50_000, 1);
    read_at_random(&mine, 1 << 16, 50_000, 2);
    assert!(cache.group_stats(&other).skimmed > 0);
    let pages = cache.stats().frames as u64 / 2;
    other.set_min(pages * PAGE as u64);
    read_at_random(&mine, 1 << 16, 20_000, 3);
    let usage = other.usage() / PAGE as u64;
    assert!(usage > pages * 9 / 10, "{usage} of {pages}");
}

#[test]
fn pages_that_are_used_more_than_others_get_frames() {
    let (cache, file, _) = open(1 << 16);
    let frames = cache.stats().frames as u64;
    read_at_random(&file, 1 << 16, 50_000, 3);
    assert!(cache.group_stats(&file.group()).declined > 0);
    let hot = frames / 2 / 8 * 8;
    // Each page is read ten times.
    read_at_random(&file, hot, hot / 8 * 10, 4);
    let before = cache.group_stats(&file.group());
    read_at_random(&file, hot, hot / 8, 5);
    let after = cache.group_stats(&file.group());
    assert!(after.misses - before.misses < hot / 20, "{}", after.misses - before.misses);
}
