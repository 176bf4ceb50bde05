//! From counts to rates of reuse, and from rates to what pages are worth.
//!
//! If few pages were seen, the rate of a wider group counts as if it were a few more uses. For
//! clean pages used once, the wider group is the dirty ones, and for dirty pages used once it is
//! the clean ones (a page that is written back is as likely to be used again as before); if nothing
//! is known of either, it is a prior belief about such pages. For the others, it is their tier,
//! with ages measured in the page's own pace. For tiers, it is all tiers together.

use super::age::{BUCKETS, start};
use super::history::{PACES, PASTS, TIERS, pace_distance};
use super::index;
use super::learner::EPOCHS;

/// How many uses the rate of a wider group counts for.
const TRUST: f32 = 1.0;
/// Counts up to this do not change any rate.
const NOTHING: f32 = 1e-20;
/// Places for ages in units of the pace.
const RELATIVE: usize = BUCKETS + 2 * PACES;

/// The uses of pages of one class and age, and how many pages could have been used for how long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    reads: f32,
    writes: f32,
    /// Pages times epochs.
    exposure: f32,
}

impl Count {
    pub(super) fn used(&mut self, write: bool) {
        *(if write { &mut self.writes } else { &mut self.reads }) += 1.0;
    }

    pub(super) fn exposed(&mut self, epochs: f32) {
        self.exposure += epochs;
    }

    /// Forgets all but this share. Counts that are next to nothing become 0, because processors are
    /// slow with the smallest numbers.
    pub(super) fn fade(&mut self, share: f32) {
        for count in [&mut self.reads, &mut self.writes, &mut self.exposure] {
            *count = if *count > NOTHING { *count * share } else { 0.0 };
        }
    }

    fn uses(&self) -> f32 {
        self.reads + self.writes
    }

    /// The rate of reuse, where a wider group has `wider`.
    fn rate(&self, wider: f32) -> f32 {
        estimate(self.uses(), self.exposure, wider)
    }
}

/// What a hit saves, in transfers from or to the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Savings {
    /// A read of a page that is held: 1, because it does not have to be read from the disk.
    pub read: f32,
    /// A write to a page that is held: 1 if only part of the page is written, because the rest
    /// would have to be read; 0 if pages are written whole.
    pub write: f32,
    /// What a write to a page that is held dirty saves in addition: 1, because the page is written
    /// back once instead of twice.
    pub rewrite: f32,
}

impl Savings {
    /// Each hit is worth the same.
    pub const HITS: Self = Self { read: 1.0, write: 1.0, rewrite: 0.0 };
    /// What a disk is spared if pages are written whole. A dirty page may have to be written back
    /// before its next write anyway, to be durable: so less than 1. The half was found by
    /// experiment.
    pub const TRANSFERS: Self = Self { read: 1.0, write: 0.0, rewrite: 0.5 };

    /// The mean saving of a use, where `of_writes` of the uses write.
    fn mean(self, of_writes: f32, dirty: bool) -> f32 {
        let write = if dirty { self.write + self.rewrite } else { self.write };
        self.read * (1.0 - of_writes) + write * of_writes
    }
}

/// What pages of each class and age are worth, from their counts: for each class of which something
/// is known, or that is `wanted`. `epochs` is how many of them a cacheful of requests lasts.
pub(super) fn worth(
    all: &[[Count; BUCKETS]],
    savings: Savings,
    epochs: u64,
    wanted: impl Fn(usize) -> bool,
) -> Vec<(usize, [f32; BUCKETS])> {
    let mut worth = Vec::new();
    for dirty in [false, true] {
        let (first, twins) = if dirty { (PASTS, 0) } else { (0, PASTS) };
        let known: [bool; PASTS] = std::array::from_fn(|past| {
            wanted(first + past) || all[first + past].iter().any(|count| count.exposure > 0.0)
        });
        if !known.contains(&true) {
            continue;
        }
        let counts: &[[Count; BUCKETS]] = &all[first..first + PASTS];
        // Usually a third of them.
        let counted: Vec<usize> = (0..PASTS).filter(|&past| is_counted(&counts[past])).collect();
        let all_counted = counted.iter().flat_map(|&past| &counts[past]);
        let of_writes = share_of_writes(all_counted, 0.5);
        let groups = Groups::new(counts, &counted);
        for past in (0..PASTS).filter(|&past| known[past]) {
            let rates = std::array::from_fn(|bucket| {
                // A page is not counted in the epoch of its last use, so the rate there is that of
                // the next age.
                let bucket = bucket.max(1);
                let wider = match past / PACES {
                    0 => all[twins + past][bucket].rate(unknown(bucket, epochs)),
                    _ => groups.rate(past, bucket),
                };
                counts[past][bucket].rate(wider)
            });
            let saving = savings.mean(share_of_writes(&counts[past], of_writes), dirty);
            worth.push((first + past, index::worth(&rates).map(|density| density * saving)));
        }
    }
    worth
}

/// Whether anything was counted of a class.
fn is_counted(counts: &[Count; BUCKETS]) -> bool {
    // Without a branch for each count, because no count is negative.
    let any = |bits, count: &Count| bits | count.uses().to_bits() | count.exposure.to_bits();
    counts.iter().fold(0, any) != 0
}

/// Which share of the uses write, if it is `wider` in a wider group.
fn share_of_writes<'a>(counts: impl IntoIterator<Item = &'a Count>, wider: f32) -> f32 {
    let first = (TRUST * wider, TRUST);
    let (writes, uses) =
        counts.into_iter().fold(first, |sum, count| (sum.0 + count.writes, sum.1 + count.uses()));
    writes / uses
}

/// The rates of tiers, at ages in units of the pace.
struct Groups([[f32; RELATIVE]; TIERS]);

impl Groups {
    /// From the classes of the pasts that are `counted`: nothing was counted of others.
    fn new(counts: &[[Count; BUCKETS]], counted: &[usize]) -> Self {
        let mut tiers = [[(0.0, 0.0); RELATIVE]; TIERS];
        for &past in counted.iter().filter(|&&past| past >= PACES) {
            let distance = pace_distance(past % PACES);
            let sums = &mut tiers[past / PACES][relative(0, past % PACES)..];
            for (sum, count) in sums.iter_mut().zip(&counts[past]) {
                *sum = (sum.0 + count.uses(), sum.1 + count.exposure / distance);
            }
        }
        let all: [f32; RELATIVE] = std::array::from_fn(|age| {
            let sum = tiers
                .iter()
                .fold((0.0, 0.0), |sum, tier| (sum.0 + tier[age].0, sum.1 + tier[age].1));
            estimate(sum.0, sum.1, steady(age))
        });
        Self(
            tiers.map(|tier| {
                std::array::from_fn(|age| estimate(tier[age].0, tier[age].1, all[age]))
            }),
        )
    }

    /// The rate of the group that a past belongs to. The past must be one of pages used more than
    /// once.
    fn rate(&self, past: usize, bucket: usize) -> f32 {
        let (tier, pace) = (past / PACES, past % PACES);
        self.0[tier][relative(bucket, pace)] / pace_distance(pace)
    }
}

/// The rate of reuse, where a wider group has `wider`.
fn estimate(uses: f32, exposure: f32, wider: f32) -> f32 {
    (uses + TRUST) / (exposure + TRUST / wider)
}

/// The place of an age in units of the pace.
fn relative(bucket: usize, pace: usize) -> usize {
    bucket + 2 * (PACES - pace)
}

/// What is believed of pages used once, as long as nothing is known: that they are seldom used
/// again, the more so the older they are. So a new page does not push out others before there is a
/// reason. The numbers were found by experiment on seven traces; half or twice either of them
/// changes next to nothing. They are for the usual epochs: in a small cache an epoch is a larger
/// part of a cacheful of requests, and the belief is about cachefuls. (Without this, thousands of
/// pages had to come back at once before a cache of ten pages believed that they do.)
fn unknown(bucket: usize, epochs: u64) -> f32 {
    let usual = EPOCHS as f32 / epochs as f32;
    0.005 * usual / (start(bucket) as f32 * usual + 20.0)
}

/// What is believed of pages that are used at a pace: the longer one was not used, the slower its
/// true pace is likely to be.
fn steady(relative: usize) -> f32 {
    let paces = f32::exp2((relative as f32 - 2.0 * PACES as f32) / 2.0) / pace_distance(0);
    1.0 / (1.0 + paces / 2.0)
}

#[cfg(test)]
mod tests {
    use super::super::history::CLASSES;
    use super::*;

    #[test]
    fn where_the_past_says_nothing_all_pages_are_worth_the_same() {
        let rate = 0.004;
        let known = Count { reads: 1e6 * rate, writes: 0.0, exposure: 1e6 };
        let mut ages = [known; BUCKETS];
        ages[0] = Count::default();
        let counts = vec![ages; CLASSES];
        for (class, worth) in worth(&counts, Savings::HITS, EPOCHS, |_| true) {
            // An epoch is so short that its passing changes nothing.
            let [first, next] = [worth[0], worth[1]].map(|worth| worth / rate);
            assert!((0.95..1.05).contains(&next), "{class}: {next}");
            assert!((first - next).abs() < 0.001, "{class}: {first} and {next}");
        }
    }

    #[test]
    fn what_is_believed_of_unknown_pages_is_the_same_for_each_cacheful() {
        let close = |one: f32, other: f32| (one / other - 1.0).abs() < 1e-6;
        for epochs in [1, 8, 64] {
            // At the age of half a cacheful, say.
            let of_cacheful = |epochs: u64| {
                let age = super::super::age::bucket(epochs as u32 / 2);
                unknown(age, epochs) * epochs as f32
            };
            assert!(close(unknown(0, epochs) * epochs as f32, unknown(0, EPOCHS) * EPOCHS as f32));
            assert!(epochs == 1 || close(of_cacheful(epochs), of_cacheful(EPOCHS)));
        }
    }
}
