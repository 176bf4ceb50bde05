//! What each policy is known for, on traces short enough to follow by hand.

use crate::small::{history, outcome};
use homing_lab::Trace;

fn check(policy: &str, capacity: usize, text: &str, expected: &str) {
    assert_eq!(history(policy, capacity, text), expected, "{policy} with {capacity}: {text}");
}

#[test]
fn fifo_takes_the_first_whatever_it_did() {
    check("fifo", 2, "a b a c a b", "- - + -a -b -c");
}

#[test]
fn lru_takes_what_was_not_used_for_longest() {
    check("lru", 2, "a b a c a b", "- - + -b + -c");
}

#[test]
fn clock_passes_over_what_was_used_once() {
    check("clock", 3, "a b c a d b e", "- - - + -b -c -a");
}

#[test]
fn sieve_leaves_survivors_where_they_stand() {
    check("sieve", 3, "a b c a d e a f", "- - - + -b -c + -d");
}

#[test]
fn s3_fifo_lets_go_early_what_was_not_used() {
    // a is used enough in the small queue to go on to the main one.
    check("s3-fifo", 4, "a a a b c d e a", "- + + - - - -b +");
    // a comes back as a ghost, goes to the main queue, and the others pass through the small one.
    check("s3-fifo", 4, "a b c d e a f g h a", "- - - - -a -b -c -d -e +");
}

#[test]
fn two_q_keeps_what_comes_back() {
    check("2q", 4, "a b c d e a f g a", "- - - - -a -b -c -d +");
}

#[test]
fn arc_learns_from_what_comes_back() {
    // b comes back from B1 and a has to go although it was used twice; b again, from B2: c and d
    // go.
    check("arc", 2, "a b a c b d b a", "- - + -b -a -b -c -d");
}

#[test]
fn lirs_replaces_by_the_distance_between_uses() {
    // c comes back while it is on the stack and takes the role of a, which is then in the queue.
    check("lirs", 3, "a b c d c a b d", "- - - -c -d + + -a");
}

#[test]
fn w_tinylfu_admits_by_frequency() {
    check("w-tinylfu", 3, "a a a b b c d e a b", "- + + - + - -c -d + +");
}

#[test]
fn cflru_takes_clean_pages_first_within_its_window() {
    check("cflru", 4, "A B c D e f A", "- - - - -a -b -c");
    check("cflru-wide", 4, "A b C d e C f", "- - - - -b + -d");
}

#[test]
fn the_optimum_knows_what_comes() {
    check("opt", 2, "a b c a b c", "- - -b + -a +");
    check("opt-bypass", 2, "a b c a b c", "- - -c + + -c");
}

#[test]
fn some_get_hits_out_of_a_loop_and_others_none() {
    let keys = (0..6000_u64).map(|n| (n % 60, false));
    let looped = Trace::from_keys("a loop", keys).unwrap();
    let per_cent = |policy| outcome(policy, 15, &looped).hits * 100 / 6000;
    for policy in ["fifo", "lru", "clock", "sieve", "s3-fifo", "2q", "arc", "cflru"] {
        assert_eq!(per_cent(policy), 0, "{policy}");
    }
    assert_eq!(per_cent("opt"), 23);
    assert!(per_cent("lirs") > 20, "{}", per_cent("lirs"));
    assert!(per_cent("w-tinylfu") > 10, "{}", per_cent("w-tinylfu"));
}

#[test]
fn a_scan_passes_those_that_resist_it() {
    // Two pages are in use; between their uses come, again and again, three that never come back.
    let scans = (0..300_u64).flat_map(|n| [0, 1, 0, 1, 5 * n + 2, 5 * n + 3, 5 * n + 4]);
    let keys = scans.map(|key| (key, false));
    let trace = Trace::from_keys("scans", keys).unwrap();
    let hits = |policy| outcome(policy, 4, &trace).hits;
    assert_eq!(hits("lru"), 600);
    for policy in ["s3-fifo", "2q", "arc", "lirs", "w-tinylfu", "opt"] {
        assert!(hits(policy) > 1100, "{policy}: {}", hits(policy));
    }
}

#[test]
fn the_adaptive_window_grows_where_recency_pays() {
    // Each page is used three times within a short time, and never again.
    let keys = (0..30_000_u64).map(|n| (n / 30 * 10 + n % 10, false));
    let trace = Trace::from_keys("recency", keys).unwrap();
    let [fixed, adaptive] =
        ["w-tinylfu", "w-tinylfu-adaptive"].map(|policy| outcome(policy, 50, &trace).hits);
    assert!(adaptive > fixed + 1000, "{adaptive} against {fixed}");
}
