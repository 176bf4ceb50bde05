//! What every policy promises, on random traces: hits are for pages that are held, the capacity is
//! kept, the counts agree, and no policy is better than the optimum. The optimum is compared with a
//! search of all ways to evict.

use std::collections::HashMap;

use homing_lab::audit::Audit;
use homing_lab::{Outcome, Policy as _, Setup, Trace, policies, replay};
use proptest::prelude::*;

use crate::small::{self, outcome};

/// Requests of a few tenants for a few pages: loops, random ones and repeated ones.
fn requests() -> impl Strategy<Value = Vec<(u64, bool)>> {
    let random = prop::collection::vec((0_u64..12, any::<bool>()), 0..40);
    let looped = (2_u64..16, 0_usize..60).prop_map(|(len, count)| {
        (0..len).cycle().take(count).map(|key| (key + 6, key % 5 == 0)).collect::<Vec<_>>()
    });
    let again = (0_u64..20).prop_map(|key| vec![(key, false); 5]);
    prop::collection::vec(prop_oneof![random, looped, again], 0..8).prop_map(|parts| parts.concat())
}

fn trace(keys: Vec<(u64, bool)>) -> Trace {
    Trace::from_keys("random", keys).unwrap()
}

/// Finds the most hits that are possible by trying everything.
struct Search<'a> {
    pages: &'a [u32],
    capacity: u32,
    bypass: bool,
    known: HashMap<(usize, u32), u64>,
}

impl Search<'_> {
    /// The most hits from a position on, with these pages held.
    fn hits(&mut self, position: usize, held: u32) -> u64 {
        let Some(&page) = self.pages.get(position) else { return 0 };
        if let Some(&hits) = self.known.get(&(position, held)) {
            return hits;
        }
        let bit = 1 << page;
        let hits = if held & bit != 0 {
            1 + self.hits(position + 1, held)
        } else if held.count_ones() < self.capacity {
            self.hits(position + 1, held | bit)
        } else {
            let victims = (0..32).map(|page| 1 << page).filter(|victim| held & victim != 0);
            let best = victims.map(|victim| self.hits(position + 1, held & !victim | bit)).max();
            let kept = if self.bypass { self.hits(position + 1, held) } else { 0 };
            kept.max(best.unwrap())
        };
        self.known.insert((position, held), hits);
        hits
    }
}

proptest! {
    #[test]
    fn every_policy_keeps_its_contract(keys in requests(), capacity in 1_usize..20) {
        let trace = trace(keys);
        let setup = Setup::new(&trace, capacity);
        let best = outcome("opt", capacity, &trace);
        let best_bypassing = outcome("opt-bypass", capacity, &trace);
        prop_assert!(best_bypassing.hits >= best.hits);
        for entry in policies::ALL {
            let mut audited = Audit::new(&setup, entry.build(&setup));
            let expected = replay(&trace, &mut audited);
            let outcome = entry.build(&setup).replay(&trace);
            prop_assert_eq!(&outcome, &expected, "{}", entry.name);
            let misses = outcome.requests - outcome.hits;
            prop_assert_eq!(misses, outcome.evictions + audited.held() as u64, "{}", entry.name);
            let most = trace.pages().min(capacity) as u64;
            prop_assert!(audited.held() as u64 <= most, "{}", entry.name);
            prop_assert!(outcome.writebacks <= trace.writes(), "{}", entry.name);
            let bypasses = ["mglru", "opt-bypass"].contains(&entry.name);
            let best = if bypasses { &best_bypassing } else { &best };
            prop_assert!(outcome.hits <= best.hits, "{}", entry.name);
            // Pages that all fit are never evicted.
            if trace.pages() <= capacity && entry.name != "opt-bypass" {
                prop_assert_eq!(outcome.evictions, 0, "{}", entry.name);
            }
        }
    }

    #[test]
    fn the_optimum_is_the_best_of_all_ways(
        keys in prop::collection::vec(0_u64..7, 0..18),
        capacity in 1_usize..5,
    ) {
        let trace = trace(keys.into_iter().map(|key| (key, false)).collect());
        let pages: Vec<u32> = trace.requests().map(|request| request.page).collect();
        for (name, bypass) in [("opt", false), ("opt-bypass", true)] {
            let known = HashMap::new();
            let mut search = Search { pages: &pages, capacity: capacity as u32, bypass, known };
            prop_assert_eq!(outcome(name, capacity, &trace).hits, search.hits(0, 0), "{}", name);
        }
    }
}

#[test]
fn what_is_dirty_is_written_once() {
    // a is written twice and evicted, b is left dirty, c is clean.
    let trace = small::trace("A a A b B c");
    let expected = Outcome {
        requests: 6,
        hits: 3,
        read_misses: 2,
        evictions: 1,
        writebacks: 2,
        ..Outcome::default()
    };
    let outcome = outcome("lru", 2, &trace);
    assert_eq!(outcome, expected);
    assert_eq!(outcome.io(), 4);
}

#[test]
fn a_write_that_is_not_admitted_goes_through() {
    let outcome = outcome("opt-bypass", 1, &small::trace("a B a"));
    assert_eq!((outcome.hits, outcome.evictions, outcome.io()), (1, 1, 2));
}

#[test]
fn tenants_are_counted_apart() {
    let traces = [small::trace("a b a b"), small::trace("x x")];
    let mixed = Trace::interleave(&traces).unwrap();
    let outcome = outcome("lru", 3, &mixed);
    let of_tenants: Vec<_> = outcome.tenants.iter().map(|t| (t.requests, t.hits)).collect();
    assert_eq!(of_tenants, [(4, 2), (2, 1)]);
    assert!((outcome.tenants[0].hit_ratio() - 0.5).abs() < 1e-9);
}

#[test]
fn an_empty_trace_comes_to_nothing() {
    let outcome = outcome("lru", 1, &small::trace(""));
    assert_eq!(outcome, Outcome::default());
    assert!(outcome.hit_ratio().abs() < 1e-9);
}

#[test]
fn names_are_unique_and_an_unknown_one_is_told() {
    let mut names = policies::names();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), policies::ALL.len());
    let error = policies::entry("lru2").unwrap_err().to_string();
    assert!(error.contains("\"lru2\"") && error.contains("w-tinylfu"), "{error}");
    assert!(policies::entry(policies::default_name()).is_ok());
}
