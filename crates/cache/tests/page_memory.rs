//! The size of a page cache bounds the memory that it takes, as the kernel counts it.
//!
//! This test runs in its own process, because nothing else must take memory meanwhile.
#![cfg(target_os = "linux")]

use std::io;
use std::sync::Arc;

use homing_cache::pages::{Backing, Job, PageCache};

const SIZE: usize = 96 << 20;
const PAGE: u64 = 4096;

/// A file that is as long as needed, and holds nothing.
struct Nothing;

impl Backing for Nothing {
    fn size(&self) -> u64 {
        1 << 40
    }

    fn read(&self, _offset: u64, _data: &mut [u8]) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, _offset: u64, _data: &mut [u8]) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

struct Nobody;

impl homing_cache::pages::Background for Nobody {
    fn spawn(&self, _job: Job) {}
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn no_more_memory_is_taken_than_was_given() {
    let before = resident();
    let cache = PageCache::builder(SIZE).shards(4).background(Nobody).build().unwrap();
    cache.set_size(SIZE - (4 << 20)).unwrap();
    cache.set_size(SIZE).unwrap();
    let unused = resident() - before;
    assert!(unused <= SIZE / 20, "{unused} bytes of {SIZE} before any is used");
    let groups: Vec<_> = (0..20).map(|at| cache.group(at.to_string()).build()).collect();
    let files: Vec<_> =
        groups.iter().map(|group| cache.open(Arc::new(Nothing), group).unwrap()).collect();
    let frames = cache.stats().frames as u64;
    let mut random = 1_u64;
    for round in 0..10 * frames {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let file = &files[(random >> 60) as usize];
        let page = match round % 3 {
            // Some pages are used often, some at random, some in order.
            0 => (random >> 33) % (frames / 40),
            1 => (random >> 33) % (4 * frames),
            _ => round,
        };
        if round % 5 == 0 {
            file.write(page * PAGE, &[1; PAGE as usize]).unwrap();
        } else {
            file.read(page * PAGE, &mut [0; 8]).unwrap();
        }
    }
    let stats = cache.stats();
    assert_eq!(stats.used, stats.frames, "all memory is used");
    let taken = resident() - before;
    println!("{taken} bytes of {SIZE}, {} for pages", stats.used * PAGE as usize);
    assert!(stats.memory <= SIZE, "{stats:?}");
    // Besides the cache, this counts the test's stack and what the allocator keeps: 1 %.
    assert!(taken <= SIZE + SIZE / 100, "{taken} bytes of {SIZE}");
    assert!(stats.used * PAGE as usize >= SIZE / 100 * 97, "{stats:?}");
}
