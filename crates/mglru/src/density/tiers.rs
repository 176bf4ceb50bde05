//! Statistics of a group's tiers, and which type of page the group gives up first.

use super::history::{PASTS, TIERS};

/// What became of pages of one type and tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// Pages that came back while they were still remembered.
    pub refaulted: u64,
    /// Pages that were chosen to go.
    pub evicted: u64,
    /// Pages that were due to go, and stayed: they had been used since they were last looked at.
    pub protected: u64,
    /// Uses that were found that way, at most one for each epoch.
    pub hits: u64,
}

/// Pages of one age, by tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generation {
    /// The least age of these pages, in epochs.
    pub age: u32,
    /// Clean and dirty pages of each tier.
    pub tiers: [[u64; 2]; TIERS],
}

impl Generation {
    /// Adds pages of the same age that are counted elsewhere.
    pub fn add(&mut self, other: &Self) {
        let pairs = self.tiers.iter_mut().flatten().zip(other.tiers.iter().flatten());
        pairs.for_each(|(count, more)| *count += more);
    }

    /// The numbers of clean and dirty pages.
    pub fn sizes(&self) -> [u64; 2] {
        self.tiers.iter().fold([0; 2], |sum, tier| [sum[0] + tier[0], sum[1] + tier[1]])
    }
}

/// What became of pages of each tier, clean and dirty.
pub type Tiers = [[Feedback; 2]; TIERS];

impl Feedback {
    pub(super) fn add(&mut self, other: Self) {
        self.refaulted += other.refaulted;
        self.evicted += other.evicted;
        self.protected += other.protected;
        self.hits += other.hits;
    }
}

/// Adds what was counted of the same tiers elsewhere.
pub fn add_tiers(sum: &mut Tiers, other: &Tiers) {
    let pairs = sum.iter_mut().flatten().zip(other.iter().flatten());
    pairs.for_each(|(sum, other)| sum.add(*other));
}

/// The tier of a class, and 1 if it is one of dirty pages.
pub(super) fn tier_of(class: usize) -> (usize, usize) {
    (class % PASTS / super::history::PACES, class / PASTS)
}

/// How much the group prefers to give up dirty pages, from 0 to 200.
///
/// At 100, which is the default, pages go in the order of their worth, which includes the cost of
/// writing them. At `s`, a dirty page goes before a clean one if its worth, times `200 - s`, is
/// less than the worth of the clean one, times `s`: the kernel's set points. At 0, dirty pages go
/// only if there are no others, and at 200 the same holds for clean ones. Which group gives up a
/// page does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swappiness(u8);

impl Swappiness {
    /// The largest value.
    pub const MAX: u8 = 200;
    /// Dirty pages go only if there are no others.
    pub const CLEAN_FIRST: Self = Self(0);

    /// `None` if the value is more than 200.
    pub fn new(swappiness: u8) -> Option<Self> {
        (swappiness <= Self::MAX).then_some(Self(swappiness))
    }

    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }

    /// What the worth of dirty pages is multiplied by. Worth differs by less than the factor at the
    /// ends.
    pub(super) fn weight(self) -> f32 {
        const ALL: f32 = 1e12;
        match self.0 {
            0 => ALL,
            Self::MAX => 1.0 / ALL,
            some => f32::from(Self::MAX - some) / f32::from(some),
        }
    }
}

impl Default for Swappiness {
    fn default() -> Self {
        Self(100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_changes_nothing_and_the_weight_falls() {
        assert_eq!(Swappiness::default().weight().to_bits(), 1.0_f32.to_bits());
        let weights: Vec<f32> =
            (0..=200).filter_map(Swappiness::new).map(Swappiness::weight).collect();
        assert_eq!(weights.len(), 201);
        assert!(weights.is_sorted_by(|one, next| one > next));
        assert_eq!(Swappiness::new(201), None);
    }
}
