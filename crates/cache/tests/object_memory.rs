//! A cache of objects takes memory as entries come, however many it may hold.
//!
//! A test of its own: nothing else must take memory meanwhile.
#![cfg(target_os = "linux")]

use homing_cache::Cache;

/// Bytes of the process's address space, used or not.
fn mapped() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().next().unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn a_capacity_that_is_never_reached_takes_no_memory() {
    let before = mapped();
    let cache = Cache::new(100_000_000);
    (0..1000).for_each(|key| _ = cache.insert(key, key));
    assert_eq!(cache.len(), 1000);
    let taken = mapped() - before;
    assert!(taken < 16 << 20, "{taken} bytes");
}
