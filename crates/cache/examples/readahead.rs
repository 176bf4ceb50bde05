//! What reading ahead gives and costs: `cargo run --release -p homing-cache --example readahead`.
//!
//! A cold file is read in order from a disk that takes 100 us or more for each read, whatever its
//! length. Then a hot set is used beside a scan, and a loop that does not fit is read, to see how
//! readahead affects the hits. Times are medians of interleaved rounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use homing_cache::pages::{Backing, CachedFile, PageCache};

const PAGE: u64 = 4096;
const ROUNDS: usize = 5;

/// A disk of zeroes, which come after a while.
struct Disk {
    size: u64,
    latency: Duration,
    reads: AtomicU64,
}

impl Backing for Disk {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, _: u64, data: &mut [u8]) -> std::io::Result<()> {
        if !self.latency.is_zero() {
            std::thread::sleep(self.latency);
        }
        self.reads.fetch_add(1, Relaxed);
        data.fill(0);
        Ok(())
    }

    fn write(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }
}

fn open(cache: &PageCache, pages: u64, latency_us: u64) -> (CachedFile, Arc<Disk>) {
    let (size, latency) = (pages * PAGE, Duration::from_micros(latency_us));
    let disk = Arc::new(Disk { size, latency, reads: AtomicU64::new(0) });
    let group = cache.group("all").until_closed().build();
    (cache.open(disk.clone(), &group).expect("the file is small"), disk)
}

fn cache(bytes: usize, window_kib: usize) -> PageCache {
    let cache = PageCache::builder(bytes).build().expect("the size will do");
    cache.set_readahead(window_kib > 0);
    cache.set_readahead_max(window_kib << 10);
    cache
}

/// The MiB/s, and the number of reads of the disk.
fn sequential(window_kib: usize, request: usize, streams: u64) -> (f64, u64) {
    const PAGES: u64 = 4096;
    let cache = cache(256 << 20, window_kib);
    let (file, disk) = open(&cache, PAGES, 100);
    let mut data = vec![0; request];
    let began = Instant::now();
    let each = PAGES * PAGE / streams;
    for offset in (0..each).step_by(request) {
        for stream in 0..streams {
            file.read(stream * each + offset, &mut data).expect("nothing fails");
        }
    }
    let mib = (PAGES * PAGE / (1 << 20)) as f64 / began.elapsed().as_secs_f64();
    (mib, disk.reads.load(Relaxed))
}

/// Small numbers that are the same each time.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *state >> 33
}

/// The hit ratio in per cent of a hot set of half of the cache, beside a scan.
fn beside_a_scan(window_kib: usize) -> f64 {
    let cache = cache(32 << 20, window_kib);
    let frames = cache.stats().frames as u64;
    let hot = open(&cache, frames / 2, 0).0;
    let scan = open(&cache, 40 * frames, 0).0;
    let (mut page, mut state) = (vec![0; PAGE as usize], 7);
    let hits = || cache.group_stats(&hot.group());
    let mut before = hits();
    for step in 0..40 * frames {
        scan.read(step * PAGE, &mut page).expect("nothing fails");
        if step % 4 == 0 {
            hot.read(random(&mut state) % (frames / 2) * PAGE, &mut page).expect("nothing fails");
        }
        if step == 20 * frames {
            before = hits();
        }
    }
    let after = hits();
    let (hit, miss) = (after.hits - before.hits, after.misses - before.misses);
    hit as f64 * 100.0 / (hit + miss) as f64
}

/// Reads of the disk for each hundred pages of a loop that is half as large again as the cache.
fn in_a_loop(window_kib: usize) -> f64 {
    let cache = cache(32 << 20, window_kib);
    let frames = cache.stats().frames as u64;
    let file = open(&cache, frames * 3 / 2, 0).0;
    let mut page = vec![0; PAGE as usize];
    let brought = || {
        let stats = cache.stats().total;
        stats.misses + stats.read_ahead
    };
    let mut before = 0;
    for round in 0..30 {
        if round == 15 {
            before = brought();
        }
        for at in 0..frames * 3 / 2 {
            file.read(at * PAGE, &mut page).expect("nothing fails");
        }
    }
    (brought() - before) as f64 * 100.0 / (15 * (frames * 3 / 2)) as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let windows = [0, 128, 1024];
    println!("window KiB            {:>12} {:>12} {:>12}", windows[0], windows[1], windows[2]);
    for (request, streams) in [(4096, 1), (65536, 1), (4096, 4)] {
        let mut speeds = [const { Vec::new() }; 3];
        let mut reads = [0; 3];
        for _ in 0..ROUNDS {
            for (at, window) in windows.into_iter().enumerate() {
                let (speed, count) = sequential(window, request, streams);
                speeds[at].push(speed);
                reads[at] = count;
            }
        }
        let speeds = speeds.map(median);
        println!(
            "{request:>6} B, {streams} readers   {:>7.0} MiB/s {:>6.0} MiB/s {:>6.0} MiB/s  reads {reads:?}",
            speeds[0], speeds[1], speeds[2]
        );
    }
    let scans = windows.map(beside_a_scan);
    println!(
        "hot set beside a scan {:>10.1} % {:>10.1} % {:>10.1} %  hits",
        scans[0], scans[1], scans[2]
    );
    let loops = windows.map(in_a_loop);
    println!(
        "loop of 1.5 caches    {:>10.1} % {:>10.1} % {:>10.1} %  pages brought",
        loops[0], loops[1], loops[2]
    );
}
