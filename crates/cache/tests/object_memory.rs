//! A cache of objects takes memory as entries come, however many it may hold.
//!
//! This test runs in its own process, because nothing else must take memory meanwhile.
#![cfg(target_os = "linux")]

use homing_cache::Cache;

/// The bytes of the process's address space, used or not, and of its memory.
fn taken() -> [usize; 2] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    ["VmSize:", "VmRSS:"].map(|key| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    })
}

const MANY: u64 = 1_000_000;
type Shrink = fn(&Cache<u64, [u64; 8]>);

#[test]
fn only_what_is_held_takes_memory() {
    let [mapped, _] = taken();
    let _large: Cache<u64, [u64; 512]> = Cache::new(1 << 20);
    let cache = Cache::new(100_000_000);
    (0..1000).for_each(|key| _ = cache.insert(key, [key; 8]));
    assert_eq!(cache.len(), 1000);
    let [now_mapped, before] = taken();
    let more = now_mapped - mapped;
    assert!(more < 16 << 20, "{more} bytes where next to nothing is held");

    let shrinks: [Shrink; 2] = [|cache| cache.set_capacity(MANY / 100), Cache::clear];
    for shrink in shrinks {
        cache.set_capacity(MANY);
        (0..2 * MANY).for_each(|key| _ = cache.insert(key, [key; 8]));
        let full = taken()[1] - before;
        assert!(full > 70 << 20, "{full} bytes of {MANY} entries");
        shrink(&cache);
        let left = taken()[1].saturating_sub(before);
        // A tenth of that is in use by then. The allocator keeps some, too.
        assert!(left < full / 3, "{left} bytes of {full}");
        let held: Vec<_> = cache.iter().collect();
        assert_eq!(held.len(), cache.len());
        assert!(held.iter().all(|(key, value)| cache.get(key) == Some(*value)));
    }
}
