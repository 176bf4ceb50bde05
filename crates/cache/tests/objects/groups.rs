//! Groups share the memory of a cache.

use homing_cache::Cache;

fn scan(cache: &Cache<u64, u64>, group: &homing_cache::Group, keys: std::ops::Range<u64>) {
    keys.for_each(|key| _ = cache.insert_in(group, key, key));
}

/// An entry that came before there were groups moves into a frame that an entry of a group had.
#[test]
fn entries_keep_their_group_where_memory_is_given_back() {
    let cache = Cache::builder().capacity(100).shards(1).build().unwrap();
    (0..100).for_each(|key| _ = cache.insert(key, key));
    let tenant = cache.group("tenant");
    cache.remove(&30);
    cache.insert_in(&tenant, 1000, 1000);
    assert_eq!(tenant.stats().weight, 1);
    cache.remove(&1000);
    (0..60).for_each(|key| _ = cache.remove(&key));
    cache.set_capacity(90);
    let default = cache.group("default");
    assert_eq!((default.stats().weight, tenant.stats().weight), (40, 0));
    (60..100).for_each(|key| assert_eq!(cache.remove(&key), Some(key)));
    assert_eq!((default.stats().weight, tenant.stats().weight), (0, 0));
}

#[test]
fn what_is_guaranteed_to_a_group_no_other_takes() {
    let cache = Cache::builder().capacity(1000).shards(2).build().unwrap();
    let (kept, other) = (cache.group("kept"), cache.group("other"));
    kept.set_min(300);
    scan(&cache, &kept, 0..300);
    scan(&cache, &other, 1000..9000);
    assert_eq!(kept.stats().weight, 300);
    assert_eq!((0..300).filter(|key| cache.contains_key(key)).count(), 300);
    assert_eq!(other.stats().weight, 700);
    let gone = |group: &homing_cache::Group| group.stats().evictions + group.stats().declined;
    assert_eq!((gone(&kept), gone(&other)), (0, 7300));
}

#[test]
fn what_is_above_a_maximum_goes_first() {
    let cache = Cache::builder().capacity(1000).shards(1).build().unwrap();
    let (small, other) = (cache.group("small"), cache.group("other"));
    small.set_max(100);
    scan(&cache, &small, 0..500);
    assert_eq!(small.stats().weight, 100);
    scan(&cache, &other, 1000..1900);
    assert_eq!((small.stats().weight, other.stats().weight), (100, 900));
    small.set_max(10);
    scan(&cache, &other, 2000..2090);
    assert_eq!((small.stats().weight, other.stats().weight), (10, 990));
}

#[test]
fn low_is_spared_as_long_as_others_have_more_than_theirs() {
    let cache = Cache::builder().capacity(1000).shards(1).build().unwrap();
    let (a, b, c) = (cache.group("a"), cache.group("b"), cache.group("c"));
    a.set_low(400);
    b.set_low(100);
    scan(&cache, &a, 0..400);
    scan(&cache, &b, 1000..1600);
    scan(&cache, &c, 2000..2500);
    assert_eq!(a.stats().weight, 400);
    assert!(b.stats().weight >= 100);
}

#[test]
fn a_heavier_value_takes_no_group_above_its_maximum() {
    let builder = Cache::builder().capacity(1_000_000).shards(1);
    let cache = builder.weigher(|_, &weight: &u32| weight).build().unwrap();
    let small = cache.group("small");
    small.set_max(100);
    (0..100).for_each(|key| _ = cache.insert_in(&small, key, 1));
    (0..100).for_each(|key| _ = cache.insert_in(&small, key, 60));
    assert!(small.stats().weight <= 100, "{}", small.stats().weight);
    assert_eq!(small.stats().weight, cache.weight());
}

#[test]
fn what_a_heavier_value_takes_too_much_its_own_group_gives() {
    let builder = Cache::builder().capacity(10).shards(1);
    let cache = builder.weigher(|_, &weight: &u32| weight).build().unwrap();
    let kept = cache.group("kept");
    kept.set_min(20);
    (0..10).for_each(|key| _ = cache.insert_in(&kept, key, 1));
    // The entry stays in its group, whoever replaces its value.
    cache.insert(3, 5);
    assert!(cache.weight() <= 10, "{}", cache.weight());
    assert_eq!(kept.stats().weight, cache.weight());
}

#[test]
fn hits_and_misses_are_those_of_the_group() {
    let cache = Cache::new(100);
    let group = cache.group("tenant");
    assert_eq!(group.name(), "tenant");
    assert_eq!(cache.get_or_load_in(&group, &1, || Ok::<_, ()>(1)).unwrap(), 1);
    assert_eq!(cache.get(&1), Some(1));
    assert_eq!(cache.get(&2), None::<i32>);
    let stats = group.stats();
    assert_eq!((stats.weight, stats.hits, stats.insertions), (1, 1, 1));
    cache.remove(&1);
    assert_eq!(group.stats().weight, 0);
    assert!(std::sync::Arc::ptr_eq(&group, &cache.group("tenant")));
}

#[test]
fn what_a_group_may_not_have_any_more_goes_even_if_nothing_of_it_fits() {
    for (max, weight) in [(0, 1), (9, 10)] {
        let builder = Cache::builder().capacity(100_000).weigher(move |_, _| weight);
        let cache = builder.build().unwrap();
        let group = cache.group("tenant");
        (0..4000).for_each(|key| _ = cache.insert_in(&group, key, key));
        assert_eq!(group.stats().weight, 4000 * u64::from(weight));
        group.set_max(max);
        (4000..6000).for_each(|key| _ = cache.insert_in(&group, key, key));
        let left = group.stats().weight;
        assert!(left <= max, "{left} of {max}");
        assert_eq!(cache.weight(), left);
    }
}

#[test]
fn the_default_group_has_figures_and_limits_also_where_it_is_alone() {
    let cache = Cache::builder().capacity(100).shards(1).build().unwrap();
    (0..60).for_each(|key| _ = cache.insert(key, key));
    let group = cache.group("default");
    assert_eq!(group.stats().weight, 60, "those that were there before anybody asked");
    cache.get(&59);
    assert_eq!((group.stats().hits, group.stats().insertions), (1, 0));
    group.set_max(10);
    (100..200).for_each(|key| _ = cache.insert(key, key));
    assert_eq!((cache.len(), group.stats().weight), (10, 10));
}

#[test]
fn a_thousand_groups_give_alike() {
    let cache = Cache::builder().capacity(20_000).shards(1).build().unwrap();
    let groups: Vec<_> = (0..1000).map(|number| cache.group(&number.to_string())).collect();
    for round in 0..100 {
        for (number, group) in groups.iter().enumerate() {
            let key = round * 1000 + number as u64;
            cache.insert_in(group, key, key);
        }
    }
    let given: Vec<f64> = groups.iter().map(|group| group.stats().evictions as f64).collect();
    let mean = given.iter().sum::<f64>() / 1000.0;
    let deviation = given.iter().map(|given| (given - mean).powi(2)).sum::<f64>() / 1000.0;
    let gone = groups.iter().map(|group| group.stats().evictions + group.stats().declined);
    assert_eq!(gone.sum::<u64>(), 80_000);
    let spread = deviation.sqrt() / mean;
    println!("stddev/mean of what groups gave: {spread:.3}");
    assert!(spread < 0.2, "{spread}");
}

#[test]
#[should_panic(expected = "is a group of another cache")]
fn groups_belong_to_their_cache() {
    let (cache, other) = (Cache::new(10), Cache::<u64, u64>::new(10));
    cache.insert_in(&other.group("stranger"), 1, 1);
}

#[test]
fn groups_may_come_while_others_evict() {
    let cache = Cache::builder().capacity(400_000).shards(16).build().unwrap();
    let first = cache.group("first");
    scan(&cache, &first, 0..400_000);
    std::thread::scope(|scope| {
        scope.spawn(|| cache.set_capacity(100));
        for thread in 1..9 {
            let cache = &cache;
            scope.spawn(move || {
                for number in thread << 32..(thread << 32) + 100 {
                    let group = cache.group(&number.to_string());
                    scan(cache, &group, number << 8..(number << 8) + 2);
                }
            });
        }
    });
    assert!(cache.len() <= 100);
}

#[test]
fn what_was_there_before_the_first_group_counts_as_the_default_ones() {
    let cache = Cache::builder().capacity(1000).shards(4).build().unwrap();
    (0..1000).for_each(|key| _ = cache.insert(key, key));
    let (group, default) = (cache.group("later"), cache.group("default"));
    assert_eq!(default.stats().weight, cache.weight());
    scan(&cache, &group, 5000..5500);
    assert_eq!(default.stats().weight + group.stats().weight, cache.weight());
    cache.clear();
    assert_eq!((default.stats().weight, group.stats().weight), (0, 0));
}

#[test]
fn what_a_removed_group_had_is_the_default_ones() {
    let cache = Cache::builder().capacity(1000).shards(4).build().unwrap();
    let (gone, default) = (cache.group("gone"), cache.group("default"));
    gone.set_min(1000);
    scan(&cache, &gone, 0..500);
    let pinned = cache.pin(&7).unwrap();
    assert!(cache.remove_group(&gone));
    assert_eq!((gone.stats().weight, default.stats().weight), (0, cache.weight()));
    assert!((0..500).all(|key| cache.get(&key) == Some(key)));
    // Entries that come late belong to the default group, too, and so do loaded ones.
    cache.insert_in(&gone, 700, 700);
    cache.get_or_load_in(&gone, &701, || Ok::<_, ()>(701)).unwrap();
    assert_eq!((gone.stats().weight, default.stats().weight), (0, cache.weight()));
    assert!(!cache.remove_group(&gone) && !cache.remove_group(&default));
    // A new group has its name and its number, and nothing else of it.
    let new = cache.group("gone");
    assert!(!std::sync::Arc::ptr_eq(&gone, &new));
    cache.insert_in(&gone, 702, 702);
    scan(&cache, &new, 1000..1100);
    assert_eq!((new.stats().weight, gone.stats().weight), (100, 0));
    assert_eq!(default.stats().weight + 100, cache.weight());
    // All its entries can go, now that nothing guarantees them; the pinned one, when it is
    // unpinned.
    new.set_min(1000);
    scan(&cache, &new, 2000..20_000);
    assert_eq!((default.stats().weight, cache.get(&7)), (1, Some(7)));
    drop(pinned);
    scan(&cache, &new, 30_000..60_000);
    assert_eq!(default.stats().weight, 0);
}

#[test]
fn groups_come_and_go_while_others_insert() {
    let cache = Cache::builder().capacity(1000).shards(4).build().unwrap();
    let kept = cache.group("kept");
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (cache, kept) = (&cache, &kept);
            scope.spawn(move || {
                for round in 0..300 {
                    let group = cache.group(&(thread + round % 2).to_string());
                    let first = (thread << 32) + round * 40;
                    scan(cache, &group, first..first + 20);
                    cache.remove_group(&group);
                    scan(cache, &group, first + 20..first + 30);
                    scan(cache, kept, first + 30..first + 40);
                }
            });
        }
    });
    let weights: u64 = ["default", "kept", "0", "1", "2", "3"]
        .map(|name| cache.group(name).stats().weight)
        .iter()
        .sum();
    assert_eq!(weights, cache.weight());
}

#[test]
fn what_is_guaranteed_is_not_taken_in_part_either() {
    let builder = Cache::builder().capacity(20).shards(1);
    let cache = builder.weigher(|_, &weight: &u32| weight).build().unwrap();
    let (kept, other) = (cache.group("kept"), cache.group("other"));
    kept.set_min(10);
    cache.insert_in(&kept, 1, 9);
    cache.insert_in(&kept, 2, 2);
    // The group can spare a weight of 1, and no entry is that light.
    cache.insert_in(&other, 3, 10);
    assert_eq!((kept.stats().weight, other.stats().weight), (11, 0));
    cache.insert_in(&other, 3, 9);
    assert_eq!((kept.stats().weight, other.stats().weight), (11, 9));
    // For its own entries, the group gives what it has.
    cache.insert_in(&kept, 4, 11);
    assert!(cache.contains_key(&4) && cache.weight() <= 20);
}

#[test]
fn pinned_entries_take_no_group_above_its_maximum() {
    let cache = Cache::builder().capacity(1000).shards(1).build().unwrap();
    let small = cache.group("small");
    small.set_max(10);
    let pins: Vec<_> = (0..500)
        .map(|key| {
            scan(&cache, &small, key..key + 1);
            cache.pin(&key)
        })
        .collect();
    // It exceeds its maximum by at most one entry for each shard.
    assert!(small.stats().weight <= 11, "{} of 10", small.stats().weight);
    drop(pins);
    scan(&cache, &small, 500..600);
    assert_eq!(small.stats().weight, 10);
}

#[test]
fn low_of_many_groups_is_spared() {
    let cache = Cache::builder().capacity(2000).shards(1).build().unwrap();
    let spared: Vec<_> = (0..24)
        .map(|at| {
            let group = cache.group(&at.to_string());
            group.set_low(20);
            scan(&cache, &group, at * 100..at * 100 + 20);
            group
        })
        .collect();
    scan(&cache, &cache.group("hog"), 100_000..140_000);
    let left: Vec<_> = spared.iter().map(|group| group.stats().weight).collect();
    assert_eq!(left, [20; 24]);
}

#[test]
fn what_one_of_many_groups_has_above_its_high_goes_first() {
    let cache = Cache::builder().capacity(2000).shards(1).build().unwrap();
    let others: Vec<_> = (0..24)
        .map(|at| {
            let group = cache.group(&at.to_string());
            scan(&cache, &group, at * 100..at * 100 + 20);
            group
        })
        .collect();
    let hog = cache.group("hog");
    hog.set_high(100);
    scan(&cache, &hog, 100_000..101_520);
    scan(&cache, &cache.group("new"), 200_000..201_000);
    let left: Vec<_> = others.iter().map(|group| group.stats().weight).collect();
    assert_eq!((left, hog.stats().weight), (vec![20; 24], 520));
}

#[test]
fn a_smaller_capacity_holds_whatever_is_guaranteed() {
    let cache = Cache::builder().capacity(1000).shards(1).build().unwrap();
    let [first, second] = ["first", "second"].map(|name| cache.group(name));
    for (group, keys) in [(&first, 0..500), (&second, 500..1000)] {
        group.set_min(500);
        scan(&cache, group, keys);
    }
    let pin = cache.pin(&0);
    cache.set_capacity(100);
    assert_eq!((first.stats().weight, second.stats().weight), (50, 50));
    assert!(pin.is_some() && cache.contains_key(&0));
}

/// Nor do many such entries, one after the other, in each shard.
#[test]
fn an_entry_above_a_maximum_is_not_kept_and_pushes_nothing_out() {
    let builder = Cache::<u64, u32>::builder().capacity(1_000_000).shards(4);
    let cache = builder.weigher(|_, weight| *weight).build().unwrap();
    let (small, off) = (cache.group("small"), cache.group("off"));
    small.set_max(100);
    off.set_max(0);
    (0..10).for_each(|key| _ = cache.insert_in(&small, key, 10));
    for key in 100..200 {
        cache.insert_in(&small, key, 200_000);
        cache.insert_in(&off, key + 100, 10);
    }
    assert_eq!((small.stats().weight, off.stats().weight), (100, 0));
    assert!((0..10).all(|key| cache.contains_key(&key)));
}

/// Otherwise new entries would be turned away for old ones, of which there are too many.
#[test]
fn a_lowered_maximum_is_met_though_nothing_new_is_worth_its_place() {
    let cache: Cache<u64, u64> = Cache::new(3_000);
    let small = cache.group("small");
    for round in 1..60_u64 {
        scan(&cache, &small, 0..1_000);
        scan(&cache, &small, 0..1_000);
        scan(&cache, &small, round * 10_000..round * 10_000 + 3_000);
    }
    scan(&cache, &small, 0..1_000);
    assert!(small.stats().declined > 0, "it knows what is not worth its place");
    small.set_max(100);
    scan(&cache, &small, 1_000_000..1_000_400);
    let weight = small.stats().weight;
    assert!(weight <= 100 + 64, "{weight}");
}

/// It is given at the next insertion, however many groups there are.
#[test]
fn what_is_guaranteed_no_more_is_given() {
    let cache: Cache<u64, u64> = Cache::builder().capacity(300).shards(1).build().unwrap();
    let groups: Vec<_> = (0..30).map(|number| cache.group(&number.to_string())).collect();
    for (number, group) in (0..).zip(&groups) {
        group.set_min(10);
        scan(&cache, group, number * 10..(number + 1) * 10);
    }
    let late = cache.group("late");
    cache.insert_in(&late, 1_000, 0);
    assert_eq!(late.stats().weight, 0, "all is guaranteed to others");
    groups[17].set_min(0);
    cache.insert_in(&late, 1_001, 0);
    assert_eq!((late.stats().weight, groups[17].stats().weight), (1, 9));
}

#[test]
fn what_is_heavy_takes_no_group_that_is_above_its_maximum_further() {
    let weigher = |_: &u64, weight: &u64| *weight as u32;
    let cache = Cache::builder().capacity(10_000_000).shards(1).weigher(weigher).build().unwrap();
    let small = cache.group("small");
    for key in 0..100_000 {
        cache.insert_in(&small, key, 1);
    }
    small.set_max(10_000);
    for key in 200_000..200_100 {
        let before = small.stats().weight;
        cache.insert_in(&small, key, 1_000);
        assert!(small.stats().weight <= before.max(10_000));
    }
    assert_eq!(small.stats().weight, 10_000);
}

/// One tenant asks again for what it has asked for once; the other one reads on and on. In one
/// common group, next to nothing that was asked for once would come again.
#[test]
fn what_one_group_does_says_nothing_of_another() {
    let hits = |apart: bool| {
        let cache: Cache<u64, ()> = Cache::builder().capacity(40_000).shards(1).build().unwrap();
        let (pairs, scan) = if apart { ("pairs", "scan") } else { ("default", "default") };
        let (pairs, scan) = (cache.group(pairs), cache.group(scan));
        let (mut hits, mut read) = (0, 1 << 40);
        for n in 0..100_000_u64 {
            // Each key comes twice, 8,000 requests of its tenant apart.
            let key = if n % 2 == 0 { n } else { n.wrapping_sub(15_999) };
            let mut hit = true;
            let _ = cache.get_or_load_in(&pairs, &key, || {
                hit = false;
                Ok::<_, std::convert::Infallible>(())
            });
            hits += u32::from(hit && n >= 50_000);
            for _ in 0..10 {
                read += 1;
                let _ =
                    cache.get_or_load_in(&scan, &read, || Ok::<_, std::convert::Infallible>(()));
            }
        }
        // As a share of the possible hits.
        f64::from(hits) / 25_000.0
    };
    let (apart, together) = (hits(true), hits(false));
    assert!(apart > 0.9, "{apart}, as one {together}");
    assert!(together < 0.6, "as one {together}");
}

#[test]
fn a_group_whose_entries_are_pinned_gets_no_more_than_it_may_have() {
    let cache = Cache::builder().capacity(100).shards(1).build().unwrap();
    // While the cache does not learn, it accepts all entries.
    cache.set_learning(false);
    let (full, other) = (cache.group("full"), cache.group("other"));
    full.set_max(2);
    (0..2).for_each(|key| _ = cache.insert_in(&full, key, key));
    (10..20).for_each(|key| _ = cache.insert_in(&other, key, key));
    let others: Vec<_> = (10..20).map(|key| cache.pin(&key).unwrap()).collect();
    let own: Vec<_> = (0..2).map(|key| cache.pin(&key).unwrap()).collect();
    cache.insert_in(&full, 2, 2);
    assert_eq!((full.stats().weight, cache.contains_key(&2)), (2, false));
    drop(own);
    cache.insert_in(&full, 3, 3);
    assert!(cache.contains_key(&3));
    assert_eq!(full.stats().weight, 2);
    // A pinned entry of a removed group belongs to the default group.
    let kept = cache.pin(&3).unwrap();
    cache.remove_group(&full);
    let full = cache.group("full");
    full.set_max(1);
    (4..8).for_each(|key| _ = cache.insert_in(&full, key, key));
    assert_eq!((full.stats().weight, cache.contains_key(&7)), (1, true));
    drop((kept, others));
    assert_eq!(cache.len(), 13);
}
