//! Callers that must not have to wait for others do not, and waiting ends.

use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use homing_cache::pages::{Background, Backing, Job, PageCache};

use crate::disk::{ByHand, Disk, Shaky, smallest};

const PAGE: usize = 512;
/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Runs this on another thread, and checks that it ends.
fn ends(what: &str, run: impl FnOnce() + Send + 'static) {
    let (done, over) = channel();
    let thread = thread::spawn(move || {
        run();
        let _ = done.send(());
    });
    over.recv_timeout(LONG).unwrap_or_else(|error| panic!("{what}: {error}"));
    thread.join().unwrap();
}

/// A slow disk, so that other threads come meanwhile.
struct Slow(Arc<Disk>);

const READ: Duration = Duration::from_millis(1);

impl Backing for Slow {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        thread::sleep(READ);
        self.0.read(offset, data)
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        thread::sleep(READ);
        self.0.write(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Does `busy` on some threads, again and again, while `meanwhile` runs.
fn beside(busy: impl Fn(u64) + Send + Sync, meanwhile: impl FnOnce()) {
    let over = AtomicBool::new(false);
    let begun = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..8 {
            let (busy, over, begun) = (&busy, &over, &begun);
            scope.spawn(move || {
                while !over.load(Relaxed) {
                    busy(thread);
                    begun.fetch_add(1, Relaxed);
                }
            });
        }
        while begun.load(Relaxed) < 32 {
            thread::yield_now();
        }
        meanwhile();
        over.store(true, Relaxed);
    });
}

#[test]
fn a_discard_does_not_wait_for_ever_beside_write_backs() {
    ends("discards beside writers", || {
        let cache = PageCache::builder(4 << 20).page_size(PAGE).shards(1).build().unwrap();
        let group = cache.group("all").build();
        let file = cache.open(Arc::new(Slow(Disk::new(512 * PAGE))), &group).unwrap();
        let write = |thread| {
            let page = thread * 8 * PAGE as u64;
            file.write(page, &[1; PAGE]).unwrap();
            file.write_back(page, PAGE as u64).unwrap();
        };
        beside(write, || {
            for _ in 0..5 {
                file.discard(0, 512 * PAGE as u64).unwrap();
            }
        });
    });
}

#[test]
fn a_discard_does_not_wait_for_ever_beside_reads_past_the_cache() {
    ends("discards beside readers", || {
        let (cache, _) = smallest(|bytes| {
            PageCache::builder(bytes).page_size(PAGE).shards(1).background(ByHand::default())
        });
        cache.set_readahead(false);
        // With this, no page is a victim, and all missing pages are read past the cache.
        cache.set_min_ttl_ms(3_600_000);
        let group = cache.group("all").build();
        let file = cache.open(Arc::new(Slow(Disk::new(4000 * PAGE))), &group).unwrap();
        for page in 0..cache.stats().frames as u64 {
            file.read(page * PAGE as u64, &mut [0; PAGE]).unwrap();
        }
        let next = [const { AtomicUsize::new(0) }; 8];
        let read = |thread: u64| {
            let at = next[thread as usize].fetch_add(1, Relaxed) as u64 % 400;
            file.read((500 + 400 * thread + at) * PAGE as u64, &mut [0; PAGE]).unwrap();
        };
        beside(read, || {
            let before = cache.stats().total.bypasses;
            for _ in 0..5 {
                file.discard(500 * PAGE as u64, 3300 * PAGE as u64).unwrap();
            }
            let meanwhile = cache.stats().total.bypasses - before;
            // Readers may go on between two discards, but not while one waits for them.
            assert!(meanwhile < 500, "{meanwhile} reads had to end first");
        });
    });
}

/// Drops all jobs.
struct Nobody;

impl Background for Nobody {
    fn spawn(&self, _: Job) {}
}

#[test]
fn room_for_new_groups_does_not_wait_for_anothers_disk() {
    let cache = PageCache::builder(4 << 20).page_size(PAGE).shards(1).background(Nobody);
    let cache = cache.build().unwrap();
    cache.set_readahead(false);
    cache.set_dirty(100, 100);
    let (hung, well) = (Disk::new(8000 * PAGE), Disk::new(8000 * PAGE));
    let slow = cache.group("slow").build();
    let file = Arc::new(cache.open(hung.clone(), &slow).unwrap());
    for page in 0..cache.stats().frames - 64 {
        file.read((page * PAGE) as u64, &mut [0; PAGE]).unwrap();
    }
    // These pages are in the frames that would have to go.
    file.write((7000 * PAGE) as u64, &vec![1; 64 * PAGE]).unwrap();
    hung.hang(true);
    let writer = thread::spawn({
        let file = Arc::clone(&file);
        move || file.write_back(0, (8000 * PAGE) as u64).unwrap()
    });
    while hung.counts.writes.load(SeqCst) == 0 {
        thread::yield_now();
    }
    ends("reads of others", move || {
        for number in 0..60 {
            let group = cache.group(format!("fast{number}")).build();
            let file = cache.open(well.clone(), &group).unwrap();
            for page in 0..20 {
                file.read((number * 100 + page) * PAGE as u64, &mut [0; PAGE]).unwrap();
            }
            let stats = cache.stats();
            assert!(stats.size == 4 << 20 && stats.total.bypasses == 0, "{stats:?}");
        }
    });
    hung.hang(false);
    writer.join().unwrap();
}

/// Looks at the cache whenever it is asked for a job.
struct Curious(ByHand, Arc<Mutex<Option<PageCache>>>);

impl Background for Curious {
    fn spawn(&self, job: Job) {
        let cache = self.1.lock().unwrap().clone();
        assert!(cache.is_some_and(|cache| cache.stats().used > 0));
        self.0.spawn(job);
    }
}

#[test]
fn who_runs_the_jobs_may_look_at_the_cache() {
    ends("writes, and jobs that are asked for", || {
        let (jobs, place) = (ByHand::default(), Arc::new(Mutex::new(None)));
        let builder = PageCache::builder(3 << 20).page_size(PAGE).shards(1);
        let cache = builder.background(Curious(jobs.clone(), Arc::clone(&place))).build().unwrap();
        *place.lock().unwrap() = Some(cache.clone());
        cache.set_dirty(100, 100);
        let disk = Disk::new(8000 * PAGE);
        let file = cache.open(disk, &cache.group("all").build()).unwrap();
        let mut run = 0;
        for page in 0..8000 {
            file.write(page * PAGE as u64, &[1; PAGE]).unwrap();
            run += jobs.run();
        }
        assert!(run > 0);
        // Otherwise neither would be dropped: this holds the cache that holds it.
        place.lock().unwrap().take();
    });
}

/// Panics when it is asked for a job.
struct Gone;

impl Background for Gone {
    fn spawn(&self, _: Job) {
        panic!("nobody is there to do it");
    }
}

#[test]
fn pages_are_not_read_for_ever_where_asking_for_a_job_panics() {
    let builder = PageCache::builder(2 << 20).page_size(PAGE).shards(1).background(Gone);
    let cache = builder.build().unwrap();
    cache.set_readahead(false);
    let file = cache.open(Disk::new(8000 * PAGE), &cache.group("all").build()).unwrap();
    let file = Arc::new(file);
    let reading = |page: u64| {
        let file = Arc::clone(&file);
        move || file.read(page * PAGE as u64, &mut [0; PAGE]).unwrap()
    };
    let panicked = (0..8000).find(|page| thread::spawn(reading(*page)).join().is_err());
    let again = reading(panicked.expect("a full cache asks for jobs"));
    // It asks again, so it may panic again.
    ends("the next read of the page", || _ = thread::spawn(again).join());
}

#[test]
fn after_a_backing_has_panicked_the_pages_after_it_can_go() {
    let (cache, _) =
        smallest(|bytes| PageCache::builder(bytes).page_size(PAGE).shards(1).background(Nobody));
    cache.set_dirty(100, 100);
    let disk = Disk::new(4000 * PAGE);
    let group = cache.group("all").build();
    let file = cache.open(Shaky::new(disk.clone(), 1), &group).unwrap();
    let file = Arc::new(file);
    let frames = cache.stats().frames as u64;
    // The pages are far apart, so each is its own run.
    let panics = AtomicUsize::new(0);
    for page in (0..2 * frames).map(|page| page * 67 % 4000) {
        let file = Arc::clone(&file);
        let write = move || file.write(page * PAGE as u64, &[1; PAGE]).unwrap();
        panics.fetch_add(usize::from(thread::spawn(write).join().is_err()), SeqCst);
    }
    assert_eq!((panics.load(SeqCst), cache.stats().total.bypasses), (1, 0));
}

/// A disk that says which write it is at, and has the first write of one page wait.
struct Stuck {
    disk: Arc<Disk>,
    told: Mutex<Sender<()>>,
}

impl Backing for Stuck {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, data)
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let _ = self.told.lock().unwrap().send(());
        self.disk.write(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.disk.flush()
    }
}

#[test]
fn the_caches_own_threads_write_for_a_group_whose_neighbours_disk_hangs() {
    let cache = PageCache::builder(4 << 20).page_size(PAGE).dirty(0, 100).build().unwrap();
    let open = |name: &str, hangs: bool| {
        let (told, writes) = channel();
        let disk = Disk::new(100 * PAGE);
        disk.hang(hangs);
        let backing = Stuck { disk: disk.clone(), told: Mutex::new(told) };
        let file = cache.open(Arc::new(backing), &cache.group(name).build()).unwrap();
        (file, disk, writes)
    };
    let (hung, disk, writes) = open("hung", true);
    hung.write(0, &[1; PAGE]).unwrap();
    hung.write(PAGE as u64, &[1; PAGE]).unwrap();
    writes.recv_timeout(LONG).expect("a write-back in the background");
    let (well, _, writes) = open("well", false);
    well.write(0, &[1; PAGE]).unwrap();
    well.write(PAGE as u64, &[1; PAGE]).unwrap();
    writes.recv_timeout(LONG).expect("a write-back beside one that hangs");
    disk.hang(false);
}

#[test]
fn who_goes_past_the_cache_waits_for_nobody_who_discards_elsewhere() {
    let cache = PageCache::builder(4 << 20).page_size(PAGE).shards(1).build().unwrap();
    let open = |name: &str| {
        let disk = Disk::new(100 * PAGE);
        (cache.open(disk.clone(), &cache.group(name).max(0).build()).unwrap(), disk)
    };
    let ((hung, disk), (well, _)) = (open("hung"), open("well"));
    disk.hold(Some(0));
    let in_time = thread::scope(|scope| {
        scope.spawn(|| hung.read(0, &mut [0; PAGE]).unwrap());
        while disk.counts.reads.load(SeqCst) == 0 {
            thread::yield_now();
        }
        scope.spawn(|| hung.discard(0, PAGE as u64).unwrap());
        thread::sleep(100 * READ); // it waits for the read by now
        let (done, ended) = channel();
        scope.spawn(move || {
            well.write(0, &[1; PAGE]).unwrap();
            well.read(0, &mut [0; PAGE]).unwrap();
            done.send(()).unwrap();
        });
        let ended = ended.recv_timeout(LONG / 6);
        disk.hold(None);
        ended
    });
    assert!(in_time.is_ok(), "it has waited for another one's disk");
}

#[test]
fn a_disk_that_hangs_keeps_nobody_else_from_reading_ahead() {
    let cache = PageCache::builder(16 << 20).page_size(PAGE).build().unwrap();
    let (hung, other) = (Disk::new(100 * PAGE), cache.group("other").build());
    let file = cache.open(hung.clone(), &cache.group("hung").build()).unwrap();
    hung.hold(Some(0));
    file.prefetch(0, PAGE as u64);
    let deadline = Instant::now() + LONG / 6;
    while hung.counts.reads.load(SeqCst) == 0 && Instant::now() < deadline {
        thread::yield_now();
    }
    let well = cache.open(Disk::new(100 * PAGE), &other).unwrap();
    well.prefetch(0, 100 * PAGE as u64);
    let read = || cache.group_stats(&other).read_ahead;
    while read() < 100 && Instant::now() < deadline {
        thread::yield_now();
    }
    let in_time = read();
    hung.hold(None);
    assert_eq!(in_time, 100);
}

/// A disk that waits for the test in each call that zeroes something.
struct Steps {
    disk: Arc<Disk>,
    begun: Mutex<Sender<u64>>,
    go_on: Mutex<Receiver<()>>,
}

impl Backing for Steps {
    fn size(&self) -> u64 {
        self.disk.size()
    }
    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, data)
    }
    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.disk.write(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.disk.flush()
    }
    fn write_zeroes(&self, _: u64, length: u64) -> io::Result<()> {
        self.begun.lock().unwrap().send(length).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
        Ok(())
    }
}

#[test]
fn nobody_waits_for_more_than_a_piece_of_long_zeroes() {
    ends("zeroes beside a reader and a writer", || {
        let ((begun, pieces), (step, go_on)) = (channel(), channel());
        let (begun, go_on) = (Mutex::new(begun), Mutex::new(go_on));
        let disk = Disk::new(20 << 20);
        let cache = PageCache::builder(4 << 20).build().unwrap();
        let group = cache.group("all").build();
        let file = cache.open(Arc::new(Steps { disk, begun, go_on }), &group).unwrap();
        thread::scope(|scope| {
            let zeroes = scope.spawn(|| file.write_zeroes(0, 20 << 20).unwrap());
            for piece in [8 << 20, 8 << 20, 4 << 20] {
                assert_eq!(pieces.recv().unwrap(), piece);
                if piece == 8 << 20 {
                    // Of the last piece, which is still to come.
                    let mut data = [0; 4096];
                    file.read(19 << 20, &mut data).unwrap();
                    file.write(19 << 20, &data).unwrap();
                }
                step.send(()).unwrap();
            }
            zeroes.join().unwrap();
        });
    });
}
