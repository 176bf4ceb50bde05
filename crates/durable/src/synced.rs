//! Waiting for a sync: as a future, or on a thread.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use homing_runtime::{blocking, quietly};

use crate::engine::calls::{Call, tell};
use crate::error::DurabilityError;
use crate::sync::{Condvar, Mutex, MutexGuard, lock};

/// What came of a sync.
pub(crate) type Verdict = Result<(), DurabilityError>;

/// Where the verdict of a sync arrives, for all callers that share it.
#[derive(Default)]
pub(crate) struct Outcome {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    verdict: Option<Verdict>,
    /// How many threads wait.
    threads: usize,
    calls: Vec<Call>,
    /// By place: a future has one place, whoever polls it.
    wakers: Vec<Option<Waker>>,
    /// Places of futures that are gone.
    free: Vec<usize>,
}

impl Outcome {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn set(&self, verdict: &Verdict) {
        self.note(verdict);
        self.tell(verdict);
    }

    /// Notes the verdict: callers that ask from now on hear it. Those that wait do not yet: if many
    /// verdicts come at a time, all are noted first, or a caller that waits for all of them would
    /// be woken for each. Returns whether telling them runs code of others, which may take long.
    pub(crate) fn note(&self, verdict: &Verdict) -> bool {
        let mut state = self.state();
        state.verdict = Some(verdict.clone());
        !state.calls.is_empty()
    }

    /// Tells the callers that wait what has been noted.
    pub(crate) fn tell(&self, verdict: &Verdict) {
        let (threads, wakers, calls) = {
            let mut state = self.state();
            let wakers = std::mem::take(&mut state.wakers);
            (state.threads, wakers, std::mem::take(&mut state.calls))
        };
        if threads > 0 {
            self.changed.notify_all();
        }
        for waker in wakers.into_iter().flatten() {
            // As with calls, a panic goes no further.
            quietly(|| waker.wake());
        }
        tell(calls, verdict);
    }

    /// Calls this with the verdict: now if it is there, else on the thread that brings it.
    pub(crate) fn call(&self, call: impl FnOnce(Verdict) + Send + 'static) {
        let mut state = self.state();
        if let Some(verdict) = state.verdict.clone() {
            drop(state);
            tell([Box::new(call) as Call], &verdict);
        } else {
            state.calls.push(Box::new(call));
        }
    }

    pub(crate) fn wait(&self) -> Verdict {
        let mut state = self.state();
        state.threads += 1;
        let no_verdict = |state: &mut State| state.verdict.is_none();
        let state = self.changed.wait_while(state, no_verdict);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        state.threads -= 1;
        state.verdict.clone().expect("it has been waited for")
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome").field("verdict", &self.state().verdict).finish_non_exhaustive()
    }
}

/// A sync that has begun. Await it, or [`wait`](Synced::wait). Dropping it loses nothing: the sync
/// runs on, and a failure is kept for the file.
///
/// Its waker is called by a thread that continues with the syncs of other callers. So the waker
/// must not wait for a sync; those of executors never do. For a function that waits, use
/// [`Durable::fdatasync_and_then`](crate::Durable::fdatasync_and_then).
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// # let file = tempfile::tempfile()?;
/// let synced = durable.fsync(&file);
/// durable.fsync(&file).detach(); // the file's next sync tells whether it failed
/// runtime.spawn(synced).join()??;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the sync runs on, but only this tells whether it failed; `.detach()` says you know"]
pub struct Synced {
    pub(crate) outcome: Arc<Outcome>,
    place: Option<usize>,
}

impl Synced {
    pub(crate) fn of(outcome: Arc<Outcome>) -> Self {
        Self { outcome, place: None }
    }

    pub(crate) fn done(verdict: &Verdict) -> Self {
        let outcome = Outcome::default();
        outcome.set(verdict);
        Self::of(Arc::new(outcome))
    }

    /// Blocks until the file is durable. If a worker waits here, its CPU is free for other items
    /// meanwhile.
    ///
    /// # Errors
    /// [`DurabilityError`] if it did not become durable.
    pub fn wait(self) -> Result<(), DurabilityError> {
        blocking(|| self.outcome.wait())
    }

    /// Whether the verdict is available.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let file = tempfile::tempfile()?;
    /// let synced = durable.fsync(&file);
    /// while !synced.is_finished() {
    ///     std::thread::yield_now();
    /// }
    /// synced.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_finished(&self) -> bool {
        self.outcome.state().verdict.is_some()
    }

    /// Lets the sync run on without waiting for its verdict; the next sync of the file reports a
    /// failure.
    pub fn detach(self) {}
}

impl Future for Synced {
    type Output = Result<(), DurabilityError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut state = this.outcome.state();
        if let Some(verdict) = &state.verdict {
            return Poll::Ready(verdict.clone());
        }
        let waker = context.waker();
        let place = *this.place.get_or_insert_with(|| {
            state.free.pop().unwrap_or_else(|| {
                state.wakers.push(None);
                state.wakers.len() - 1
            })
        });
        let known = &mut state.wakers[place];
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            let old = known.replace(waker.clone());
            // Dropping a waker may come back here.
            drop(state);
            drop(old);
        }
        Poll::Pending
    }
}

impl Drop for Synced {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let mut state = self.outcome.state();
            // Once the verdict has been told, there is no waker, and no place is needed any more.
            let waker = state.wakers.get_mut(place).and_then(Option::take);
            if state.verdict.is_none() {
                state.free.push(place);
            }
            // As above.
            drop(state);
            drop(waker);
        }
    }
}

/// Nobody is to take an empty list for the verdicts.
const TOLD: &str = "the verdicts of these syncs have been returned before";

/// Many syncs that have begun.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// # let files = [tempfile::tempfile()?, tempfile::tempfile()?];
/// let all: homing_durable::SyncedMany = durable.fsync_many(&files);
/// let verdicts = runtime.spawn(all).join()?;
/// assert_eq!(verdicts, [Ok(()), Ok(())]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the syncs run on, but only this tells whether they failed"]
pub struct SyncedMany {
    pub(crate) all: VecDeque<Synced>,
    done: Vec<Verdict>,
    /// Whether the verdicts have been returned.
    told: bool,
}

impl SyncedMany {
    pub(crate) fn of(all: Vec<Synced>) -> Self {
        Self { all: all.into(), done: Vec::new(), told: false }
    }

    /// Blocks until all have ended. Returns the verdict of each, in the order of the files.
    ///
    /// # Panics
    /// If it was awaited before, and has returned the verdicts then. The future panics, too, if it
    /// is polled after that.
    pub fn wait(self) -> Vec<Result<(), DurabilityError>> {
        let Self { all, mut done, told } = self;
        assert!(!told, "{TOLD}");
        blocking(|| done.extend(all.iter().map(|synced| synced.outcome.wait())));
        done
    }
}

impl Future for SyncedMany {
    type Output = Vec<Result<(), DurabilityError>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        assert!(!this.told, "{TOLD}");
        // One after the other: they end at about the same time, and only one waker is kept at a
        // time.
        while let Some(first) = this.all.front_mut() {
            let Poll::Ready(verdict) = Pin::new(first).poll(context) else {
                return Poll::Pending;
            };
            this.done.push(verdict);
            this.all.pop_front();
        }
        this.told = true;
        Poll::Ready(std::mem::take(&mut this.done))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn futures_of_one_sync_are_woken_once_each_and_give_their_places_back() {
        let outcome = Arc::new(Outcome::default());
        let woken: [Arc<Counting>; 3] = Default::default();
        let poll = |synced: &mut Synced, by: usize| {
            let waker = Waker::from(Arc::clone(&woken[by]));
            Pin::new(synced).poll(&mut Context::from_waker(&waker))
        };
        let mut kept: Vec<Synced> = Vec::new();
        for round in 0..1000 {
            let mut synced = Synced::of(Arc::clone(&outcome));
            assert!(poll(&mut synced, 0).is_pending() && poll(&mut synced, 1).is_pending());
            // Nobody waits any more for any but the last ten.
            if round >= 990 {
                kept.push(synced);
            }
        }
        assert_eq!(outcome.state().wakers.len(), 10);
        assert_eq!(Arc::strong_count(&woken[1]), 11);
        outcome.set(&Ok(()));
        let counts = woken.each_ref().map(|woken| woken.0.load(SeqCst));
        assert_eq!(counts, [0, 10, 0]);
        assert!(kept.iter_mut().all(|synced| poll(synced, 2).is_ready()));
        drop(kept);
        assert_eq!(Arc::strong_count(&woken[2]), 1);
    }

    #[test]
    fn verdicts_are_returned_once() {
        let mut many = SyncedMany::of(vec![Synced::done(&Ok(()))]);
        let ready = Pin::new(&mut many).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(ready, Poll::Ready(vec![Ok(())]));
        let waited = std::panic::catch_unwind(|| many.wait());
        assert!(waited.is_err());
    }
}
