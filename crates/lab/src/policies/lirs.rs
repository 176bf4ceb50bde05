//! LIRS: pages are judged by the distance between their last two uses, not by the last one.
//!
//! S. Jiang, X. Zhang, "LIRS: an efficient low inter-reference recency set replacement policy to
//! improve buffer cache performance", SIGMETRICS 2002.
//!
//! Most of the cache holds LIR pages, which were used twice within a short time. The rest, 1 %, is
//! a queue of HIR pages, from which all evictions are. The stack orders LIR pages, and those others
//! that were used since its oldest LIR page, by their last use: one of the others that is asked for
//! while it is on the stack has a shorter distance than the oldest LIR page, and takes its part.
//!
//! The stack remembers pages that are not held. The paper leaves open how many; here the ones that
//! were evicted first are forgotten beyond a multiple of the capacity.

use super::links::{Links, List};
use crate::policy::{Page, Policy, Request, Setup};

/// Share of the queue, from the paper.
const QUEUE_PER_CENT: usize = 1;
/// Pages that are remembered and not held, in capacities.
const GHOSTS_PER_CAPACITY: usize = 2;

/// Low inter-reference recency.
#[derive(Debug)]
pub struct Lirs {
    capacity: usize,
    lir_max: usize,
    lir_count: usize,
    ghosts_max: usize,
    pages: Vec<State>,
    stack_links: Links,
    stack: List,
    /// Links of the queue and of the ghosts: no page is in both.
    queue_links: Links,
    queue: List,
    ghosts: List,
}

#[derive(Clone, Copy, Debug)]
struct State {
    kind: Kind,
    on_stack: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Not held; remembered if it is on the stack.
    Out,
    /// Held, and on the stack.
    Lir,
    /// Held, and in the queue.
    Hir,
}

impl Lirs {
    /// An empty one.
    pub fn new(setup: &Setup) -> Self {
        let queue_len = (setup.capacity * QUEUE_PER_CENT / 100).max(1);
        Self {
            capacity: setup.capacity,
            lir_max: setup.capacity - queue_len,
            lir_count: 0,
            ghosts_max: setup.capacity * GHOSTS_PER_CAPACITY,
            pages: vec![State { kind: Kind::Out, on_stack: false }; setup.pages],
            stack_links: Links::new(setup.pages),
            stack: List::new(),
            queue_links: Links::new(setup.pages),
            queue: List::new(),
            ghosts: List::new(),
        }
    }

    /// Puts a page on top of the stack.
    fn stack_up(&mut self, page: Page) {
        let on_stack = std::mem::replace(&mut self.pages[page as usize].on_stack, true);
        if on_stack {
            self.stack.refresh(&mut self.stack_links, page);
        } else {
            self.stack.push(&mut self.stack_links, page);
        }
    }

    /// Takes pages that are not LIR from the bottom of the stack: they could not become LIR any
    /// more.
    fn prune(&mut self) {
        while let Some(page) = self.stack.oldest() {
            let state = &mut self.pages[page as usize];
            if state.kind == Kind::Lir {
                break;
            }
            state.on_stack = false;
            let ghost = state.kind == Kind::Out;
            self.stack.remove(&mut self.stack_links, page);
            if ghost {
                self.ghosts.remove(&mut self.queue_links, page);
            }
        }
    }

    /// Makes a page on the stack, which is in no queue, LIR; the oldest LIR page goes to the queue
    /// if there are too many.
    fn promote(&mut self, page: Page) {
        self.pages[page as usize].kind = Kind::Lir;
        self.lir_count += 1;
        if self.lir_count > self.lir_max {
            self.prune();
            let oldest = self.stack.pop(&mut self.stack_links).expect("the new one is there");
            self.pages[oldest as usize] = State { kind: Kind::Hir, on_stack: false };
            self.queue.push(&mut self.queue_links, oldest);
            self.lir_count -= 1;
        }
        self.prune();
    }

    fn evict(&mut self) -> Page {
        let page = self.queue.pop(&mut self.queue_links).expect("not all that is held is LIR");
        let state = &mut self.pages[page as usize];
        state.kind = Kind::Out;
        if state.on_stack {
            self.ghosts.push(&mut self.queue_links, page);
            if self.ghosts.len() > self.ghosts_max
                && let Some(forgotten) = self.ghosts.pop(&mut self.queue_links)
            {
                self.stack.remove(&mut self.stack_links, forgotten);
                self.pages[forgotten as usize].on_stack = false;
            }
        }
        page
    }
}

impl Policy for Lirs {
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let page = request.page;
        match self.pages[page as usize].kind {
            Kind::Lir => {
                self.stack_up(page);
                self.prune();
                return true;
            }
            Kind::Hir => {
                let was_on_stack = self.pages[page as usize].on_stack;
                self.stack_up(page);
                if was_on_stack {
                    self.queue.remove(&mut self.queue_links, page);
                    self.promote(page);
                } else {
                    self.queue.refresh(&mut self.queue_links, page);
                    self.prune();
                }
                return true;
            }
            Kind::Out => {}
        }
        if self.held() == self.capacity {
            evicted.push(self.evict());
        }
        let remembered = self.pages[page as usize].on_stack;
        if remembered {
            self.ghosts.remove(&mut self.queue_links, page);
        }
        self.stack_up(page);
        if remembered || self.lir_count < self.lir_max {
            self.promote(page);
        } else {
            self.pages[page as usize].kind = Kind::Hir;
            self.queue.push(&mut self.queue_links, page);
            self.prune();
        }
        false
    }

    fn held(&self) -> usize {
        self.lir_count + self.queue.len()
    }
}
