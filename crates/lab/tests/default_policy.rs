//! What the default policy is held to on real traces. Bounds, not figures: it may get better.

#[path = "support/traces.rs"]
mod traces;

use homing_lab::{Setup, Size, Trace, policies};
use traces::load;

const NAMES: [&str; 7] =
    ["cphy", "lirs_2_pools", "lirs_loop", "lirs_multi2", "oltp", "orm_busy", "w106"];
const SIZES: [&str; 4] = ["1%", "5%", "10%", "25%"];

fn hits(policy: &str, size: &str, trace: &Trace) -> f64 {
    let capacity = size.parse::<Size>().unwrap().capacity(trace.pages());
    let mut policy = policies::build(policy, &Setup::new(trace, capacity)).unwrap();
    policy.replay(trace).hit_ratio() * 100.0
}

#[test]
fn it_closes_half_of_the_distance_to_the_optimum_and_is_never_much_behind_lru() {
    let mut shares = Vec::new();
    for name in NAMES {
        let Some(trace) = load(name) else { return };
        for size in SIZES {
            let of = |policy| hits(policy, size, &trace);
            let (ours, lru, fifo, opt) = (of("mglru"), of("lru"), of("fifo"), of("opt-bypass"));
            println!("{name} {size}: {ours:.2} (LRU {lru:.2}, optimum {opt:.2})");
            assert!(ours > lru - 0.5, "{name} {size}: {ours:.2}, LRU {lru:.2}");
            if opt - fifo >= 0.5 {
                shares.push((ours - fifo) / (opt - fifo));
            }
        }
    }
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    println!("mean share {mean:.3}");
    assert!(mean > 0.53, "{mean:.3}");
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
