//! Whether missed pages are worth the frames that they would take.
//!
//! Moving a page in and another one out costs about what a hit saves if the disk is fast. So a page
//! that would win too little by it is read past the cache, and remembered as if it had been evicted
//! at once: when it comes again, its past speaks for it. Measured on seven traces, this costs
//! almost no hits, and it spares a scan most of what caching would cost. If reading takes as little
//! time as putting a page in, a page has to win more: the owner can say what that costs, in hits.
//!
//! The learner does not hear of uses within an epoch of the last one: pages that are held give
//! these hits anyway. Declined pages do not, so the policy counts how many of them come back that
//! soon (within four epochs if shadows are no more exact than that). If these are too many, only
//! one in a fixed number is still declined, to continue the count.

use super::history::History;
use super::learner::EPOCHS;
use super::ranking::Shadow;

/// How many hits a page has to win at least in the time of a cacheful of requests. Found by
/// experiment: twice as many would spare more page moves, but lose hits.
const GAIN_MIN: f32 = 0.1;
/// If pages are not declined only because too many come back soon, one in this many still is.
const PROBE: u32 = 32;
/// After this many pages, their counts begin to fade.
const MEMORY: f32 = 1024.0;
/// About how many of the last decisions count for the share of those that declined.
const LATELY: u32 = 32;
/// The share that stands for all of these decisions, and the one that stands for most. The share is
/// an integer: a fraction that only ever fades ends as a number so small that most processors are
/// slow with it.
const ALL: u32 = 1 << 16;
const MOST: u32 = ALL / 4 * 3;

/// Pages that were missed together. They are put in together or not at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Missed {
    count: f32,
    /// The sum of what they are worth.
    worth: f32,
    /// How many of them were already used in this epoch.
    soon: f32,
}

impl Missed {
    pub(super) fn add(&mut self, worth: f32, soon: bool) {
        self.count += 1.0;
        self.worth += worth;
        self.soon += f32::from(soon);
    }
}

/// What became of declined pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declined {
    pages: f32,
    /// How many were missed again in the same epoch; some of them were put in, and evicted at once.
    again: f32,
    asked: u32,
    /// The share of the last decisions that declined, in parts of [`ALL`].
    share: u32,
}

impl Declined {
    /// Until something is known, declined pages are expected to come back.
    pub(super) fn new() -> Self {
        Self { pages: 16.0, again: 16.0, asked: 0, share: 0 }
    }

    /// Whether to decline pages that would take the frames of others worth `least`, if putting one
    /// in costs as much as `price` hits save.
    pub(super) fn decline(&mut self, missed: Missed, least: f32, price: f32) -> bool {
        if missed.count == 0.0 {
            return false;
        }
        let declined = self.decide(missed, least, price.max(GAIN_MIN));
        self.note(declined);
        declined
    }

    /// Notes that pages were declined, or put in.
    pub(super) fn note(&mut self, declined: bool) {
        self.share = self.share - self.share / LATELY + u32::from(declined) * (ALL / LATELY);
    }

    /// Whether most of what was missed lately was declined.
    pub(super) fn is_usual(&self) -> bool {
        self.share > MOST
    }

    fn decide(&mut self, missed: Missed, least: f32, gain_min: f32) -> bool {
        if missed.soon > 0.0 {
            self.again += missed.soon;
            self.fade();
            return false;
        }
        let gain = (missed.worth / missed.count - least) * EPOCHS as f32;
        if gain > gain_min {
            return false;
        }
        self.asked = self.asked.wrapping_add(1);
        if gain + self.again / self.pages > gain_min && !self.asked.is_multiple_of(PROBE) {
            return false;
        }
        self.pages += missed.count;
        self.fade();
        true
    }

    fn fade(&mut self) {
        if self.pages.max(self.again) > MEMORY {
            (self.pages, self.again) = (self.pages / 2.0, self.again / 2.0);
        }
    }
}

/// The past of a page that was not held and is used now, and whether it was already used in this
/// epoch.
pub(super) fn past(shadow: Option<Shadow>, epoch: u32, horizon: u32) -> (History, bool) {
    let Some(shadow) = shadow else { return (History::new(false), false) };
    let mut history = History::unpack(shadow.history);
    let age = epoch.saturating_sub(shadow.epoch);
    history.used_within(horizon, age, 1);
    (history, age == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missed(worth: f32, soon: bool) -> Missed {
        let mut missed = Missed::default();
        missed.add(worth, soon);
        missed
    }

    #[test]
    fn what_wins_little_is_declined_once_it_is_known_not_to_come_back() {
        let mut declined = Declined::new();
        let first: Vec<bool> =
            (0..PROBE).map(|_| declined.decline(missed(0.1, false), 0.1, 0.0)).collect();
        assert_eq!(first.iter().filter(|&&declined| declined).count(), 1);
        assert!(!declined.is_usual());
        while !declined.decline(missed(0.1, false), 0.1, 0.0) || declined.pages < 600.0 {}
        assert!((0..1000).all(|_| declined.decline(missed(0.1, false), 0.1, 0.0)));
        assert!(declined.is_usual());
        assert!(!declined.decline(missed(0.2, false), 0.1, 0.0), "it wins much");
        assert!(declined.decline(missed(0.1, false), 0.2, 0.0), "it loses");
    }

    #[test]
    fn what_costs_more_has_to_win_more() {
        let mut declined = Declined { pages: 1000.0, again: 0.0, asked: 0, share: 0 };
        // One hit more than the victims win, in the time of a cacheful.
        let wins = || missed(0.1 + 1.0 / EPOCHS as f32, false);
        assert!(!declined.decline(wins(), 0.1, 0.9));
        assert!(declined.decline(wins(), 0.1, 1.1));
    }

    #[test]
    fn what_comes_back_at_once_is_put_in_and_then_so_are_others() {
        let mut declined = Declined { pages: 1000.0, again: 0.0, asked: 0, share: 0 };
        for _ in 0..200 {
            assert!(!declined.decline(missed(0.1, true), 0.1, 0.0));
        }
        let next = (0..10 * PROBE).filter(|_| declined.decline(missed(0.1, false), 0.1, 0.0));
        assert_eq!(next.count(), 10);
    }
}
