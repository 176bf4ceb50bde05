//! From hashes to frames: open addressing with linear probing, without tombstones.
//!
//! Each place holds the frame and 32 bits of its hash. They tell almost all strangers apart without a
//! look at their keys, and where an entry belongs, so that removal can close the gap and growth needs
//! no keys. Ten bytes an entry, of any number of places (the home is `hash * places >> 32`), where a
//! table of the standard library's kind takes up to 18 once it has seen removals.

/// No entry.
const FREE: u64 = u64::MAX;
/// Places for each four entries, at least.
const PLACES_FOR_FOUR: usize = 5;

/// Where each key's frame is.
#[derive(Debug, Default)]
pub(super) struct Index {
    places: Vec<u64>,
    entries: usize,
}

/// Where an entry stands, until the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(usize);

impl Index {
    /// With room for so many entries.
    pub(super) fn with_capacity(entries: usize) -> Self {
        let places = if entries == 0 { 0 } else { places_for(entries) };
        Self { places: vec![FREE; places], entries: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries
    }

    fn home(&self, hash: u32) -> usize {
        (hash as u64 * self.places.len() as u64 >> 32) as usize
    }

    fn next(&self, place: usize) -> usize {
        if place + 1 == self.places.len() { 0 } else { place + 1 }
    }

    /// How far it is from one place to another, going forward.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.places.len() - from }
    }

    /// The frame with this hash that `is_it`.
    #[inline]
    pub(super) fn find(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<(Place, u32)> {
        if self.entries == 0 {
            return None;
        }
        let mut place = self.home(hash);
        loop {
            let entry = self.places[place];
            if entry == FREE {
                return None;
            }
            if (entry >> 32) as u32 == hash && is_it(entry as u32) {
                return Some((Place(place), entry as u32));
            }
            place = self.next(place);
        }
    }

    /// Adds a frame that is not there.
    pub(super) fn insert(&mut self, hash: u32, frame: u32) {
        if (self.entries + 1) * PLACES_FOR_FOUR > self.places.len() * 4 {
            self.grow();
        }
        self.entries += 1;
        self.put((hash as u64) << 32 | frame as u64);
    }

    fn put(&mut self, entry: u64) {
        let mut place = self.home((entry >> 32) as u32);
        while self.places[place] != FREE {
            place = self.next(place);
        }
        self.places[place] = entry;
    }

    fn grow(&mut self) {
        let places = places_for((self.entries + 1).max(8) * 3 / 2);
        for entry in std::mem::replace(&mut self.places, vec![FREE; places]) {
            if entry != FREE {
                self.put(entry);
            }
        }
    }

    /// Takes an entry out, and moves those behind it up that it kept from their homes.
    pub(super) fn remove(&mut self, Place(place): Place) {
        self.entries -= 1;
        let mut hole = place;
        let mut place = self.next(hole);
        while self.places[place] != FREE {
            let home = self.home((self.places[place] >> 32) as u32);
            if self.distance(home, place) >= self.distance(hole, place) {
                self.places[hole] = self.places[place];
                hole = place;
            }
            place = self.next(place);
        }
        self.places[hole] = FREE;
    }
}

/// One more than the load allows, so that a search always ends.
fn places_for(entries: usize) -> usize {
    entries * PLACES_FOR_FOUR / 4 + 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_finds_what_a_map_finds(
            capacity in 0..40usize,
            // Few hashes, at both ends of the table, so that entries collide and wrap around.
            steps in proptest::collection::vec((any::<bool>(), 0..60u32, 0..12u32), 0..300),
        ) {
            let mut index = Index::with_capacity(capacity);
            let mut model = BTreeMap::new();
            let hash = |frame: u32, seed: u32| (seed + frame % 3).wrapping_mul(0xffff_fff0 / 7);
            for (insert, frame, seed) in steps {
                let found = model.get(&frame).copied();
                if insert && found.is_none() {
                    index.insert(hash(frame, seed), frame);
                    model.insert(frame, hash(frame, seed));
                } else if let Some(hash) = found {
                    let (place, _) = index.find(hash, |it| it == frame).unwrap();
                    index.remove(place);
                    model.remove(&frame);
                }
                prop_assert_eq!(index.len(), model.len());
                for frame in 0..60 {
                    match model.get(&frame) {
                        Some(&hash) => {
                            let found = index.find(hash, |it| it == frame);
                            prop_assert_eq!(found.map(|(_, frame)| frame), Some(frame));
                        }
                        None => for seed in 0..12 {
                            let found = index.find(hash(frame, seed), |it| it == frame);
                            prop_assert!(found.is_none());
                        },
                    }
                }
            }
        }
    }
}
