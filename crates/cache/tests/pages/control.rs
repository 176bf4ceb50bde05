//! The texts that the policy shows, and its commands.

use std::sync::Arc;

use homing_cache::pages::{CachedFile, PageCache};
use homing_control::AttributeTree;

use crate::disk::{ByHand, Disk};

const PAGE: usize = 4096;
const LRU_GEN: &str = "cache/debug/lru_gen";

fn open(shards: usize) -> (PageCache, CachedFile, Arc<Disk>) {
    let builder = PageCache::builder(16 << 20).shards(shards).background(ByHand::default());
    let cache = builder.dirty(100, 100).build().unwrap();
    let group = cache.group("tenant").build();
    let disk = Disk::new(1000 * PAGE);
    let file = cache.open(disk.clone(), &group).unwrap();
    (cache, file, disk)
}

fn text(cache: &PageCache, path: &str) -> String {
    cache.attributes().get(path).unwrap()
}

/// `epoch, dirty, clean` of each line of ages.
fn ages(cache: &PageCache) -> Vec<(u64, u64, u64)> {
    let text = text(cache, LRU_GEN);
    let lines = text.lines().filter(|line| !line.starts_with("memcg") && !line.contains("node"));
    let numbers = |line: &str| line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let rows = lines.map(numbers).map(|row: Vec<u64>| (row[0], row[2], row[3]));
    rows.collect()
}

/// The current epoch.
fn now(cache: &PageCache) -> u64 {
    ages(cache).last().unwrap().0
}

/// Ends this many epochs.
fn pass(cache: &PageCache, epochs: u64) {
    (0..epochs).for_each(|_| run(cache, &format!("+ 0 0 {}", now(cache))).unwrap());
}

fn run(cache: &PageCache, command: &str) -> Result<(), String> {
    cache.attributes().set(LRU_GEN, command).map_err(|error| error.to_string())
}

#[test]
fn pages_are_shown_by_age_and_tier() {
    let (cache, file, _) = open(3);
    file.read(0, &mut vec![0; 300 * PAGE]).unwrap();
    file.write(0, &vec![1; 100 * PAGE]).unwrap();
    assert_eq!(ages(&cache).iter().map(|row| row.1 + row.2).sum::<u64>(), 300);
    let full = text(&cache, "cache/debug/lru_gen_full");
    assert!(full.starts_with("memcg     0 tenant\n node     0\n"), "{full}");
    // The pages of a line are the sum of the tiers below it.
    let rows: Vec<Vec<u64>> = full
        .lines()
        .skip(2)
        .filter(|line| !line.contains("tier"))
        .map(|line| line.split_whitespace().map(|word| word.parse().unwrap()).collect())
        .collect();
    let of = |len| rows.iter().filter(move |row| row.len() == len);
    assert_eq!(of(4).map(|row| row[2] + row[3]).sum::<u64>(), 300, "{full}");
    assert_eq!(of(3).map(|row| row[1] + row[2]).sum::<u64>(), 300, "{full}");
    assert!(cache.attributes().set("cache/debug/lru_gen_full", "").is_err());
}

#[test]
fn what_became_of_pages_is_shown() {
    let (cache, file, _) = open(1);
    file.read(0, &mut vec![0; 50 * PAGE]).unwrap();
    pass(&cache, 8);
    file.read(0, &mut vec![0; 10 * PAGE]).unwrap();
    run(&cache, &format!("- 0 0 {} 100 20", now(&cache) - 4)).unwrap();
    file.read(0, &mut vec![0; 50 * PAGE]).unwrap();
    let full = text(&cache, "cache/debug/lru_gen_full");
    let tier = full.lines().find(|line| line.contains("tier")).expect("a line");
    let numbers: Vec<_> = tier.split_whitespace().skip(2).skip(4).collect();
    assert_eq!(numbers[..2], ["20r", "20e"], "{full}");
    assert_eq!(numbers[2..], ["10p", "10h"], "{full}");
}

#[test]
fn pages_grow_older_when_told_to() {
    let (cache, file, _) = open(2);
    file.read(0, &mut vec![0; 10 * PAGE]).unwrap();
    assert_eq!(ages(&cache), [(0, 0, 10)]);
    run(&cache, "+ 0 0 0; + 0 0 1\n+ 0 0 2,").unwrap();
    file.read(100 * PAGE as u64, &mut vec![0; 5 * PAGE]).unwrap();
    // Ages are half octaves, so this is two epochs or three.
    let shown = ages(&cache);
    assert_eq!(shown[1..], [(3, 0, 5)]);
    assert!(shown[0].0 <= 1 && shown[0].2 == 10, "{shown:?}");
}

#[test]
fn a_group_gives_what_it_is_told_to() {
    let (cache, file, disk) = open(2);
    let other = cache.group("other").build();
    let spared = cache.open(Disk::new(100 * PAGE), &other).unwrap();
    spared.read(0, &mut vec![0; 100 * PAGE]).unwrap();
    file.read(0, &mut vec![0; 200 * PAGE]).unwrap();
    file.write(0, &vec![9; 50 * PAGE]).unwrap();
    pass(&cache, 8);
    file.read(500 * PAGE as u64, &mut vec![0; 20 * PAGE]).unwrap();
    let pages = || cache.group_stats(&file.group()).usage / PAGE as u64;
    let old = now(&cache) - 4;
    run(&cache, &format!("- 0 0 {old} 100 30")).unwrap();
    assert_eq!(pages(), 190);
    cache.attributes().set("cache/group/tenant/min", "max").unwrap();
    cache.attributes().set("cache/lru_gen/min_ttl_ms", "3600000").unwrap();
    // Only clean pages go as long as there are some; then all that are old enough.
    run(&cache, &format!("- 0 0 {old} 0 10")).unwrap();
    assert_eq!((pages(), file.group().dirty()), (180, 50 * PAGE as u64));
    run(&cache, &format!("- 0 0 {old}")).unwrap();
    assert_eq!((pages(), file.group().dirty()), (20, 0));
    assert!(disk.now()[..50 * PAGE].iter().all(|&byte| byte == 9));
    assert_eq!(other.usage(), 100 * PAGE as u64);
    let mut data = vec![0; 200 * PAGE];
    file.read(0, &mut data).unwrap();
    let expected = |at: usize| if at < 50 * PAGE { 9 } else { 0 };
    assert!(data.iter().enumerate().all(|(at, &byte)| byte == expected(at)));
}

#[test]
fn pages_that_cannot_be_written_stay() {
    let (cache, file, disk) = open(1);
    file.write(0, &vec![9; 50 * PAGE]).unwrap();
    pass(&cache, 4);
    disk.failing.writes.store(1, std::sync::atomic::Ordering::SeqCst);
    run(&cache, &format!("- 0 0 {}", now(&cache) - 2)).unwrap();
    assert_eq!(file.group().dirty(), 50 * PAGE as u64);
    disk.calm(|| assert!(file.flush_all().is_err()));
    disk.calm(|| file.flush_all().unwrap());
}

#[test]
fn commands_without_meaning_are_refused_by_name() {
    let (cache, _file, _) = open(1);
    run(&cache, "+ 0 0 0").unwrap();
    for (command, named) in [
        ("* 0 0 1", "\"*\""),
        ("+ 0 0", "max_gen"),
        ("+ 7 0 1", "no group has the number 7"),
        ("+ 0 3 1", "no node 3"),
        ("+ 0 0 1 60", "swappiness of 60"),
        ("+ 0 0 2", "generation 2 does not exist: the youngest is 1"),
        ("+ 0 0 0", "exists already: the youngest is 1"),
        ("+ 0 0 18446744073709551615", "18446744073709551615"),
        ("- 0 0 0", "generation 0 cannot be evicted"),
        ("- 0 0 0 201", "swappiness of 201"),
        ("- 0 0 0 100 many", "\"many\""),
    ] {
        let error = run(&cache, command).unwrap_err();
        assert!(error.contains(named), "{command}: {error}");
        assert!(error.contains("cache/debug/lru_gen"), "{command}: {error}");
    }
    // Nothing is run if one command cannot be read.
    assert!(run(&cache, "+ 0 0 1; ? 0 0 2").is_err());
    run(&cache, "+ 0 0 1").unwrap();
}

#[test]
fn no_name_of_a_group_is_taken_for_lines() {
    let cache = PageCache::builder(4 << 20).build().unwrap();
    let name = "a\n node     0\n\u{1b}[2J\\n ü";
    let _group = cache.group(name).build();
    let shown = text(&cache, "cache/debug/lru_gen");
    let line = "memcg     0 a\\n node     0\\n\\u{1b}[2J\\\\n ü";
    assert_eq!((shown.lines().count(), shown.lines().next()), (3, Some(line)));
    // Paths are not lines of text: they have the name as it is.
    assert_eq!(text(&cache, &format!("cache/group/{name}/min")), "0");
}

/// With swappiness 0 only clean pages go. What was written back is one of them.
#[test]
fn what_was_written_back_is_clean_for_the_policy_too() {
    let builder = PageCache::builder(16 << 20).shards(1).background(ByHand::default());
    let cache = builder.dirty(100, 100).build().unwrap();
    let group = cache.group("tenant").build();
    group.set_swappiness(0);
    let frames = cache.stats().frames as u64;
    let file = cache.open(Disk::new(2 * frames as usize * PAGE), &group).unwrap();
    let (cold, hot) = (frames * 3 / 4, frames / 2);
    (0..cold).for_each(|page| file.write(page * PAGE as u64, &[1; PAGE]).unwrap());
    file.flush_all().unwrap();
    let (dirty, clean) = ages(&cache).iter().fold((0, 0), |sum, of| (sum.0 + of.1, sum.1 + of.2));
    assert_eq!((dirty, clean), (0, cold));
    let mut random = 1_u64;
    let mut read = |count: u64| {
        for _ in 0..count {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let page = cold + (random >> 33) % hot;
            file.read(page * PAGE as u64, &mut [0; PAGE]).unwrap();
        }
    };
    read(20 * hot);
    let before = cache.stats().total;
    read(4 * hot);
    let misses = cache.stats().total.misses - before.misses;
    assert!(misses < 4 * hot / 20, "{misses} of {} were missed", 4 * hot);
}
