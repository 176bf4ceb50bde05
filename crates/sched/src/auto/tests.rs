use homing_topology::Machine;

use super::*;
use crate::pull::Reach;
use crate::window::{COMPARED_ITEMS, Taken};

fn window(length_ns: u64, window_ns: u64) -> Window {
    window_of(1000, length_ns, window_ns)
}

fn window_of(items: u64, length_ns: u64, window_ns: u64) -> Window {
    let mut window = Window { elapsed_ns: window_ns, ..Window::default() };
    window.taken[0] = Taken { items, ran_ns: length_ns * items };
    window
}

/// Runs for `windows` windows in which an item costs what `cost` says of the scope. Returns for
/// how many nanoseconds each scope was used.
fn drive(auto: &mut Auto, windows: usize, cost: impl Fn(Scope, usize) -> u64) -> [u64; 6] {
    let mut used = [0; 6];
    for number in 0..windows {
        let scope = auto.scope();
        used[scope.index()] += auto.window_ns();
        auto.note(&window(cost(scope, number), auto.window_ns()));
    }
    used
}

/// The same, but scopes differ in the items a millisecond, too.
fn drive_at(auto: &mut Auto, at: impl Fn(Scope) -> (u64, u64)) -> [u64; 6] {
    let mut used = [0; 6];
    for _ in 0..3_000 {
        let (scope, window_ns) = (auto.scope(), auto.window_ns());
        used[scope.index()] += window_ns;
        let (a_ms, length_ns) = at(scope);
        auto.note(&window_of(a_ms * window_ns / 1_000_000, length_ns, window_ns));
    }
    used
}

#[test]
fn more_items_a_second_are_better_whatever_one_costs() {
    let used = drive_at(&mut auto(), |scope| match scope {
        Scope::Cache => (110, 21_000),
        _ => (100, 20_000),
    });
    assert!(share(&used, Scope::Cache) > 0.8, "{used:?}");
    let used = drive_at(&mut auto(), |scope| match scope {
        Scope::Cache => (90, 18_000),
        _ => (100, 20_000),
    });
    assert!(share(&used, Scope::CacheShard) > 0.8, "{used:?}");
}

fn share(used: &[u64; 6], scope: Scope) -> f64 {
    used[scope.index()] as f64 / used.iter().sum::<u64>() as f64
}

fn auto() -> Auto {
    let layout = Layout::new(&Machine::from_grid("2x2x2x24x2").unwrap());
    Auto::new(&layout.unwrap(), Scope::CacheShard)
}

/// A number from 0 to 1000 that looks random.
fn noise(number: usize) -> u64 {
    let drawn = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((drawn ^ drawn >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) % 1001
}

#[test]
fn finds_the_cheapest_scope_and_seldom_leaves_it() {
    for best in Scope::ALL {
        let mut auto = auto();
        // Two per cent a scope, and noise of as much.
        let cost = |scope: Scope, number| {
            let away = scope.index().abs_diff(best.index()) as u64;
            100_000 + 2_000 * away + 2 * noise(number)
        };
        drive(&mut auto, 300, cost);
        let used = drive(&mut auto, 1_600, cost);
        assert!(share(&used, best) > 0.995, "{best}: {used:?}");
    }
}

/// If all scopes are alike, it does not matter which is used, but changing costs.
#[test]
fn noise_seldom_changes_anything() {
    let mut auto = auto();
    let (mut windows, mut changes) = (0, 0);
    while windows < 20_000 {
        let settled = auto.settled;
        let length_ns = 80_000 + 40 * noise(windows);
        auto.note(&window(length_ns, auto.window_ns()));
        changes += u32::from(auto.settled != settled);
        windows += 1;
    }
    assert!(changes < 20, "{changes}");
}

/// What a trial costs if the neighbours are far worse.
#[test]
fn a_wrong_scope_costs_little() {
    let mut auto = auto();
    let cost = |scope: Scope, _| if scope == Scope::CacheShard { 10_000 } else { 20_000 };
    let used = drive(&mut auto, 60, cost);
    assert!(share(&used, Scope::CacheShard) > 0.975, "from the start: {used:?}");
    let used = drive(&mut auto, 2_000, cost);
    assert!(share(&used, Scope::CacheShard) > 0.998, "later: {used:?}");
}

#[test]
fn a_change_of_load_is_followed_soon() {
    let mut auto = auto();
    let narrow = |scope: Scope, _| 10_000 + 1_000 * scope.index() as u64;
    drive(&mut auto, 3_000, narrow);
    assert_eq!(auto.scope(), Scope::Cpu);
    let wide = |scope: Scope, _| 60_000 - 5_000 * scope.index() as u64;
    let used = drive(&mut auto, 120, wide);
    assert_eq!(auto.scope(), Scope::System, "{used:?}");
}

#[test]
fn waiting_counts_where_a_cpu_was_idle() {
    let busy = Window { waited_ns: 500, ..window(1_000, 1 << 20) };
    assert_eq!(busy.cost_ns(), 1_000);
    assert_eq!(Window { idle_ns: 1 << 19, ..busy }.cost_ns(), 1_250);
    assert_eq!(Window { idle_ns: 1 << 20, ..busy }.cost_ns(), 1_500);
    let many = Window { idle_ns: u64::MAX, ..busy };
    assert_eq!(many.cost_ns(), 1_500, "no more than it waited");
    let long = Window { waited_ns: 1 << 40, ..many };
    assert_eq!(long.cost_ns(), 5_000, "overload does not hide the rest");
    assert_eq!(Window::default().cost_ns(), 0);
}

#[test]
fn the_pull_cost_is_what_fetched_items_were_longer() {
    let mut auto = auto();
    let mut note = |fetched, items, ran_ns| {
        let mut window = window(10_000, WINDOW_NS);
        window.taken[fetched as usize] = Taken { items, ran_ns: items * ran_ns };
        auto.note(&window);
        auto.pull_cost().percent()
    };
    assert_eq!(note(Reach::Node, COMPARED_ITEMS - 1, 90_000), 100, "too few");
    assert_eq!(note(Reach::Node, 200, 18_000), 200, "8 us, not 4");
    assert_eq!(note(Reach::Remote, 200, 15_000), 50, "5 us, not 10");
    assert_eq!(note(Reach::Llc, 200, 9_000), 25, "nothing");
    assert_eq!(note(Reach::Remote, 200, 90_000), 400, "as much as there is");
}

#[test]
fn a_machine_with_one_cpu_has_nothing_to_try() {
    let layout = Layout::new(&Machine::from_grid("1x1x1").unwrap());
    let mut auto = Auto::new(&layout.unwrap(), Scope::System);
    let used = drive(&mut auto, 100, |_, _| 10_000);
    assert!(share(&used, Scope::Cpu) >= 1.0);
}

#[test]
fn a_load_is_like_another_up_to_twice_as_much_either_way() {
    let load = |length_ns, pace_ns| Load { length_ns, pace_ns };
    for other in [load(200, 100), load(100, 200), load(50, 100), load(100, 50)] {
        assert!(load(100, 100).is_like(&other), "{other:?}");
    }
    for other in [load(201, 100), load(100, 201), load(49, 100), load(100, 49)] {
        assert!(!load(100, 100).is_like(&other), "{other:?}");
    }
}

#[test]
fn of_two_neighbours_the_one_tried_less_often_is_next_and_its_windows_suit_the_waits() {
    let mut auto = auto();
    for (of, next_rest) in [(auto.settled + 1, 64), (auto.settled - 1, 8)] {
        (auto.candidates[of].rest, auto.candidates[of].next_rest) = (1, next_rest);
    }
    for (waited_ns, window_ns) in
        [(0, TRIAL_NS), (20_000_000, 80_000_000), (u64::MAX, 2 * WINDOW_NS)]
    {
        let mut auto = auto.clone();
        auto.note(&Window { waited_ns, ..window(10_000, WINDOW_NS) });
        let trial = auto.trial.unwrap();
        assert_eq!((trial.candidate, trial.window_ns), (auto.settled - 1, window_ns));
        assert_eq!((auto.window_ns(), auto.window_items()), (window_ns, WINDOW_ITEMS));
    }
}

#[test]
fn after_the_probes_a_trial_begins_anew_with_longer_windows() {
    let mut auto = auto();
    auto.candidates[auto.settled + 1].rest = 1;
    auto.note(&window(10_000, WINDOW_NS));
    for _ in 0..PROBES {
        auto.note(&window(10_000, TRIAL_NS));
        auto.note(&window(9_000, TRIAL_NS));
    }
    let trial = auto.trial.unwrap();
    assert_eq!((trial.probes, trial.pace.pairs, trial.cost.pairs), (false, 0, 0));
    assert_eq!((auto.window_ns(), auto.window_items()), (LONGER * TRIAL_NS, LONGER * WINDOW_ITEMS));
}

fn gains(of: &[i64]) -> Gains {
    let mut gains = Gains::default();
    for gain in of {
        gains.note(10_000, (10_000 - gain).cast_unsigned());
    }
    gains
}

#[test]
fn one_window_that_is_unlike_the_others_decides_nothing() {
    assert_eq!(gains(&[300, 310, -9_000, 290, 300, 305, 295, 300]).finding(), Finding::Better);
    assert_eq!(gains(&[300, 310, -9_000, 290]).finding(), Finding::Unclear, "too few");
    // It may be as good, by what is known.
    assert_eq!(gains(&[-4_000, 3_000, -4_000, 3_000, -1_000, 0]).finding(), Finding::NotBetter);
}

#[test]
fn what_costs_less_is_no_better_where_fewer_items_are_done() {
    let verdict = |pace: i64| {
        let pace = gains(&[pace; 8]);
        let cost = gains(&[500; 8]);
        let (settled, window_ns) = (None, TRIAL_NS);
        Trial { candidate: 0, probes: false, window_ns, settled, pace, cost }.verdict()
    };
    assert_eq!([verdict(-10), verdict(0), verdict(10)], [Some(false), Some(true), Some(true)]);
}

#[test]
fn where_it_came_from_is_tried_later_and_nothing_rests_for_ever() {
    let mut auto = auto();
    let first = auto.settled;
    let wider = |scope: Scope, _| 20_000 - 1_000 * scope.index() as u64;
    while auto.settled == first {
        drive(&mut auto, 1, wider);
    }
    let rests = |auto: &Auto| auto.candidates.iter().map(|of| of.rest).collect::<Vec<_>>();
    assert_eq!(rests(&auto)[first], 2 * REST_MIN);
    assert!(rests(&auto).iter().filter(|rest| **rest == REST_MIN).count() > 2);
    drive(&mut auto, 5_000, wider);
    assert!(auto.candidates.iter().all(|of| of.next_rest <= REST_MAX), "{auto:?}");
    assert!(auto.candidates.iter().any(|of| of.next_rest == REST_MAX), "{auto:?}");
}

#[test]
fn begins_with_the_narrowest_name_of_the_scope_that_is_asked_for() {
    let layout = Layout::new(&Machine::from_grid("2x4x2").unwrap()).unwrap();
    assert_eq!(Auto::new(&layout, Scope::Cache).scope(), Scope::CacheShard);
}

#[test]
fn the_pull_cost_of_long_items_is_by_their_length_and_needs_enough_of_both_kinds() {
    let mut auto = auto();
    let mut note = |home, fetched_ns: u64| {
        let mut window = window_of(home, 320_000, WINDOW_NS);
        window.taken[Reach::Node as usize] = Taken { items: 200, ran_ns: 200 * fetched_ns };
        auto.note(&window);
        auto.pull_cost().percent()
    };
    assert_eq!(note(COMPARED_ITEMS - 1, 900_000), 100, "too few");
    assert_eq!(note(1_000, 340_000), 100, "20 us are a 16th");
}

/// What rested for long under the scope before says nothing of the one that follows.
#[test]
fn all_others_are_tried_again_soon_after_a_move() {
    let mut auto = auto();
    let first = auto.settled;
    for candidate in &mut auto.candidates {
        (candidate.rest, candidate.next_rest) = (200, REST_MAX);
    }
    auto.candidates[first + 1].rest = 1;
    while auto.settled == first {
        drive(&mut auto, 1, |scope, _| 20_000 - 1_000 * scope.index() as u64);
    }
    for (of, candidate) in auto.candidates.iter().enumerate() {
        let rest = if of == first { 2 * REST_MIN } else { REST_MIN };
        assert_eq!((candidate.rest, candidate.next_rest), (rest, 2 * REST_MIN), "{of}");
    }
}
