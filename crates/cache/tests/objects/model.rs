//! Compares random calls with a map: a lookup finds what was put in last, and the listener hears of
//! all that is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use homing_cache::{Cache, Cause};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Call {
    Get(u8),
    Insert(u8, u16),
    InsertIn(u8, u8, u16),
    Remove(u8),
    /// Changes the value to twice its value plus this, or removes it if that is a multiple of five.
    Compute(u8, u16),
    Load(u8, Result<u16, u8>),
    Pin(u8),
    Unpin,
    SetCapacity(u8),
    SetMax(u8, u8),
    SetMin(u8, u8),
    SetLearning(bool),
    Retain(u8),
    Clear,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let key = 0..60u8;
    let loaded = prop_oneof![4 => any::<u16>().prop_map(Ok), 1 => any::<u8>().prop_map(Err)];
    let call = prop_oneof![
        8 => key.clone().prop_map(Call::Get),
        6 => (key.clone(), any::<u16>()).prop_map(|(key, value)| Call::Insert(key, value)),
        4 => (0..3u8, key.clone(), any::<u16>()).prop_map(|(group, key, value)| Call::InsertIn(group, key, value)),
        3 => key.clone().prop_map(Call::Remove),
        4 => (key.clone(), any::<u16>()).prop_map(|(key, value)| Call::Compute(key, value)),
        5 => (key.clone(), loaded).prop_map(|(key, value)| Call::Load(key, value)),
        2 => key.prop_map(Call::Pin),
        2 => Just(Call::Unpin),
        1 => (4..80u8).prop_map(Call::SetCapacity),
        1 => (0..3u8, 0..40u8).prop_map(|(group, max)| Call::SetMax(group, max)),
        1 => (0..3u8, 0..40u8).prop_map(|(group, min)| Call::SetMin(group, min)),
        1 => any::<bool>().prop_map(Call::SetLearning),
        1 => (2..6u8).prop_map(Call::Retain),
        1 => Just(Call::Clear),
    ];
    proptest::collection::vec(call, 0..250)
}

proptest! {
    #[test]
    fn it_is_a_map_that_says_what_it_forgets(
        calls in calls(),
        capacity in 4..60u64,
        shards in 1..4usize,
        weighed: bool,
        seed: u64,
    ) {
        let told = Arc::new(Mutex::new(Vec::<(u8, u16, Cause)>::new()));
        let tell = Arc::clone(&told);
        let mut builder = Cache::builder().capacity(capacity).shards(shards);
        if weighed {
            builder = builder.weigher(|_, value: &u16| (value % 5) as u32);
        }
        let listener = move |key, value, cause| tell.lock().unwrap().push((key, value, cause));
        // A hasher with which a failure can be reproduced.
        let hasher = foldhash::quality::FixedState::with_seed(seed);
        let cache: Cache<u8, u16, _> = builder.listener(listener).hasher(hasher).build().unwrap();
        let groups = [cache.group("0"), cache.group("1"), cache.group("2")];
        // What was put in, and what the listener has not heard of since.
        let mut model = BTreeMap::<u8, u16>::new();
        let mut pins = Vec::new();
        for call in calls {
            let mut put = None;
            match call {
                Call::Get(key) => {
                    prop_assert_eq!(cache.peek(&key), model.get(&key).copied());
                    prop_assert_eq!(cache.get(&key), model.get(&key).copied());
                }
                Call::Insert(key, value) => {
                    prop_assert_eq!(cache.insert(key, value), model.get(&key).copied());
                    put = Some((key, value));
                }
                Call::InsertIn(group, key, value) => {
                    let old = cache.insert_in(&groups[group as usize], key, value);
                    prop_assert_eq!(old, model.get(&key).copied());
                    put = Some((key, value));
                }
                Call::Remove(key) => prop_assert_eq!(cache.remove(&key), model.get(&key).copied()),
                Call::Compute(key, more) => {
                    let held = model.get(&key).copied();
                    let value = held.unwrap_or_default().wrapping_mul(2).wrapping_add(more);
                    let expected = (value % 5 != 0).then_some(value);
                    let change = |old: Option<&u16>| {
                        assert_eq!(old.copied(), held);
                        expected
                    };
                    prop_assert_eq!(cache.compute(key, change), expected);
                    put = expected.map(|value| (key, value));
                }
                Call::Load(key, loaded) => match (cache.get_or_load(&key, || loaded), model.get(&key)) {
                    (Ok(value), Some(&held)) => prop_assert_eq!(value, held),
                    (result, held) => {
                        prop_assert_eq!(held, None);
                        prop_assert_eq!(result.map_err(|error| *error), loaded);
                        put = loaded.ok().map(|value| (key, value));
                    }
                },
                Call::Pin(key) => pins.extend(cache.pin(&key).map(|pin| (key, pin))),
                Call::Unpin => drop(pins.pop()),
                Call::SetCapacity(capacity) => cache.set_capacity(capacity as u64),
                Call::SetMax(group, max) => groups[group as usize].set_max(max as u64),
                Call::SetMin(group, min) => groups[group as usize].set_min(min as u64),
                Call::SetLearning(learning) => cache.set_learning(learning),
                Call::Retain(divisor) => {
                    cache.retain(|key, value| u16::from(*key).wrapping_add(*value) % u16::from(divisor) != 0);
                    let left = |(key, value): (u8, u16)| (u16::from(key).wrapping_add(value)) % u16::from(divisor) != 0;
                    prop_assert!(cache.iter().all(left));
                }
                Call::Clear => cache.clear(),
            }
            for (key, value, cause) in told.lock().unwrap().drain(..) {
                if let Some((_, new)) = put.filter(|&(of, new)| of == key && cause == Cause::Capacity && model.get(&key) != Some(&value) && new == value) {
                    // The entry was turned away, or evicted at once.
                    prop_assert_eq!(new, value);
                    put = None;
                    continue;
                }
                if cause == Cause::Capacity {
                    prop_assert!(!pins.iter().any(|(pinned, pin)| *pinned == key && **pin == value && model.get(&key) == Some(&value)) || weighed, "{key} was pinned");
                }
                prop_assert_eq!(model.remove(&key), Some(value), "{:?} {:?}", key, cause);
            }
            if let Some((key, value)) = put {
                model.insert(key, value);
            }
            let mut held: Vec<(u8, u16)> = cache.iter().collect();
            held.sort_unstable();
            prop_assert_eq!(held, model.clone().into_iter().collect::<Vec<_>>());
            let weight: u64 = model.values().map(|value| if weighed { (value % 5) as u64 } else { 1 }).sum();
            prop_assert_eq!(cache.weight(), weight);
            if pins.is_empty() && groups.iter().all(|group| group.stats().weight == 0) {
                prop_assert!(weight <= cache.capacity());
            }
        }
        drop(pins);
        let in_groups: u64 = groups.iter().map(|group| group.stats().weight).sum();
        prop_assert!(in_groups <= cache.weight());
    }
}
