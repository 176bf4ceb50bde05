//! Changes of the size while there are pages.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use homing_cache::pages::{Background, BuildError, CachedFile, Job, PageCache, ResizeError};

use crate::disk::{ByHand, Disk, smallest};

const PAGE: usize = 512;

#[test]
fn pages_survive_and_memory_keeps_to_the_size() {
    let (cache, least) = smallest(|bytes| PageCache::builder(bytes).page_size(PAGE).shards(2));
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
        // Each shard has room left for the lists of groups.
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

/// In a large cache, a sixteenth less is many frames, and more than the shard has to spare.
#[test]
fn a_little_less_is_less() {
    let cache = PageCache::builder(64 << 20).page_size(PAGE).shards(1).build().unwrap();
    for size in (60 << 20..64 << 20).rev().step_by(1 << 20) {
        cache.set_size(size).unwrap();
        let stats = cache.stats();
        assert!(stats.memory <= size, "{size} bytes: {stats:?}");
    }
}

#[test]
fn dirty_pages_that_cannot_be_written_are_kept() {
    let (cache, least) =
        smallest(|bytes| PageCache::builder(bytes).page_size(PAGE).dirty(100, 100));
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
    // A job may have failed after that.
    while file.flush_all().is_err() {}
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
    let cache = builder.build().unwrap();
    let file = cache.open(disk, &cache.group("all").build()).unwrap();
    for page in 0..cache.stats().frames as u64 {
        // The pages are not neighbours, which would be written together.
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

/// Sets another size, which must not take forever. Returns the result.
fn resize(cache: &PageCache, bytes: usize) -> Result<(), ResizeError> {
    let (done, ended) = channel();
    let cache = cache.clone();
    thread::spawn(move || done.send(cache.set_size(bytes)));
    ended.recv_timeout(Duration::from_secs(60)).expect("another size in spite of a disk that hangs")
}

/// A cache of one shard. Its first frames have pages of a healthy disk, and the pages of another
/// file come after those.
fn with_a_tenant_at_the_end() -> (PageCache, usize, CachedFile, Arc<CachedFile>, Arc<Disk>) {
    let (cache, least) =
        smallest(|bytes| PageCache::builder(bytes).page_size(PAGE).shards(1).dirty(100, 100));
    cache.set_readahead(false);
    cache.set_size(least + 100 * PAGE).unwrap();
    let first = cache.stats().frames - 20;
    let well = cache.open(Disk::new(400 * PAGE), &cache.group("well").build()).unwrap();
    for page in 0..first {
        well.read((page * PAGE) as u64, &mut [0; PAGE]).unwrap();
    }
    let disk = Disk::new(400 * PAGE);
    let file = cache.open(disk.clone(), &cache.group("hung").build()).unwrap();
    (cache, least, well, Arc::new(file), disk)
}

#[test]
fn pages_that_a_disk_hangs_with_move() {
    let (cache, least, well, file, disk) = with_a_tenant_at_the_end();
    disk.fill(|at| (at / PAGE) as u8);
    file.write(0, &[7; 3 * PAGE]).unwrap();
    disk.hang(true);
    disk.hold(Some(5 * PAGE as u64));
    let writer = thread::spawn({
        let file = Arc::clone(&file);
        move || file.write_back(0, 3 * PAGE as u64)
    });
    let reader = thread::spawn({
        let file = Arc::clone(&file);
        move || {
            let mut data = [0; 2 * PAGE];
            file.read(5 * PAGE as u64, &mut data).unwrap();
            data
        }
    });
    while disk.counts.writes.load(SeqCst) == 0 || disk.counts.reads.load(SeqCst) == 0 {
        thread::yield_now();
    }
    let before = cache.stats().frames;
    let resized = resize(&cache, least);
    let stats = cache.stats();
    // Threads that use the pages meanwhile find them.
    let mut data = [0; PAGE];
    file.read(PAGE as u64, &mut data).unwrap();
    file.write(2 * PAGE as u64, &[9; PAGE]).unwrap();
    well.read(0, &mut [0; PAGE]).unwrap();
    disk.hang(false);
    disk.hold(None);
    resized.unwrap();
    assert!(stats.memory <= least && stats.size == least && stats.frames < before, "{stats:?}");
    writer.join().unwrap().unwrap();
    let read = reader.join().unwrap();
    assert_eq!((data, read[0], read[PAGE]), ([7; PAGE], 5, 6));
    assert_eq!(disk.now()[2 * PAGE], 7);
    assert_eq!(file.group().dirty(), PAGE as u64, "what was written to meanwhile is dirty");
    let reads = disk.counts.reads.load(SeqCst);
    file.read(5 * PAGE as u64, &mut data).unwrap();
    assert_eq!((data, disk.counts.reads.load(SeqCst)), ([5; PAGE], reads));
    file.flush_all().unwrap();
    let durable = disk.durable();
    assert_eq!([0, 1, 2].map(|page| durable[page * PAGE]), [7, 7, 9]);
}

#[test]
fn pages_that_are_zeroed_may_move() {
    for fails in [0, 1] {
        let (cache, least, _, file, disk) = with_a_tenant_at_the_end();
        file.write(0, &[7; 4 * PAGE]).unwrap();
        disk.hang(true);
        let zeroing = thread::spawn({
            let file = Arc::clone(&file);
            move || file.write_zeroes(0, 2 * PAGE as u64)
        });
        while disk.counts.writes.load(SeqCst) == 0 {
            thread::yield_now();
        }
        let resized = resize(&cache, least);
        disk.failing.writes.store(fails, SeqCst);
        disk.hang(false);
        resized.unwrap();
        assert_eq!(zeroing.join().unwrap().is_err(), fails == 1);
        disk.failing.writes.store(0, SeqCst);
        let mut data = [1; 4 * PAGE];
        file.read(0, &mut data).unwrap();
        assert!(data[2 * PAGE..].iter().all(|&byte| byte == 7));
        assert!(data[..2 * PAGE].iter().all(|&byte| byte == if fails == 1 { 7 } else { 0 }));
        let _ = file.flush_all();
        file.flush_all().unwrap();
        assert_eq!(disk.durable()[..4 * PAGE], data);
    }
}

#[test]
fn a_size_that_a_disk_that_hangs_does_not_allow_is_refused() {
    let (cache, least, well, file, disk) = with_a_tenant_at_the_end();
    let before = cache.stats();
    // More frames than would be left.
    file.write(0, &vec![7; 100 * PAGE]).unwrap();
    disk.hang(true);
    let writer = thread::spawn({
        let file = Arc::clone(&file);
        move || file.write_back(0, PAGE as u64)
    });
    let refused = resize(&cache, least);
    let stats = cache.stats();
    let bypasses = stats.total.bypasses;
    for page in 300..310 {
        well.read(page * PAGE as u64, &mut [0; PAGE]).unwrap();
    }
    let after = cache.stats().total.bypasses;
    disk.hang(false);
    assert!(matches!(refused, Err(ResizeError::Held { pages: 1.., .. })), "{refused:?}");
    assert_eq!((stats.size, stats.frames), (before.size, before.frames));
    assert_eq!(after, bypasses, "others have room as before");
    writer.join().unwrap().unwrap();
    resize(&cache, least).unwrap();
    assert!(cache.stats().memory <= least);
    file.flush_all().unwrap();
    assert!(disk.durable()[..100 * PAGE].iter().all(|&byte| byte == 7));
}

#[test]
fn frames_of_a_file_that_is_closed_are_waited_for_no_longer() {
    let (cache, least, well, file, disk) = with_a_tenant_at_the_end();
    // With this, none of its pages goes for others.
    well.group().set_min(1 << 30);
    file.write(0, &[7; PAGE]).unwrap();
    disk.hang(true);
    let writer = thread::spawn({
        let file = Arc::clone(&file);
        move || file.write_back(0, PAGE as u64)
    });
    while disk.counts.writes.load(SeqCst) == 0 {
        thread::yield_now();
    }
    let resizer = thread::spawn({
        let cache = cache.clone();
        move || resize(&cache, least)
    });
    thread::sleep(Duration::from_millis(300));
    assert!(!resizer.is_finished());
    let closed = Instant::now();
    well.close().unwrap();
    let resized = resizer.join().unwrap();
    let waited = closed.elapsed();
    disk.hang(false);
    resized.unwrap();
    assert!(waited < Duration::from_secs(3), "{waited:?}");
    writer.join().unwrap().unwrap();
}

#[test]
fn where_one_shard_cannot_be_smaller_all_are_as_before() {
    for held in 0..2 {
        let (cache, least) = smallest(|bytes| {
            PageCache::builder(bytes).page_size(PAGE).shards(2).background(ByHand::default())
        });
        cache.set_dirty(100, 100);
        cache.set_size(least + 200 * PAGE).unwrap();
        let before = cache.stats();
        let disk = Disk::new(400 * PAGE);
        let file = cache.open(disk, &cache.group("all").build()).unwrap();
        // Neighbours of 64 pages share a shard, which is not that of the next 64.
        for chunk in [held, held + 2] {
            file.write((chunk * 64 * PAGE) as u64, &vec![7; 45 * PAGE]).unwrap();
        }
        assert!(
            matches!(resize(&cache, least), Err(ResizeError::Held { bytes, .. }) if bytes == least)
        );
        let after = cache.stats();
        assert_eq!((after.size, after.frames), (before.size, before.frames));
        file.flush_all().unwrap();
        resize(&cache, least).unwrap();
    }
}

/// Sets a larger size the first few times that it is asked for a job, which it loses.
#[derive(Clone, Default)]
struct Resizer {
    cache: Arc<Mutex<Option<PageCache>>>,
    asked: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
}

impl Background for Resizer {
    fn spawn(&self, _: Job) {
        if self.asked.fetch_add(1, SeqCst) >= 20 {
            return;
        }
        let cache = self.cache.lock().unwrap().take();
        if let Some(cache) = cache {
            match cache.set_size(cache.stats().size + (64 << 10)) {
                Err(ResizeError::Nested { .. }) => _ = self.refused.fetch_add(1, SeqCst),
                result => result.unwrap(),
            }
            *self.cache.lock().unwrap() = Some(cache);
        }
    }
}

#[test]
fn who_runs_the_jobs_may_set_the_size_unless_it_is_being_set() {
    let resizer = Resizer::default();
    let builder = PageCache::builder(1 << 20).page_size(PAGE).shards(1).dirty(100, 100);
    let cache = builder.background(resizer.clone()).build().unwrap();
    *resizer.cache.lock().unwrap() = Some(cache.clone());
    let disk = Disk::new(40 * PAGE);
    let (done, ended) = channel();
    thread::spawn({
        let cache = cache.clone();
        move || {
            // The lists of these groups take the room of frames, and none of their pages is
            // written.
            let open = |at: usize| cache.open(disk.clone(), &cache.group(at.to_string()).build());
            let files: Vec<_> = (0..1000).map(|at| open(at).unwrap()).collect();
            for turn in 0..5_000 {
                let file = &files[turn * 7 % 1000];
                file.write((turn / 1000 * 7 * PAGE) as u64, &[1; PAGE]).unwrap();
            }
            done.send(files)
        }
    });
    let files = ended.recv_timeout(Duration::from_secs(60)).expect("writes");
    let (asked, refused) = (&resizer.asked, &resizer.refused);
    assert!(asked.swap(0, SeqCst) > 0 && refused.load(SeqCst) == 0);
    let refusal = resize(&cache, cache.stats().size - (64 << 10));
    assert!(matches!(refusal, Err(ResizeError::Held { .. })), "{refusal:?}");
    assert!(refused.load(SeqCst) > 0);
    // Otherwise the cache and this would keep each other alive.
    resizer.cache.lock().unwrap().take();
    drop(files);
}

/// Panics when it is asked for a job.
struct Gone;

impl Background for Gone {
    fn spawn(&self, _: Job) {
        panic!("nobody is there to do it");
    }
}

#[test]
fn all_is_as_before_where_asking_for_a_job_panics() {
    let (cache, least) =
        smallest(|bytes| PageCache::builder(bytes).page_size(PAGE).shards(2).background(Gone));
    cache.set_dirty(100, 100);
    cache.set_size(least + 200 * PAGE).unwrap();
    let before = cache.stats();
    let file = cache.open(Disk::new(400 * PAGE), &cache.group("all").build()).unwrap();
    // These pages are in the second shard: the first one has its new size by then.
    for chunk in [1, 3] {
        file.write((chunk * 64 * PAGE) as u64, &vec![7; 45 * PAGE]).unwrap();
    }
    assert!(catch_unwind(AssertUnwindSafe(|| cache.set_size(least))).is_err());
    let after = cache.stats();
    assert_eq!((after.size, after.frames), (before.size, before.frames));
    file.flush_all().unwrap();
    cache.set_size(least).unwrap();
    assert!(cache.stats().memory <= least);
}
