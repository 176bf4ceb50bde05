//! Doubly linked lists whose links are in one vector, by page.
//!
//! A page is on one list of a [`Links`] at most. Several lists may share the links, and a page
//! moves from one to another without memory.

use crate::policy::Page;

/// No page.
const NIL: Page = Page::MAX;

/// The neighbours of each page.
#[derive(Debug)]
pub(super) struct Links {
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    newer: Page,
    older: Page,
}

/// The ends of a list.
#[derive(Debug)]
pub(super) struct List {
    newest: Page,
    oldest: Page,
    len: usize,
}

impl Links {
    /// Links for this many pages, none of which is on a list.
    pub(super) fn new(pages: usize) -> Self {
        Self { links: vec![Link { newer: NIL, older: NIL }; pages] }
    }

    /// The page on the same list that was put there next after this one.
    pub(super) fn newer(&self, page: Page) -> Option<Page> {
        let newer = self.links[page as usize].newer;
        (newer != NIL).then_some(newer)
    }
}

impl List {
    pub(super) const fn new() -> Self {
        Self { newest: NIL, oldest: NIL, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn oldest(&self) -> Option<Page> {
        (self.oldest != NIL).then_some(self.oldest)
    }

    /// Puts a page that is on no list at the young end.
    pub(super) fn push(&mut self, links: &mut Links, page: Page) {
        links.links[page as usize] = Link { newer: NIL, older: self.newest };
        if self.newest == NIL {
            self.oldest = page;
        } else {
            links.links[self.newest as usize].newer = page;
        }
        self.newest = page;
        self.len += 1;
    }

    /// Takes a page off, which must be on this list.
    pub(super) fn remove(&mut self, links: &mut Links, page: Page) {
        let Link { newer, older } = links.links[page as usize];
        if newer == NIL {
            self.newest = older;
        } else {
            links.links[newer as usize].older = older;
        }
        if older == NIL {
            self.oldest = newer;
        } else {
            links.links[older as usize].newer = newer;
        }
        self.len -= 1;
    }

    /// Takes the oldest page off.
    pub(super) fn pop(&mut self, links: &mut Links) -> Option<Page> {
        let page = self.oldest()?;
        self.remove(links, page);
        Some(page)
    }

    /// Puts a page of this list at its young end.
    pub(super) fn refresh(&mut self, links: &mut Links, page: Page) {
        if page != self.newest {
            self.remove(links, page);
            self.push(links, page);
        }
    }
}
