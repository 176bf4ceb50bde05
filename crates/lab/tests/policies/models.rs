//! On random traces, FIFO, LRU, CLOCK and CFLRU do the same as the few lines that anybody would
//! write first.

use std::collections::{HashSet, VecDeque};

use homing_lab::{Request, Setup, Trace, policies};
use proptest::prelude::*;

use crate::small;

/// What a cache does with a request: whether it was a hit, and which page was evicted.
type Step = (bool, Option<u32>);

fn fifo(queue: &mut VecDeque<u32>, capacity: usize, page: u32) -> Step {
    if queue.contains(&page) {
        return (true, None);
    }
    let oldest = if queue.len() == capacity { queue.pop_front() } else { None };
    queue.push_back(page);
    (false, oldest)
}

fn lru(queue: &mut VecDeque<u32>, capacity: usize, page: u32) -> Step {
    if queue.contains(&page) {
        queue.retain(|other| *other != page);
        queue.push_back(page);
        return (true, None);
    }
    fifo(queue, capacity, page)
}

/// Pages with their bits; the hand is always at the front.
fn clock(queue: &mut VecDeque<(u32, bool)>, capacity: usize, page: u32) -> Step {
    if let Some((_, used)) = queue.iter_mut().find(|(other, _)| *other == page) {
        *used = true;
        return (true, None);
    }
    let mut victim = None;
    while queue.len() == capacity {
        match queue.pop_front().unwrap() {
            (survivor, true) => queue.push_back((survivor, false)),
            (other, false) => victim = Some(other),
        }
    }
    queue.push_back((page, false));
    (false, victim)
}

/// LRU that searches the pages of the window, from the oldest, for a clean one.
fn cflru(
    queue: &mut VecDeque<u32>,
    dirty: &mut HashSet<u32>,
    capacity: usize,
    window: usize,
    request: Request,
) -> Step {
    let mut victim = None;
    if !queue.contains(&request.page) && queue.len() == capacity {
        let clean = queue.iter().take(window).position(|page| !dirty.contains(page));
        victim = queue.remove(clean.unwrap_or(0));
        dirty.remove(&victim.unwrap());
    }
    if request.write {
        dirty.insert(request.page);
    }
    (lru(queue, capacity, request.page).0, victim)
}

/// Checks that the policy does the same as the model.
fn check(name: &str, trace: &Trace, capacity: usize, mut model: impl FnMut(Request) -> Step) {
    let mut policy = policies::build(name, &Setup::new(trace, capacity)).unwrap();
    for (index, request) in trace.requests().enumerate() {
        let mut evicted = Vec::new();
        let hit = policy.request(request, &mut evicted);
        let (model_hit, victim) = model(request);
        assert_eq!((hit, evicted), (model_hit, victim.into_iter().collect()), "request {index}");
    }
}

proptest! {
    #[test]
    fn the_simple_ones_do_as_their_models(
        keys in prop::collection::vec((0_u64..30, any::<bool>()), 0..300),
        capacity in 1_usize..25,
    ) {
        let trace = Trace::from_keys("random", keys).unwrap();
        let mut queue = VecDeque::new();
        check("fifo", &trace, capacity, |request| fifo(&mut queue, capacity, request.page));
        let mut queue = VecDeque::new();
        check("lru", &trace, capacity, |request| lru(&mut queue, capacity, request.page));
        let mut queue = VecDeque::new();
        check("clock", &trace, capacity, |request| clock(&mut queue, capacity, request.page));
        for (name, window) in [("cflru", capacity / 4), ("cflru-wide", capacity / 2)] {
            let (mut queue, mut dirty) = (VecDeque::new(), HashSet::new());
            let model = |request| cflru(&mut queue, &mut dirty, capacity, window, request);
            check(name, &trace, capacity, model);
        }
    }
}

#[test]
fn a_model_that_is_wrong_is_noticed() {
    let trace = small::trace("a b a c a");
    let mut queue = VecDeque::new();
    let wrong = || check("lru", &trace, 2, |request| fifo(&mut queue, 2, request.page));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(wrong)).is_err());
}
