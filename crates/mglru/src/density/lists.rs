//! Frames in lists, one for each class and age: the list that is worth least gives the victims.
//!
//! As time passes, a whole list joins that of the next age: two links change, however many frames
//! it has. This happens when the group's lists are next needed, because most of thousands of groups
//! are idle. A group has memory only for classes of which it ever had frames, so a small group
//! takes little.

use std::cmp::Ordering;
use std::sync::Arc;

use super::Worth;
use super::admission::Declined;
use super::age::{BUCKETS, bucket, bucket_after};
use super::history::{CLASSES, Class, PASTS};
use super::links::{Link, Links, NONE};
use super::ranking::Classes;
use super::tiers::{Feedback, Swappiness};

/// The class of pages that were read ahead.
const AHEAD: usize = Class::AHEAD.index();
/// A bit for each of the rows that an epoch looks at together.
const ROWS: [u32; 32] = {
    let mut bits = [0; 32];
    let mut row = 0;
    while row < 32 {
        bits[row] = 1 << row;
        row += 1;
    }
    bits
};
/// No row: the class never had a frame.
const ABSENT: u8 = u8::MAX;

/// For how many epochs pages that were read ahead are expected to be used: an eighth of a cacheful
/// of requests.
const AHEAD_EPOCHS: u32 = 16;

/// The lists of one group, and which of them is worth least.
#[derive(Debug)]
pub(super) struct Lists {
    /// The number of each class's row; empty before the first frame.
    rows: Box<[u8]>,
    /// The rows, one for each class that ever had frames. This is what is read often of a row; its
    /// lists are in `ends`, and its counts in `feedback`.
    heads: Vec<Head>,
    /// The [`Key`] of each row. They are kept apart because the search for a victim reads them all.
    keys: Vec<Key>,
    /// The buckets of each row in which there are frames, a bit for each. They are kept apart
    /// because each epoch reads them all.
    held: Vec<u32>,
    ends: Vec<[Ends; BUCKETS]>,
    feedback: Vec<Feedback>,
    /// The classes of which there are frames.
    classes: Classes,
    worth: Arc<Worth>,
    swappiness: Swappiness,
    /// Victims come from lists of these ages only, a bit for each bucket.
    open: u32,
    /// The list that is worth least, as exactly as keys tell it. `None`: it has to be found out.
    victim: Option<Victim>,
    declined: Declined,
    /// Whether the lists have taken more memory since the owner last asked.
    grown: bool,
    /// The epoch and the lesson that the lists have reached.
    epoch: u32,
    lesson: u32,
    /// The bytes that the owner counted last, and whether the owner has noted that these and the
    /// classes may have changed since.
    pub(super) counted: usize,
    pub(super) is_noted: bool,
}

/// What is known of a row.
#[derive(Clone, Copy, Debug)]
struct Head {
    class: u8,
    /// The open bucket that is worth least, and its worth.
    bucket: u8,
    least: f32,
}

/// The row with the smallest key is worth least. A key is the bits of the row's least worth, with
/// the class in place of the last eight, so of equal rows the lowest class goes first. Numbers that
/// are not negative are in the order of their bits.
type Key = i32;

/// The key of a row without a victim.
const NO_KEY: Key = Key::MAX;

fn key(worth: f32, class: u8) -> Key {
    if worth < f32::INFINITY {
        worth.to_bits().cast_signed() & !0xff | class as Key
    } else {
        NO_KEY
    }
}

/// Oldest and youngest frame of a list.
#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
}

impl Ends {
    const EMPTY: Self = Self { head: NONE, tail: NONE };
}

/// The list that is worth least, and what its pages are worth.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Victim {
    row: u8,
    bucket: u8,
    worth: f32,
}

impl Victim {
    fn list(self) -> (usize, usize) {
        (self.row.into(), self.bucket.into())
    }
}

/// The buckets whose lists join older ones in the epochs that follow `from`, up to `to`, a bit for
/// each: a list is due when a multiple of its bucket's width is passed.
pub(super) fn due(from: u32, to: u32) -> u32 {
    // Widths are powers of two: four buckets have the width 1, and two each of the next widths.
    let count = (from ^ to).checked_ilog2().map_or(0, |highest| 2 * highest + 4);
    (1 << count.min(BUCKETS as u32 - 1)) - 1
}

impl Lists {
    /// Makes lists without frames, in this epoch and after this many lessons.
    pub(super) fn new(worth: Arc<Worth>, epoch: u32, lesson: u32) -> Self {
        Self {
            epoch,
            lesson,
            counted: 0,
            is_noted: false,
            rows: Box::default(),
            heads: Vec::new(),
            keys: Vec::new(),
            held: Vec::new(),
            ends: Vec::new(),
            feedback: Vec::new(),
            classes: Classes::default(),
            worth,
            swappiness: Swappiness::default(),
            open: u32::MAX,
            victim: None,
            declined: Declined::new(),
            grown: false,
        }
    }

    /// Whether the lists take more memory than when this was asked last.
    pub(super) fn take_grown(&mut self) -> bool {
        std::mem::take(&mut self.grown)
    }

    /// The bytes that the lists take in addition to `Self`.
    pub(super) fn memory(&self) -> usize {
        self.rows.len()
            + self.heads.capacity() * size_of::<Head>()
            + self.keys.capacity() * size_of::<Key>()
            + self.held.capacity() * size_of::<u32>()
            + self.ends.capacity() * size_of::<[Ends; BUCKETS]>()
            + self.feedback.capacity() * size_of::<Feedback>()
    }

    /// Sets what pages are worth from now on.
    pub(super) fn learn(&mut self, worth: Arc<Worth>) {
        self.worth = worth;
        self.look_again();
    }

    /// Sets which of clean and dirty pages are preferred as victims.
    pub(super) fn set_swappiness(&mut self, swappiness: Swappiness) {
        if self.swappiness != swappiness {
            self.swappiness = swappiness;
            self.look_again();
        }
    }

    /// Sets the ages of which pages may be victims, a bit for each bucket.
    pub(super) fn set_open(&mut self, open: u32) {
        if self.open != open {
            self.open = open;
            self.look_again();
        }
    }

    /// Whether pages of this age may be victims.
    pub(super) fn is_open(&self, bucket: usize) -> bool {
        self.open >> bucket & 1 == 1
    }

    fn look_again(&mut self) {
        (0..self.heads.len()).for_each(|row| self.find_least(row));
        self.victim = None;
    }

    /// What pages of a class and age are worth. Pages that were read ahead count as sure to be
    /// used, unless that was long ago: then they are worth nothing.
    pub(super) fn worth(&self, class: usize, age: usize) -> f32 {
        match class {
            AHEAD if age < bucket(AHEAD_EPOCHS) => f32::from(u16::MAX),
            AHEAD => 0.0,
            _ => self.worth.at(class, age),
        }
    }

    /// What pages of a class and age are worth when this group chooses among its own pages.
    fn weighed(&self, class: usize, bucket: usize) -> f32 {
        let worth = self.worth(class, bucket);
        if class < PASTS { worth } else { worth * self.swappiness.weight() }
    }

    /// The row of a class, made if there is none.
    #[inline]
    fn row(&mut self, class: Class) -> usize {
        if self.rows.is_empty() {
            self.rows = [ABSENT; CLASSES].into();
        }
        let class = class.index();
        if self.rows[class] == ABSENT {
            // Pages used once have only one pace, so the numbers of rows cannot run out.
            self.rows[class] = self.heads.len() as u8;
            if self.heads.len() == self.heads.capacity() {
                let more = (self.heads.len() / 2).clamp(1, 4);
                self.heads.reserve_exact(more);
                self.keys.reserve_exact(more);
                self.held.reserve_exact(more);
                self.ends.reserve_exact(more);
                self.feedback.reserve_exact(more);
                self.grown = true;
            }
            self.heads.push(Head { class: class as u8, bucket: 0, least: f32::INFINITY });
            self.keys.push(NO_KEY);
            self.held.push(0);
            self.ends.push([Ends::EMPTY; BUCKETS]);
            self.feedback.push(Feedback::default());
        }
        self.rows[class] as usize
    }

    /// What came of pages that were declined.
    pub(super) fn declined(&self) -> &Declined {
        &self.declined
    }

    pub(super) fn declined_mut(&mut self) -> &mut Declined {
        &mut self.declined
    }

    /// What is counted of pages of this class.
    pub(super) fn feedback(&mut self, class: Class) -> &mut Feedback {
        let row = self.row(class);
        &mut self.feedback[row]
    }

    /// What was counted of each class.
    pub(super) fn feedbacks(&self) -> impl Iterator<Item = (usize, Feedback)> {
        self.heads
            .iter()
            .zip(&self.feedback)
            .map(|(head, feedback)| (head.class as usize, *feedback))
    }

    /// Appends a frame.
    pub(super) fn push(&mut self, links: &mut Links, frame: u32, class: Class, bucket: usize) {
        let row = self.row(class);
        let ends = &mut self.ends[row][bucket];
        let tail = std::mem::replace(&mut ends.tail, frame);
        links[frame] = Link { previous: tail, next: NONE };
        if tail == NONE {
            ends.head = frame;
            self.filled(row, bucket);
        } else {
            links[tail].next = frame;
        }
    }

    /// Takes a frame of this class out of its list.
    pub(super) fn remove(&mut self, links: &mut Links, frame: u32, class: Class) {
        let Link { previous, next } = links[frame];
        if previous != NONE && next != NONE {
            links[previous].next = next;
            links[next].previous = previous;
            return;
        }
        // The frame is at an end of a list of its class. The ends of these lists tell which.
        let row = self.row(class);
        for bucket in ones(self.held[row] as u64) {
            let ends = &mut self.ends[row][bucket];
            if ends.head == frame || ends.tail == frame {
                if ends.head == frame {
                    ends.head = next;
                }
                if ends.tail == frame {
                    ends.tail = previous;
                }
                if previous != NONE {
                    links[previous].next = NONE;
                }
                if next != NONE {
                    links[next].previous = NONE;
                }
                if ends.head == NONE {
                    self.emptied(row, bucket);
                }
                return;
            }
        }
        unreachable!("a frame at the end of no list of its class");
    }

    /// The frame that is worth least: the oldest one of its list.
    pub(super) fn victim(&mut self) -> Option<u32> {
        let (row, bucket) = self.find_victim()?.list();
        Some(self.ends[row][bucket].head)
    }

    /// What the frame that is worth least is worth. Groups are compared by this, so the type of
    /// page that this group prefers to give up does not change it.
    pub(super) fn least(&mut self) -> Option<f32> {
        let (row, bucket) = self.find_victim()?.list();
        Some(self.worth(self.heads[row].class as usize, bucket))
    }

    /// Takes out the page that was read ahead longest ago and was not looked at since.
    pub(super) fn pop_ahead(&mut self, links: &mut Links) -> Option<u32> {
        let row = *self.rows.get(AHEAD).filter(|&&row| row != ABSENT)? as usize;
        let oldest = self.held[row].checked_ilog2()? as usize;
        Some(self.pop(links, row, oldest))
    }

    /// Takes the victim out.
    ///
    /// # Panics
    ///
    /// If no victim was asked for.
    pub(super) fn pop_victim(&mut self, links: &mut Links) {
        let (row, bucket) = self.victim.expect("a victim was asked for").list();
        self.pop(links, row, bucket);
    }

    /// The frame that follows the victim in its list.
    ///
    /// # Panics
    ///
    /// If no victim was asked for.
    pub(super) fn next_victim(&self, links: &Links) -> Option<u32> {
        let (row, bucket) = self.victim.expect("a victim was asked for").list();
        let next = links[self.ends[row][bucket].head].next;
        (next != NONE).then_some(next)
    }

    /// Takes the first frame out of a list that has some.
    fn pop(&mut self, links: &mut Links, row: usize, bucket: usize) -> u32 {
        let ends = &mut self.ends[row][bucket];
        let frame = ends.head;
        let next = links[frame].next;
        ends.head = next;
        if next == NONE {
            ends.tail = NONE;
            self.emptied(row, bucket);
        } else {
            links[next].previous = NONE;
        }
        frame
    }

    /// Whether pages of this class and age are worth more than those that victims come from.
    pub(super) fn worth_more(&self, class: Class, bucket: usize) -> bool {
        self.victim.is_some_and(|victim| self.weighed(class.index(), bucket) > victim.worth)
    }

    /// The classes of which there are frames.
    pub(super) fn classes(&self) -> Classes {
        self.classes
    }

    /// Notes whether there are frames of a row's class.
    fn set_class(&mut self, row: usize, held: bool) {
        let class = self.heads[row].class;
        let (word, bit) = (&mut self.classes[class as usize / 64], 1 << (class % 64));
        *word = if held { *word | bit } else { *word & !bit };
    }

    /// Counts the frames of each class and age in this epoch, as of when they were last sorted.
    pub(super) fn counts(
        &self,
        links: &Links,
        epoch: u32,
    ) -> impl Iterator<Item = (usize, usize, u64)> {
        let rows = self.heads.iter().zip(&self.held).zip(&self.ends);
        rows.flat_map(move |((head, &held), ends)| {
            ones(held as u64).map(move |bucket| {
                let first = Some(ends[bucket].head);
                let next = |&frame: &u32| Some(links[frame].next).filter(|&next| next != NONE);
                let count = std::iter::successors(first, next).count() as u64;
                (head.class as usize, bucket_after(bucket, self.epoch, epoch), count)
            })
        })
    }

    /// Lets the epochs up to this one pass, and takes a new lesson into account.
    #[inline]
    pub(super) fn catch_up(&mut self, links: &mut Links, epoch: u32, lesson: u32) {
        if self.epoch != epoch {
            self.pass(links, epoch);
        }
        if self.lesson != lesson {
            self.lesson = lesson;
            self.look_again();
        }
    }

    /// Turns the clock back by an era.
    pub(super) fn turn_back(&mut self) {
        self.epoch = self.epoch.saturating_sub(super::ERA);
    }

    /// Lets the epochs up to this one pass.
    fn pass(&mut self, links: &mut Links, epoch: u32) {
        let due = due(self.epoch, epoch);
        for first in (0..self.held.len()).step_by(ROWS.len()) {
            // Few rows have lists that are due, and which ones is hard to predict: so there is no
            // branch for each row.
            let rows = self.held[first..].iter().zip(&ROWS);
            let rows =
                rows.fold(0, |all, (held, row)| all | if held & due == 0 { 0 } else { *row });
            for row in ones(rows.into()) {
                self.age(links, first + row, due, epoch);
            }
        }
        self.epoch = epoch;
        self.victim = None;
    }

    /// Lets the lists of a row that are [`due`] join those of the age that they have in this epoch.
    fn age(&mut self, links: &mut Links, row: usize, due: u32, epoch: u32) {
        let moved = self.held[row] & due;
        let (mut moving, mut filled) = (moved, 0);
        // The oldest goes first: each list has to be gone before a younger one takes its bucket.
        while let Some(bucket) = moving.checked_ilog2() {
            moving ^= 1 << bucket;
            let after = bucket_after(bucket as usize, self.epoch, epoch);
            self.join(links, row, bucket as usize, after);
            filled |= 1 << after;
        }
        if moved >> self.heads[row].bucket & 1 == 1 {
            self.find_least(row);
        } else {
            for bucket in ones(filled) {
                self.offer(row, bucket);
            }
        }
    }

    /// Appends a list to that of another age.
    fn join(&mut self, links: &mut Links, row: usize, bucket: usize, to: usize) {
        let younger = std::mem::replace(&mut self.ends[row][bucket], Ends::EMPTY);
        let older = &mut self.ends[row][to];
        if older.tail == NONE {
            *older = younger;
        } else {
            links[older.tail].next = younger.head;
            links[younger.head].previous = older.tail;
            older.tail = younger.tail;
        }
        let held = &mut self.held[row];
        *held = *held & !(1 << bucket) | 1 << to;
    }

    fn filled(&mut self, row: usize, bucket: usize) {
        if self.held[row] == 0 {
            self.set_class(row, true);
        }
        self.held[row] |= 1 << bucket;
        let Some(worth) = self.offer(row, bucket) else { return };
        if self.victim.is_some_and(|victim| worth < victim.worth) {
            self.victim = Some(Victim { row: row as u8, bucket: bucket as u8, worth });
        }
    }

    fn emptied(&mut self, row: usize, bucket: usize) {
        self.held[row] &= !(1 << bucket);
        if self.held[row] == 0 {
            self.set_class(row, false);
        }
        if self.heads[row].bucket as usize == bucket {
            self.find_least(row);
        }
        if self.victim.is_some_and(|victim| victim.list() == (row, bucket)) {
            self.victim = None;
        }
    }

    /// Notes that there are frames in this bucket now, which may be worth least in the row. Returns
    /// their worth, if they may be victims.
    fn offer(&mut self, row: usize, bucket: usize) -> Option<f32> {
        if !self.is_open(bucket) {
            return None;
        }
        let Head { class, bucket: at, least, .. } = self.heads[row];
        let worth = self.weighed(class as usize, bucket);
        let goes_first = match worth.total_cmp(&least) {
            Ordering::Equal => bucket > at as usize,
            order => order.is_lt(),
        };
        if goes_first {
            self.set_least(row, worth, bucket);
        }
        Some(worth)
    }

    fn find_least(&mut self, row: usize) {
        let (class, held) = (self.heads[row].class, self.held[row]);
        let (mut least, mut at) = (f32::INFINITY, 0);
        for bucket in ones((held & self.open) as u64) {
            // Of equal worth, the older bucket.
            let worth = self.weighed(class as usize, bucket);
            if worth <= least {
                (least, at) = (worth, bucket);
            }
        }
        self.set_least(row, least, at);
    }

    fn set_least(&mut self, row: usize, worth: f32, bucket: usize) {
        let head = &mut self.heads[row];
        (head.least, head.bucket) = (worth, bucket as u8);
        self.keys[row] = key(worth, head.class);
    }

    fn find_victim(&mut self) -> Option<Victim> {
        if self.victim.is_none() {
            let least = self.keys.iter().fold(NO_KEY, |least, &key| least.min(key));
            if least != NO_KEY {
                let row = self.rows[least.cast_unsigned() as usize & 0xff];
                let Head { bucket, least: worth, .. } = self.heads[row as usize];
                self.victim = Some(Victim { row, bucket, worth });
            }
        }
        self.victim
    }
}

/// The places of the bits that are set.
pub(super) fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (place < 64).then_some(place)
    })
}

#[cfg(test)]
mod tests;
