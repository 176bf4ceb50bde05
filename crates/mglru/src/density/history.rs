//! What is remembered of a page's past: how often it was used, and how far apart these uses were.
//!
//! Pages with similar pasts form a class. A class has a tier (the number of uses, by octaves) and a
//! pace (the mean distance of the last few uses, by octaves), and says whether the page was
//! written.

/// How many classes there are: 2 types, 8 tiers, 16 paces.
pub(super) const CLASSES: usize = 2 * PASTS;
/// Tiers and paces together.
pub(super) const PASTS: usize = TIERS * PACES;
pub(super) const TIERS: usize = 8;
pub(super) const PACES: usize = 16;

/// Distances are counted in this many parts of an epoch.
const PARTS: u32 = 16;
/// How many uses the moving mean of distances covers.
const MEMORY: u32 = 8;

/// Uses of a page and their mean distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct History {
    /// Uses after the first one; saturates.
    uses: u8,
    /// Mean distance of uses in sixteenths of an epoch; saturates at 4,096 epochs.
    distance: u16,
    /// Whether the page is dirty. For a key of which only the uses are known: whether the last one
    /// wrote.
    pub(super) dirty: bool,
}

/// A class of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(u8);

impl Class {
    /// Clean pages that nobody has asked for yet. Pages used once have no pace, so the number is
    /// free.
    pub(super) const AHEAD: Self = Self(1);

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl History {
    /// The history of a page that was used once.
    pub(super) const fn new(dirty: bool) -> Self {
        Self { uses: 0, distance: 0, dirty }
    }

    /// Adds `hits` uses, the last of them `epochs` after the one before them all. But a page that
    /// was not used for longer than the horizon begins anew.
    pub(super) fn used_within(&mut self, horizon: u32, epochs: u32, hits: u32) {
        // Rounded down, as their mean distance is.
        if epochs as u64 >= (horizon as u64 + 1) * hits as u64 {
            *self = Self::new(self.dirty);
        } else {
            self.used(epochs, hits);
        }
    }

    /// Adds `hits` uses, the last of them `epochs` after the one before them all.
    pub(super) fn used(&mut self, epochs: u32, hits: u32) {
        let distance = if epochs == 0 { PARTS / 2 } else { epochs.saturating_mul(PARTS) };
        // Usually there is one hit. A division would take longer than all else here.
        let distance = if hits == 1 { distance } else { distance / hits }.min(u16::MAX as u32);
        let uses = (self.uses as u32).saturating_add(hits);
        self.uses = uses.min(u8::MAX as u32) as u8;
        let memory = uses.min(MEMORY);
        let new = hits.min(memory);
        let sum = self.distance as u32 * (memory - new) + distance * new;
        self.distance = if memory == MEMORY { sum / MEMORY } else { sum / memory } as u16;
    }

    /// Its class.
    pub(super) fn class(self) -> Class {
        // There is no branch, which would often be mispredicted, so pages used once must have no
        // distance.
        debug_assert!(self.uses > 0 || self.distance == 0, "{self:?}");
        let octaves = |number: u32| (2 * number + 1).ilog2();
        let tier = octaves(self.uses.into()).min(TIERS as u32 - 1);
        let pace = octaves(self.distance.into()).min(PACES as u32 - 1);
        Class((u32::from(self.dirty) << 7 | tier << 4 | pace) as u8)
    }

    /// The history of a page used `uses` times after the first one, this far apart.
    pub(super) const fn of(uses: u8, distance: u16) -> Self {
        Self { uses, distance: if uses > 0 { distance } else { 0 }, dirty: false }
    }

    /// Uses after the first one, and their mean distance in sixteenths of an epoch.
    pub(super) const fn parts(self) -> (u8, u16) {
        (self.uses, self.distance)
    }

    /// The history in 24 bits, for a shadow.
    pub(super) fn pack(self) -> u32 {
        (self.distance as u32) << 8 | self.uses as u32
    }

    /// What [`pack`](Self::pack) packed.
    pub(super) fn unpack(bits: u32) -> Self {
        Self { uses: bits as u8, distance: (bits >> 8) as u16, dirty: false }
    }
}

/// The mean distance of a pace, in epochs.
pub(super) fn pace_distance(pace: usize) -> f32 {
    (1u32 << pace) as f32 * 0.75 / PARTS as f32
}
