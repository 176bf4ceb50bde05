//! Ages in buckets: the first epoch has its own bucket, then there are two for each octave.

/// How many buckets of age there are. The last one takes whatever is older.
pub(super) const BUCKETS: usize = 28;

/// The bucket of an age in epochs.
pub(super) fn bucket(epochs: u32) -> usize {
    // The first two buckets are no octaves. A branch for them would often be mispredicted.
    let octave = epochs.max(2).ilog2();
    let half = (epochs >> (octave - 1)) & 1;
    let bucket = 2 * octave + half - 2 * u32::from(epochs < 2);
    (bucket as usize).min(BUCKETS - 1)
}

/// The least age of a bucket, in epochs.
pub(super) const fn start(bucket: usize) -> u32 {
    match bucket {
        0 => 0,
        1 => 1,
        _ => {
            let whole = 1 << (bucket / 2);
            whole + if bucket % 2 == 1 { whole / 2 } else { 0 }
        }
    }
}

/// How many epochs a bucket spans: a power of two.
pub(super) const fn width(bucket: usize) -> u32 {
    1 << (bucket / 2).saturating_sub(1)
}

/// The bucket in which a list of `bucket` is after the epochs that follow `from`, up to `to`. A
/// list joins the next bucket in each epoch that is a multiple of its own bucket's width.
pub(super) fn bucket_after(mut bucket: usize, from: u32, to: u32) -> usize {
    let mut epoch = u64::from(from);
    while bucket < BUCKETS - 1 {
        let width = u64::from(width(bucket));
        // The next multiple.
        epoch = (epoch | (width - 1)) + 1;
        if epoch > to.into() {
            break;
        }
        bucket += 1;
    }
    bucket
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_as_wide_as_the_next_one_is_older() {
        assert!((0..BUCKETS).all(|bucket| start(bucket) + width(bucket) == start(bucket + 1)));
    }

    #[test]
    fn buckets_follow_each_other_without_gap() {
        let mut last = 0;
        for age in 0..1 << 14 {
            let bucket = bucket(age);
            assert!(bucket == last || bucket == last + 1, "age {age}");
            assert!(start(bucket) <= age, "age {age}");
            assert!(age < start(bucket + 1) || bucket == BUCKETS - 1, "age {age}");
            last = bucket;
        }
        assert_eq!(last, BUCKETS - 1);
    }
}
