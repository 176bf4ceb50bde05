//! Futures: each time one is woken, continuing it is an item of its workqueue.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;
use slab::Slab;

use crate::item::{self, Place, Runnable, drop_quietly, quietly};
use crate::shared::Shared;
use crate::sync::{Mutex, lock};
use crate::threads::local;
use crate::threads::rescuer::Rescuer;
use crate::workqueues::queueing::Origin;
use crate::workqueues::state::WorkqueueState;

/// What a future ended with: its output, or what it panicked with. If nobody takes that, it is
/// dropped without a panic, which would end the process there.
pub(crate) struct Outcome<T>(Option<Result<T, Box<dyn Any + Send>>>);

impl<T> Outcome<T> {
    /// Hands it over.
    pub(crate) fn take(mut self) -> Option<Result<T, Box<dyn Any + Send>>> {
        self.0.take()
    }
}

impl<T> Drop for Outcome<T> {
    fn drop(&mut self) {
        if let Some(outcome) = self.0.take() {
            drop_quietly(outcome);
        }
    }
}

pin_project! {
    /// A future of a runtime, which is dropped without a panic, whether it has begun or not. This
    /// is not an async block, which would have one place for the future before it begins and
    /// another for later.
    struct Spawned<F> {
        #[pin]
        future: Option<F>,
        entry: Entry,
    }

    impl<F> PinnedDrop for Spawned<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // The future may hold sockets and timers of tokio.
            #[cfg(feature = "tokio")]
            let _entered = this.entry.enter();
            quietly(|| this.future.set(None));
        }
    }
}

impl<F: Future> Future for Spawned<F> {
    type Output = Outcome<F::Output>;

    /// Goes on with the future, and drops it when it has ended.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        #[cfg(feature = "tokio")]
        let _entered = this.entry.enter();
        // After a panic the future is not polled again: nothing half-changed is seen.
        let poll = || {
            let future =
                this.future.as_mut().as_pin_mut().expect("it is polled until it has ended");
            let polled = local::polling(context, |context| future.poll(context));
            if polled.is_ready() {
                this.future.set(None);
            }
            polled
        };
        match item::polled(|| catch_unwind(AssertUnwindSafe(poll)), Result::is_err) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Outcome(Some(Ok(output)))),
            Err(panic) => Poll::Ready(Outcome(Some(Err(panic)))),
        }
    }
}

/// The handle's side. Dropping it ends the future.
pub(crate) type Task<T> = async_task::FallibleTask<Outcome<T>, Place>;

/// All futures of a runtime that have not ended. At shutdown they are woken, to be told.
#[derive(Debug)]
pub(crate) struct Futures {
    /// Futures are entered here by turns, so that spawning threads seldom meet.
    shards: Box<[Mutex<Slab<Waker>>]>,
    turn: AtomicUsize,
}

impl Futures {
    pub(crate) fn new(cpus: usize) -> Self {
        let shards = cpus.next_power_of_two().min(64);
        Self {
            shards: (0..shards).map(|_| Mutex::new(Slab::new())).collect(),
            turn: AtomicUsize::new(0),
        }
    }

    fn enter(&self) -> (usize, usize) {
        let shard = self.turn.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
        (shard, lock(&self.shards[shard]).insert(Waker::noop().clone()))
    }

    fn set_waker(&self, (shard, key): (usize, usize), waker: Waker) {
        // There is no place if the future has ended already.
        if let Some(place) = lock(&self.shards[shard]).get_mut(key) {
            *place = waker;
        }
    }

    /// Wakes all of them, after the queues were closed. Their items are refused, so they end.
    pub(crate) fn wake_all(&self) {
        for shard in &self.shards {
            let wakers: Vec<Waker> = lock(shard).iter().map(|(_, waker)| waker.clone()).collect();
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

/// A future's entry, given back when the future is dropped.
struct Entry {
    shared: Arc<Shared>,
    place: (usize, usize),
    /// Its workqueue, if that counts its futures.
    counted: Option<Arc<WorkqueueState>>,
}

#[cfg(feature = "tokio")]
impl Entry {
    /// Lets the future use tokio, if the runtime was built with a handle.
    fn enter(&self) -> Option<tokio::runtime::EnterGuard<'_>> {
        self.shared.settings.tokio.as_ref().map(tokio::runtime::Handle::enter)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let (shard, key) = self.place;
        let waker = lock(&self.shared.futures.shards[shard]).try_remove(key);
        // Outside the lock: this may be the last thing that keeps the future's allocation.
        drop(waker);
        if let Some(workqueue) = &self.counted
            && workqueue.futures.fetch_sub(1, Ordering::SeqCst) == 1
        {
            workqueue.rescuer.get().into_iter().for_each(Rescuer::futures_ended);
        }
    }
}

/// Starts a future on a workqueue. Also returns the address by which
/// [`is_polled_here`](item::is_polled_here) knows it.
pub(crate) fn spawn<F>(
    shared: &Arc<Shared>,
    workqueue: &Arc<WorkqueueState>,
    future: F,
) -> (Task<F::Output>, usize)
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let place = shared.futures.enter();
    let counted = workqueue.rescuer.get().is_some().then(|| {
        workqueue.futures.fetch_add(1, Ordering::Relaxed);
        Arc::clone(workqueue)
    });
    let entry = Entry { shared: Arc::clone(shared), place, counted };
    let whole = Spawned { future: Some(future), entry };
    let schedule = {
        let (shared, workqueue) = (Arc::clone(shared), Arc::clone(workqueue));
        let fresh = AtomicBool::new(true);
        move |runnable: Runnable| {
            let origin =
                if fresh.swap(false, Ordering::Relaxed) { Origin::New } else { Origin::GoesOn };
            shared.push(&workqueue, None, item::resumed(workqueue.tag(), runnable), origin);
        }
    };
    let builder = async_task::Builder::new().metadata(Place::new(workqueue.tag()));
    let (runnable, task) = builder.spawn(move |_| whole, schedule);
    shared.futures.set_waker(place, runnable.waker());
    let address = runnable.metadata().address();
    runnable.schedule();
    (task.fallible(), address)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_future_takes_its_own_size_once() {
        fn spawned<F: Future>(_: &F) -> usize {
            size_of::<Spawned<F>>()
        }
        let held = [0_u8; 1000];
        let future = async move {
            std::future::pending::<()>().await;
            std::hint::black_box(&held);
        };
        let (own, whole) = (size_of_val(&future), spawned(&future));
        assert!(whole <= own + 48, "{whole} bytes for a future of {own}");
    }
}
