//! The measurement of one workload on one peer, in the process that was made for it.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use hdrhistogram::Histogram;

use super::peers::Peer;
use super::requests::{Action, Request, key, value};
use super::workload::{KEYS, Workload};
use crate::cell::Figures;
use crate::procfs;
use crate::stopwatch::{Elapsed, Stopwatch};

/// One operation in this many is timed. The clock and the flag are looked at no more often, which
/// adds less than a fifth of a nanosecond to each operation. It is a prime, because caches put work
/// off until it is 64 or 512 operations' worth, which every sample, or none, would meet.
const BATCH: usize = 509;

/// Bytes of an entry's payload: a key and a value.
const PAYLOAD: f64 = 16.0;

/// How many times its capacity a cache is filled before its memory is read, so that what it
/// remembers of evicted entries is included.
const FILLED: u32 = 3;

/// How long a measurement lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    /// For this long.
    For(Duration),
    /// This many operations of each thread, rounded up to whole batches.
    Operations(u64),
}

/// How much there is of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// How many threads use the cache.
    pub(crate) threads: usize,
    /// How long it is measured.
    pub(crate) length: Length,
    /// How many keys there are.
    pub(crate) keys: u32,
    /// How many batches of requests each thread has, before it starts again.
    pub(crate) batches: usize,
    /// How many batches all threads together do before the clock starts. The hits among the second
    /// half are counted: these are the same requests for all peers, however fast they are.
    pub(crate) warm_up: usize,
}

impl Setting {
    /// A million keys. Four million requests are many times what any cache remembers: when they
    /// come again they are as good as new.
    pub(crate) const fn new(threads: usize, length: Length) -> Self {
        Self { threads, length, keys: KEYS, batches: 1 << 13, warm_up: 1 << 13 }
    }
}

/// Measures `workload` on a cache of this kind.
pub(crate) fn run<P: Peer>(workload: Workload, setting: &Setting) -> anyhow::Result<Figures> {
    match workload {
        Workload::Memory => memory::<P>(workload, setting),
        _ => serve::<P>(workload, setting),
    }
}

/// What a thread did while the clock ran.
struct Tally {
    operations: u64,
    latencies: Histogram<u64>,
}

/// What a thread found before.
#[derive(Clone, Copy, Default)]
struct Finds {
    /// Reads that might hit, that is, not those of a scan.
    reads: u64,
    hits: u64,
}

fn serve<P: Peer>(workload: Workload, setting: &Setting) -> anyhow::Result<Figures> {
    let courses = thread::scope(|scope| {
        let draw = |thread| scope.spawn(move || Course::draw(workload, setting, thread));
        let threads: Vec<_> = (0..setting.threads).map(draw).collect();
        threads.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
    })?;
    let cache = P::with_capacity(workload.room().entries(setting.keys) as usize);
    let filled = Barrier::new(setting.threads);
    let (ready, start) = (Barrier::new(setting.threads + 1), Barrier::new(setting.threads + 1));
    let stop = AtomicBool::new(false);
    let run = |course: &Course| {
        course.fill(&cache);
        filled.wait();
        let finds = course.warm_up(&cache);
        ready.wait();
        start.wait();
        Ok((course.measure(&cache, setting.length, &stop), finds))
    };
    let (tallies, elapsed) = thread::scope(|scope| {
        let threads = courses.iter().map(|course| scope.spawn(|| run(course)));
        let threads: Vec<_> = threads.collect();
        ready.wait();
        let watch = Stopwatch::start();
        start.wait();
        if let Length::For(duration) = setting.length {
            thread::sleep(duration);
            stop.store(true, Ordering::Relaxed);
        }
        let tallies = threads.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>();
        anyhow::Ok((tallies?, watch?.stop()?))
    })?;
    figures(&tallies, &elapsed)
}

fn join<T>(thread: ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

fn figures(tallies: &[(Tally, Finds)], elapsed: &Elapsed) -> anyhow::Result<Figures> {
    let sum = |part: fn(&(Tally, Finds)) -> u64| tallies.iter().map(part).sum::<u64>() as f64;
    let operations = sum(|(tally, _)| tally.operations);
    let (reads, hits) = (sum(|(_, finds)| finds.reads), sum(|(_, finds)| finds.hits));
    let mut latencies = no_latencies();
    for (tally, _) in tallies {
        latencies.add(&tally.latencies).context("latencies cannot be added")?;
    }
    let quantile = |quantile| latencies.value_at_quantile(quantile) as f64;
    let figures = [
        ("cpu_ns_per_op", elapsed.cpu * 1e9 / operations),
        ("ops_per_s", operations / elapsed.seconds),
        ("hit_percent", 100.0 * hits / reads),
        ("p50_ns", quantile(0.5)),
        ("p99_ns", quantile(0.99)),
        ("p999_ns", quantile(0.999)),
        ("others_percent", elapsed.others_percent),
    ];
    Ok(figures.map(|(key, value)| (key.to_owned(), value)).into())
}

/// A thread's requests.
struct Course {
    requests: Vec<Request>,
    /// The keys to insert at the beginning.
    first: Vec<u32>,
    keys: u32,
    /// How many batches come before the clock starts.
    warm_up: usize,
}

impl Course {
    fn draw(workload: Workload, setting: &Setting, thread: usize) -> anyhow::Result<Self> {
        let requests = workload.law(setting.keys).draw(setting.batches * BATCH, thread)?;
        // If there is room for all keys, no read is to miss because nothing has asked for its key
        // yet.
        let is_preset = workload.room().entries(setting.keys) == setting.keys;
        let numbers = if is_preset { 0..setting.keys } else { 0..0 };
        let first = numbers.skip(thread).step_by(setting.threads).collect();
        let warm_up = setting.warm_up.div_ceil(setting.threads);
        Ok(Self { requests, first, keys: setting.keys, warm_up })
    }

    /// The batches, one after the other, from the first again after the last.
    fn batches(&self) -> impl Iterator<Item = &[Request]> {
        self.requests.chunks_exact(BATCH).cycle()
    }

    fn fill<P: Peer>(&self, cache: &P) {
        for key in self.first.iter().copied().map(key) {
            cache.insert(key, value(key));
        }
    }

    fn warm_up<P: Peer>(&self, cache: &P) -> Finds {
        let mut finds = Finds::default();
        for (index, batch) in self.batches().take(self.warm_up).enumerate() {
            let is_late = index >= self.warm_up / 2;
            for request in batch {
                let hit = serve_one(cache, *request);
                let counts = is_late && request.is_counted(self.keys);
                finds.reads += u64::from(counts);
                finds.hits += u64::from(counts && hit);
            }
        }
        finds
    }

    fn measure<P: Peer>(&self, cache: &P, length: Length, stop: &AtomicBool) -> Tally {
        let mut tally = Tally { operations: 0, latencies: no_latencies() };
        let limit = match length {
            Length::For(_) => u64::MAX,
            Length::Operations(count) => count,
        };
        for batch in self.batches().skip(self.warm_up) {
            if stop.load(Ordering::Relaxed) || tally.operations >= limit {
                break;
            }
            let (first, rest) = batch.split_first().expect("a batch has requests");
            let began = Instant::now();
            serve_one(cache, *first);
            tally.latencies.saturating_record(began.elapsed().as_nanos() as u64);
            for request in rest {
                serve_one(cache, *request);
            }
            tally.operations += BATCH as u64;
        }
        tally
    }
}

/// Does what is asked. Returns whether it was a read that hit.
#[inline]
fn serve_one<P: Peer>(cache: &P, request: Request) -> bool {
    let key = request.key();
    match request.action() {
        Action::Read => {
            if let Some(value) = cache.get(key) {
                black_box(value);
                return true;
            }
            cache.insert(key, value(key));
        }
        Action::Write => cache.insert(key, value(key)),
        Action::Remove => cache.remove(key),
    }
    false
}

/// An empty histogram: up to a minute, to three significant digits.
fn no_latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}

/// Resident memory for each entry. It is counted in pages, and a million entries even that out.
fn memory<P: Peer>(workload: Workload, setting: &Setting) -> anyhow::Result<Figures> {
    let process = std::process::id();
    let capacity = workload.room().entries(setting.keys);
    let before = procfs::memory(process)? as f64;
    let cache = P::with_capacity(capacity as usize);
    for key in (0..FILLED * capacity).map(key) {
        cache.insert(key, value(key));
    }
    let entries = cache.len() as f64;
    let bytes = (procfs::memory(process)? as f64 - before) / entries;
    let figures = [
        ("bytes_per_entry", bytes),
        ("bytes_above_payload", bytes - PAYLOAD),
        ("held_percent", 100.0 * entries / f64::from(capacity)),
    ];
    Ok(figures.map(|(key, value)| (key.to_owned(), value)).into())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Mutex;

    use super::super::peers::Kind;
    use super::super::workload::{Room, Skew};
    use super::*;

    /// A small run that ends by itself.
    fn setting(threads: usize) -> Setting {
        let length = Length::Operations(40 * BATCH as u64);
        Setting { threads, length, keys: 20_000, batches: 100, warm_up: 128 }
    }

    #[test]
    fn every_peer_does_every_workload() {
        for workload in Workload::all(&[25]) {
            for peer in Kind::all().filter(|peer| peer.takes(workload)) {
                let figures = peer.measure(workload, &setting(2)).unwrap();
                let case = format!("{peer:?} on {workload}: {figures:?}");
                if workload == Workload::Memory {
                    assert!((90.0..101.0).contains(&figures["held_percent"]), "{case}");
                    continue;
                }
                assert!(figures["cpu_ns_per_op"] > 0.0 && figures["ops_per_s"] > 0.0, "{case}");
                assert!(figures["p50_ns"] <= figures["p999_ns"], "{case}");
                let hits = figures["hit_percent"];
                match workload {
                    _ if peer.is_baseline() => assert!(hits > 85.0, "{case}"),
                    Workload::Read(_, Room::All) | Workload::Write(_, Room::All) => {
                        // Each shard has its own bound, and small shards are filled unevenly.
                        assert!(hits > 90.0, "{case}");
                    }
                    Workload::Read(Skew::Steep, Room::Tenth) => {
                        assert!((60.0..90.0).contains(&hits), "{case}");
                    }
                    _ => assert!((30.0..100.0).contains(&hits), "{case}"),
                }
            }
        }
    }

    #[test]
    fn operations_are_counted_in_whole_batches() {
        let setting = Setting { length: Length::Operations(1), ..setting(1) };
        let course = Course::draw(READS, &setting, 0).unwrap();
        let cache = Table::with_capacity(1);
        let tally = course.measure(&cache, setting.length, &AtomicBool::new(false));
        assert_eq!((tally.operations, tally.latencies.len()), (BATCH as u64, 1));
        let tally = course.measure(&cache, setting.length, &AtomicBool::new(true));
        assert_eq!(tally.operations, 0);
    }

    #[test]
    fn hits_are_those_of_the_latter_half_of_the_warm_up() {
        let course = Course::draw(READS, &setting(1), 0).unwrap();
        let cache = Table::with_capacity(1);
        // The table evicts nothing, so each key that comes again is found.
        let early = &course.requests[..64 * BATCH];
        let mut known: BTreeSet<u64> = early.iter().map(|request| request.key()).collect();
        let late = course.requests.iter().map(|request| request.key());
        let late = late.cycle().skip(64 * BATCH).take(64 * BATCH);
        let expected = late.filter(|key| !known.insert(*key)).count() as u64;
        let finds = course.warm_up(&cache);
        assert_eq!((finds.reads, finds.hits), (64 * BATCH as u64, expected));
    }

    const READS: Workload = Workload::Read(Skew::Steep, Room::Tenth);

    /// A cache that holds everything.
    struct Table(Mutex<BTreeMap<u64, u64>>);

    impl Peer for Table {
        const NAME: &'static str = "table";

        fn with_capacity(_entries: usize) -> Self {
            Self(Mutex::default())
        }

        fn get(&self, key: u64) -> Option<u64> {
            self.0.lock().unwrap().get(&key).copied()
        }

        fn insert(&self, key: u64, value: u64) {
            self.0.lock().unwrap().insert(key, value);
        }

        fn remove(&self, key: u64) {
            self.0.lock().unwrap().remove(&key);
        }

        fn len(&self) -> usize {
            self.0.lock().unwrap().len()
        }
    }
}
