//! A thousand groups with the same random load give the same, and as much as was asked for in all.

use homing_mglru::kernel::Type;
use homing_mglru::reclaim::{Background, Flags, Goal, Limits};

use crate::world::{Random, World};

const GROUPS: u32 = 1000;
/// The frames of each group, and the pages that it uses.
const FRAMES_EACH: u32 = 64;
const PAGES_EACH: u32 = 128;
/// Accesses of each group on average; more than half of them find no page.
const ACCESSES_EACH: u32 = 1000;

/// Has all groups read at random. Makes room with `reclaim`, which returns how many pages it was
/// asked for. Returns how many pages of each group were reclaimed in the second half of the run,
/// and the ratio of all of these to the pages that were asked for.
fn run(mut reclaim: impl FnMut(&mut World) -> u64) -> (Vec<f64>, f64) {
    let mut world = World::new(GROUPS * FRAMES_EACH);
    let ids: Vec<_> = (0..GROUPS).map(|_| world.add(PAGES_EACH, Limits::default())).collect();
    let mut random = Random::new(7);
    let mut requested = 0;
    for access in 0..GROUPS * ACCESSES_EACH {
        if access == GROUPS * ACCESSES_EACH / 2 {
            requested = 0;
            world.forget();
        }
        let id = ids[random.below(GROUPS) as usize];
        let page = random.below(PAGES_EACH);
        let frame = world.frame_of(id, page).unwrap_or_else(|| {
            while world.free() == 0 {
                requested += reclaim(&mut world);
            }
            world.load(id, page, Type::Clean, false)
        });
        world.frames.access(frame);
    }
    let taken: Vec<f64> = ids.iter().map(|id| world.taken(*id).0 as f64).collect();
    let ratio = taken.iter().sum::<f64>() / requested as f64;
    (taken, ratio)
}

/// The standard deviation divided by the mean.
fn spread(taken: &[f64]) -> f64 {
    let mean = taken.iter().sum::<f64>() / taken.len() as f64;
    let square = taken.iter().map(|taken| (taken - mean).powi(2)).sum::<f64>() / taken.len() as f64;
    square.sqrt() / mean
}

fn check(name: &str, (taken, ratio): (Vec<f64>, f64)) {
    let spread = spread(&taken);
    println!("{name}: spread {:.1} %, reclaimed {:.1} %", spread * 100.0, ratio * 100.0);
    assert!(spread < 0.2, "{name}: {spread}");
    assert!((0.95..1.05).contains(&ratio), "{name}: {ratio}");
}

#[test]
fn a_thousand_groups_give_the_same_to_who_cannot_wait() {
    for pages in [32, 1000] {
        let reclaim = |world: &mut World| {
            world.groups.reclaim(pages, 0);
            pages
        };
        check(&format!("{pages} pages at a time"), run(reclaim));
    }
}

#[test]
fn a_thousand_groups_give_the_same_to_the_background() {
    for form in [Flags::Off, Flags::V8, Flags::V14] {
        let reclaim = |world: &mut World| {
            let goal = Goal { pages: 2000, short: 0 };
            world.groups.run_background(&mut Background::new(form), goal, 0);
            goal.pages
        };
        check(&format!("{form:?}"), run(reclaim));
    }
}
