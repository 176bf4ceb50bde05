//! A queue of pages of bounded length, in one allocation.

use crate::policy::Page;

/// A queue of pages.
#[derive(Debug)]
pub(super) struct Ring {
    slots: Box<[Page]>,
    /// The slot of the oldest page.
    head: usize,
    len: usize,
}

impl Ring {
    pub(super) fn new(capacity: usize) -> Self {
        Self { slots: vec![0; capacity].into(), head: 0, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == self.slots.len()
    }

    /// Appends a page; there must be room.
    pub(super) fn push(&mut self, page: Page) {
        debug_assert!(!self.is_full(), "a ring of {} pages is full", self.len);
        let mut tail = self.head + self.len;
        if tail >= self.slots.len() {
            tail -= self.slots.len();
        }
        self.slots[tail] = page;
        self.len += 1;
    }

    /// Takes the oldest page.
    pub(super) fn pop(&mut self) -> Option<Page> {
        if self.len == 0 {
            return None;
        }
        let page = self.slots[self.head];
        self.head += 1;
        if self.head == self.slots.len() {
            self.head = 0;
        }
        self.len -= 1;
        Some(page)
    }

    /// Takes the oldest page of a full ring and appends one.
    pub(super) fn replace(&mut self, page: Page) -> Page {
        debug_assert!(self.is_full(), "a ring with room has nothing to replace");
        let oldest = std::mem::replace(&mut self.slots[self.head], page);
        self.head += 1;
        if self.head == self.slots.len() {
            self.head = 0;
        }
        oldest
    }
}
