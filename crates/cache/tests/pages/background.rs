//! What is done in the background, and how the cache does without.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::time::Duration;

use homing_cache::pages::{Background, Backing, CachedFile, Group, Job, PageCache};

use crate::disk::{ByHand, Disk};

const PAGE: usize = 4096;
const PAGES: usize = 2000;

fn open(background: impl Background + 'static) -> (PageCache, Arc<Disk>, CachedFile) {
    let cache = PageCache::builder(PAGES * PAGE).shards(1).background(background).build().unwrap();
    let group = cache.group("all").build();
    let disk = Disk::new(4 * PAGES * PAGE);
    let file = cache.open(disk.clone(), &group).unwrap();
    (cache, disk, file)
}

#[test]
fn some_frames_are_kept_free() {
    let jobs = ByHand::default();
    let (cache, _, file) = open(jobs.clone());
    let mut page = vec![0; PAGE];
    for at in 0..3 * PAGES as u64 {
        file.read(at * PAGE as u64, &mut page).unwrap();
        jobs.run();
    }
    let stats = cache.stats();
    let free = stats.frames - stats.used;
    assert!(free >= stats.frames / 256 && free <= stats.frames / 128, "{stats:?}");
}

#[test]
fn frames_are_freed_ahead_of_need_and_up_to_the_high_watermark() {
    let jobs = ByHand::default();
    let (cache, _, file) = open(jobs.clone());
    let mut page = vec![0; PAGE];
    let free = || cache.stats().frames - cache.stats().used;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for at in 0..3 * PAGES as u64 {
        // Not in order, so nothing is read ahead.
        file.read(at * 67 % (4 * PAGES as u64) * PAGE as u64, &mut page).unwrap();
        before.push(free());
        if jobs.run() > 0 {
            after.push(free());
        }
    }
    let frames = cache.stats().frames;
    // The low watermark is never far, and almost each time that it is reached there is more.
    assert!(*before.iter().min().unwrap() + 1 >= frames / 256, "{}", before.iter().min().unwrap());
    let full = after.iter().filter(|free| **free == frames / 128).count();
    assert!(10 * full > 9 * after.len(), "{full} of {}", after.len());
}

/// Nothing can be written back.
#[test]
fn between_target_and_trigger_writes_stay_in_the_cache() {
    let (cache, disk, file) = open(Nobody);
    cache.set_dirty(5, 20);
    disk.failing.writes.store(1, SeqCst);
    let frames = cache.stats().frames;
    let page = |page: usize| (page * 67 % (4 * PAGES) * PAGE) as u64;
    let accepted =
        (0..2 * frames).take_while(|at| file.write(page(*at), &[1; PAGE]).is_ok()).count();
    assert!((frames / 5..frames / 5 + 2).contains(&accepted), "{accepted} of {frames}");
    // Once something can, it is as before.
    disk.failing.writes.store(0, SeqCst);
    file.flush_all().unwrap_err();
    file.flush_all().unwrap();
    let bypasses = || cache.stats().total.bypasses;
    let before = bypasses();
    for at in 0..2 * frames {
        file.write(page(at), &[1; PAGE]).unwrap();
    }
    assert_eq!(bypasses(), before);
}

#[test]
fn the_target_may_be_the_trigger() {
    let (cache, _, file) = open(Nobody);
    cache.set_dirty(5, 5);
    let frames = cache.stats().frames;
    for page in 0..frames {
        file.write((page * 67 % (4 * PAGES) * PAGE) as u64, &[1; PAGE]).unwrap();
    }
    let stats = cache.stats().total;
    assert!(stats.throttled > 0 && stats.bypasses == 0, "{stats:?}");
}

#[test]
fn dirty_pages_come_down_to_the_target() {
    let jobs = ByHand::default();
    let (cache, disk, file) = open(jobs.clone());
    let frames = cache.stats().frames as u64;
    for page in 0..frames / 10 {
        file.write(page * PAGE as u64, &[1; PAGE]).unwrap();
    }
    assert!(jobs.run() > 0);
    let dirty = cache.stats().total.dirty / PAGE as u64;
    // Runs are written whole, so it may be a little less.
    assert!(dirty <= frames / 20 && dirty + 4 * 64 >= frames / 20, "{dirty} of {frames}");
    assert!(disk.log.lock().unwrap().iter().any(|&(_, len)| len >= 32 * PAGE), "no long runs");
}

/// Stands for a system where no thread can be created.
struct Nobody;

impl Background for Nobody {
    fn spawn(&self, job: Job) {
        drop(job);
    }
}

#[test]
fn without_background_writers_pay_and_the_trigger_holds() {
    let (cache, disk, file) = open(Nobody);
    let frames = cache.stats().frames as u64;
    let mut most = 0;
    for page in 0..2 * frames {
        // The pages are far apart, so no run is longer than a page.
        let page = page * 67 % (4 * PAGES as u64);
        file.write(page * PAGE as u64, &[1; PAGE]).unwrap();
        most = most.max(cache.stats().total.dirty / PAGE as u64);
    }
    let stats = cache.stats().total;
    assert!(stats.throttled > 0 && stats.bypasses == 0, "{stats:?}");
    assert!(most > frames / 20 && most <= frames / 4, "{most} of {frames} were dirty");
    assert!(disk.counts.writes.load(SeqCst) > 0);
}

/// Each page that a writer makes dirty costs it a page, and it may pay for those who owed less than
/// the least that is paid.
#[test]
fn no_write_pays_for_many_others() {
    let (cache, disk, file) = open(Nobody);
    let frames = cache.stats().frames as u64;
    let written = || disk.log.lock().unwrap().iter().map(|(_, len)| len / PAGE).sum::<usize>();
    let (mut most, mut random) = (0, 1_u64);
    for _ in 0..2 * frames {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // The pages are far apart, so no run is longer than a page.
        let page = (random >> 33) % (4 * PAGES as u64 / 67) * 67;
        let before = written();
        file.write(page * PAGE as u64, &[1; PAGE]).unwrap();
        most = most.max(written() - before);
    }
    assert!(cache.stats().total.throttled > 0);
    assert!((1..=8).contains(&most), "{most} pages were written in one write");
}

#[test]
fn what_is_wanted_soon_is_read_in_the_background() {
    let jobs = ByHand::default();
    let (cache, disk, file) = open(jobs.clone());
    disk.fill(|at| (at / PAGE) as u8);
    file.prefetch(100, (200 * PAGE) as u64);
    assert_eq!(disk.counts.reads.load(SeqCst), 0);
    assert_eq!(jobs.run(), 1);
    let reads = disk.counts.reads.load(SeqCst);
    let mut data = vec![0; 200 * PAGE];
    file.read(100, &mut data).unwrap();
    assert!(data.iter().enumerate().all(|(at, &byte)| byte == ((at + 100) / PAGE) as u8));
    assert_eq!(disk.counts.reads.load(SeqCst), reads);
    assert_eq!(cache.stats().total.misses, 0);
    // An error is left to the caller that asks for the page.
    disk.failing.reads.store(1, SeqCst);
    file.prefetch((300 * PAGE) as u64, PAGE as u64);
    jobs.run();
    assert!(file.read((300 * PAGE) as u64, &mut [0; 1]).is_err());
}

/// A tenant that has used half of the cache again and again.
fn tenant_of_half(cache: &PageCache) -> (Group, CachedFile) {
    let tenant = cache.group("tenant").build();
    let theirs = cache.open(Disk::new(PAGES / 2 * PAGE), &tenant).unwrap();
    (0..9).for_each(|_| theirs.read(0, &mut vec![0; PAGES / 2 * PAGE]).unwrap());
    (tenant, theirs)
}

/// A client may send a hint for a whole disk in one request.
#[test]
fn a_hint_takes_a_quarter_at_most_and_nothing_from_those_who_have_what_they_use() {
    let jobs = ByHand::default();
    let (cache, _, file) = open(jobs.clone());
    let (tenant, _theirs) = tenant_of_half(&cache);
    let usage = tenant.usage();
    for _ in 0..100 {
        file.prefetch(0, u64::MAX);
    }
    jobs.run();
    let read = cache.stats().total.read_ahead;
    assert_eq!(read, cache.stats().frames as u64 / 4);
    assert!(tenant.usage() >= usage * 99 / 100, "{} of {usage}", tenant.usage());
    // The hints of a smaller group may want less.
    let small = cache.group("small").max(100 * PAGE as u64).build();
    let small = cache.open(Disk::new(PAGES * PAGE), &small).unwrap();
    small.prefetch(0, u64::MAX);
    jobs.run();
    assert_eq!(cache.stats().total.read_ahead - read, 25);
}

/// The hint is shortened if the group may have less by then.
#[test]
fn a_hint_is_bounded_by_what_the_group_may_have_when_it_is_read() {
    let jobs = ByHand::default();
    let cache = PageCache::builder(PAGES * PAGE).background(jobs.clone()).build().unwrap();
    let group = cache.group("tenant").build();
    let file = cache.open(Disk::new(PAGES * PAGE), &group).unwrap();
    cache.set_readahead(false);
    let mut used = vec![0; 60 * PAGE];
    (0..5).for_each(|_| file.read(0, &mut used).unwrap());
    file.prefetch((1000 * PAGE) as u64, u64::MAX);
    group.set_max((100 * PAGE) as u64);
    jobs.run();
    let before = cache.stats().total;
    file.read(0, &mut used).unwrap();
    let after = cache.stats().total;
    assert!(before.read_ahead <= 32 && after.misses == before.misses, "{after:?}");
}

#[test]
fn hints_one_after_another_push_out_what_is_their_own() {
    let jobs = ByHand::default();
    let (cache, _, file) = open(jobs.clone());
    let (tenant, _theirs) = tenant_of_half(&cache);
    let usage = tenant.usage();
    for at in 0..80 {
        file.prefetch(at * 100 * PAGE as u64, (100 * PAGE) as u64);
        jobs.run();
    }
    for number in 0..20 {
        let group = cache.group(format!("{number}")).build();
        let other = cache.open(Disk::new(100 * PAGE), &group).unwrap();
        other.prefetch(0, u64::MAX);
        jobs.run();
    }
    assert!(tenant.usage() >= usage * 99 / 100, "{} of {usage}", tenant.usage());
    // Hints take all free frames except those that are kept free, and then those of earlier hints.
    let stats = cache.stats();
    assert!(stats.used >= stats.frames * 98 / 100, "{stats:?}");
}

/// A disk with a page that cannot be read.
struct Bad(Arc<Disk>, u64);

impl Backing for Bad {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> std::io::Result<()> {
        let is_bad = (offset..offset + data.len() as u64).contains(&(self.1 * PAGE as u64));
        if is_bad { Err(std::io::Error::from_raw_os_error(5)) } else { self.0.read(offset, data) }
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> std::io::Result<()> {
        self.0.write(offset, data)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn what_cannot_be_read_of_one_hint_takes_no_other_with_it() {
    let jobs = ByHand::default();
    let cache = PageCache::builder(4 * PAGES * PAGE).background(jobs.clone()).build().unwrap();
    let group = cache.group("all").build();
    let file = cache.open(Arc::new(Bad(Disk::new(4 * PAGES * PAGE), 100)), &group).unwrap();
    let pages = |count: u64| count * PAGE as u64;
    file.prefetch(0, pages(128));
    file.prefetch(pages(128), pages(1000));
    jobs.run();
    assert_eq!(cache.stats().total.read_ahead, 64 + 1000, "up to the chunk with the bad page");
    // The rest of the same hint is not tried.
    file.prefetch(pages(64), pages(1500));
    jobs.run();
    assert_eq!(cache.stats().total.read_ahead, 64 + 1000);
}

#[test]
fn what_is_read_ahead_for_readers_comes_before_hints() {
    let jobs = ByHand::default();
    let (cache, disk, file) = open(jobs.clone());
    let hint = (2 * PAGES * PAGE) as u64;
    file.prefetch(hint, u64::MAX);
    (0..8).for_each(|page| file.read(page * PAGE as u64, &mut [0; 1]).unwrap());
    disk.hold(Some(hint));
    std::thread::scope(|scope| {
        scope.spawn(|| jobs.run());
        let began = std::time::Instant::now();
        while cache.stats().total.read_ahead == 0 && began.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        let before_hint = cache.stats().total.read_ahead;
        disk.hold(None);
        assert!(before_hint > 0, "it waits behind the hint");
    });
}

#[test]
fn what_a_group_has_beyond_a_smaller_max_goes() {
    let jobs = ByHand::default();
    let cache = PageCache::builder(PAGES * PAGE).background(jobs.clone()).build().unwrap();
    let group = cache.group("tenant").build();
    let disk = Disk::new(PAGES * PAGE);
    let file = cache.open(disk.clone(), &group).unwrap();
    file.read(0, &mut vec![0; 600 * PAGE]).unwrap();
    // Pages of a disk that refuses writes stay dirty.
    disk.failing.writes.store(1, SeqCst);
    file.write(0, &vec![7; 90 * PAGE]).unwrap();
    group.set_max((20 * PAGE) as u64);
    jobs.run();
    assert!(group.usage() >= group.dirty() && group.dirty() > (80 * PAGE) as u64);
    disk.failing.writes.store(0, SeqCst);
    assert!(file.flush_all().is_err(), "of the write-back");
    jobs.run();
    assert!(group.usage() <= (20 * PAGE) as u64, "{}", group.usage());
    file.flush_all().unwrap();
    file.write(0, &vec![7; 15 * PAGE]).unwrap();
    group.set_max((10 * PAGE) as u64);
    jobs.run();
    assert!(group.usage() <= (10 * PAGE) as u64, "{}", group.usage());
    let mut data = vec![0; 90 * PAGE];
    file.read(0, &mut data).unwrap();
    assert!(data.iter().all(|byte| *byte == 7));
    // With a larger maximum there is nothing to do.
    group.set_max((500 * PAGE) as u64);
    assert_eq!(jobs.run(), 0);
}

#[test]
fn a_flush_that_fails_has_nothing_tried_again_beyond_a_smaller_max() {
    let jobs = ByHand::default();
    let cache = PageCache::builder(PAGES * PAGE).background(jobs.clone()).build().unwrap();
    let group = cache.group("tenant").build();
    let disk = Disk::new(PAGES * PAGE);
    let file = cache.open(disk.clone(), &group).unwrap();
    file.write(0, &vec![7; 60 * PAGE]).unwrap();
    disk.failing.writes.store(1, SeqCst);
    group.set_max((20 * PAGE) as u64);
    jobs.run();
    assert!(file.flush_all().is_err());
    assert_eq!(jobs.run(), 0, "its error would be told twice");
    disk.failing.writes.store(0, SeqCst);
    file.flush_all().unwrap();
    jobs.run();
    assert!(group.usage() <= (20 * PAGE) as u64, "{}", group.usage());
}

/// There are more such pages than an eviction looks at, and they are to go first or last.
#[test]
fn pages_that_cannot_be_written_keep_none_of_the_others_beyond_a_smaller_max() {
    for (clean, dirty, swappiness) in [(600, 300, 100), (100, 400, 0), (1000, 500, 200)] {
        let jobs = ByHand::default();
        let cache = PageCache::builder(PAGES * PAGE).background(jobs.clone()).build().unwrap();
        let group = cache.group("tenant").build();
        group.set_swappiness(swappiness);
        let [good, bad] = [(); 2].map(|()| Disk::new(PAGES * PAGE));
        let (file, bad_file) =
            (cache.open(good, &group).unwrap(), cache.open(bad.clone(), &group).unwrap());
        bad.failing.writes.store(1, SeqCst);
        // Some of these writes fail: when many pages are dirty, a writer has to write some back.
        (0..dirty).for_each(|page| drop(bad_file.write((page * PAGE) as u64, &[7; PAGE])));
        file.read(0, &mut vec![0; clean * PAGE]).unwrap();
        group.set_max((20 * PAGE) as u64);
        jobs.run();
        let (usage, dirty) = (group.usage(), group.dirty());
        assert!(usage <= dirty.max((20 * PAGE) as u64), "{usage} of them {dirty} dirty");
        bad.failing.writes.store(0, SeqCst);
        assert!(bad_file.flush_all().is_err(), "of the write-back");
        jobs.run();
        assert!(group.usage() <= (20 * PAGE) as u64, "{}", group.usage());
    }
}

#[test]
fn a_file_that_cannot_be_closed_keeps_no_job_busy_beside_a_full_disk() {
    let jobs = ByHand::default();
    let cache = PageCache::builder(PAGES * PAGE).background(jobs.clone()).build().unwrap();
    let group = cache.group("tenant").build();
    let [full, bad] = [(); 2].map(|()| Disk::new(PAGES * PAGE));
    let file = cache.open(full.clone(), &group).unwrap();
    let dropped = cache.open(bad.clone(), &group).unwrap();
    full.failing.writes.store(1, SeqCst);
    bad.failing.flushes.store(1, SeqCst);
    file.write(0, &vec![7; 32 * PAGE]).unwrap();
    dropped.write(0, &[7; PAGE]).unwrap();
    drop(dropped);
    group.set_max((4 * PAGE) as u64);
    let (done, is_done) = channel();
    std::thread::spawn(move || done.send(jobs.run()));
    is_done.recv_timeout(Duration::from_secs(60)).expect("an end of what there is to do");
}

/// A disk that says when it is written to.
struct Told(Arc<Disk>, std::sync::Mutex<std::sync::mpsc::Sender<()>>);

impl Backing for Told {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, data)
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> std::io::Result<()> {
        let _ = self.1.lock().unwrap().send(());
        self.0.write(offset, data)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn a_thread_of_its_own_does_it_unless_set_otherwise() {
    let cache = PageCache::builder(PAGES * PAGE).dirty(0, 100).build().unwrap();
    let group = cache.group("all").build();
    let (sender, written) = channel();
    let told = Told(Disk::new(100 * PAGE), std::sync::Mutex::new(sender));
    let file = cache.open(Arc::new(told), &group).unwrap();
    file.write(0, &[1; PAGE]).unwrap();
    file.write(PAGE as u64, &[1; PAGE]).unwrap();
    written.recv_timeout(Duration::from_secs(60)).expect("a write-back that nobody asked for");
}

#[test]
fn a_cache_may_go_before_its_jobs() {
    let jobs = ByHand::default();
    let (cache, _, file) = open(jobs.clone());
    file.prefetch(0, PAGE as u64);
    file.close().unwrap();
    drop(cache);
    assert_eq!(jobs.run(), 1);
}

/// Loses its first job.
struct Careless(ByHand, std::sync::atomic::AtomicBool);

impl Background for Careless {
    fn spawn(&self, job: Job) {
        if self.1.swap(true, SeqCst) {
            self.0.spawn(job);
        }
    }
}

#[test]
fn after_a_job_was_dropped_there_is_another() {
    let jobs = ByHand::default();
    let (_, disk, file) = open(Careless(jobs.clone(), false.into()));
    file.prefetch(0, PAGE as u64);
    assert_eq!(jobs.run(), 0);
    file.prefetch(PAGE as u64, PAGE as u64);
    assert_eq!((jobs.run(), disk.counts.reads.load(SeqCst)), (1, 2));
}

/// Loses its first 64 jobs: as many as ranges may wait.
struct Loses(ByHand, std::sync::atomic::AtomicUsize);

impl Background for Loses {
    fn spawn(&self, job: Job) {
        if self.1.fetch_add(1, SeqCst) >= 64 {
            self.0.spawn(job);
        }
    }
}

#[test]
fn after_as_many_jobs_as_ranges_may_wait_were_dropped_there_is_another() {
    let jobs = ByHand::default();
    let (_, disk, file) = open(Loses(jobs.clone(), 0.into()));
    (0..64).for_each(|page| file.prefetch(page * PAGE as u64, PAGE as u64));
    assert_eq!(jobs.run(), 0);
    for _ in 0..10 {
        file.prefetch(100 * PAGE as u64, PAGE as u64);
    }
    assert!(jobs.run() > 0, "nobody asks for a job any more");
    assert!(disk.counts.reads.load(SeqCst) > 0);
}

#[test]
fn a_disk_that_refuses_everything_is_not_asked_for_each_page() {
    const RUN: usize = 64;
    let disk = Disk::new(32 * RUN * PAGE);
    let cache = PageCache::builder(16 << 20).background(ByHand::default());
    let cache = cache.dirty(100, 100).build().unwrap();
    let file = cache.open(disk.clone(), &cache.group("all").build()).unwrap();
    file.write(0, &vec![1; 32 * RUN * PAGE]).unwrap();
    disk.failing.writes.store(1, SeqCst);
    for flushes in 1..=2 {
        file.flush_all().unwrap_err();
        let tried = disk.counts.writes.load(SeqCst) / flushes;
        assert!(tried <= 2 * RUN + 3 * 32, "{tried} writes in each flush");
    }
    assert_eq!(cache.stats().total.dirty, (32 * RUN * PAGE) as u64, "nothing is lost");
    disk.failing.writes.store(0, SeqCst);
    file.flush_all().unwrap();
    assert!(disk.durable().iter().all(|byte| *byte == 1));
}
