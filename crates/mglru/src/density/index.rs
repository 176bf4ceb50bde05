//! What a page is worth: the number of hits that it gives for each epoch that it keeps its frame.
//!
//! A page of a class and an age has its next hit with some rate at each age to come. If it is kept
//! until a later age and dropped then, it gives a number of hits for a number of epochs. The best
//! ratio over all ages at which it could be dropped is its worth. This is Gittins' index for a job
//! that may be stopped, just as hit density is for caches.
//!
//! J. Gittins, "Bandit processes and dynamic allocation indices", 1979. N. Beckmann, H. Chen,
//! A. Cidon, "LHD: improving cache hit rate by maximizing hit density", NSDI 2018.

use super::age::{BUCKETS, width};

/// A stretch of life after some age, for pages that reach it.
#[derive(Clone, Copy, Default)]
struct Stretch {
    hits: f32,
    epochs: f32,
    /// The share of pages that outlive it without a hit.
    left: f32,
}

impl Stretch {
    fn density(self) -> f32 {
        self.hits / self.epochs
    }

    fn followed_by(self, next: Self) -> Self {
        Self {
            hits: self.hits + self.left * next.hits,
            epochs: self.epochs + self.left * next.epochs,
            left: self.left * next.left,
        }
    }
}

/// The hit density at each age, of pages that are used again at `rate[b]` an epoch in bucket `b`.
pub(super) fn worth(rate: &[f32; BUCKETS]) -> [f32; BUCKETS] {
    // A stack of stretches that are worth keeping a page for, the oldest age at the bottom. Each
    // begins where the one above it ends, and is less dense than that one. A stretch that is no
    // denser than the one that follows it is gone through for the sake of that one, so the two
    // become one.
    let mut stretches = [(Stretch::default(), 0.0); BUCKETS];
    let mut count = 0;
    let mut worth = [0.0; BUCKETS];
    for bucket in (0..BUCKETS).rev() {
        let epochs = width(bucket) as f32;
        let expected = rate[bucket] * epochs;
        let hits = expected / (1.0 + expected);
        let mut stretch = Stretch { hits, epochs: epochs * (1.0 - 0.5 * hits), left: 1.0 - hits };
        let mut density = stretch.density();
        while count > 0 && stretches[count - 1].1 >= density {
            count -= 1;
            stretch = stretch.followed_by(stretches[count].0);
            density = stretch.density();
        }
        worth[bucket] = density;
        stretches[count] = (stretch, density);
        count += 1;
    }
    worth
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tries all ages to stop at.
    fn naive(rate: &[f32; BUCKETS], from: usize) -> f32 {
        let (mut left, mut hits, mut epochs, mut best) = (1.0f64, 0.0, 0.0, 0.0f64);
        for (bucket, &rate) in rate.iter().enumerate().skip(from) {
            let expected = rate as f64 * width(bucket) as f64;
            let hit = expected / (1.0 + expected);
            hits += left * hit;
            epochs += left * width(bucket) as f64 * (1.0 - 0.5 * hit);
            left *= 1.0 - hit;
            best = best.max(hits / epochs);
        }
        best as f32
    }

    proptest! {
        #[test]
        fn no_age_to_stop_at_is_better(exponents in proptest::collection::vec(-20..4i32, BUCKETS)) {
            let rate = std::array::from_fn(|bucket| f32::exp2(exponents[bucket] as f32));
            for (bucket, worth) in worth(&rate).into_iter().enumerate() {
                let naive = naive(&rate, bucket);
                prop_assert!((worth - naive).abs() <= 1e-3 * naive, "{bucket}: {worth} {naive}");
            }
        }
    }

    #[test]
    fn in_a_loop_the_youngest_is_worth_least() {
        let mut rate = [0.0; BUCKETS];
        rate[12] = 1.0;
        let worth = worth(&rate);
        assert!(worth[..=12].is_sorted());
        assert!(worth[13] < worth[0]);
    }

    #[test]
    fn where_uses_thin_out_the_oldest_is_worth_least() {
        let rate = std::array::from_fn(|bucket| f32::exp2(-(bucket as f32)));
        assert!(worth(&rate).is_sorted_by(|young, old| young >= old));
    }
}
