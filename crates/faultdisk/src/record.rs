//! What came to a disk in which order, and what a power cut may leave of it.
//!
//! A write that has been answered is in the disk's cache. A flush makes durable all writes that
//! were answered before the flush was asked for, and nothing else does. After a cut, each of the
//! other writes is there, or not, or some of its blocks are: no order among them is kept. A block
//! is never torn: a filesystem with half of ext4's superblock, or of XFS's metadata, cannot be
//! mounted. Both rely on disks that write four KiB whole, as all disks have done for long.

use std::sync::Arc;

use crate::image::{Image, parts};

/// Something that came to the disk.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write that was answered.
    Write {
        /// Where, in bytes.
        offset: u64,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// A flush that was answered: all events before this one's number `covers` are durable.
    Flush {
        /// How many events had come when it was asked for.
        covers: usize,
    },
}

/// What came to a disk since the recording began.
#[derive(Clone, Debug)]
pub struct Record {
    /// What the disk held before.
    pub base: Image,
    /// The events, in order. A moment is how many of them had come.
    pub events: Vec<Event>,
}

impl Record {
    /// Goes through moments in time, from the beginning on.
    pub fn cuts(&self) -> Cut<'_> {
        Cut { record: self, durable: self.base.clone(), moment: 0, covered: 0 }
    }
}

/// A power cut that moves on in time. Flushed writes are applied once, for all cuts that come
/// after.
#[derive(Clone, Debug)]
pub struct Cut<'a> {
    record: &'a Record,
    durable: Image,
    moment: usize,
    covered: usize,
}

impl Cut<'_> {
    /// Moves on to the moment when this many events had come.
    ///
    /// # Panics
    /// If that is before the present moment, or if there are not so many events.
    pub fn move_to(&mut self, moment: usize) {
        assert!(moment >= self.moment, "{moment} is before {}", self.moment);
        let covers = self.record.events[self.moment..moment].iter().map(|event| match event {
            Event::Flush { covers } => *covers,
            Event::Write { .. } => 0,
        });
        let covered = covers.max().unwrap_or(0).max(self.covered);
        for event in &self.record.events[self.covered..covered] {
            if let Event::Write { offset, bytes } = event {
                self.durable.write(*offset, bytes);
            }
        }
        (self.moment, self.covered) = (moment, covered);
    }

    /// How many writes may be lost.
    pub fn volatile(&self) -> usize {
        self.unflushed().count()
    }

    /// What the disk holds after the power comes back.
    pub fn image(&self, random: &mut Random) -> Image {
        let mut image = self.durable.clone();
        // Some cuts lose all, some next to nothing, because programs rely on different orders.
        let kept_percent = [0, 10, 50, 90, 100][random.below(5)];
        for (offset, bytes) in self.unflushed() {
            let torn = random.below(4) == 0;
            let whole = random.below(100) < kept_percent;
            // Writes are torn by the disk's blocks, wherever they begin.
            for (_, _, part) in parts(offset, bytes.len()) {
                if if torn { random.below(100) < kept_percent } else { whole } {
                    image.write(offset + part.start as u64, &bytes[part]);
                }
            }
        }
        image
    }

    fn unflushed(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.record.events[self.covered..self.moment].iter().filter_map(|event| match event {
            Event::Write { offset, bytes } => Some((*offset, &**bytes)),
            Event::Flush { .. } => None,
        })
    }
}

/// Numbers that look random and are the same for the same seed (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers from this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound as u64) as usize
    }
}

/// The number in this environment variable: how many cuts a test is to make, or the seed of its
/// random numbers.
///
/// # Panics
/// If the variable is set, and not to a number.
pub fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| {
        value.parse().unwrap_or_else(|_| panic!("{variable}={value} is no number"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::BLOCK;

    fn write(sector: usize, value: u8) -> Event {
        Event::Write { offset: (sector * BLOCK) as u64, bytes: [value; 2 * BLOCK].into() }
    }

    fn sectors(image: &Image) -> Vec<u8> {
        let at = |sector: usize| {
            let mut bytes = [0; BLOCK];
            image.read((sector * BLOCK) as u64, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a sector is torn");
            bytes[0]
        };
        (0..8).map(at).collect()
    }

    #[test]
    fn only_what_was_answered_before_a_flush_began_is_sure_to_stay() {
        let events =
            vec![write(0, 1), write(2, 2), Event::Flush { covers: 1 }, write(4, 3), write(0, 4)];
        let record = Record { base: Image::new(8 * BLOCK as u64), events };
        let mut cut = record.cuts();
        cut.move_to(2);
        assert_eq!(cut.volatile(), 2);
        cut.move_to(5);
        assert_eq!(cut.volatile(), 3);
        let mut random = Random::new(1);
        let seen: Vec<_> = (0..200).map(|_| sectors(&cut.image(&mut random))).collect();
        assert!(seen.iter().all(|one| one[0] == 1 || one[0] == 4), "flushed, and overwritten");
        for (sector, value) in [(2, 2), (4, 3), (0, 4)] {
            assert!(seen.iter().any(|one| one[sector] == value), "{sector} is always lost");
            assert!(seen.iter().any(|one| one[sector] != value), "{sector} is never lost");
            assert!(seen.iter().any(|one| one[sector] != one[sector + 1]), "{sector}: not torn");
        }
        assert!(seen.iter().any(|one| one[2] == 0 && one[4] == 3), "order is not kept");
    }

    #[test]
    fn a_block_is_whole_or_not_there_also_where_a_write_begins_within_another() {
        let events = vec![Event::Write { offset: 512, bytes: [1; 2 * BLOCK].into() }];
        let record = Record { base: Image::new(8 * BLOCK as u64), events };
        let mut cut = record.cuts();
        cut.move_to(1);
        let mut random = Random::new(1);
        for _ in 0..200 {
            let (mut block, image) = ([0; BLOCK], cut.image(&mut random));
            image.read(BLOCK as u64, &mut block);
            assert!(block == [block[0]; BLOCK], "a block is torn");
        }
    }

    #[test]
    fn seeds_repeat() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            [random.draw(), random.draw()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn what_is_durable_stays_so_after_a_flush_that_began_before() {
        let events = vec![write(0, 1), Event::Flush { covers: 1 }, Event::Flush { covers: 0 }];
        let record = Record { base: Image::new(8 * BLOCK as u64), events };
        let mut cut = record.cuts();
        for moment in 2..=3 {
            cut.move_to(moment);
            assert_eq!(cut.volatile(), 0, "{moment}");
        }
    }

    #[test]
    #[should_panic(expected = "1 is before 2")]
    fn a_cut_does_not_go_back() {
        let events = vec![write(0, 1), write(2, 2)];
        let record = Record { base: Image::new(8 * BLOCK as u64), events };
        let mut cut = record.cuts();
        cut.move_to(2);
        cut.move_to(1);
    }

    /// Some cuts lose all, some nothing.
    #[test]
    fn cuts_lose_anything_from_nothing_to_all() {
        let events = (0..4).map(|at| write(2 * at, 1)).collect();
        let record = Record { base: Image::new(8 * BLOCK as u64), events };
        let mut cut = record.cuts();
        cut.move_to(4);
        let mut random = Random::new(1);
        // Each sector holds a 1 or a 0.
        let mut kept = || sectors(&cut.image(&mut random)).iter().map(|it| u32::from(*it)).sum();
        let kept: Vec<u32> = (0..400).map(|_| kept()).collect();
        let share = |count| kept.iter().filter(|kept| **kept == count).count();
        assert!(share(0) > 60 && share(8) > 60, "{} and {}", share(0), share(8));
        assert!(share(8) + share(0) < 380);
    }
}
