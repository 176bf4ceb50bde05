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
