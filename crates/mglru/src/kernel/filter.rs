//! Which regions are worth a visit: two Bloom filters, one in use and one being filled. They swap
//! roles with each generation.
//!
//! B. H. Bloom, "Space/time trade-offs in hash coding with allowable errors", CACM 1970. A filter
//! comes into being when it is first filled; until then everything is worth a visit.

/// Bits of a filter, as a power of two.
const SHIFT: u32 = 15;
const WORDS: usize = (1 << SHIFT) / 64;

/// The filters of an lruvec.
#[derive(Debug, Default)]
pub(super) struct Filters {
    filters: [Option<Box<[u64; WORDS]>>; 2],
}

impl Filters {
    /// Empties the filter that the walk of this generation fills, for the next one.
    pub(super) fn reset(&mut self, seq: u64) {
        match &mut self.filters[index(seq)] {
            Some(filter) => filter.fill(0),
            empty => *empty = Some(Box::new([0; WORDS])),
        }
    }

    /// Adds a region to the filter of a generation.
    pub(super) fn add(&mut self, seq: u64, region: u32) {
        if let Some(filter) = &mut self.filters[index(seq)] {
            for key in keys(region) {
                filter[key / 64] |= 1 << (key % 64);
            }
        }
    }

    /// Whether a region may have been added to the filter of a generation.
    pub(super) fn test(&self, seq: u64, region: u32) -> bool {
        let has = |filter: &[u64; WORDS]| {
            keys(region).iter().all(|key| filter[key / 64] & 1 << (key % 64) != 0)
        };
        self.filters[index(seq)].as_deref().is_none_or(has)
    }
}

const fn index(seq: u64) -> usize {
    (seq % 2) as usize
}

/// Two bits for each region, from the two ends of a product with 2⁶⁴ by the golden ratio.
fn keys(region: u32) -> [usize; 2] {
    let hash = (u64::from(region) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mask = (1 << SHIFT) - 1;
    [(hash >> (64 - SHIFT)) as usize, (hash >> (64 - 2 * SHIFT)) as usize & mask]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_found_and_little_else() {
        let mut filters = Filters::default();
        assert!(filters.test(3, 7), "nothing is known yet");
        filters.reset(3);
        assert!(!filters.test(3, 7) && filters.test(4, 7));
        for region in 0..1000 {
            filters.add(3, region * 3);
        }
        assert!((0..1000).all(|region| filters.test(3, region * 3)));
        let wrong = (0..1000).filter(|region| filters.test(3, region * 3 + 1)).count();
        assert!(wrong < 20, "{wrong}");
        filters.reset(5);
        assert!(!filters.test(3, 0), "the same filter again");
    }
}
