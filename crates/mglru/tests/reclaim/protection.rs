//! Which groups are protected from what, tested on groups that are only numbers.

use homing_mglru::kernel::{Aging, Type};
use homing_mglru::reclaim::{
    Background, Batch, Flags, Goal, GroupId, Groups, Limits, Outcome, Pages,
};

/// Pages that differ only in their type. Dirty ones go first if writing is allowed and the
/// swappiness is above 100.
#[derive(Debug, Default)]
struct Numbers {
    dirty: u64,
    clean: u64,
    aging: Option<Aging>,
    agings: u64,
    birth_ms: u64,
}

impl Pages for Numbers {
    fn totals(&self) -> [u64; 2] {
        [self.dirty, self.clean]
    }

    fn inactive(&self, _: u16) -> u64 {
        self.dirty + self.clean
    }

    fn need_aging(&self, _: u16) -> Aging {
        self.aging.unwrap_or(Aging::No)
    }

    fn age(&mut self, now_ms: u64) {
        (self.aging, self.birth_ms) = (None, now_ms);
        self.agings += 1;
    }

    fn oldest_birth_ms(&self, _: u16) -> u64 {
        self.birth_ms
    }

    fn evict(&mut self, budget: u64, swappiness: u16) -> Batch {
        if self.aging == Some(Aging::Must) {
            return Batch::default();
        }
        let first = if swappiness > 100 { Type::Dirty } else { Type::Clean };
        for of in [first, first.other()] {
            let pages = if of == Type::Dirty { &mut self.dirty } else { &mut self.clean };
            let taken = budget.min(*pages);
            if of.evictable(swappiness) && taken > 0 {
                *pages -= taken;
                let written = if of == Type::Dirty { taken } else { 0 };
                return Batch { scanned: taken, reclaimed: taken, written };
            }
        }
        Batch::default()
    }
}

fn clean(pages: u64) -> Numbers {
    Numbers { clean: pages, ..Numbers::default() }
}

fn add(groups: &mut Groups<Numbers>, pages: Numbers, limits: Limits) -> GroupId {
    let usage = pages.dirty + pages.clean;
    groups.add(pages, limits, usage)
}

fn usages(groups: &Groups<Numbers>) -> Vec<u64> {
    groups.iter().map(|(_, group)| group.usage()).collect()
}

#[test]
fn min_is_kept_whatever_is_asked_for() {
    let mut groups = Groups::new();
    for min in [0, 500, 1000, 2000] {
        add(&mut groups, clean(1000), Limits { min, ..Limits::default() });
    }
    groups.reclaim(1_000_000, 0);
    assert_eq!(usages(&groups), [0, 500, 1000, 1000]);
    groups.reclaim_group(GroupId(2), 1000, 0);
    assert_eq!(usages(&groups)[2], 1000);
}

#[test]
fn low_is_kept_until_nothing_else_is_left() {
    let mut groups = Groups::new();
    add(&mut groups, clean(1000), Limits::default());
    add(&mut groups, clean(1000), Limits { low: 1000, min: 100, ..Limits::default() });
    assert!(groups.reclaim(900, 0).reclaimed >= 900);
    assert_eq!(usages(&groups)[1], 1000);
    groups.reclaim(1_000_000, 0);
    assert_eq!(usages(&groups), [0, 1000]);
    assert!(groups.reclaim(500, 0).reclaimed >= 500);
    groups.reclaim(1_000_000, 0);
    assert_eq!(usages(&groups), [0, 100]);
}

#[test]
fn a_group_gives_by_what_it_is_above_its_promise() {
    let mut groups = Groups::new();
    for low in [0, 50_000, 90_000] {
        add(&mut groups, clean(100_000), Limits { low, ..Limits::default() });
    }
    let mut run = Background::new(Flags::Off);
    groups.background_round(&mut run, 3, Goal { pages: 1_000_000, short: 0 }, 0);
    let given: Vec<_> = usages(&groups).iter().map(|usage| 100_000 - usage).collect();
    assert_eq!(given, [12_500, 6250, 1250]);
}

#[test]
fn a_dead_group_goes_wholly() {
    let mut groups = Groups::new();
    add(&mut groups, clean(5000), Limits::default());
    let pages = Numbers { dirty: 300, aging: Some(Aging::Must), ..clean(700) };
    let limits = Limits { min: 1000, swappiness: 0, ..Limits::default() };
    let dead = add(&mut groups, pages, limits);
    groups.group_mut(dead).unwrap().kill();
    let outcome = groups.reclaim_group(dead, 1, 0);
    assert_eq!((outcome.reclaimed, outcome.written, outcome.agings), (1000, 300, 1));
    assert_eq!(usages(&groups), [5000, 0]);
}

#[test]
fn the_next_pass_goes_on_where_the_last_one_stopped() {
    let mut groups = Groups::new();
    for _ in 0..10 {
        add(&mut groups, clean(6400), Limits::default());
    }
    // 64 pages from each of three groups are enough.
    let goal = Goal { pages: 150, short: 0 };
    let mut run = Background::new(Flags::V14);
    for _ in 0..10 {
        let outcome = groups.background_round(&mut run, 6, goal, 0);
        assert!((150..=300).contains(&outcome.reclaimed), "{outcome:?}");
    }
    let given: Vec<_> = usages(&groups).iter().map(|usage| 6400 - usage).collect();
    assert!(given.iter().all(|given| *given > 0), "{given:?}");
    let (least, most) = (given.iter().min().unwrap(), given.iter().max().unwrap());
    assert!(most - least <= 100, "no more than one turn between them: {given:?}");
}

#[test]
fn a_single_group_is_never_cut_short() {
    let mut groups = Groups::new();
    let id = add(&mut groups, clean(1 << 20), Limits::default());
    assert_eq!(groups.reclaim_group(id, 10, 0).reclaimed, 256);
}

#[test]
fn the_background_goes_past_the_watermark() {
    let goal = Goal { pages: 10, short: 100 };
    let mut groups = Groups::new();
    add(&mut groups, clean(1 << 16), Limits::default());
    let outcome = groups.run_background(&mut Background::new(Flags::V14), goal, 0);
    assert!((164..300).contains(&outcome.reclaimed), "{outcome:?}");
}

#[test]
fn who_lacks_memory_ages_and_passes_on() {
    let mut groups = Groups::new();
    let old = Numbers { aging: Some(Aging::Must), ..clean(4096) };
    add(&mut groups, clean(4096), Limits::default());
    add(&mut groups, old, Limits::default());
    let outcome = groups.reclaim(64, 0);
    assert!(outcome.reclaimed >= 64 && outcome.agings == 1, "{outcome:?}");
    assert_eq!(groups.group(GroupId(1)).unwrap().usage(), 4096, "it took its turn to age");
}

#[test]
fn nothing_is_taken_while_everything_is_young() {
    let mut groups = Groups::new();
    groups.min_ttl_ms = 1000;
    let pages = Numbers { birth_ms: 5000, ..clean(1 << 16) };
    add(&mut groups, pages, Limits::default());
    let goal = Goal { pages: 100, short: 0 };
    let mut run = Background::new(Flags::V14);
    let outcome = groups.run_background(&mut run, goal, 5999);
    assert_eq!(outcome, Outcome { thrashing: true, ..Outcome::default() });
    assert!(groups.run_background(&mut run, goal, 6000).reclaimed >= 100);
}

#[test]
fn small_groups_and_dead_ones_give_what_is_old_enough_and_all_they_have() {
    let goal = Goal { pages: 100, short: 0 };
    let mut groups = Groups::new();
    groups.min_ttl_ms = 1000;
    for _ in 0..8 {
        add(&mut groups, clean(500), Limits::default());
    }
    let outcome = groups.run_background(&mut Background::new(Flags::V14), goal, 1000);
    assert!(outcome.reclaimed >= 100 && !outcome.thrashing, "{outcome:?}");

    let mut groups = Groups::new();
    groups.min_ttl_ms = 1000;
    let young = Numbers { birth_ms: 5000, ..clean(500) };
    let id = add(&mut groups, young, Limits { min: 600, ..Limits::default() });
    groups.group_mut(id).unwrap().kill();
    add(&mut groups, Numbers { birth_ms: 5000, ..clean(1 << 16) }, Limits::default());
    let outcome = groups.run_background(&mut Background::new(Flags::V14), goal, 5001);
    assert_eq!((outcome.reclaimed, outcome.thrashing), (500, false));
    assert_eq!(usages(&groups), [0, 1 << 16], "a young one gives nothing for a dead one");
}

#[test]
fn a_few_old_pages_do_not_open_large_groups_that_are_young() {
    let mut groups = Groups::new();
    groups.min_ttl_ms = 1000;
    add(&mut groups, Numbers { birth_ms: 0, ..clean(1) }, Limits::default());
    add(&mut groups, Numbers { birth_ms: 5000, ..clean(1 << 16) }, Limits::default());
    let goal = Goal { pages: 100, short: 0 };
    let outcome = groups.run_background(&mut Background::new(Flags::V14), goal, 5001);
    assert_eq!(outcome, Outcome { thrashing: true, ..Outcome::default() });
}

/// Makes a group for each letter: `c` has clean pages, any other letter has dirty ones, and a group
/// whose letter is a capital has to be aged.
fn of_letters(letters: &str) -> Groups<Numbers> {
    let mut groups = Groups::new();
    for letter in letters.chars() {
        let mut pages = if letter.eq_ignore_ascii_case(&'c') {
            clean(64_000)
        } else {
            Numbers { dirty: 64_000, ..Numbers::default() }
        };
        pages.aging = letter.is_uppercase().then_some(Aging::Better);
        add(&mut groups, pages, Limits::default());
    }
    groups
}

#[test]
fn rounds_age_and_write_only_where_no_group_can_do_without() {
    // Each line has groups, a form, and the five rounds: whether there is ageing (a), and how many
    // batches of 64 pages are written. A turn is 125 pages of a group: two batches.
    let table = [
        ("cd", Flags::Off, "2 2 2 2 2"),
        ("cd", Flags::V8, "1 1 1 1 1"),
        ("cd", Flags::V14, "1 1 1 1 1"),
        // Only dirty pages: all rounds except the first write freely.
        ("dd", Flags::Off, "4 4 4 4 4"),
        ("dd", Flags::V8, "2 4 4 4 4"),
        ("dd", Flags::V14, "2 4 4 4 4"),
        // Both groups have to be aged, which the second round does. It then tries clean pages
        // first.
        ("CD", Flags::Off, "a2 2 2 2 2"),
        ("CD", Flags::V14, "0 a1 1 1 1"),
        ("CD", Flags::V8, "0 a1 1 1 1"),
        // One group that needs no ageing is enough to skip it.
        ("cD", Flags::V8, "0 0 0 0 0"),
        ("cD", Flags::V14, "0 0 0 0 0"),
        ("Cd", Flags::V8, "1 2 2 2 2"),
        ("Cd", Flags::V14, "1 2 2 2 2"),
    ];
    for (letters, form, expected) in table {
        let mut groups = of_letters(letters);
        let mut run = Background::new(form);
        let rounds: Vec<String> = (0..5)
            .map(|_| {
                let goal = Goal { pages: u64::MAX, short: 0 };
                let outcome = groups.background_round(&mut run, 9, goal, 0);
                let aged = if outcome.agings > 0 { "a" } else { "" };
                format!("{aged}{}", outcome.written.div_ceil(64))
            })
            .collect();
        assert_eq!(rounds.join(" "), expected, "{letters} {form:?}");
    }
}

#[test]
fn a_group_that_had_better_age_gives_before_there_is_pressure() {
    for (aging, priority, given) in [
        (Aging::Better, 12, 100),
        (Aging::Better, 11, 0),
        (Aging::Must, 12, 0),
        (Aging::Must, 11, 0),
    ] {
        let mut groups = Groups::new();
        let pages = Numbers { aging: Some(aging), ..clean(409_600) };
        add(&mut groups, pages, Limits::default());
        let goal = Goal { pages: 1000, short: 0 };
        let mut run = Background::new(Flags::V14);
        let outcome = groups.background_round(&mut run, priority, goal, 0);
        assert_eq!((outcome.reclaimed, outcome.agings), (given, 0), "{aging:?} {priority}");
    }
}

#[test]
fn a_group_that_is_passed_over_says_nothing_about_the_others() {
    for (low, ages) in [(0, false), (64_000, true)] {
        let mut groups = of_letters("cD");
        groups.group_mut(GroupId(0)).unwrap().limits.low = low;
        let mut run = Background::new(Flags::V8);
        let goal = Goal { pages: u64::MAX, short: 0 };
        groups.background_round(&mut run, 9, goal, 0);
        let second = groups.background_round(&mut run, 9, goal, 0);
        assert_eq!(second.agings > 0, ages, "{low}");
    }
}

/// Pages that count how often they are looked at, and of which only some are ever given.
#[derive(Debug)]
struct Scant {
    pages: u64,
    given_each: u64,
    scans_left: u64,
    aging: Aging,
    asked: u64,
}

impl Pages for Scant {
    fn totals(&self) -> [u64; 2] {
        [0, self.pages]
    }

    fn inactive(&self, _: u16) -> u64 {
        self.pages
    }

    fn need_aging(&self, _: u16) -> Aging {
        self.aging
    }

    fn age(&mut self, _: u64) {
        self.aging = Aging::No;
    }

    fn oldest_birth_ms(&self, _: u16) -> u64 {
        0
    }

    fn evict(&mut self, budget: u64, _: u16) -> Batch {
        self.asked += 1;
        assert!(self.asked < 1_000_000, "it is asked for ever");
        let scanned = budget.min(self.scans_left);
        self.scans_left -= scanned;
        Batch { scanned, reclaimed: self.given_each.min(scanned), written: 0 }
    }
}

fn scant(pages: u64) -> Scant {
    Scant { pages, given_each: 0, scans_left: u64::MAX, aging: Aging::No, asked: 0 }
}

#[test]
fn the_background_ends_where_all_is_looked_at_and_nothing_goes() {
    let mut groups = Groups::new();
    groups.add(scant(1 << 16), Limits::default(), 1 << 16);
    let goal = Goal { pages: 10, short: 0 };
    let outcome = groups.run_background(&mut Background::new(Flags::V14), goal, 0);
    assert!(outcome.reclaimed == 0 && outcome.scanned > 1 << 15, "{outcome:?}");
}

#[test]
fn a_turn_that_finds_nothing_more_does_not_end_normally() {
    for (left, ages) in [(u64::MAX, false), (70, true)] {
        let mut groups = Groups::new();
        groups.add(Scant { scans_left: left, ..scant(64_000) }, Limits::default(), 64_000);
        let mut run = Background::new(Flags::V14);
        // A turn is 125 pages.
        let goal = Goal { pages: u64::MAX, short: 0 };
        groups.background_round(&mut run, 9, goal, 0);
        assert_eq!(run.flags()[0], ages, "{left}");
    }
}

#[test]
fn the_background_takes_what_is_low_once_nothing_else_is_left() {
    let mut groups = Groups::new();
    add(&mut groups, clean(1000), Limits { low: 1000, min: 100, ..Limits::default() });
    let goal = Goal { pages: 300, short: 0 };
    let outcome = groups.run_background(&mut Background::new(Flags::V14), goal, 0);
    assert!((300..=900).contains(&outcome.reclaimed), "{outcome:?}");
}

#[test]
fn the_background_looks_at_more_each_time_that_there_is_too_little() {
    let mut groups = Groups::new();
    let id = groups.add(Scant { given_each: 1, ..scant(1 << 16) }, Limits::default(), 1 << 16);
    let goal = Goal { pages: 40_000, short: 0 };
    groups.run_background(&mut Background::new(Flags::V14), goal, 0);
    let asked = groups.group(id).unwrap().pages.asked;
    assert!(asked < 2_000, "{asked}: the same part again and again");
}

#[test]
fn the_background_gives_what_is_asked_for_beyond_the_watermark() {
    let mut groups = Groups::new();
    add(&mut groups, clean(1 << 16), Limits::default());
    let goal = Goal { pages: 2000, short: 100 };
    let outcome = groups.run_background(&mut Background::new(Flags::V14), goal, 0);
    assert!(outcome.reclaimed >= 2000, "{outcome:?}");
}

#[test]
fn what_is_within_min_is_not_aged() {
    let mut groups = of_letters("CC");
    groups.group_mut(GroupId(1)).unwrap().limits.min = 64_000;
    let goal = Goal { pages: 100, short: 0 };
    let outcome = groups.background_round(&mut Background::new(Flags::Off), 6, goal, 0);
    assert_eq!(outcome.agings, 1);
    assert_eq!(groups.group(GroupId(1)).unwrap().pages.agings, 0);
}

#[test]
fn old_pages_within_min_open_no_others_that_are_young() {
    let mut groups = Groups::new();
    groups.min_ttl_ms = 1000;
    let min = 1 << 16;
    add(&mut groups, clean(min), Limits { min, ..Limits::default() });
    add(&mut groups, Numbers { birth_ms: 5000, ..clean(1 << 16) }, Limits::default());
    let goal = Goal { pages: 100, short: 0 };
    let outcome = groups.run_background(&mut Background::new(Flags::V14), goal, 5001);
    assert_eq!(outcome, Outcome { thrashing: true, ..Outcome::default() });
}

#[test]
fn groups_that_are_all_small_are_not_thrashing_at_the_first_priority() {
    let mut groups = Groups::new();
    groups.min_ttl_ms = 1000;
    add(&mut groups, clean(500), Limits::default());
    let goal = Goal { pages: 100, short: 0 };
    let outcome = groups.background_round(&mut Background::new(Flags::V14), 12, goal, 1000);
    assert!(!outcome.thrashing, "{outcome:?}");
}

#[test]
fn the_next_pass_begins_behind_the_group_that_had_enough() {
    let mut groups = Groups::new();
    for _ in 0..3 {
        add(&mut groups, clean(6400), Limits::default());
    }
    let mut run = Background::new(Flags::V14);
    for _ in 0..3 {
        groups.background_round(&mut run, 6, Goal { pages: 100, short: 0 }, 0);
    }
    assert_eq!(usages(&groups), [6300; 3]);
}

#[test]
fn however_much_is_asked_for_all_groups_give() {
    let mut groups = Groups::new();
    for _ in 0..2 {
        add(&mut groups, clean(64_000), Limits::default());
    }
    groups.reclaim(60_000, 0);
    let usages = usages(&groups);
    assert!(usages[0].abs_diff(usages[1]) < 10_000, "{usages:?}");
}

#[test]
fn nothing_is_aged_in_the_first_pass() {
    let mut groups = Groups::new();
    let old = Numbers { aging: Some(Aging::Must), ..clean(4096) };
    let id = add(&mut groups, old, Limits::default());
    let outcome = groups.reclaim_group(id, 1, 0);
    // Priorities 12, 11, 10: too early, ages, gives a page of 1024.
    assert_eq!((outcome.agings, outcome.reclaimed), (1, 4));
}
