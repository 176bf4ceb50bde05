//! What the default policy must reach on real traces. These are bounds, not figures, since it may
//! get better.

#[path = "support/traces.rs"]
mod traces;

use homing_lab::compare::{Candidate, Plan};
use homing_lab::{Setup, Size, Trace, policies};
use traces::load;

const NAMES: [&str; 7] =
    ["cphy", "lirs_2_pools", "lirs_loop", "lirs_multi2", "oltp", "orm_busy", "w106"];
const SIZES: [&str; 4] = ["1%", "5%", "10%", "25%"];

#[test]
fn it_closes_half_of_the_distance_to_the_optimum_and_is_never_much_behind_lru() {
    let Some(traces) = NAMES.into_iter().map(load).collect::<Option<Vec<Trace>>>() else { return };
    let sizes = SIZES.map(|size| size.parse::<Size>().unwrap());
    let candidates = [Candidate::named("mglru").unwrap()];
    let plan = Plan { traces: &traces, sizes: &sizes, candidates: &candidates, threads: 2 };
    let summary = plan.run(&|_| ()).summary("mglru").unwrap();
    println!("{summary:?}");
    assert_eq!(summary.counted, 28);
    assert!(summary.share.unwrap() > 0.53);
    assert!(summary.worst.unwrap().points > -0.5);
}

#[test]
fn it_spares_the_disk_more_than_what_evicts_clean_pages_first_or_once_used_ones() {
    let Some(trace) = load("cphy") else { return };
    for size in &SIZES[1..] {
        let capacity = size.parse::<Size>().unwrap().capacity(trace.pages());
        let io = |policy| {
            let setup = Setup::new(&trace, capacity);
            policies::build(policy, &setup).unwrap().replay(&trace).io()
        };
        let ours = io("mglru");
        for other in ["lru", "cflru", "cflru-wide", "sieve", "s3-fifo"] {
            let theirs = io(other);
            println!("cphy {size}: {ours}, {other} {theirs}");
            assert!(ours < theirs, "{size}: {ours}, {other} {theirs}");
        }
    }
}

/// Requests by an LRU stack: the shorter ago a page was used, the more likely it is used next. LRU
/// is the best there is. In a cache of a few pages, little is learnt of them before a short trace
/// is over.
#[test]
fn a_small_cache_learns_soon_that_recency_tells() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed >> 32
    };
    let mut stack: Vec<u64> = (0..200).collect();
    let keys = (0..8000).map(|n| {
        // The next halving of the stack is as likely as the one before.
        let depth = (random() % 200) >> (random() % 8);
        let key = if random() % 20 == 0 { 1000 + n } else { stack[depth as usize] };
        stack.retain(|other| *other != key);
        stack.insert(0, key);
        stack.truncate(200);
        (key, false)
    });
    let trace = Trace::from_keys("a stack", keys.collect::<Vec<_>>()).unwrap();
    for capacity in [8, 16, 32, 64] {
        let hits = |policy| {
            let setup = Setup::new(&trace, capacity);
            100.0 * policies::build(policy, &setup).unwrap().replay(&trace).hit_ratio()
        };
        let (ours, lru) = (hits("mglru"), hits("lru"));
        println!("{capacity} pages: {ours:.1}, lru {lru:.1}");
        assert!(ours > lru - 3.0, "{capacity} pages: {ours}, lru {lru}");
    }
}
