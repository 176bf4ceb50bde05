//! The known figures of the traces are reproduced: how many requests and pages they have, and which
//! hit ratios the policies reach on them. `support/traces.rs` says where the traces are.

#[path = "support/traces.rs"]
mod support;

use homing_lab::{Outcome, Setup, Size, Trace, policies};

use support::load;

/// Sizes of the cache, relative to the trace's pages.
const SIZES: [&str; 4] = ["1%", "5%", "10%", "25%"];

/// A trace, its requests, pages and writes.
const TRACES: [(&str, usize, usize, u64); 7] = [
    ("oltp", 914_145, 186_880, 0),
    ("w106", 5_292_456, 275_171, 0),
    ("cphy", 1_141_869, 269_210, 656_169),
    ("orm_busy", 5_000_000, 76_349, 0),
    ("lirs_2_pools", 100_000, 9_939, 0),
    ("lirs_multi2", 26_311, 5_684, 0),
    ("lirs_loop", 505_500, 1_011, 0),
];

/// Hit ratios in per cent at the four sizes; NaN where none is known.
type Row = (&'static str, [f64; 4]);

const OPT: [Row; 7] = [
    ("oltp", [59.8, 72.6, 76.2, 79.6]),
    ("w106", [84.9, 91.8, 93.9, 94.8]),
    ("cphy", [13.5, 23.0, 32.4, 50.9]),
    ("orm_busy", [82.8, 90.2, 93.3, 96.6]),
    ("lirs_2_pools", [50.5, 62.8, 68.5, 77.8]),
    ("lirs_multi2", [27.7, 48.6, 54.9, 68.6]),
    ("lirs_loop", [0.9, 4.8, 9.9, 24.8]),
];

const LRU: [Row; 7] = [
    ("oltp", [41.6, 60.1, 66.5, 73.3]),
    ("w106", [79.8, 85.7, 91.8, 93.6]),
    ("cphy", [10.3, 11.3, 12.6, 25.8]),
    ("orm_busy", [77.0, 84.1, 88.0, 93.4]),
    ("lirs_2_pools", [21.8, 51.0, 54.4, 61.6]),
    ("lirs_multi2", [3.5, 26.9, 36.9, 48.3]),
    ("lirs_loop", [0.0, 0.0, 0.0, 0.0]),
];

const S3_FIFO: [Row; 3] = [
    ("oltp", [46.4, 62.1, 67.7, f64::NAN]),
    ("w106", [81.3, f64::NAN, f64::NAN, f64::NAN]),
    ("orm_busy", [f64::NAN, 85.2, f64::NAN, f64::NAN]),
];

const ARC: [Row; 1] = [("cphy", [f64::NAN, 14.4, f64::NAN, f64::NAN])];

const LIRS: [Row; 1] = [("lirs_multi2", [f64::NAN, f64::NAN, 52.2, 64.4])];

const W_TINY_LFU: [Row; 2] = [
    ("w106", [f64::NAN, f64::NAN, f64::NAN, 94.4]),
    ("lirs_2_pools", [f64::NAN, f64::NAN, 54.6, 61.6]),
];

/// Another implementation of the same algorithm differs. It scales batches without a bound (oltp
/// 5 % is 51.4 then), and seems to insert pages higher up (oltp 1 % is 40.7 in the generation above
/// the oldest one). These are the figures that it has in common with this one.
const MGLRU_KERNEL: [Row; 7] = [
    ("oltp", [f64::NAN, f64::NAN, 63.7, 73.4]),
    ("w106", [80.5, 88.0, 91.4, 93.9]),
    ("cphy", [10.2, 11.6, 12.9, 26.0]),
    ("orm_busy", [f64::NAN, 83.9, 88.2, 93.8]),
    ("lirs_2_pools", [47.9, 51.8, 54.4, 61.6]),
    ("lirs_multi2", [6.0, 29.9, 37.0, 49.8]),
    ("lirs_loop", [0.0, 0.0, 0.0, 0.0]),
];

/// Reads that miss plus write-backs of cphy at 5, 10 and 25 per cent.
const IO: [(&str, [u64; 3]); 4] = [
    ("lru", [1_014_743, 1_000_030, 865_291]),
    ("cflru", [1_008_419, 990_350, 856_575]),
    ("s3-fifo", [995_791, 944_402, 789_594]),
    ("sieve", [992_785, 962_492, 821_842]),
];

/// Hit ratios of oltp and cphy mixed, at 5 and 10 per cent.
const MIX: [(&str, [f64; 2]); 3] =
    [("lru", [31.93, 35.40]), ("s3-fifo", [34.80, 39.70]), ("opt", [45.78, 53.27])];

fn replay(policy: &str, size: &str, trace: &Trace) -> Outcome {
    let capacity = size.parse::<Size>().unwrap().capacity(trace.pages());
    policies::build(policy, &Setup::new(trace, capacity)).unwrap().replay(trace)
}

/// Checks that the policy reaches these hit ratios within so many points; the known ones are
/// rounded to 0.1.
fn check(policy: &str, rows: &[Row], within: f64) {
    for (name, expected) in rows {
        let Some(trace) = load(name) else { return };
        for (size, expected) in SIZES.iter().zip(expected) {
            if expected.is_nan() {
                continue;
            }
            let outcome = replay(policy, size, &trace);
            let ratio = outcome.hit_ratio() * 100.0;
            println!("{policy} {name} {size}: {ratio:.2}, known {expected}");
            assert!((ratio - expected).abs() <= within, "{policy} {name} {size}");
        }
    }
}

#[test]
fn traces_have_the_size_that_is_known() {
    for (name, requests, pages, writes) in TRACES {
        let Some(trace) = load(name) else { return };
        assert_eq!(trace.name(), name);
        assert_eq!((trace.len(), trace.pages(), trace.writes()), (requests, pages, writes));
        assert!(trace.tenants().is_none());
    }
}

#[test]
fn lru_is_as_known() {
    check("lru", &LRU, 0.06);
}

#[test]
fn opt_is_as_known() {
    check("opt", &OPT, 0.06);
}

#[test]
fn s3_fifo_is_as_known() {
    check("s3-fifo", &S3_FIFO, 0.06);
}

#[test]
fn arc_is_as_known() {
    check("arc", &ARC, 0.06);
}

#[test]
fn lirs_is_as_known() {
    check("lirs", &LIRS, 0.06);
}

#[test]
fn w_tinylfu_is_about_as_known() {
    // Other implementations hash differently.
    check("w-tinylfu", &W_TINY_LFU, 0.3);
}

#[test]
fn mglru_is_about_as_known() {
    check("mglru-kernel", &MGLRU_KERNEL, 0.8);
}

#[test]
fn io_is_as_known() {
    let Some(trace) = load("cphy") else { return };
    for (policy, known) in IO {
        for (size, known) in SIZES[1..].iter().zip(known) {
            let outcome = replay(policy, size, &trace);
            // S3-FIFO differs by 10 in one cell; the others are the same to the digit.
            assert!(outcome.io().abs_diff(known) <= 10, "{policy} {size}: {}", outcome.io());
        }
    }
}

#[test]
fn a_mix_is_as_known() {
    let (Some(oltp), Some(cphy)) = (load("oltp"), load("cphy")) else { return };
    let mix = Trace::interleave(&[oltp, cphy]).unwrap();
    for (policy, known) in MIX {
        for (size, known) in SIZES[1..].iter().zip(known) {
            let outcome = replay(policy, size, &mix);
            assert!((outcome.hit_ratio() * 100.0 - known).abs() < 0.006, "{policy} {size}");
            let of_tenants: u64 = outcome.tenants.iter().map(|tenant| tenant.hits).sum();
            assert_eq!((outcome.tenants.len(), of_tenants), (2, outcome.hits));
        }
    }
}
