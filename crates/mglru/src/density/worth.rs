//! What pages of each class and age are worth, as last learnt.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::age::BUCKETS;
use super::history::CLASSES;

/// What pages of each class and age are worth: the number of hits that a page gives for each epoch
/// that it keeps its frame. A [`Learner`](super::Learner) writes it, and [`Shard`](super::Shard)s
/// read it, even while it is being written: a shard that meets a mix of old and new values makes a
/// choice that is no worse.
#[derive(Debug)]
pub struct Worth(Box<[[AtomicU32; BUCKETS]; CLASSES]>);

impl Worth {
    /// The bytes that one of these takes.
    pub const MEMORY: usize = size_of::<[[AtomicU32; BUCKETS]; CLASSES]>() + size_of::<Self>();

    /// Pages are worth less the older they are, and nothing else counts. With this,
    /// [`Shard`](super::Shard)s make an LRU cache, with a precision of half octaves of age.
    pub fn recency() -> Self {
        let by_age = std::array::from_fn(|bucket| 1.0 / (1.0 + bucket as f32));
        let worth = Self::nothing();
        (0..CLASSES).for_each(|class| worth.set(class, by_age));
        worth
    }

    pub(super) fn nothing() -> Self {
        let nothing = || std::array::from_fn(|_| AtomicU32::new(0_f32.to_bits()));
        let all: Box<[_]> = std::iter::repeat_with(nothing).take(CLASSES).collect();
        Self(all.try_into().expect("as many as there are classes"))
    }

    pub(super) fn set(&self, class: usize, worth: [f32; BUCKETS]) {
        for (place, worth) in self.0[class].iter().zip(worth) {
            place.store(worth.to_bits(), Relaxed);
        }
    }

    pub(super) fn at(&self, class: usize, bucket: usize) -> f32 {
        f32::from_bits(self.0[class][bucket].load(Relaxed))
    }
}
