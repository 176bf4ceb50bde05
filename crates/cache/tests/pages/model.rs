//! Whatever is done, whatever fails: reads see the last write, a power cut takes nothing that was
//! flushed, and no error of a write-back is kept from the next flush.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use homing_cache::pages::{CachedFile, Group, PageCache};
use proptest::prelude::*;

use crate::disk::{ByHand, Disk, smallest};

const PAGE: usize = 512;
/// More pages than there are frames, the last one short.
const SIZE: usize = 170 * PAGE + 100;

#[derive(Clone, Debug)]
enum Step {
    Read(usize, usize),
    Write(usize, usize, u8),
    WriteThrough(usize, usize, u8),
    Flush(usize, usize),
    FlushAll,
    Discard(usize, usize),
    Zero(usize, usize),
    Prefetch(usize, usize),
    Background,
    Resize(usize),
    Limits(usize, usize),
    Fail(usize, usize, usize),
    Reopen,
    Look,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![1..40usize, Just(PAGE), Just(3 * PAGE), 1..12_000usize];
    let offset = prop_oneof![0..SIZE, (0..SIZE / PAGE).prop_map(|page| page * PAGE)];
    let range = (offset, length).prop_map(|(at, len)| (at, len.min(SIZE - at)));
    let step = (0..30u8, range, any::<u8>(), (0..6usize, 0..6usize, 0..3usize));
    let step = step.prop_map(|(kind, (at, len), byte, (a, b, c))| match kind {
        0..5 => Step::Read(at, len),
        5..15 => Step::Write(at, len, byte),
        15 => Step::WriteThrough(at, len, byte),
        16..18 => Step::Flush(at, len),
        18 => Step::FlushAll,
        19 => Step::Discard(at, len),
        20 => Step::Zero(at, len),
        21 => Step::Prefetch(at, len),
        22..25 => Step::Background,
        25 => Step::Resize(byte as usize),
        26 => Step::Limits(byte as usize, a * b * 10),
        27 => Step::Fail(a, b, c),
        28 => Step::Reopen,
        _ => Step::Look,
    });
    prop::collection::vec(step, 1..80)
}

/// A file in the cache, and what is known of it.
struct World {
    cache: PageCache,
    least: usize,
    jobs: ByHand,
    group: Group,
    disk: Arc<Disk>,
    file: Option<CachedFile>,
    /// The value of each byte.
    now: Vec<u8>,
    /// The values that each byte may have after a power cut, a bit for each value.
    maybe: Vec<[u64; 4]>,
    /// Whether the next flush has to fail, if that is known.
    fails: Option<bool>,
}

impl World {
    fn new(shards: usize) -> Self {
        let jobs = ByHand::default();
        let (cache, least) = smallest(|bytes| {
            PageCache::builder(bytes).page_size(PAGE).shards(shards).background(jobs.clone())
        });
        let group = cache.group("all").build();
        let disk = Disk::new(SIZE);
        let file = Some(cache.open(disk.clone(), &group).unwrap());
        let (now, maybe) = (vec![0; SIZE], vec![[1, 0, 0, 0]; SIZE]);
        Self { cache, least, jobs, group, disk, file, now, maybe, fails: Some(false) }
    }

    fn file(&self) -> &CachedFile {
        self.file.as_ref().unwrap()
    }

    fn bytes(len: usize, seed: u8) -> Vec<u8> {
        (0..len).map(|at| seed.wrapping_add((at / 3) as u8)).collect()
    }

    fn may_be(&mut self, at: usize, byte: u8) {
        self.maybe[at][byte as usize / 64] |= 1 << (byte % 64);
    }

    fn flushed(&mut self, at: usize, len: usize) {
        for at in at..at + len {
            self.maybe[at] = [0; 4];
            self.may_be(at, self.now[at]);
        }
    }

    fn wrote(&mut self, at: usize, bytes: &[u8], written: bool) {
        for (at, &byte) in (at..).zip(bytes) {
            self.may_be(at, byte);
        }
        if written {
            self.now[at..at + bytes.len()].copy_from_slice(bytes);
            return;
        }
        // Each byte is the old or the new one. From now on it has the value that it has now.
        let mut found = vec![0; bytes.len()];
        self.disk.calm(|| self.file().read(at as u64, &mut found)).unwrap();
        for ((now, &byte), found) in self.now[at..].iter_mut().zip(bytes).zip(found) {
            assert!(found == *now || found == byte, "neither old nor new");
            *now = found;
        }
    }

    fn look(&self) {
        let mut all = vec![0; SIZE];
        self.disk.calm(|| self.file().read(0, &mut all)).unwrap();
        assert!(all == self.now, "a read does not see the last write");
    }

    fn do_step(&mut self, step: &Step) {
        let errors = self.cache.stats().total.write_back_errors;
        let mut tells = false;
        match *step {
            Step::Read(at, len) => {
                let mut data = vec![0; len];
                if self.file().read(at as u64, &mut data).is_ok() {
                    assert!(data == self.now[at..at + len], "a read does not see the last write");
                }
            }
            Step::Write(at, len, seed) => {
                let bytes = Self::bytes(len, seed);
                let written = self.file().write(at as u64, &bytes).is_ok();
                self.wrote(at, &bytes, written);
            }
            Step::WriteThrough(at, len, seed) => {
                let bytes = Self::bytes(len, seed);
                let written = self.file().write_through(at as u64, &bytes).is_ok();
                self.wrote(at, &bytes, written);
                if written {
                    self.flushed(at, len);
                }
                if self.cache.stats().total.write_back_errors > errors {
                    self.fails = self.fails.filter(|&fails| fails);
                    tells = true;
                }
            }
            Step::Flush(at, len) => {
                let flushed = self.file().flush(at as u64, len as u64).is_ok();
                assert!(!(flushed && self.fails == Some(true)), "an error was kept from a flush");
                self.fails = Some(false);
                tells = true;
                if flushed {
                    self.flushed(at, len);
                }
            }
            Step::FlushAll => {
                let flushed = self.file().flush_all().is_ok();
                assert!(!(flushed && self.fails == Some(true)), "an error was kept from a flush");
                (self.fails, tells) = (Some(false), true);
                if flushed {
                    self.flushed(0, SIZE);
                    assert!(self.disk.durable() == self.now);
                }
            }
            Step::Discard(at, len) => {
                let _ = self.file().discard(at as u64, len as u64);
                let (first, last) = (at.next_multiple_of(PAGE), at + len);
                let last = if last == SIZE { SIZE } else { last / PAGE * PAGE };
                if first < last {
                    let mut found = vec![0; last - first];
                    self.disk.calm(|| self.file().read(first as u64, &mut found)).unwrap();
                    self.now[first..last].copy_from_slice(&found);
                    self.maybe[first..last].fill([u64::MAX; 4]);
                }
            }
            Step::Zero(at, len) => {
                let zeroes = vec![0; len];
                let written = self.file().write_zeroes(at as u64, len as u64).is_ok();
                self.wrote(at, &zeroes, written);
            }
            Step::Prefetch(at, len) => self.file().prefetch(at as u64, len as u64),
            Step::Background => {
                self.jobs.run();
            }
            Step::Resize(pages) => {
                let _ = self.cache.set_size(self.least + pages * PAGE);
            }
            Step::Limits(max, min) => {
                self.group.set_max(if max < 100 { u64::MAX } else { (max * PAGE) as u64 });
                self.group.set_min((min * PAGE) as u64);
            }
            Step::Fail(reads, writes, flushes) => {
                self.disk.failing.reads.store(reads * 2, SeqCst);
                self.disk.failing.writes.store(writes, SeqCst);
                self.disk.failing.flushes.store(flushes, SeqCst);
            }
            Step::Reopen => match self.file.take().unwrap().close() {
                Ok(()) => {
                    assert_ne!(self.fails, Some(true), "an error was kept from closing");
                    assert!(self.disk.durable() == self.now);
                    self.flushed(0, SIZE);
                    self.fails = Some(false);
                    self.file = Some(self.cache.open(self.disk.clone(), &self.group).unwrap());
                    assert_eq!(self.group.usage(), 0);
                }
                Err(error) => {
                    (self.fails, tells) = (Some(false), true);
                    self.file = Some(error.file);
                }
            },
            Step::Look => self.look(),
        }
        let stats = self.cache.stats();
        if stats.total.write_back_errors > errors && !tells {
            self.fails = Some(true);
        }
        assert!(stats.memory <= stats.size, "{stats:?}");
        assert_eq!(stats.total.usage, (stats.used * PAGE) as u64, "{stats:?}");
        for (at, byte) in self.disk.durable().into_iter().enumerate() {
            let may_be = self.maybe[at][byte as usize / 64] >> (byte % 64) & 1 == 1;
            assert!(may_be, "byte {at} is {byte} after a power cut, now {}", self.now[at]);
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_and_nothing_is_stale(steps in steps(), shards in 1..3usize) {
        let mut world = World::new(shards);
        for step in &steps {
            world.do_step(step);
        }
        world.look();
        let World { disk, file, now, .. } = world;
        disk.calm(|| {
            // The first flush may return an error of an earlier write-back.
            let file = file.unwrap();
            let _ = file.flush_all();
            file.flush_all().unwrap();
            assert!(disk.durable() == now);
        });
    }
}
