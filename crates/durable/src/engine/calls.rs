//! Calls the functions that callers gave to be told a verdict. Such a function may sync again, and
//! get its verdict at once, within the call, and so may the next one. To keep the stack bounded,
//! calls that are nested too deeply are left to a worker.
//!
//! They are not queued to run one after the other on this thread, because a call may wait for the
//! next one.

use std::cell::Cell;

use homing_runtime::quietly;

use crate::sync::thread_local;
use crate::synced::Verdict;

/// What is called with the verdict.
pub(crate) type Call = Box<dyn FnOnce(Verdict) + Send>;

/// How deeply calls may be nested on a thread. Guessed: far below what a stack holds.
const DEPTH_MAX: u32 = 16;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Calls them in turn. A call that panics has reported that, and the ones behind it are still made.
pub(crate) fn tell(calls: impl IntoIterator<Item = Call>, verdict: &Verdict) {
    let depth = DEPTH.with(Cell::get);
    DEPTH.with(|current| current.set(depth + 1));
    for call in calls {
        quietly(|| call(verdict.clone()));
    }
    DEPTH.with(|current| current.set(depth));
}

/// Whether calls on this thread are nested as deeply as they may be. Then a caller that asks for a
/// sync must be called by another thread.
pub(crate) fn is_deep() -> bool {
    DEPTH.with(Cell::get) >= DEPTH_MAX
}
