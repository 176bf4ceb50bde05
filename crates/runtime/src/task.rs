//! One queued closure and the handle that waits for its result: one allocation, shared.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::sync::lock;
use crate::worker;
use crate::workqueue::Accounts;

/// What a worker can do with an item, whatever its types.
pub(crate) trait Item: Send + Sync {
    /// Runs the item unless somebody else has.
    fn run(&self);
    /// Ends the item without running it.
    fn cancel(&self);
}

/// Why there is no result.
#[non_exhaustive]
pub enum JoinError {
    /// The item panicked; this is what it panicked with.
    Panicked(Box<dyn Any + Send>),
    /// The runtime was shut down before the item ran.
    Cancelled,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str("the runtime was shut down before the item ran"),
            Self::Panicked(payload) => {
                let text = payload.downcast_ref::<&str>().copied();
                let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
                write!(f, "the item panicked: {}", text.unwrap_or("(no message)"))
            }
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}

pub(crate) struct Task<F, T> {
    state: Mutex<State<F, T>>,
    finished: Condvar,
    accounts: Arc<Accounts>,
}

struct State<F, T> {
    stage: Stage<F, T>,
    waker: Option<Waker>,
}

enum Stage<F, T> {
    Queued(F),
    Running,
    Finished(Result<T, JoinError>),
    Taken,
}

impl<F, T> Task<F, T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    pub(crate) fn new(work: F, accounts: Arc<Accounts>) -> Arc<Self> {
        let state = State { stage: Stage::Queued(work), waker: None };
        Arc::new(Self { state: Mutex::new(state), finished: Condvar::new(), accounts })
    }

    fn finish(&self, result: Result<T, JoinError>) {
        let waker = {
            let mut state = lock(&self.state);
            state.stage = Stage::Finished(result);
            state.waker.take()
        };
        self.finished.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whoever replaces the stage `Queued` owns the closure: it runs once or never.
    fn claim(&self) -> Option<F> {
        let mut state = lock(&self.state);
        match mem::replace(&mut state.stage, Stage::Running) {
            Stage::Queued(work) => Some(work),
            other => {
                state.stage = other;
                None
            }
        }
    }
}

impl<F, T> Item for Task<F, T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    fn run(&self) {
        let Some(work) = self.claim() else { return };
        self.accounts.count_started();
        // The closure is gone whether it returns or panics: nothing half-changed is seen again.
        let result = catch_unwind(AssertUnwindSafe(work)).map_err(JoinError::Panicked);
        self.accounts.count_completed(result.is_err());
        self.finish(result);
    }

    fn cancel(&self) {
        if let Some(work) = self.claim() {
            // What the closure holds is dropped here; that it panics must not reach the caller.
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(work)));
            self.finish(Err(dropped.map_or_else(JoinError::Panicked, |()| JoinError::Cancelled)));
        }
    }
}

/// The handle's view of a task: the closure's type is gone.
trait Outcome<T>: Item {
    fn poll(&self, waker: &Waker) -> Poll<Result<T, JoinError>>;
    fn wait(&self) -> Result<T, JoinError>;
    fn is_finished(&self) -> bool;
}

impl<F, T> Outcome<T> for Task<F, T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    fn poll(&self, waker: &Waker) -> Poll<Result<T, JoinError>> {
        let mut state = lock(&self.state);
        match mem::replace(&mut state.stage, Stage::Taken) {
            Stage::Finished(result) => Poll::Ready(result),
            Stage::Taken => panic!("a JoinHandle was polled after it had returned its result"),
            unfinished => {
                state.stage = unfinished;
                match &mut state.waker {
                    Some(known) => known.clone_from(waker),
                    none => *none = Some(waker.clone()),
                }
                Poll::Pending
            }
        }
    }

    fn wait(&self) -> Result<T, JoinError> {
        let mut state = lock(&self.state);
        loop {
            match mem::replace(&mut state.stage, Stage::Taken) {
                Stage::Finished(result) => return result,
                Stage::Taken => panic!("a JoinHandle was joined after it had returned its result"),
                unfinished => state.stage = unfinished,
            }
            state = self.finished.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_finished(&self) -> bool {
        matches!(lock(&self.state).stage, Stage::Finished(_) | Stage::Taken)
    }
}

/// Waits for a queued item and hands over its result: `await` it, or [`JoinHandle::join`].
///
/// Dropping the handle neither cancels nor delays the item.
#[must_use = "dropping the handle lets the item run on; use `.detach()` to say so"]
pub struct JoinHandle<T> {
    task: Arc<dyn Outcome<T>>,
}

impl<T: Send + 'static> JoinHandle<T> {
    pub(crate) fn new<F: FnOnce() -> T + Send + 'static>(task: Arc<Task<F, T>>) -> Self {
        Self { task }
    }

    /// Blocks until the item has run, and returns its result.
    ///
    /// Called from a worker, it runs the item at once if no other worker has begun it: an item
    /// may wait for another one without stopping the CPU it runs on.
    ///
    /// # Errors
    /// [`JoinError::Panicked`] with the item's panic, [`JoinError::Cancelled`] after a shutdown.
    pub fn join(self) -> Result<T, JoinError> {
        if worker::current_cpu().is_some() {
            self.task.run();
        }
        self.task.wait()
    }

    /// Whether the item has run (or was cancelled). Never blocks.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Lets the item run on without anybody waiting.
    pub fn detach(self) {}
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// Cancel-safe: dropping the future loses nothing but the result.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.task.poll(context.waker())
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("finished", &self.task.is_finished()).finish()
    }
}
