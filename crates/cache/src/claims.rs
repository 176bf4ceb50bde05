//! Which groups give up memory first, as far as a shard knows. There may be thousands of groups,
//! and a shard can look at only some of them.
//!
//! A group's claim also changes without any action of the shard: the group gets something in
//! another shard, or its limit is changed. So the shard checks what it knows of a group when it
//! uses that knowledge, when the group gets something here, and in turn.

use std::cell::Cell;
use std::ops::ControlFlow;

use crate::limits::Claim;

/// How many groups each search checks in turn.
const CHECKED: usize = 2;
/// How many groups a search checks in turn if it found none that gives: otherwise it would not
/// notice a group that has to give by now.
const CHECKED_IN_NEED: usize = 64;
/// Only lists with room for more than this are made shorter.
const TRIMMED: usize = 16;

/// Appends, and grows by little: groups have to share the memory that there is, and doubling would
/// take much of it for nothing.
pub(crate) fn push<T>(all: &mut Vec<T>, one: T) {
    if all.len() == all.capacity() {
        all.reserve_exact(all.len() / 8 + 4);
    }
    all.push(one);
}

/// Gives back memory of a list that was once far longer. Short lists keep theirs, because they grow
/// and shrink often.
pub(crate) fn trim<T>(all: &mut Vec<T>) {
    if all.capacity() > TRIMMED && all.len() < all.capacity() / 2 {
        all.shrink_to_fit();
    }
}

/// The groups of a shard, known by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    classes: [Vec<u32>; Claim::ALL.len()],
    /// The class of each group, and its place in that class.
    places: Vec<(Claim, u32)>,
    /// The group that was checked last.
    hand: usize,
}

impl Claims {
    /// Adds a group with the next number. It has nothing yet.
    pub(crate) fn add(&mut self) {
        push(&mut self.places, (Claim::Protected, 0));
        self.put_in(self.places.len() - 1, Claim::Protected);
    }

    /// Forgets a group. The last group takes its number.
    pub(crate) fn remove(&mut self, number: usize) {
        self.take_out(number);
        self.places.swap_remove(number);
        trim(&mut self.places);
        if let Some(&(claim, at)) = self.places.get(number) {
            self.classes[claim as usize][at as usize] = number as u32;
        }
    }

    #[inline]
    pub(crate) fn set(&mut self, number: usize, claim: Claim) {
        if self.places[number].0 != claim {
            self.take_out(number);
            self.put_in(number, claim);
        }
    }

    fn put_in(&mut self, number: usize, claim: Claim) {
        let class = &mut self.classes[claim as usize];
        self.places[number] = (claim, class.len() as u32);
        push(class, number as u32);
    }

    fn take_out(&mut self, number: usize) {
        let (claim, at) = self.places[number];
        let class = &mut self.classes[claim as usize];
        class.swap_remove(at as usize);
        if let Some(&moved) = class.get(at as usize) {
            self.places[moved as usize].1 = at;
        }
        trim(class);
    }

    /// Shows groups with claims before `kept` until `show` breaks: class by class, in the order in
    /// which they have to give, and in each class from `start` on.
    pub(crate) fn search(
        &mut self,
        kept: Claim,
        start: usize,
        claim_of: impl Fn(usize) -> Claim,
        mut show: impl FnMut(usize, Claim) -> ControlFlow<()>,
    ) {
        for _ in 0..CHECKED.min(self.places.len()) {
            self.check_next(&claim_of);
        }
        let found = Cell::new(false);
        let mut show = |number, claim| {
            found.set(true);
            show(number, claim)
        };
        for class in Claim::ALL.into_iter().take_while(|&class| class < kept) {
            let mut at = start;
            for _ in 0..self.classes[class as usize].len() {
                let numbers = &self.classes[class as usize];
                at %= numbers.len();
                let number = numbers[at] as usize;
                let claim = claim_of(number);
                if claim == class {
                    at += 1;
                } else {
                    self.set(number, claim);
                }
                // A group that gives later is met in its own class.
                if claim <= class && show(number, claim).is_break() {
                    return;
                }
                if self.classes[class as usize].is_empty() {
                    break;
                }
            }
        }
        if found.get() {
            return;
        }
        for _ in 0..CHECKED_IN_NEED.min(self.places.len()) {
            let (number, claim) = self.check_next(&claim_of);
            if claim < kept && show(number, claim).is_break() {
                return;
            }
        }
    }

    /// Checks the group whose turn it is. Returns its number, and its claim now.
    fn check_next(&mut self, claim_of: &impl Fn(usize) -> Claim) -> (usize, Claim) {
        self.hand = (self.hand + 1) % self.places.len();
        let claim = claim_of(self.hand);
        self.set(self.hand, claim);
        (self.hand, claim)
    }

    pub(crate) fn memory(&self) -> usize {
        let numbers: usize = self.classes.iter().map(Vec::capacity).sum();
        numbers * size_of::<u32>() + self.places.capacity() * size_of::<(Claim, u32)>()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn each_group_is_shown_once_where_its_claim_is_now() {
        let mut claims = Claims::default();
        let mut now: Vec<Claim> = Vec::new();
        let mut random = 1_u64;
        for step in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let drawn = (random >> 33) as usize;
            let claim = Claim::ALL[drawn / 8 % 5];
            let at = drawn / 64 % now.len().max(1);
            match drawn % 8 {
                0 => {
                    claims.add();
                    now.push(Claim::Protected);
                }
                1 if now.len() > 20 => {
                    claims.remove(at);
                    now.swap_remove(at);
                }
                _ if now.is_empty() => {}
                // As if the change came from another shard.
                2..4 => now[at] = claim,
                _ => {
                    now[at] = claim;
                    claims.set(at, claim);
                }
            }
            if step % 10 == 0 {
                // In the first search, some of what is known is out of date.
                for known in [false, true] {
                    let mut shown = vec![0; now.len()];
                    let mut last = Claim::OverMax;
                    let claim_of = |number: usize| now[number];
                    claims.search(Claim::Protected, drawn, claim_of, |number, claim| {
                        assert_eq!(claim, now[number]);
                        assert!(!known || claim >= last);
                        last = claim;
                        shown[number] += 1;
                        ControlFlow::Continue(())
                    });
                    let once = |(&shown, &claim)| shown == i32::from(claim < Claim::Protected);
                    assert!(!known || shown.iter().zip(&now).all(once), "{shown:?} {now:?}");
                    (0..now.len()).for_each(|number| claims.set(number, now[number]));
                }
            }
        }
    }

    #[test]
    fn what_groups_took_that_are_gone_is_given_back() {
        let mut claims = Claims::default();
        let few = |claims: &mut Claims| {
            (0..10).for_each(|_| claims.add());
            claims.memory()
        };
        let before = few(&mut claims);
        (10..10_000).for_each(|_| claims.add());
        // Each class has had all of them.
        for claim in Claim::ALL {
            (0..10_000).for_each(|number| claims.set(number, claim));
        }
        (10..10_000).rev().for_each(|number| claims.remove(number));
        assert!(claims.memory() <= 4 * before, "{} bytes, {before} before", claims.memory());
    }

    #[test]
    fn what_changed_elsewhere_is_noticed_in_turn() {
        let mut claims = Claims::default();
        (0..100).for_each(|_| claims.add());
        let claim_of = |number| if number == 77 { Claim::OverHigh } else { Claim::Protected };
        let mut shown = Vec::new();
        for _ in 0..100 / CHECKED {
            claims.search(Claim::Protected, 0, claim_of, |number, _| {
                shown.push(number);
                ControlFlow::Break(())
            });
        }
        assert!(!shown.is_empty() && shown.iter().all(|&number| number == 77), "{shown:?}");
    }
}
