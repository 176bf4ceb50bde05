//! Gives each key its dense page number, in the order of first appearance.
//!
//! Block traces ask for runs of consecutive keys again and again, so the number of the next key is
//! guessed from that of the last one before the table is asked. Keys that were chosen to collide in
//! the table make it slow, and have no worse effect.

use rustc_hash::FxHashMap;

use super::PAGES_MAX;

/// Keys numbered so far.
#[derive(Default)]
pub(super) struct Numbering {
    numbers: FxHashMap<u64, u32>,
    keys: Vec<u64>,
    /// The number given out last.
    last: u32,
}

impl Numbering {
    /// The number of a key, which is a new one if it was never seen; `None` if there are too many.
    pub(super) fn number(&mut self, key: u64) -> Option<u32> {
        let guess = self.last.wrapping_add(1);
        if self.keys.get(guess as usize) == Some(&key) {
            self.last = guess;
            return Some(guess);
        }
        let next = self.keys.len();
        let number = *self.numbers.entry(key).or_insert(next as u32);
        if number as usize == next {
            if next >= PAGES_MAX {
                return None;
            }
            self.keys.push(key);
        }
        self.last = number;
        Some(number)
    }

    /// The key of each number.
    pub(super) fn into_keys(self) -> Vec<u64> {
        self.keys
    }
}
