//! Work that borrows from the stack of the thread that waits for it.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::handles::handle::JoinHandle;
use crate::item::{self, JoinError, Joined, drop_quietly};
use crate::sync::{Mutex, lock};
use crate::threads::local;
use crate::workqueues::workqueue::Workqueue;

/// Queues work that may borrow anything that lives longer than the scope: see [`Workqueue::scope`].
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// use homing_runtime::WorkScope;
///
/// fn double<'scope>(scope: &'scope WorkScope<'scope, '_>, numbers: &'scope mut [u32]) {
///     let Some((first, others)) = numbers.split_first_mut() else { return };
///     scope.queue(|| double(scope, others)); // items may queue more
///     *first *= 2;
/// }
/// let mut numbers = [1, 2, 3];
/// runtime.scope(|scope| double(scope, &mut numbers));
/// assert_eq!(numbers, [2, 4, 6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WorkScope<'scope, 'env: 'scope> {
    workqueue: &'scope Workqueue,
    queued: Mutex<Queued>,
    /// Invariant in both lifetimes, like `std::thread::scope`: neither may be shortened.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// What the scope waits for at its end.
#[derive(Default)]
struct Queued {
    handles: Vec<Joined<()>>,
    /// At this number of handles, those of items that have ended are thrown out.
    sweep_at: usize,
    /// The first item that panicked or did not run.
    failed: Option<JoinError>,
}

const SWEEP_AT_LEAST: usize = 64;

impl Workqueue {
    /// Calls `body` with a scope whose items may borrow from outside it, and waits for all of these
    /// items.
    ///
    /// At the end, if the calling thread is a worker, it runs those of the scope's items that
    /// nobody has begun, latest first, while other workers take them from the other side.
    ///
    /// If an item of the same workqueue calls this, and that workqueue has a
    /// [limit](crate::WorkqueueBuilder::max_active), the item waits for others and keeps its own
    /// place. If there is only one place, it waits for ever.
    ///
    /// # Panics
    /// At once, in an item of the same [ordered](crate::WorkqueueBuilder::ordered) workqueue.
    ///
    /// With the first panic of an item, after all items have ended, if any item panicked. Also if
    /// the runtime was shut down, or the workqueue drained by another caller, before all items had
    /// run.
    ///
    /// ```
    /// # use homing_runtime::Runtime;
    /// # let runtime = Runtime::new()?;
    /// let sums = runtime.workqueue("sums").build()?;
    /// let mut squares = [1_u64, 2, 3, 4];
    /// sums.scope(|scope| {
    ///     for number in &mut squares {
    ///         scope.queue(move || *number *= *number);
    ///     }
    /// });
    /// assert_eq!(squares, [1, 4, 9, 16]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scope<'env, R>(
        &self,
        body: impl for<'scope> FnOnce(&'scope WorkScope<'scope, 'env>) -> R,
    ) -> R {
        let state = self.state();
        assert!(
            !(state.kinds.ordered && local::runs_item_of(state.number)),
            "a scope of the ordered workqueue {} in one of its own items: it would wait for itself{}",
            self.name(),
            local::beneath_note()
        );
        let scope = WorkScope {
            workqueue: self,
            queued: Mutex::default(),
            scope: PhantomData,
            env: PhantomData,
        };
        // Items may borrow from what `body` unwinds through, so they end first, whatever happens.
        let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        let failed = scope.wait_for_all();
        match (result, failed) {
            (Err(panic), failed) => {
                drop_quietly(failed);
                resume_unwind(panic)
            }
            (Ok(result), Some(JoinError::Panicked(panic))) => {
                drop_quietly(result);
                resume_unwind(panic.into_payload())
            }
            (Ok(_), Some(JoinError::Cancelled)) => {
                panic!(
                    "not all items of the scope of workqueue {} have run: it was destroyed, or drained by somebody else, \
                     or the runtime was shut down",
                    self.name()
                )
            }
            (Ok(result), None) => result,
        }
    }
}

impl<'scope> WorkScope<'scope, '_> {
    /// Queues `work`. The scope's body and its items may call this.
    pub fn queue<F: FnOnce() + Send + 'scope>(&'scope self, work: F) {
        // SAFETY: `scope` returns only when all handles have been seen finished, also when `body`
        // panics: by then the closure is gone. Its result, `()`, borrows nothing.
        let (item, joined) = unsafe { item::joined_borrowing(self.workqueue.tag(), work) };
        let mut queued = lock(&self.queued);
        if queued.handles.len() >= queued.sweep_at.max(SWEEP_AT_LEAST) {
            queued.sweep();
        }
        queued.handles.push(joined);
        drop(queued);
        // The handle is kept before anybody can run the item, and queue more from there.
        self.workqueue.push(None, item);
    }

    fn wait_for_all(&self) -> Option<JoinError> {
        // Items that are left would go on using what the unwinding frees.
        let guard = AbortOnUnwind;
        loop {
            // Items may queue more while we wait.
            let Some(joined) = lock(&self.queued).handles.pop() else { break };
            if let Err(error) = JoinHandle::of_closure(joined).join_anyway() {
                lock(&self.queued).note(error);
            }
        }
        std::mem::forget(guard);
        lock(&self.queued).failed.take()
    }
}

/// No item's panic gets here, but a panic in a subscriber of `tracing` does.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        eprintln!("homing: a panic while a scope waits for items that borrow from it");
        std::process::abort();
    }
}

impl Queued {
    /// Keeps the first error. What a later item panicked with may itself panic when it is dropped.
    /// That must not end the waiting for items that still borrow.
    fn note(&mut self, error: JoinError) {
        match &self.failed {
            None => self.failed = Some(error),
            Some(_) => drop_quietly(error),
        }
    }

    fn sweep(&mut self) {
        let ended: Vec<_> = self.handles.extract_if(.., |joined| joined.is_done()).collect();
        for joined in ended {
            if let Err(error) = JoinHandle::of_closure(joined).join_anyway() {
                self.note(error);
            }
        }
        self.sweep_at = self.handles.len() * 2;
    }
}

impl fmt::Debug for WorkScope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkScope").field("workqueue", &self.workqueue).finish_non_exhaustive()
    }
}
