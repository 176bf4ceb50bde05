//! Shadows of evicted pages, found by the hashes of their keys.
//!
//! They take six bytes each, and ten share a line of memory: a fingerprint of 16 bits, the epoch of
//! the last use in units of four, and the history with its counts rounded. About once in 6,000
//! times, a page that was never held is mistaken for a remembered one. That costs a wrong guess,
//! nothing more.

use super::history::History;
use super::ranking::Shadow;
use crate::prefetch::prefetch;

/// Shadows in one line of memory.
const WAYS: usize = 10;
/// Epochs are kept in units of two to the power of this.
const UNIT: u32 = 2;
/// A fingerprint that no page has.
const EMPTY: u16 = 0;
/// How old the past of a page may be, in halves of the mean age of the shadows that are given up.
/// Found by experiment: lines fill unevenly, so shadows reach less far back in some than in others.
const REACH: u32 = 3;

/// What remains of evicted pages, found by the hashes of their keys.
#[derive(Debug)]
pub struct Ghosts {
    lines: Box<[Line]>,
    /// The mean age of the last few shadows that were given up, in sixteenths of an epoch.
    age: Option<u32>,
}

/// Shadows, the youngest first, and then empty places.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Line([Ghost; WAYS]);

#[derive(Clone, Copy, Debug, Default)]
struct Ghost {
    fingerprint: u16,
    epoch: u16,
    history: u16,
}

impl Ghost {
    /// Its age in units of epochs. A shadow that seems to come from the future is of an epoch that
    /// other threads already know of.
    fn age(self, epoch: u32) -> u16 {
        let age = ((epoch >> UNIT) as u16).wrapping_sub(self.epoch);
        if age.cast_signed() < -1 { u16::MAX } else { age.cast_signed().max(0).cast_unsigned() }
    }

    fn shadow(self, epoch: u32) -> Shadow {
        let age = (self.age(epoch) as u32) << UNIT;
        Shadow { epoch: epoch.saturating_sub(age), history: exact(self.history).pack() }
    }
}

impl Ghosts {
    /// Makes room for about this many shadows.
    pub fn new(shadows: usize) -> Self {
        Self { lines: vec![Line::default(); shadows.div_ceil(WAYS)].into(), age: None }
    }

    /// How many shadows there is room for.
    pub fn capacity(&self) -> usize {
        self.lines.len() * WAYS
    }

    /// The bytes that they take.
    pub fn memory(&self) -> usize {
        std::mem::size_of_val(&*self.lines)
    }

    /// The number of a page's line, and its fingerprint.
    fn place(&self, hash: u64) -> (usize, u16) {
        // The upper half of the hash gives the line, the lower one the fingerprint.
        let line = (((hash >> 32) * self.lines.len() as u64) >> 32) as usize;
        (line, ((hash >> 8) as u16).max(1))
    }

    /// Announces that this page will soon be looked for or remembered.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if let Some(line) = self.lines.get(self.place(hash).0) {
            prefetch(line);
        }
    }

    fn find(&mut self, hash: u64) -> Option<(&mut Line, u16)> {
        let (line, fingerprint) = self.place(hash);
        Some((self.lines.get_mut(line)?, fingerprint))
    }

    /// Remembers a page that was evicted, or declined. This replaces what was remembered of that
    /// page before. If another page is forgotten to make room, returns the
    /// [`horizon`](super::Ranking::set_horizon) that follows from that.
    pub fn put(&mut self, hash: u64, shadow: Shadow, epoch: u32) -> Option<u32> {
        let (Line(ghosts), fingerprint) = self.find(hash)?;
        let is_free = |ghost: &Ghost| [EMPTY, fingerprint].contains(&ghost.fingerprint);
        let last = ghosts.iter().position(is_free).unwrap_or(WAYS - 1);
        let forgotten = ghosts[last];
        ghosts.copy_within(..last, 1);
        ghosts[0] = Ghost {
            fingerprint,
            epoch: (shadow.epoch >> UNIT) as u16,
            history: round(History::unpack(shadow.history)),
        };
        if is_free(&forgotten) {
            return None;
        }
        let age = (forgotten.age(epoch) as u32) << (UNIT + 4);
        let mean = self.age.get_or_insert(age);
        *mean = (*mean * 15 + age) / 16;
        Some((*mean * REACH / 2) >> 4)
    }

    /// What is remembered of a page.
    pub fn get(&self, hash: u64, epoch: u32) -> Option<Shadow> {
        let (line, fingerprint) = self.place(hash);
        let Line(ghosts) = self.lines.get(line)?;
        let ghost = ghosts.iter().find(|ghost| ghost.fingerprint == fingerprint)?;
        Some(ghost.shadow(epoch))
    }

    /// Takes out what is remembered of a page that comes back.
    pub fn take(&mut self, hash: u64, epoch: u32) -> Option<Shadow> {
        let (Line(ghosts), fingerprint) = self.find(hash)?;
        let at = ghosts.iter().position(|ghost| ghost.fingerprint == fingerprint)?;
        let ghost = ghosts[at];
        ghosts.copy_within(at + 1.., at);
        ghosts[WAYS - 1] = Ghost::default();
        Some(ghost.shadow(epoch))
    }
}

/// Packs a history into 16 bits: 5 for its uses, 11 for its distance.
fn round(history: History) -> u16 {
    let (uses, distance) = history.parts();
    float::<2>(uses as u16) << 11 | float::<7>(distance)
}

fn exact(bits: u16) -> History {
    // These were rounded down from 8 and 16 bits, so they fit into as many.
    History::of(integer::<2>(bits >> 11) as u8, integer::<7>(bits & 0x7ff))
}

/// A number rounded down to its upper `1 + MANTISSA` bits, as a floating-point number without sign.
fn float<const MANTISSA: u32>(number: u16) -> u16 {
    let Some(exponent) = (number >> MANTISSA).checked_ilog2() else { return number };
    (exponent as u16 + 1) << MANTISSA | (number >> exponent) & ((1 << MANTISSA) - 1)
}

fn integer<const MANTISSA: u32>(float: u16) -> u16 {
    let Some(exponent) = (float >> MANTISSA).checked_sub(1) else { return float };
    (1 << MANTISSA | float & ((1 << MANTISSA) - 1)) << exponent
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_rounded_down_by_little(number: u16, few: u8) {
            let distance = integer::<7>(float::<7>(number));
            prop_assert!(float::<7>(number) < 1 << 11);
            prop_assert!(distance <= number && number - distance <= number >> 7);
            let uses = integer::<2>(float::<2>(few as u16));
            prop_assert!(float::<2>(few as u16) < 1 << 5);
            prop_assert!(uses <= few as u16 && few as u16 - uses <= few as u16 >> 2);
        }
    }

    fn shadow(epoch: u32) -> Shadow {
        Shadow { epoch, history: History::of(3, 160).pack() }
    }

    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key << 40
    }

    #[test]
    fn a_page_that_returns_is_remembered_once() {
        let mut ghosts = Ghosts::new(1000);
        for key in 0..100 {
            assert_eq!(ghosts.put(hash(key), shadow(400), 480), None);
        }
        for key in 0..100 {
            assert_eq!(ghosts.take(hash(key), 500), Some(shadow(400)), "{key}");
            assert_eq!(ghosts.take(hash(key), 500), None, "{key}");
        }
    }

    #[test]
    fn a_page_that_is_declined_again_is_remembered_once_as_what_it_was_last() {
        let mut ghosts = Ghosts::new(WAYS);
        for key in 0..WAYS as u64 {
            assert_eq!(ghosts.put(hash(key), shadow(400), 480), None);
        }
        assert_eq!(ghosts.put(hash(3), shadow(480), 480), None, "nobody is forgotten for it");
        assert_eq!(ghosts.take(hash(3), 480), Some(shadow(480)));
        assert_eq!(ghosts.take(hash(3), 480), None);
        assert!((0..WAYS as u64).all(|key| key == 3 || ghosts.take(hash(key), 480).is_some()));
    }

    #[test]
    fn who_left_first_is_forgotten_first_and_tells_how_far_memory_reaches() {
        let mut ghosts = Ghosts::new(WAYS);
        for key in 0..WAYS as u64 {
            assert_eq!(ghosts.put(hash(key), shadow(key as u32 * 8), 100), None);
        }
        let horizon = ghosts.put(hash(1000), shadow(100), 160).unwrap();
        assert_eq!(horizon, 160 * REACH / 2);
        assert_eq!(ghosts.take(hash(0), 160), None);
        assert_eq!(ghosts.take(hash(1), 160), Some(shadow(8)));
    }

    #[test]
    fn without_room_nothing_is_remembered() {
        let mut ghosts = Ghosts::new(0);
        assert_eq!(ghosts.put(hash(1), shadow(1), 1), None);
        assert_eq!(ghosts.take(hash(1), 1), None);
    }

    #[test]
    fn what_an_epoch_just_begun_left_is_young() {
        let mut ghosts = Ghosts::new(WAYS);
        ghosts.put(hash(1), shadow(404), 400);
        assert_eq!(ghosts.take(hash(1), 400).unwrap().epoch, 400);
    }
}
