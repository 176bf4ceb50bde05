//! What those who follow a log need: to hear when more is durable, and to find it without reading
//! what comes before.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::format::HEADER_LEN;
use crate::synced::Outcome;

/// How far apart in a segment, in bytes, the writes are whose places are known. Chosen: as much as
/// a reader reads at a time, and 16 bytes of memory for so many.
const APART: u64 = 256 << 10;

/// Where some records are in their segments: those that a write since the log was opened began
/// with. (Opening it puts the last write at the beginning of a segment.)
#[derive(Debug, Default)]
pub(super) struct Places {
    by_record: BTreeMap<u64, u64>,
    /// The last of them in the segment that is written to, or 0.
    last: u64,
}

impl Places {
    /// A segment has begun, with a write.
    pub(super) fn begin_segment(&mut self) {
        self.last = 0;
    }

    /// Another write of the segment began with this record, there. Called in the order of the
    /// records.
    pub(super) fn note(&mut self, record: u64, at: u64) {
        if at - self.last >= APART {
            self.last = at;
            self.by_record.insert(record, at);
        }
    }

    /// The last known record up to `wanted`, and where it is, in the segment that begins with
    /// `first`.
    pub(super) fn before(&self, wanted: u64, first: u64) -> (u64, u64) {
        let known = self.by_record.range(first..=wanted.max(first)).next_back();
        known.map_or((first, HEADER_LEN as u64), |(record, at)| (*record, *at))
    }

    /// Forgets the records before this one.
    pub(super) fn forget(&mut self, before: u64) {
        self.by_record = self.by_record.split_off(&before);
    }
}

/// Who waits for records to be durable without asking for it, by the record.
#[derive(Debug, Default)]
pub(super) struct Followers {
    by_record: BTreeMap<u64, Arc<Outcome>>,
    /// How many there may be before those who wait no more are sought.
    many: usize,
}

impl Followers {
    pub(super) fn add(&mut self, record: u64) -> Arc<Outcome> {
        if self.by_record.len() > self.many {
            self.by_record.retain(|_, outcome| Arc::strong_count(outcome) > 1);
            self.many = 2 * self.by_record.len() + 16;
        }
        Arc::clone(self.by_record.entry(record).or_default())
    }

    /// Takes those who wait for no later record than this.
    pub(super) fn take(&mut self, durable: u64) -> impl Iterator<Item = Arc<Outcome>> + use<> {
        let later = self.by_record.split_off(&durable.saturating_add(1));
        std::mem::replace(&mut self.by_record, later).into_values()
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Arc<Outcome>> + use<> {
        std::mem::take(&mut self.by_record).into_values()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_known_place_is_in_the_same_segment() {
        let mut places = Places::default();
        for (record, at) in [(5, 100), (8, APART), (9, APART + 1), (12, 3 * APART)] {
            places.note(record, at);
        }
        // Another segment begins with record 20.
        places.begin_segment();
        for (record, at) in [(21, 90), (30, APART + 7), (31, 2 * APART)] {
            places.note(record, at);
        }
        let header = HEADER_LEN as u64;
        for (wanted, first, known) in [
            (7, 1, (1, header)),
            (8, 1, (8, APART)),
            (11, 1, (8, APART)),
            (19, 1, (12, 3 * APART)),
            (29, 20, (20, header)),
            (99, 20, (30, APART + 7)),
            (3, 20, (20, header)),
        ] {
            assert_eq!(places.before(wanted, first), known, "{wanted}");
        }
        places.forget(20);
        assert_eq!(places.before(19, 1), (1, header));
        assert_eq!(places.before(99, 20), (30, APART + 7));
    }

    #[test]
    fn who_waits_no_more_takes_no_memory() {
        let mut followers = Followers::default();
        let waits = followers.add(7);
        for record in 100..10_000 {
            drop(followers.add(record));
        }
        assert!(followers.by_record.len() < 40);
        assert_eq!(followers.take(7).count(), 1);
        drop(waits);
    }
}
