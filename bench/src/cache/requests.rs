//! What caches are asked for: sequences of requests, drawn before the clock starts.
//!
//! Ranks follow Zipf's law and are scattered over the keys, so that popular keys are not
//! neighbours. A request is a number of 32 bits: the sequence streams through the CPU's caches and
//! leaves them to the peer. Its key has 64 bits, none of which is the same in all keys.

use anyhow::{anyhow, ensure};
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

/// Every run draws the same requests: figures of two runs differ only by the state of the machine.
const SEED: u64 = 0x0068_6f6d_696e_6721;

/// 2^64 divided by the golden ratio: products with an odd number are distinct, and far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The inverse of [`SPREAD`]. Newton's step doubles the number of right bits; an odd number is its
/// own inverse in the lowest three.
const UNSPREAD: u64 = {
    let mut inverse = SPREAD;
    let mut right_bits = 3;
    while right_bits < u64::BITS {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(SPREAD.wrapping_mul(inverse)));
        right_bits *= 2;
    }
    inverse
};

const WRITE: u32 = 1 << 31;
const REMOVAL: u32 = 1 << 30;
const NUMBER: u32 = REMOVAL - 1;

/// The key numbered `number`.
#[inline]
pub(crate) const fn key(number: u32) -> u64 {
    (number as u64).wrapping_mul(SPREAD)
}

/// The number of `key`.
#[inline]
pub(crate) const fn number(key: u64) -> u64 {
    key.wrapping_mul(UNSPREAD)
}

/// The value of a key.
#[inline]
pub(crate) const fn value(key: u64) -> u64 {
    !key
}

/// One request: what to do with which key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request(u32);

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Look it up, and insert it where it is not there.
    Read,
    /// Insert it, there or not.
    Write,
    /// Remove it.
    Remove,
}

impl Request {
    #[inline]
    pub(crate) const fn key(self) -> u64 {
        key(self.0 & NUMBER)
    }

    #[inline]
    pub(crate) const fn action(self) -> Action {
        if self.0 < REMOVAL {
            Action::Read
        } else if self.0 >= WRITE {
            Action::Write
        } else {
            Action::Remove
        }
    }

    /// Whether it is a read of one of the `keys` that Zipf's law is about, and not of a scan.
    #[inline]
    pub(crate) const fn is_counted(self, keys: u32) -> bool {
        self.0 < keys
    }
}

/// What requests are drawn from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Law {
    /// How many keys there are.
    pub(crate) keys: u32,
    /// Zipf's exponent.
    pub(crate) skew: f64,
    /// How many in a hundred requests write.
    pub(crate) writes: u8,
    /// How many in a hundred requests remove.
    pub(crate) removals: u8,
    /// How many in a hundred requests read the next key of a scan, which nobody reads again.
    pub(crate) scanned: u8,
}

impl Law {
    /// `count` requests for the thread numbered `thread`; no two threads get the same.
    pub(crate) fn draw(&self, count: usize, thread: usize) -> anyhow::Result<Vec<Request>> {
        let zipf = Zipf::new(f64::from(self.keys), self.skew)
            .map_err(|error| anyhow!("zipf {}: {error}", self.skew))?;
        let numbers = scattered(self.keys);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED + 1 + thread as u64);
        // Each thread scans keys of its own, at most one for each request.
        let mut scan = self.keys as usize + count * thread;
        ensure!(
            scan + count < NUMBER as usize,
            "{count} requests for thread {thread} are too many: keys would run out"
        );
        let mut draw = || {
            let percent = random.random_range(0..100_u8);
            if percent < self.scanned {
                scan += 1;
                return Request(scan as u32);
            }
            #[expect(clippy::cast_sign_loss, reason = "ranks are whole numbers from 1 on")]
            let rank = zipf.sample(&mut random) as usize;
            let number = numbers[rank - 1];
            let percent = percent - self.scanned;
            if percent < self.writes {
                Request(number | WRITE)
            } else if percent < self.writes + self.removals {
                Request(number | REMOVAL)
            } else {
                Request(number)
            }
        };
        Ok((0..count).map(|_| draw()).collect())
    }
}

/// The numbers of the keys by rank, the same for all threads: they agree on what is popular.
pub(crate) fn scattered(keys: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..keys).collect();
    numbers.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(SEED));
    numbers
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const READS: Law = Law { keys: 1000, skew: 0.99, writes: 0, removals: 0, scanned: 0 };

    /// How often each rank came.
    fn by_rank(requests: &[Request]) -> Vec<u32> {
        let mut counts = vec![0; READS.keys as usize];
        for request in requests {
            counts[number(request.key()) as usize] += 1;
        }
        scattered(READS.keys).into_iter().map(|number| counts[number as usize]).collect()
    }

    #[test]
    fn ranks_follow_zipfs_law() {
        const DRAWS: usize = 1_000_000;
        for skew in [0.8, 0.99] {
            let counts = by_rank(&Law { skew, ..READS }.draw(DRAWS, 0).unwrap());
            let weights = (1..=counts.len()).map(|rank| (rank as f64).powf(-skew));
            let sum: f64 = weights.clone().sum();
            let expected = weights.map(|weight| weight / sum * DRAWS as f64);
            let terms = counts.iter().zip(expected).map(|(n, e)| (f64::from(*n) - e).powi(2) / e);
            let chi_square: f64 = terms.sum();
            // The statistic's mean is the degrees of freedom, its variance twice that: four
            // deviations.
            let freedom = (counts.len() - 1) as f64;
            let bound = 4.0 * (2.0 * freedom).sqrt();
            assert!((chi_square - freedom).abs() < bound, "zipf {skew}: {chi_square}");
        }
    }

    #[test]
    fn another_exponent_is_told_from_it() {
        // The check above must not accept this.
        let counts = by_rank(&Law { skew: 0.97, ..READS }.draw(1_000_000, 0).unwrap());
        let first = (1..=1000).map(|rank| f64::from(rank).powf(-0.99)).sum::<f64>().recip() * 1e6;
        assert!(f64::from(counts[0]) < 0.95 * first, "{} of {first}", counts[0]);
    }

    #[test]
    fn popular_keys_are_no_neighbours() {
        let numbers = scattered(1_000_000);
        let near = numbers.windows(2).take(1000).filter(|two| two[0].abs_diff(two[1]) < 1000);
        assert!(near.count() < 20);
        let distinct: BTreeSet<u64> = numbers.iter().map(|number| key(*number)).collect();
        assert_eq!(distinct.len(), 1_000_000);
        assert_eq!(number(key(123_456)), 123_456);
    }

    #[test]
    fn threads_draw_apart_and_runs_alike() {
        let draw = |thread| READS.draw(1000, thread).unwrap();
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
    }

    #[test]
    fn mixes_have_their_shares_and_scans_read_each_key_once() {
        let law = Law { writes: 25, removals: 5, scanned: 20, ..READS };
        let requests = law.draw(100_000, 1).unwrap();
        let share = |action| requests.iter().filter(|one| one.action() == action).count() / 1000;
        assert!((24..=25).contains(&share(Action::Write)));
        assert!((4..=5).contains(&share(Action::Remove)));
        assert!((69..=70).contains(&share(Action::Read)));
        let scanned: Vec<u64> = requests
            .iter()
            .map(|request| number(request.key()))
            .filter(|number| *number >= u64::from(law.keys))
            .collect();
        let distinct: BTreeSet<u64> = scanned.iter().copied().collect();
        assert_eq!(distinct.len(), scanned.len());
        let other = law.draw(100_000, 2).unwrap();
        assert!(other.iter().all(|request| !distinct.contains(&number(request.key()))));
        let counted = requests.iter().filter(|one| one.is_counted(law.keys)).count() / 1000;
        assert!((49..=50).contains(&counted), "{counted} of 50");
    }
}
