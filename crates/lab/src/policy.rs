//! What a policy is: it hears of every request and decides which pages a cache holds.
//!
//! Pages are dense numbers, so a policy keeps what it knows of them in vectors and hashes nothing.
//! Clocks, threads and data do not occur here.

use crate::replay::{Outcome, replay_with};
use crate::trace::Trace;

/// The dense number of a page, below [`Setup::pages`].
pub type Page = u32;

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The page that is asked for.
    pub page: Page,
    /// Whether the page is written, and so becomes dirty.
    pub write: bool,
    /// The tenant that asks.
    pub tenant: u16,
}

/// Decides what a cache holds.
pub trait Policy {
    /// Serves a request: says whether the page was held (a hit) and appends what had to go to
    /// `evicted`. The page may be evicted itself, at once, if it is not worth its place: that is
    /// how a policy does not admit a page. A miss that is admitted makes the page held.
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool;

    /// Says that a page will be asked for soon: what is known of it may be fetched.
    fn prefetch(&self, _page: Page) {}

    /// How many pages are held now, never more than the capacity.
    fn held(&self) -> usize;
}

/// A policy of which only the name was known. The loop over the requests is compiled for each
/// policy, so that calling through this costs one indirect call a replay.
pub trait AnyPolicy: Policy {
    /// Replays a trace, telling from time to time how many requests are done.
    fn replay_with(&mut self, trace: &Trace, progress: &mut dyn FnMut(usize)) -> Outcome;

    /// Replays a trace.
    fn replay(&mut self, trace: &Trace) -> Outcome {
        self.replay_with(trace, &mut |_| {})
    }
}

impl<P: Policy> AnyPolicy for P {
    fn replay_with(&mut self, trace: &Trace, progress: &mut dyn FnMut(usize)) -> Outcome {
        replay_with(trace, self, progress)
    }
}

/// What a policy is built from.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// How many pages may be held: at least 1, and no more than there are.
    pub capacity: usize,
    /// How many different pages there are.
    pub pages: usize,
    /// The key of each page in the source, such as a block number. Consecutive keys are neighbors
    /// there.
    pub keys: &'a [u64],
    /// All requests to come: only for policies that see the future, which no cache can.
    pub future: &'a Trace,
}

impl<'a> Setup<'a> {
    /// The setup to replay this trace with `capacity` pages. More than the trace has count as all.
    ///
    /// # Panics
    ///
    /// If the capacity is 0.
    pub fn new(trace: &'a Trace, capacity: usize) -> Self {
        assert!(capacity > 0, "a cache holds at least one page");
        let capacity = capacity.min(trace.pages()).max(1);
        Self { capacity, pages: trace.pages(), keys: trace.keys(), future: trace }
    }
}
