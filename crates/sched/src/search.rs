//! Whether a worker without work stays awake and searches before it parks, and for how long.

/// What a sleep and the wake-up from it cost together, in nanoseconds. Measured: 5 to 15 us on
/// current x86-64 servers, half of it on the waker's side.
pub const SLEEP_COST_NS: u64 = 10_000;

/// What one worker knows about its searches: how long the gaps between work have been lately, and
/// whether it has searched since it last had work. It searches once for each wake-up or batch.
///
/// The gap is a running mean that rises at once and falls slowly, so that one long sleep among
/// short gaps ends the searching for a while.
///
/// ```
/// use homing_sched::{SLEEP_COST_NS, Search};
///
/// let mut busy = Search::UNKNOWN;
/// assert_eq!(busy.search_ns(false), 0, "as if the last gap had been long");
/// (0..200).for_each(|_| busy.woken(2_000));
/// assert_eq!(busy.search_ns(false), SLEEP_COST_NS);
/// assert_eq!(busy.search_ns(true), 0, "others want the CPU");
///
/// busy.ended(Some(1_500)); // somebody queued an item meanwhile
/// assert_eq!(busy.search_ns(false), 0, "only once");
/// assert!(busy.takes(), "nobody was woken for it, nor for what came with it");
/// assert_eq!(busy.search_ns(false), SLEEP_COST_NS, "after that item");
/// busy.ended(None);
/// busy.slept(); // until its time was over
/// assert_eq!(busy.search_ns(false), SLEEP_COST_NS);
///
/// busy.woken(1_000_000);
/// assert_eq!(busy.search_ns(false), 0, "it would be in vain");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    gap_ns: u64,
    /// Whether a search that has ended since the last batch or sleep found something.
    searched: Option<bool>,
}

impl Search {
    /// Before anything is known: as if the last gap had been long.
    pub const UNKNOWN: Self = Self { gap_ns: u64::MAX / 2, searched: None };

    /// How long to search before parking; 0 means to park at once.
    ///
    /// Searching pays if work comes before a sleep would have been over: then it costs at most what
    /// the sleep does. So it never lasts longer than that. The worker does not search at all if
    /// work has been coming later than that lately, or if somebody else wants the CPU (`occupied`),
    /// nor a second time before it had work.
    pub const fn search_ns(&self, occupied: bool) -> u64 {
        let in_vain = self.gap_ns >= SLEEP_COST_NS || self.searched.is_some();
        if occupied || in_vain { 0 } else { SLEEP_COST_NS }
    }

    /// Notes that a search has ended: it found work this long after work had run out, or it found
    /// none.
    pub const fn ended(&mut self, found_after_ns: Option<u64>) {
        self.searched = Some(found_after_ns.is_some());
        if let Some(gap_ns) = found_after_ns {
            self.note(gap_ns);
        }
    }

    /// Notes that the worker takes a batch. Returns whether a search has found it: nobody was woken
    /// for anything meanwhile, so if more work waits, a worker must be woken now.
    pub const fn takes(&mut self) -> bool {
        matches!(self.searched.take(), Some(true))
    }

    /// Notes that the worker has slept, and was woken this long after work had run out.
    pub const fn woken(&mut self, gap_ns: u64) {
        self.slept();
        self.note(gap_ns);
    }

    /// Notes that the worker has slept without being woken.
    pub const fn slept(&mut self) {
        self.searched = None;
    }

    const fn note(&mut self, gap_ns: u64) {
        self.gap_ns = if gap_ns >= self.gap_ns {
            gap_ns
        } else {
            self.gap_ns - (self.gap_ns - gap_ns).div_ceil(4)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_while_gaps_are_short_and_nobody_wants_the_cpu() {
        let mut search = Search::UNKNOWN;
        assert_eq!(search.search_ns(false), 0);
        let mut noted = 0;
        while search.search_ns(false) == 0 {
            search.woken(2_000);
            noted += 1;
        }
        assert!(noted < 200, "{noted}");
        assert_eq!(search.search_ns(false), SLEEP_COST_NS);
        assert_eq!(search.search_ns(true), 0);
        search.woken(1_000_000);
        assert_eq!(search.search_ns(false), 0, "one long gap");
        (0..12).for_each(|_| search.woken(2_000));
        assert_eq!(search.search_ns(false), 0);
        (0..12).for_each(|_| search.woken(2_000));
        assert!(search.search_ns(false) > 0, "twenty-four short ones");
    }

    #[test]
    fn searches_once_until_there_was_work_or_a_sleep() {
        let mut known = Search::UNKNOWN;
        (0..200).for_each(|_| known.woken(2_000));
        for found in [None, Some(2_000)] {
            let mut search = known;
            assert!(!search.takes(), "it has not searched");
            search.ended(found);
            assert_eq!(search.search_ns(false), 0);
            let mut after_sleep = search;
            after_sleep.slept();
            assert!(after_sleep.search_ns(false) > 0);
            assert_eq!(search.takes(), found.is_some());
            assert!(search.search_ns(false) > 0 && !search.takes());
        }
    }

    #[test]
    fn whoever_is_woken_may_search_again_and_what_a_search_found_counts() {
        let mut search = Search::UNKNOWN;
        (0..200).for_each(|_| search.woken(2_000));
        search.ended(None);
        assert_eq!(search.search_ns(false), 0, "it searches once");
        search.woken(2_000);
        assert_eq!(search.search_ns(false), SLEEP_COST_NS);
        search.ended(Some(1_000_000));
        assert!(search.takes());
        assert_eq!(search.search_ns(false), 0, "that was a long gap");
    }
}
