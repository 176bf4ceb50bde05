//! The two tenants at work: their sets are touched, the cache settles, and then the measurement
//! begins.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use homing::pages::{CachedFile, Group, PageCache, Stats};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rustix::time::{ClockId, clock_gettime};

use super::PAGE;
use super::cell::Cell;
use super::disk::{Counts, Disk};
use crate::cell::Figures;
use crate::latency;
use crate::stopwatch::Stopwatch;

/// One in this many operations is timed: reading the clock takes a tenth of a hit.
const TIMED: u64 = 17;
/// How many cachefuls of requests come before the measurement begins.
const SETTLE_CACHEFULS: u64 = 8;
/// But settling takes at most this many times the measured time.
const SETTLE_MAX: u32 = 8;
const POLL: Duration = Duration::from_millis(5);
const SEED: u64 = 0x6d69_7865;

const SETTLING: u8 = 0;
const COUNTING: u8 = 1;
const ENDED: u8 = 2;

/// A tenant that uses a file of its own at random, each page as likely as any other.
struct Tenant {
    name: &'static str,
    file: CachedFile,
    disk: Arc<Disk>,
    threads: usize,
    /// Of a hundred operations, how many overwrite a page.
    writes: u8,
}

/// The counts of a thread during the measurement.
#[derive(Default)]
struct Tally {
    operations: u64,
    cpu: f64,
    latencies: Vec<Duration>,
}

impl Tenant {
    fn open(
        cell: &Cell,
        cache: &PageCache,
        group: &Group,
        (name, threads, writes): (&'static str, usize, u8),
    ) -> anyhow::Result<Self> {
        let latency = Duration::from_micros(cell.disk_us);
        let disk = Arc::new(Disk::open(&cell.dir.join(name), latency)?);
        let file = cache.open(Arc::clone(&disk) as _, group)?;
        Ok(Self { name, file, disk, threads, writes })
    }

    fn pages(&self) -> u64 {
        self.file.size() / PAGE
    }

    fn write_all(&self) -> anyhow::Result<()> {
        let data = [1; PAGE as usize];
        (0..self.pages()).try_for_each(|page| Ok(self.file.write(page * PAGE, &data)?))
    }

    /// As many operations as there are pages.
    fn touch(&self) -> anyhow::Result<()> {
        let mut requests = Requests::new(self, 0);
        (0..self.pages()).try_for_each(|_| requests.next())
    }

    /// The operations of one thread.
    fn run(&self, thread: usize, phase: &AtomicU8) -> anyhow::Result<Tally> {
        let mut requests = Requests::new(self, 1 + thread as u64);
        while phase.load(Relaxed) == SETTLING {
            requests.next()?;
        }
        let mut tally = Tally::default();
        let cpu = thread_cpu();
        while phase.load(Relaxed) == COUNTING {
            if tally.operations.is_multiple_of(TIMED) {
                let began = Instant::now();
                requests.next()?;
                tally.latencies.push(began.elapsed());
            } else {
                requests.next()?;
            }
            tally.operations += 1;
        }
        tally.cpu = thread_cpu() - cpu;
        Ok(tally)
    }

    /// Adds the tenant's figures as `NAME_...`; `misses` are those of all of its threads.
    fn tell(&self, tallies: &[Tally], misses: u64, seconds: f64, figures: &mut Figures) {
        let operations = tallies.iter().map(|tally| tally.operations).sum::<u64>() as f64;
        let latencies: Vec<_> =
            tallies.iter().flat_map(|tally| &tally.latencies).copied().collect();
        let latencies = latency::of(&latencies);
        let quantile = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        let cpu = tallies.iter().map(|tally| tally.cpu).sum::<f64>();
        for (key, figure) in [
            ("ops_per_s", operations / seconds),
            ("hit_percent", 100.0 * (1.0 - misses as f64 / operations).max(0.0)),
            ("misses_per_s", misses as f64 / seconds),
            ("p50_us", quantile(0.5)),
            ("p99_us", quantile(0.99)),
            ("cpu_us", 1e6 * cpu / operations),
        ] {
            figures.insert(format!("{}_{key}", self.name), figure);
        }
    }
}

/// A thread's operations, the same ones in each row.
struct Requests<'a> {
    tenant: &'a Tenant,
    random: Xoshiro256PlusPlus,
    page: Vec<u8>,
}

impl<'a> Requests<'a> {
    fn new(tenant: &'a Tenant, stream: u64) -> Self {
        let random = Xoshiro256PlusPlus::seed_from_u64(SEED + 2 * stream + tenant.pages());
        Self { tenant, random, page: vec![2; PAGE as usize] }
    }

    fn next(&mut self) -> anyhow::Result<()> {
        let Self { tenant, random, page } = self;
        let offset = random.random_range(0..tenant.pages()) * PAGE;
        if tenant.writes > 0 && random.random_range(0..100) < tenant.writes {
            tenant.file.write(offset, page)?;
        } else {
            tenant.file.read(offset, page)?;
        }
        Ok(())
    }
}

/// What the cache and the disks of the reader and the dirty tenant did so far.
struct Snapshot {
    stats: Stats,
    disks: [Counts; 2],
}

impl Snapshot {
    fn of(cache: &PageCache, tenants: &[Tenant; 2]) -> Self {
        Self { stats: cache.stats(), disks: tenants.each_ref().map(|one| one.disk.counts()) }
    }

    fn requests(&self) -> u64 {
        self.stats.total.hits + self.stats.total.misses
    }
}

/// Measures one row under one load.
pub(crate) fn measure(cell: &Cell) -> anyhow::Result<Figures> {
    // Dirty pages are written only when they have to go, like memory that is swapped.
    let cache = PageCache::builder(cell.memory).dirty(100, 100).build()?;
    cache.set_readahead(false);
    let dirty_set = set_of(&cell.dir, "dirty")?;
    let [first, second] = cell.row.groups(&cache, dirty_set);
    let reader = ("reader", cell.threads * cell.depth, 0);
    let tenants = [
        Tenant::open(cell, &cache, &first, reader)?,
        Tenant::open(cell, &cache, &second, ("dirty", cell.threads, cell.writes))?,
    ];
    // In the published order: the dirty tenant is filled first, then the reader has the memory for
    // a while.
    tenants[1].write_all()?;
    tenants[0].touch()?;
    for tenant in &tenants {
        tenant.disk.be_slow();
    }

    let phase = AtomicU8::new(SETTLING);
    let length = Duration::from_millis(cell.milliseconds);
    let (before, after, elapsed, tallies) = thread::scope(|scope| {
        let phase = &phase;
        let threads = tenants.each_ref().map(|tenant| {
            let run = |thread| scope.spawn(move || tenant.run(thread, phase));
            (0..tenant.threads).map(run).collect::<Vec<_>>()
        });
        settle(&cache, &tenants, &threads, length);
        let before = Snapshot::of(&cache, &tenants);
        let watch = Stopwatch::start();
        phase.store(COUNTING, Relaxed);
        thread::sleep(length);
        phase.store(ENDED, Relaxed);
        let elapsed = watch.and_then(|watch| watch.stop());
        let after = Snapshot::of(&cache, &tenants);
        (before, after, elapsed, threads.map(join))
    });
    let ([reader, dirty], elapsed) = (tallies, elapsed?);
    let tallies = [reader?, dirty?];
    for (tenant, tallies) in ["reader", "dirty tenant"].into_iter().zip(&tallies) {
        let idle = tallies.iter().filter(|tally| tally.operations == 0).count();
        ensure!(
            idle == 0,
            "{idle} of {} threads of the {tenant} ended no operation in {} ms: measure for longer",
            tallies.len(),
            cell.milliseconds
        );
    }

    let [reads, dirties] = [0, 1].map(|at| after.disks[at].since(before.disks[at]));
    let misses = after.stats.total.misses - before.stats.total.misses;
    // If the tenants share a group, their misses are told apart by what was read for the reader.
    let misses = [reads.reads, misses.saturating_sub(reads.reads)];
    let mut figures = Figures::new();
    for (tenant, (tallies, misses)) in tenants.iter().zip(tallies.iter().zip(misses)) {
        tenant.tell(tallies, misses, elapsed.seconds, &mut figures);
    }
    let operations = tallies.iter().flatten().map(|tally| tally.operations).sum::<u64>() as f64;
    let did = |count: fn(&Stats) -> u64| count(&after.stats) - count(&before.stats);
    let rate = |count: fn(&Stats) -> u64| did(count) as f64 / elapsed.seconds;
    let room = after.stats.frames as f64 * PAGE as f64;
    let [reader_set, dirty_set] = [0, 1].map(|at| tenants[at].file.size() as f64);
    for (key, figure) in [
        ("cpu_us", 1e6 * elapsed.cpu / operations),
        ("others_percent", elapsed.others_percent),
        ("disk_us", reads.mean_wait_us(dirties)),
        (
            "declined_percent",
            100.0 * did(|one| one.total.declined) as f64 / did(|one| one.total.misses) as f64,
        ),
        ("write_backs_per_s", rate(|one| one.total.write_backs)),
        ("bypasses_per_s", rate(|one| one.total.bypasses)),
        ("bound_dirty_hit_percent", 100.0 * (room / dirty_set).min(1.0)),
        ("bound_reader_hit_percent", 100.0 * ((room - dirty_set) / reader_set).clamp(0.0, 1.0)),
    ] {
        figures.insert(key.to_owned(), figure);
    }
    Ok(figures)
}

/// Waits until the contents of the cache are what the load makes of them, or for long enough, or
/// until a thread fails.
fn settle<T>(
    cache: &PageCache,
    tenants: &[Tenant; 2],
    threads: &[Vec<ScopedJoinHandle<'_, T>>; 2],
    length: Duration,
) {
    let began = Instant::now();
    let first = Snapshot::of(cache, tenants);
    let enough = first.requests() + SETTLE_CACHEFULS * first.stats.frames as u64;
    while Snapshot::of(cache, tenants).requests() < enough
        && began.elapsed() < SETTLE_MAX * length
        && !threads.iter().flatten().any(ScopedJoinHandle::is_finished)
    {
        thread::sleep(POLL);
    }
}

fn join(threads: Vec<ScopedJoinHandle<'_, anyhow::Result<Tally>>>) -> anyhow::Result<Vec<Tally>> {
    let done = threads.into_iter().map(ScopedJoinHandle::join);
    done.map(|done| done.map_err(|_| anyhow!("a thread panicked"))?).collect()
}

/// Bytes of a tenant's file.
fn set_of(dir: &Path, name: &str) -> anyhow::Result<u64> {
    Ok(dir.join(name).metadata()?.len())
}

/// The CPU seconds of this thread so far.
fn thread_cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
