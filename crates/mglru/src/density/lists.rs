//! Frames in lists, one for each class and age: the list that is worth least gives the victims.
//!
//! As time passes a list joins that of the next age, whole: two links, however many frames.

use super::age::{BUCKETS, width};
use super::history::{CLASSES, Class};

/// No frame.
const NONE: u32 = u32::MAX;

/// The lists, and which of them is worth least.
#[derive(Debug)]
pub(super) struct Lists {
    links: Vec<Link>,
    ends: Vec<Ends>,
    worth: Box<[[f32; BUCKETS]; CLASSES]>,
    /// For each class, the buckets in which it has frames.
    held: [u32; CLASSES],
    /// For each class, the bucket that is worth least, and its worth.
    least: [(f32, u8); CLASSES],
    /// Classes that have frames.
    some: [u64; CLASSES / 64],
    /// For each bucket, the classes that have frames of this age.
    classes: [[u64; CLASSES / 64]; BUCKETS],
    /// The list that is worth least, unless that has to be found out.
    victim: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
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

fn cell(class: usize, bucket: usize) -> usize {
    class * BUCKETS + bucket
}

impl Lists {
    pub(super) fn new() -> Self {
        Self {
            links: Vec::new(),
            ends: vec![Ends::EMPTY; CLASSES * BUCKETS],
            worth: vec![[0.0; BUCKETS]; CLASSES].try_into().expect("as many as there are classes"),
            held: [0; CLASSES],
            least: [(f32::INFINITY, 0); CLASSES],
            some: [0; CLASSES / 64],
            classes: [[0; CLASSES / 64]; BUCKETS],
            victim: None,
        }
    }

    /// Makes room for this many frames.
    pub(super) fn grow(&mut self, frames: usize) {
        self.links.resize(frames.max(self.links.len()), Link { previous: NONE, next: NONE });
    }

    /// Sets what all pages of a class are worth.
    pub(super) fn set_worth(&mut self, class: usize, worth: [f32; BUCKETS]) {
        self.worth[class] = worth;
        self.find_least(class);
        self.victim = None;
    }

    /// Appends a frame.
    pub(super) fn push(&mut self, frame: u32, class: Class, bucket: usize) {
        let class = class.index();
        let at = cell(class, bucket);
        let ends = &mut self.ends[at];
        self.links[frame as usize] = Link { previous: ends.tail, next: NONE };
        if ends.tail == NONE {
            ends.head = frame;
            ends.tail = frame;
            self.filled(class, bucket);
        } else {
            let tail = std::mem::replace(&mut ends.tail, frame);
            self.links[tail as usize].next = frame;
        }
    }

    /// Takes a frame of this class out of the list that it stands in.
    pub(super) fn remove(&mut self, frame: u32, class: Class) {
        let Link { previous, next } = self.links[frame as usize];
        if previous != NONE && next != NONE {
            self.links[previous as usize].next = next;
            self.links[next as usize].previous = previous;
            return;
        }
        // At an end: of which list of its class? As it is at an end, it can be seen there.
        let class = class.index();
        let mut buckets = self.held[class];
        while buckets != 0 {
            let bucket = buckets.trailing_zeros() as usize;
            let ends = &mut self.ends[cell(class, bucket)];
            if ends.head == frame || ends.tail == frame {
                if ends.head == frame {
                    ends.head = next;
                }
                if ends.tail == frame {
                    ends.tail = previous;
                }
                if previous != NONE {
                    self.links[previous as usize].next = NONE;
                }
                if next != NONE {
                    self.links[next as usize].previous = NONE;
                }
                if ends.head == NONE {
                    self.emptied(class, bucket);
                }
                return;
            }
            buckets &= buckets - 1;
        }
        unreachable!("a frame at the end of no list of its class");
    }

    /// The frame that is worth least: the oldest one of its list.
    pub(super) fn victim(&mut self) -> Option<u32> {
        let at = match self.victim {
            Some(at) => at,
            None => self.find_victim()?,
        };
        Some(self.ends[at].head)
    }

    /// Takes the victim out.
    ///
    /// # Panics
    ///
    /// If no victim was asked for.
    pub(super) fn pop_victim(&mut self) {
        let at = self.victim.expect("a victim was asked for");
        let ends = &mut self.ends[at];
        let next = self.links[ends.head as usize].next;
        ends.head = next;
        if next == NONE {
            ends.tail = NONE;
            self.emptied(at / BUCKETS, at % BUCKETS);
        } else {
            self.links[next as usize].previous = NONE;
        }
    }

    /// Whether pages of this class and age are worth more than those that victims come from.
    pub(super) fn worth_more(&self, class: Class, bucket: usize) -> bool {
        let Some(victim) = self.victim else { return false };
        let worth = self.worth[class.index()][bucket];
        worth > self.worth[victim / BUCKETS][victim % BUCKETS]
    }

    /// Whether there are frames of this class.
    pub(super) fn holds(&self, class: usize) -> bool {
        self.held[class] != 0
    }

    /// Lets an epoch pass.
    pub(super) fn tick(&mut self, epoch: u32) {
        let mut moved = [0; CLASSES / 64];
        for bucket in (0..BUCKETS - 1).rev() {
            if epoch.is_multiple_of(width(bucket)) {
                for (word, moved) in moved.iter_mut().enumerate() {
                    let classes = std::mem::take(&mut self.classes[bucket][word]);
                    self.classes[bucket + 1][word] |= classes;
                    *moved |= classes;
                    for class in ones(classes) {
                        self.join(word * 64 + class, bucket);
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
    fn join(&mut self, class: usize, bucket: usize) {
        let younger = std::mem::replace(&mut self.ends[cell(class, bucket)], Ends::EMPTY);
        let older = &mut self.ends[cell(class, bucket + 1)];
        if older.tail == NONE {
            *older = younger;
        } else {
            self.links[older.tail as usize].next = younger.head;
            self.links[younger.head as usize].previous = older.tail;
            older.tail = younger.tail;
        }
        self.held[class] = self.held[class] & !(1 << bucket) | 1 << (bucket + 1);
    }

    fn filled(&mut self, class: usize, bucket: usize) {
        self.held[class] |= 1 << bucket;
        self.some[class / 64] |= 1 << (class % 64);
        self.classes[bucket][class / 64] |= 1 << (class % 64);
        let worth = self.worth[class][bucket];
        if worth < self.least[class].0 {
            self.least[class] = (worth, bucket as u8);
        }
        if let Some(victim) = self.victim
            && worth < self.worth[victim / BUCKETS][victim % BUCKETS]
        {
            self.victim = Some(cell(class, bucket));
        }
    }

    fn emptied(&mut self, class: usize, bucket: usize) {
        self.held[class] &= !(1 << bucket);
        self.classes[bucket][class / 64] &= !(1 << (class % 64));
        if self.held[class] == 0 {
            self.some[class / 64] &= !(1 << (class % 64));
        }
        self.find_least(class);
        if self.victim == Some(cell(class, bucket)) {
            self.victim = None;
        }
    }

    fn find_least(&mut self, class: usize) {
        let mut least = (f32::INFINITY, 0);
        let mut buckets = self.held[class];
        while buckets != 0 {
            let bucket = buckets.trailing_zeros() as usize;
            // Of equal worth, what is older.
            if self.worth[class][bucket] <= least.0 {
                least = (self.worth[class][bucket], bucket as u8);
            }
            buckets &= buckets - 1;
        }
        self.least[class] = least;
    }

    fn find_victim(&mut self) -> Option<usize> {
        let mut best = (f32::INFINITY, None);
        for (word, &classes) in self.some.iter().enumerate() {
            for class in ones(classes) {
                let (worth, bucket) = self.least[word * 64 + class];
                if worth < best.0 {
                    best = (worth, Some(cell(word * 64 + class, bucket as usize)));
                }
            }
        }
        self.victim = best.1;
        best.1
    }
}

/// The places of the bits that are set.
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (place < 64).then_some(place)
    })
}
