//! Threads use the same pages. No word is torn, and none is older than it may be, while frames are
//! few, the size changes and the backing fails.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use homing_cache::pages::{CachedFile, PageCache};

use crate::disk::{Disk, smallest};

const PAGE: usize = 512;
const WORDS: usize = 300 * PAGE / 8;
const THREADS: usize = 4;

/// Numbers from a thread's own sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }
}

fn rounds() -> usize {
    let seconds = std::env::var("HOMING_STRESS_SECONDS").ok().and_then(|s| s.parse().ok());
    5_000 * seconds.unwrap_or(1)
}

/// The thread that writes a word. Neighbouring words have different writers or, if `disjoint`,
/// neighbouring runs of words have.
fn owner(word: usize, disjoint: bool) -> usize {
    (if disjoint { word / 100 } else { word }) % THREADS
}

fn write_until_written(file: &CachedFile, offset: u64, data: &[u8]) {
    while file.write(offset, data).is_err() {}
}

/// Writes its own words, and reads those of all. Returns what it wrote last to each word.
fn client(file: &CachedFile, me: usize, disjoint: bool) -> Vec<u64> {
    let mut random = Random(me as u64 + 1);
    let mut last = vec![0; WORDS];
    let mut seen = vec![0; WORDS];
    for round in 1..=rounds() as u64 {
        let first = random.below(WORDS);
        let count = (1 + random.below(200)).min(WORDS - first);
        let value = (me as u64) << 48 | round;
        match random.below(8) {
            0..3 => {
                // A run of words that are all its own.
                let words = (first..first + count).take_while(|&word| owner(word, disjoint) == me);
                let words = words.count();
                let data: Vec<_> = (0..words).flat_map(|_| value.to_le_bytes()).collect();
                write_until_written(file, first as u64 * 8, &data);
                last[first..first + words].fill(value);
            }
            3 if file.flush(first as u64 * 8, count as u64 * 8).is_err() => {}
            4 => file.prefetch(first as u64 * 8, count as u64 * 8),
            _ => {
                let mut data = vec![0; count * 8];
                if file.read(first as u64 * 8, &mut data).is_err() {
                    continue;
                }
                for (word, bytes) in (first..).zip(data.chunks(8)) {
                    let found = u64::from_le_bytes(bytes.try_into().unwrap());
                    if owner(word, disjoint) == me {
                        assert_eq!(found, last[word], "word {word} is not what was written last");
                    }
                    let by = (found >> 48) as usize;
                    assert!(found == 0 || by == owner(word, disjoint), "word {word} is torn");
                    assert!(found >= seen[word], "word {word} has become older");
                    seen[word] = found;
                }
            }
        }
    }
    last
}

fn run(disjoint: bool, fail: bool, shards: usize) {
    let (cache, least) = smallest(|bytes| PageCache::builder(bytes).page_size(PAGE).shards(shards));
    let group = cache.group("all").build();
    let disk = Disk::new(WORDS * 8);
    let file = Arc::new(cache.open(disk.clone(), &group).unwrap());
    if fail {
        disk.failing.reads.store(20, SeqCst);
        disk.failing.writes.store(5, SeqCst);
        disk.failing.flushes.store(5, SeqCst);
    }
    let done = Arc::new(AtomicBool::new(false));
    let resizer = {
        let (cache, done) = (cache.clone(), Arc::clone(&done));
        thread::spawn(move || {
            for pages in (0..).map(|turn| turn * 37 % 100) {
                if done.load(SeqCst) {
                    return;
                }
                let _ = cache.set_size(least + pages * PAGE);
                let stats = cache.stats();
                assert!(stats.memory <= least + 100 * PAGE, "{stats:?}");
                thread::yield_now();
            }
        })
    };
    let clients: Vec<_> = (0..THREADS)
        .map(|me| {
            let file = Arc::clone(&file);
            thread::spawn(move || client(&file, me, disjoint))
        })
        .collect();
    let last: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    done.store(true, SeqCst);
    resizer.join().unwrap();
    disk.calm(|| {
        let _ = file.flush_all();
        file.flush_all().unwrap();
    });
    for (word, bytes) in disk.durable().chunks(8).enumerate() {
        let found = u64::from_le_bytes(bytes.try_into().unwrap());
        assert_eq!(found, last[owner(word, disjoint)][word], "word {word} after a power cut");
    }
}

#[test]
fn threads_on_the_same_pages() {
    run(false, false, 2);
}

#[test]
fn threads_on_pages_of_their_own() {
    run(true, false, 1);
}

#[test]
fn threads_while_everything_fails_now_and_then() {
    run(false, true, 2);
    run(true, true, 3);
}
