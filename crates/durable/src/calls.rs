//! Calling those who gave a function to be told by. One that syncs again may have its verdict at once, and so on:
//! on each thread one call runs at a time, and those that come of it follow when it has returned.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::synced::Verdict;

/// What is called with the verdict.
pub(crate) type Call = Box<dyn FnOnce(Verdict) + Send>;

std::thread_local! {
    /// Those that follow; `None` where no call runs.
    static FOLLOW: RefCell<Option<VecDeque<(Call, Verdict)>>> = const { RefCell::new(None) };
}

/// Calls them in turn: now, or after the one that runs on this thread. One that panics has said so, and takes nothing
/// from those behind it.
pub(crate) fn tell(calls: impl IntoIterator<Item = Call>, verdict: &Verdict) {
    let all = calls.into_iter().map(|call| (call, verdict.clone()));
    let is_within = FOLLOW.with_borrow_mut(|follow| match follow {
        Some(follow) => {
            follow.extend(all);
            true
        }
        None => {
            *follow = Some(all.collect());
            false
        }
    });
    if is_within {
        return;
    }
    while let Some((call, verdict)) = next() {
        let _ = catch_unwind(AssertUnwindSafe(|| call(verdict)));
    }
}

fn next() -> Option<(Call, Verdict)> {
    FOLLOW.with_borrow_mut(|follow| {
        let next = follow.as_mut().and_then(VecDeque::pop_front);
        if next.is_none() {
            *follow = None;
        }
        next
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Calls itself that often, each time before it says so.
    fn again(left: u32, sender: Sender<u32>) {
        if left > 0 {
            let next = sender.clone();
            tell([Box::new(move |_| again(left - 1, next)) as Call], &Ok(()));
        }
        sender.send(left).unwrap();
    }

    #[test]
    fn what_calls_for_calls_is_followed_by_them_however_many() {
        let (sender, receiver) = channel();
        let bad: Call = Box::new(|_| panic!("as it should"));
        let first: Call = Box::new(move |_| again(1_000_000, sender));
        tell([first, bad], &Ok(()));
        assert!(receiver.iter().eq((0..=1_000_000).rev()));
    }
}
