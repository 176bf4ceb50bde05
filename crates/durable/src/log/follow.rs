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
pub(super) struct Places(BTreeMap<u64, u64>);

impl Places {
    /// A write began with this record, there. Called in the order of the records.
    pub(super) fn note(&mut self, record: u64, at: u64) {
        let before = self.0.last_key_value().map(|(_, at)| *at).filter(|before| *before < at);
        if at - before.unwrap_or(0) >= APART {
            self.0.insert(record, at);
        }
    }

    /// The last known record up to `wanted`, and where it is, in the segment that begins with
    /// `first`.
    pub(super) fn before(&self, wanted: u64, first: u64) -> (u64, u64) {
        let known = self.0.range(first..=wanted.max(first)).next_back();
        known.map_or((first, HEADER_LEN as u64), |(record, at)| (*record, *at))
    }

    /// Forgets the records before this one.
    pub(super) fn forget(&mut self, before: u64) {
        self.0 = self.0.split_off(&before);
    }
}

/// Who waits for records to be durable without asking for it, by the record.
#[derive(Debug, Default)]
pub(super) struct Followers(BTreeMap<u64, Arc<Outcome>>);

impl Followers {
    pub(super) fn add(&mut self, record: u64) -> Arc<Outcome> {
        Arc::clone(self.0.entry(record).or_default())
    }

    /// Takes those who wait for no later record than this.
    pub(super) fn take(&mut self, durable: u64) -> impl Iterator<Item = Arc<Outcome>> + use<> {
        let later = self.0.split_off(&durable.saturating_add(1));
        std::mem::replace(&mut self.0, later).into_values()
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Arc<Outcome>> + use<> {
        std::mem::take(&mut self.0).into_values()
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
        for (record, at) in [(21, 90), (30, APART + 7)] {
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
}
