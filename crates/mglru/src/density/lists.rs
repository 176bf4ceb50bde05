//! Frames in lists, one for each class and age: the list that is worth least gives the victims.
//!
//! As time passes a list joins that of the next age, whole: two links, however many frames.

use std::sync::Arc;

use super::Worth;
use super::age::{BUCKETS, width};
use super::history::{CLASSES, Class, PASTS};
use super::ranking::resize_exact;

/// No frame.
const NONE: u32 = u32::MAX;
/// No row: the class never had a frame.
const ABSENT: u8 = u8::MAX;

/// The neighbours of frames in their lists. A frame stands in one list at most, of whatever group.
#[derive(Debug, Default)]
pub(super) struct Links(Vec<Link>);

#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    previous: u32,
    next: u32,
}

impl Links {
    /// Makes room for this many frames.
    pub(super) fn grow(&mut self, frames: usize) {
        self.0.resize(frames.max(self.0.len()), Link { previous: NONE, next: NONE });
    }

    /// Makes room for exactly this many frames.
    pub(super) fn set_frames(&mut self, frames: usize) {
        resize_exact(&mut self.0, frames, || Link { previous: NONE, next: NONE });
    }

    /// The bytes that they take.
    pub(super) fn memory(&self) -> usize {
        self.0.capacity() * size_of::<Link>()
    }
}

impl std::ops::Index<u32> for Links {
    type Output = Link;

    fn index(&self, frame: u32) -> &Link {
        &self.0[frame as usize]
    }
}

impl std::ops::IndexMut<u32> for Links {
    fn index_mut(&mut self, frame: u32) -> &mut Link {
        &mut self.0[frame as usize]
    }
}

/// The lists of one group, and which of them is worth least.
#[derive(Debug)]
pub(super) struct Lists {
    /// Rows of lists, one row for each class that ever had frames.
    ends: Vec<[Ends; BUCKETS]>,
    /// Where each class has its row.
    rows: [u8; CLASSES],
    worth: Arc<Worth>,
    /// For each class, the buckets in which it has frames.
    held: [u32; CLASSES],
    /// For each class, the bucket that is worth least, and its worth.
    least: [(f32, u8); CLASSES],
    /// Classes that have frames.
    some: [u64; CLASSES / 64],
    /// For each bucket, the classes that have frames of this age.
    classes: [[u64; CLASSES / 64]; BUCKETS],
    /// The list that is worth least, unless that has to be found out.
    victim: Option<Victim>,
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

/// The list that is worth least, and what that is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Victim {
    class: usize,
    bucket: usize,
    worth: f32,
}

impl Lists {
    pub(super) fn new(worth: Arc<Worth>) -> Self {
        Self {
            ends: Vec::new(),
            rows: [ABSENT; CLASSES],
            worth,
            held: [0; CLASSES],
            least: [(f32::INFINITY, 0); CLASSES],
            some: [0; CLASSES / 64],
            classes: [[0; CLASSES / 64]; BUCKETS],
            victim: None,
        }
    }

    /// The bytes that it takes beside itself.
    pub(super) fn memory(&self) -> usize {
        self.ends.capacity() * size_of::<[Ends; BUCKETS]>()
    }

    fn ends(&mut self, class: usize, bucket: usize) -> &mut Ends {
        &mut self.ends[self.rows[class] as usize][bucket]
    }

    /// Takes over what pages are worth now.
    pub(super) fn learn(&mut self, worth: Arc<Worth>) {
        self.worth = worth;
        for (word, classes) in self.some.into_iter().enumerate() {
            ones(classes).for_each(|class| self.find_least(word * 64 + class));
        }
        self.victim = None;
    }

    /// Appends a frame.
    pub(super) fn push(&mut self, links: &mut Links, frame: u32, class: Class, bucket: usize) {
        let class = class.index();
        if self.rows[class] == ABSENT {
            // Of the tier of pages used once there is one pace only: the rows cannot run out.
            self.rows[class] = self.ends.len() as u8;
            if self.ends.len() == self.ends.capacity() {
                self.ends.reserve_exact(4);
            }
            self.ends.push([Ends::EMPTY; BUCKETS]);
        }
        let ends = self.ends(class, bucket);
        let tail = std::mem::replace(&mut ends.tail, frame);
        links[frame] = Link { previous: tail, next: NONE };
        if tail == NONE {
            ends.head = frame;
            self.filled(class, bucket);
        } else {
            links[tail].next = frame;
        }
    }

    /// Takes a frame of this class out of the list that it stands in.
    pub(super) fn remove(&mut self, links: &mut Links, frame: u32, class: Class) {
        let Link { previous, next } = links[frame];
        if previous != NONE && next != NONE {
            links[previous].next = next;
            links[next].previous = previous;
            return;
        }
        // At an end: of which list of its class? As it is at an end, it can be seen there.
        let class = class.index();
        for bucket in ones(self.held[class] as u64) {
            let ends = self.ends(class, bucket);
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
                    self.emptied(class, bucket);
                }
                return;
            }
        }
        unreachable!("a frame at the end of no list of its class");
    }

    /// The frame that is worth least: the oldest one of its list.
    pub(super) fn victim(&mut self) -> Option<u32> {
        let Victim { class, bucket, .. } = self.find_victim()?;
        Some(self.ends(class, bucket).head)
    }

    /// What the frame that is worth least is worth.
    pub(super) fn least(&mut self) -> Option<f32> {
        self.find_victim().map(|victim| victim.worth)
    }

    /// Takes the victim out.
    ///
    /// # Panics
    ///
    /// If no victim was asked for.
    pub(super) fn pop_victim(&mut self, links: &mut Links) {
        let Victim { class, bucket, .. } = self.victim.expect("a victim was asked for");
        let ends = self.ends(class, bucket);
        let next = links[ends.head].next;
        ends.head = next;
        if next == NONE {
            ends.tail = NONE;
            self.emptied(class, bucket);
        } else {
            links[next].previous = NONE;
        }
    }

    /// Whether pages of this class and age are worth more than those that victims come from.
    pub(super) fn worth_more(&self, class: Class, bucket: usize) -> bool {
        self.victim.is_some_and(|victim| self.worth.of(class, bucket) > victim.worth)
    }

    /// Whether there are frames of this class.
    pub(super) fn holds(&self, class: usize) -> bool {
        self.held[class] != 0
    }

    /// The classes of which there are frames.
    pub(super) fn classes(&self) -> [u64; CLASSES / 64] {
        self.some
    }

    /// Counts the frames of each age: clean ones and dirty ones, as of when they were last sorted.
    pub(super) fn ages(&self, links: &Links) -> [[u64; 2]; BUCKETS] {
        let mut counts = [[0; 2]; BUCKETS];
        for class in self
            .some
            .iter()
            .zip(0..)
            .flat_map(|(&word, at)| ones(word).map(move |bit| at * 64 + bit))
        {
            for bucket in ones(self.held[class] as u64) {
                let mut frame = self.ends[self.rows[class] as usize][bucket].head;
                while frame != NONE {
                    counts[bucket][usize::from(class >= PASTS)] += 1;
                    frame = links[frame].next;
                }
            }
        }
        counts
    }

    /// Lets an epoch pass.
    pub(super) fn tick(&mut self, links: &mut Links, epoch: u32) {
        let mut moved = [0; CLASSES / 64];
        for bucket in (0..BUCKETS - 1).rev() {
            if epoch.is_multiple_of(width(bucket)) {
                for (word, moved) in moved.iter_mut().enumerate() {
                    let classes = std::mem::take(&mut self.classes[bucket][word]);
                    self.classes[bucket + 1][word] |= classes;
                    *moved |= classes;
                    for class in ones(classes) {
                        self.join(links, word * 64 + class, bucket);
                    }
                }
            }
        }
        for (word, &classes) in moved.iter().enumerate() {
            ones(classes).for_each(|class| self.find_least(word * 64 + class));
        }
        self.victim = None;
    }

    /// Appends a list to that of the next age.
    fn join(&mut self, links: &mut Links, class: usize, bucket: usize) {
        let younger = std::mem::replace(self.ends(class, bucket), Ends::EMPTY);
        let older = self.ends(class, bucket + 1);
        if older.tail == NONE {
            *older = younger;
        } else {
            links[older.tail].next = younger.head;
            links[younger.head].previous = older.tail;
            older.tail = younger.tail;
        }
        self.held[class] = self.held[class] & !(1 << bucket) | 1 << (bucket + 1);
    }

    fn filled(&mut self, class: usize, bucket: usize) {
        self.held[class] |= 1 << bucket;
        self.some[class / 64] |= 1 << (class % 64);
        self.classes[bucket][class / 64] |= 1 << (class % 64);
        let worth = self.worth.at(class, bucket);
        if worth < self.least[class].0 {
            self.least[class] = (worth, bucket as u8);
        }
        if self.victim.is_some_and(|victim| worth < victim.worth) {
            self.victim = Some(Victim { class, bucket, worth });
        }
    }

    fn emptied(&mut self, class: usize, bucket: usize) {
        self.held[class] &= !(1 << bucket);
        self.classes[bucket][class / 64] &= !(1 << (class % 64));
        if self.held[class] == 0 {
            self.some[class / 64] &= !(1 << (class % 64));
        }
        self.find_least(class);
        if self.victim.is_some_and(|victim| victim.class == class && victim.bucket == bucket) {
            self.victim = None;
        }
    }

    fn find_least(&mut self, class: usize) {
        let mut least = (f32::INFINITY, 0);
        for bucket in ones(self.held[class] as u64) {
            // Of equal worth, what is older.
            let worth = self.worth.at(class, bucket);
            if worth <= least.0 {
                least = (worth, bucket as u8);
            }
        }
        self.least[class] = least;
    }

    fn find_victim(&mut self) -> Option<Victim> {
        if self.victim.is_none() {
            let mut best = f32::INFINITY;
            for (word, &classes) in self.some.iter().enumerate() {
                for class in ones(classes) {
                    let class = word * 64 + class;
                    let (worth, bucket) = self.least[class];
                    if worth < best {
                        best = worth;
                        self.victim = Some(Victim { class, bucket: bucket as usize, worth });
                    }
                }
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
