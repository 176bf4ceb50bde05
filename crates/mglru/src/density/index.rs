//! What a page is worth: the hits to be had of it for each epoch that it keeps its frame.
//!
//! A page of a class and an age is hit next with some rate at each age to come. If it is kept until
//! a later age and dropped then, it gives so many hits for so many epochs; the best ratio over all
//! ages to stop at is its worth. That is Gittins' index for a job that may be stopped, as hit
//! density is for caches.
//!
//! J. Gittins, "Bandit processes and dynamic allocation indices", 1979. N. Beckmann, H. Chen,
//! A. Cidon, "LHD: improving cache hit rate by maximizing hit density", NSDI 2018.

use super::age::{BUCKETS, width};

/// Where the rest of a life weighs too little to look further.
const NEGLIGIBLE: f32 = 0.01;

/// The hit density at each age, of what is used again at `rate[b]` an epoch in bucket `b`.
pub(super) fn worth(rate: &[f32; BUCKETS]) -> [f32; BUCKETS] {
    // For each bucket: the probability of a hit there if it is reached, and the epochs spent there.
    let mut ends = [0.0; BUCKETS];
    let mut takes = [0.0; BUCKETS];
    for bucket in 0..BUCKETS {
        let epochs = width(bucket) as f32;
        let expected = rate[bucket] * epochs;
        ends[bucket] = expected / (1.0 + expected);
        takes[bucket] = epochs * (1.0 - 0.5 * ends[bucket]);
    }
    let mut worth = [0.0; BUCKETS];
    for (from, best) in worth.iter_mut().enumerate() {
        let (mut alive, mut hits, mut taken) = (1.0f32, 0.0f32, 0.0f32);
        for at in from..BUCKETS {
            hits += alive * ends[at];
            taken += alive * takes[at];
            *best = f32::max(*best, hits / taken);
            alive *= 1.0 - ends[at];
            if alive < NEGLIGIBLE {
                break;
            }
        }
    }
    worth
}
