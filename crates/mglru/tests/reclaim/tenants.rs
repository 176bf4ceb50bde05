//! A small version of the mix by which the flags were judged when they were posted. One group reads
//! clean pages at random from a set much larger than memory. Another has a working set of dirty
//! pages that would just fit. In the postings, the flags relieve reclaim of ageing and writing. In
//! their first form the reads of the clean group pay for it, in the second less so.
//!
//! No real time is measured here. Each tenant and the background have a clock, and the one that is
//! furthest behind acts next. The costs are made up, but in proportion to those of today's devices.
//! Threads do not take CPUs from each other, so the reader does not gain from what reclaim saves;
//! in the postings it did. A simulation is not a machine.

use homing_mglru::kernel::Type;
use homing_mglru::reclaim::{Background, Flags, Goal, GroupId, Limits};

use crate::world::{Random, World};

const FRAMES: u32 = 8192;
/// The pages that the reader reads: four times as many as fit.
const READ: u32 = 4 * FRAMES;
/// The background begins to work with fewer frames free than this, and stops with twice as many.
const LOW_WATERMARK: usize = FRAMES as usize / 64;
/// Costs in nanoseconds. Reads overlap; the background's writes overlap less.
const ACCESS_NS: u64 = 300;
const READ_NS: u64 = 3_000;
const READ_BACK_NS: u64 = 10_000;
const SCAN_NS: u64 = 100;
const WRITE_NS: u64 = 6_000;
const AGE_NS: u64 = 20_000;
const ROUND_NS: u64 = 2_000;
/// When counting begins, and when the run ends.
const WARM_UP_NS: u64 = 2_000_000_000;
const END_NS: u64 = 5_000_000_000;

/// The results of a run, per second.
#[derive(Debug)]
struct Figures {
    reads: u64,
    uses: u64,
    written: u64,
    agings: u64,
}

/// Runs the mix with a working set of this many hundredths of memory.
fn run(form: Flags, working_set: u32) -> Figures {
    let mut world = World::new(FRAMES);
    let reader = world.add(READ, Limits::default());
    let working = FRAMES * working_set / 100;
    let user = world.add(working, Limits::default());
    let mut random = Random::new(3);
    let [mut read_ns, mut use_ns, mut background_ns] = [0_u64; 3];
    let [mut reads, mut uses, mut agings] = [0; 3];
    let mut warm = false;
    loop {
        let now_ns = read_ns.min(use_ns);
        if !warm && now_ns >= WARM_UP_NS {
            warm = true;
            world.forget();
            [reads, uses, agings] = [0; 3];
        }
        if now_ns >= END_NS {
            break;
        }
        if world.free() < LOW_WATERMARK && background_ns <= now_ns {
            let mut run = Background::new(form);
            let short = (2 * LOW_WATERMARK - world.free()) as u64;
            let written = world.taken(user).1;
            let goal = Goal { pages: short, short };
            let outcome = world.groups.run_background(&mut run, goal, now_ns / 1_000_000);
            agings += outcome.agings;
            let written = world.taken(user).1 - written;
            background_ns = now_ns
                + ROUND_NS
                + outcome.scanned * SCAN_NS
                + outcome.agings * AGE_NS
                + written * WRITE_NS;
        }
        // Frames that the background lets go of are free when it is done.
        if read_ns <= use_ns {
            reads += 1;
            let (page, of) = (random.below(READ), Type::Clean);
            read_ns += access(&mut world, (reader, page, of), read_ns, background_ns);
        } else {
            uses += 1;
            // Four of five uses fall on a fifth of the set.
            let most = if random.below(5) > 0 { working / 5 } else { working };
            let (page, of) = (random.below(most), Type::Dirty);
            use_ns += access(&mut world, (user, page, of), use_ns, background_ns);
        }
    }
    let seconds = (END_NS - WARM_UP_NS) / 1_000_000_000;
    Figures {
        reads: reads / seconds,
        uses: uses / seconds,
        written: world.taken(user).1 / seconds,
        agings: agings / seconds,
    }
}

/// Uses a page, and returns how long that took, in nanoseconds.
fn access(
    world: &mut World,
    (id, page, of): (GroupId, u32, Type),
    now_ns: u64,
    background_ns: u64,
) -> u64 {
    let mut cost_ns = ACCESS_NS;
    let frame = world.frame_of(id, page).unwrap_or_else(|| {
        cost_ns += if of == Type::Clean { READ_NS } else { READ_BACK_NS };
        if world.free() <= LOW_WATERMARK {
            // A tenant that is faster than the background waits for it.
            cost_ns += background_ns.saturating_sub(now_ns);
        }
        if world.free() == 0 {
            let outcome = world.groups.reclaim(32, now_ns / 1_000_000);
            cost_ns += outcome.scanned * SCAN_NS + outcome.written * WRITE_NS;
        }
        world.load(id, page, of, of == Type::Dirty)
    });
    match of {
        Type::Clean => world.frames.access(frame),
        Type::Dirty => world.frames.touch(frame),
    }
    cost_ns
}

#[test]
fn the_flags_spare_a_working_set_and_the_new_form_spares_the_reader_too() {
    for working_set in [80, 100] {
        let [off, v8, v14] =
            [Flags::Off, Flags::V8, Flags::V14].map(|form| (form, run(form, working_set)));
        for (form, figures) in [&off, &v8, &v14] {
            println!("{working_set} % {form:?}: {figures:?}");
        }
        let [off, v8, v14] = [off.1, v8.1, v14.1];
        for with in [&v8, &v14] {
            assert!(with.uses > 3 * off.uses && with.written < off.written / 2);
            assert!(with.agings < off.agings / 2);
            assert!(with.reads > off.reads / 2);
        }
        assert!(v14.reads >= v8.reads);
        assert!(working_set < 100 || v14.reads > v8.reads * 11 / 10);
    }
}
