//! Comparisons: what their summaries are made of, and that their plots show every policy.

use std::sync::atomic::{AtomicU64, Ordering};

use homing_lab::compare::{Candidate, Comparison, Plan};
use homing_lab::{Size, Trace, policies};

/// 100 pages in a loop, and 100 pages of which the low ones are asked for more often.
fn traces() -> [Trace; 2] {
    let looped = (0..2000_u64).map(|n| (n % 100, false));
    let skewed = (0..5000_u64).map(|n| ((n * n * 7919 % 10_007) * (n * 31 % 101) / 10_007, false));
    [Trace::from_keys("looped", looped).unwrap(), Trace::from_keys("skewed", skewed).unwrap()]
}

fn sizes() -> Vec<Size> {
    ["10%", "40%"].map(|size| size.parse().unwrap()).to_vec()
}

fn compare(names: &[&str], threads: usize) -> Comparison {
    let traces = traces();
    let candidates: Vec<_> = names.iter().map(|name| Candidate::named(name).unwrap()).collect();
    let sizes = sizes();
    let plan = Plan { traces: &traces, sizes: &sizes, candidates: &candidates, threads };
    plan.run(&|_| {})
}

#[test]
fn the_floor_is_0_and_the_ceiling_is_1() {
    let comparison = compare(&["fifo", "opt-bypass", "lirs"], 2);
    let share = |name| comparison.summary(name).unwrap().share.unwrap();
    assert!(share("fifo").abs() < 1e-9 && (share("opt-bypass") - 1.0).abs() < 1e-9);
    assert!((0.3..1.0).contains(&share("lirs")), "{}", share("lirs"));
    let summary = comparison.summary("opt-bypass").unwrap();
    assert_eq!(summary.counted, 4);
    assert!(summary.worst.unwrap().points > 0.0);
    // LRU ran, although nobody asked for it.
    assert!(comparison.summary("lru").unwrap().worst.unwrap().points.abs() < 1e-9);
    assert_eq!(comparison.summary("sieve"), None);
}

#[test]
fn the_worst_cell_is_found() {
    let comparison = compare(&["fifo"], 1);
    let worst = comparison.summary("fifo").unwrap().worst.unwrap();
    assert_eq!(worst.trace, "skewed");
    assert!(worst.points < 0.0);
}

#[test]
fn cells_where_nothing_can_be_gained_do_not_count() {
    let keys = (0..1000_u64).map(|n| (n % 10, false));
    let traces = [Trace::from_keys("it fits", keys).unwrap()];
    let (sizes, candidates) = (["100%".parse().unwrap()], [Candidate::named("lru").unwrap()]);
    let plan = Plan { traces: &traces, sizes: &sizes, candidates: &candidates, threads: 1 };
    let summary = plan.run(&|_| {}).summary("lru").unwrap();
    assert_eq!((summary.share, summary.counted), (None, 0));
}

#[test]
fn any_number_of_threads_gives_the_same() {
    let ratios = |threads| {
        let comparison = compare(&policies::names(), threads);
        let outcomes = comparison.cells().iter().map(|cell| cell.outcome.clone());
        outcomes.collect::<Vec<_>>()
    };
    let alone = ratios(1);
    assert_eq!(alone.len(), policies::ALL.len() * 4);
    assert_eq!(alone, ratios(7));
}

#[test]
fn cells_are_found_by_name_and_the_best_is_no_optimum() {
    let comparison = compare(&["lru", "lirs", "opt"], 2);
    assert_eq!(comparison.policies(), ["lru", "lirs", "opt"]);
    assert_eq!(comparison.cells().len(), 12);
    let cell = comparison.cell("lirs", 0, 1).unwrap();
    assert_eq!((cell.trace.as_str(), cell.capacity, cell.pages), ("looped", 40, 100));
    assert_eq!(comparison.best(0, 1), Some(cell.outcome.hit_ratio()));
    assert!(comparison.cell("opt", 0, 1).unwrap().outcome.hit_ratio() > cell.outcome.hit_ratio());
    assert!(comparison.cell("lirs", 2, 0).is_none() && comparison.cell("lirs", 0, 2).is_none());
}

#[test]
fn somebodys_own_policy_takes_part() {
    let own = Candidate::new("own", |setup| Box::new(policies::Lru::new(setup)));
    let (traces, sizes) = (traces(), sizes());
    let plan = Plan { traces: &traces, sizes: &sizes, candidates: &[own], threads: 2 };
    let comparison = plan.run(&|_| {});
    let ratio = |name| comparison.cell(name, 1, 0).unwrap().outcome.hit_ratio();
    assert!((ratio("own") - ratio("lru")).abs() < 1e-9);
}

#[test]
fn progress_goes_to_the_end() {
    let (traces, sizes, candidates) = (traces(), sizes(), [Candidate::named("lru").unwrap()]);
    let plan = Plan { traces: &traces, sizes: &sizes, candidates: &candidates, threads: 2 };
    let most = AtomicU64::new(0);
    let cells = plan.cells(&|progress| {
        assert!(progress.done <= progress.all);
        most.fetch_max(progress.done, Ordering::Relaxed);
    });
    let requests: u64 = cells.iter().map(|cell| cell.outcome.requests).sum();
    assert_eq!((cells.len(), most.into_inner()), (4, requests));
}

#[test]
fn a_plot_shows_every_trace_and_policy_and_the_optimum() {
    let svg = compare(&["lru", "lirs"], 2).plot().unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for text in ["looped", "skewed", "lru", "lirs", "opt-bypass", "hit ratio, %"] {
        assert!(svg.contains(text), "{text}");
    }
}

#[test]
fn a_plot_of_one_size_or_of_nothing_is_drawn() {
    let (traces, candidates) = (traces(), Candidate::all());
    for traces in [&traces[..1], &[]] {
        for sizes in [&["300".parse().unwrap()][..], &[]] {
            let plan = Plan { traces, sizes, candidates: &candidates, threads: 1 };
            let svg = plan.run(&|_| {}).plot().unwrap();
            assert!(svg.contains("w-tinylfu-adaptive"));
        }
    }
    let empty = [Trace::from_keys("empty", []).unwrap()];
    let (sizes, candidates) = (sizes(), Candidate::all());
    let plan = Plan { traces: &empty, sizes: &sizes, candidates: &candidates, threads: 3 };
    assert!(plan.run(&|_| {}).plot().is_ok());
}
