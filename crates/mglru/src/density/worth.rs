//! What pages of each class and age are worth, as last learnt.

use super::age::BUCKETS;
use super::history::CLASSES;

/// What pages of each class and age are worth: the hits to be had of one for each epoch that it
/// keeps its frame. Made by a [`Learner`](super::Learner), read by [`Shard`](super::Shard)s.
#[derive(Clone, Debug)]
pub struct Worth(Box<[[f32; BUCKETS]; CLASSES]>);

impl Worth {
    /// The bytes that each takes.
    pub const MEMORY: usize = size_of::<[[f32; BUCKETS]; CLASSES]>() + size_of::<Self>();

    /// Pages are worth less the older they are, and nothing else counts: what
    /// [`Shard`](super::Shard)s make an LRU cache of, at the precision of half octaves of age.
    pub fn recency() -> Self {
        let by_age = std::array::from_fn(|bucket| 1.0 / (1.0 + bucket as f32));
        let mut worth = Self::nothing();
        (0..CLASSES).for_each(|class| worth.set(class, by_age));
        worth
    }

    pub(super) fn nothing() -> Self {
        Self(vec![[0.0; BUCKETS]; CLASSES].try_into().expect("as many as there are classes"))
    }

    pub(super) fn set(&mut self, class: usize, worth: [f32; BUCKETS]) {
        self.0[class] = worth;
    }

    pub(super) fn at(&self, class: usize, bucket: usize) -> f32 {
        self.0[class][bucket]
    }
}
