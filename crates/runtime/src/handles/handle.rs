//! The handle of an item: await it, block on it, look at it, abort it, or let it go.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use crate::handles::futures::{Outcome, Task};
use crate::item::{JoinError, Joined, drop_quietly, is_polled_here, quietly};
use crate::measure::clock::now_ns;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock, thread};
use crate::threads::help::Waits;
use crate::threads::lend::blocking;
use crate::threads::local::{self, Nested};
use crate::workqueues::state::Mode;

/// A thread that has used so many eighths of its stack lets others run what it waits for.
const STACK_EIGHTHS_MAX: usize = 4;

/// Waits for an item or a future and hands over its result: `await` it, or call
/// [`JoinHandle::join`].
///
/// Dropping the handle neither cancels nor delays the item. As a future, the handle is cancel-safe:
/// dropping it loses nothing but the result. Any executor may poll it. Once it has given its
/// result, it must not be polled any more: it panics, or returns `Cancelled`.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// use homing_runtime::{JoinError, JoinHandle};
///
/// let seven: JoinHandle<u32> = runtime.queue(|| 7);
/// let answer = runtime.spawn(async { Ok::<_, JoinError>(seven.await? * 6) });
/// assert_eq!(answer.join()??, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping the handle lets the item run on; use `.detach()` to say so"]
pub struct JoinHandle<T> {
    of: Of<T>,
}

enum Of<T> {
    Closure(Joined<T>),
    /// The task (`None`: aborted), the number of its workqueue, the waker that awaits it, and its
    /// address. The lock is never contended: it makes `abort` possible with `&self`.
    Future(Mutex<Option<Task<T>>>, u32, Option<Arc<Quiet>>, usize),
}

/// A waker of somebody else, which may panic: the panic must not unwind the worker's stack.
struct Quiet(Waker);

impl Wake for Quiet {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        quietly(|| self.0.wake_by_ref());
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let waker = std::mem::replace(&mut self.0, Waker::noop().clone());
        drop_quietly(waker);
    }
}

impl<T: Send> JoinHandle<T> {
    pub(crate) fn of_closure(joined: Joined<T>) -> Self {
        Self { of: Of::Closure(joined) }
    }

    pub(crate) fn of_future(task: Task<T>, workqueue: u32, address: usize) -> Self {
        Self { of: Of::Future(Mutex::new(Some(task)), workqueue, None, address) }
    }

    /// Blocks until the item has run, and returns its result.
    ///
    /// If a worker calls this, it runs the item at once, on the caller's stack, provided that
    /// nobody has begun the item, its workqueue is neither strict nor has a `cpumask`, is not
    /// freezable and never had a limit, and there is stack left. Otherwise the caller waits as in
    /// [`crate::blocking`], so an item may wait for another one without stopping the CPU that it
    /// runs on. What runs on the caller's stack also sees the thread-local state that the caller
    /// has set. If no thread can be created to take over the caller's CPU, and nobody else can go
    /// on, the caller may run other items meanwhile, on its own stack.
    ///
    /// An item that waits keeps its place among the `max_active` of its workqueue. If all of these
    /// wait for items of the same workqueue that are not let in, they wait for ever.
    ///
    /// # Errors
    /// [`JoinError::Panicked`] with the item's panic. [`JoinError::Cancelled`] if, before the item
    /// had ended, it was aborted, its workqueue was drained or ended, or the runtime was shut down.
    /// A closure has not begun then; a future may have.
    ///
    /// # Panics
    /// If this item has not ended, and the caller is this item itself or an item of the same
    /// [ordered](crate::WorkqueueBuilder::ordered) workqueue: the caller would wait for itself. So
    /// would an item that runs on top of this one for want of threads.
    pub fn join(self) -> Result<T, JoinError> {
        // First, because this thread may run here even an item that it has in hand.
        self.run_here();
        self.check_may_wait();
        self.wait()
    }

    fn check_may_wait(&self) {
        let number = match &self.of {
            Of::Closure(joined) => joined.tag().workqueue(),
            Of::Future(_, workqueue, ..) => *workqueue,
        };
        if self.is_finished() || !local::runs_item_of(number) {
            return;
        }
        let is_beneath = match &self.of {
            Of::Closure(joined) => local::runs_item_in(joined.place()),
            // As long as there is a handle, no other future has this address.
            Of::Future(.., address) => is_polled_here(*address),
        };
        assert!(!is_beneath, "an item waits for itself{}", local::beneath_note());
        let Some(local) = local::current() else { return };
        let workqueue = local.shared.workqueues.find(number);
        if let Some(workqueue) = workqueue.filter(|workqueue| workqueue.kinds.ordered) {
            panic!(
                "an item of the ordered workqueue {} waits for another one of it, which waits for \
                 the first to end{}",
                workqueue.name,
                local::beneath_note()
            );
        }
    }

    /// [`JoinHandle::join`], but never panics.
    pub(crate) fn join_anyway(self) -> Result<T, JoinError> {
        self.run_here();
        self.wait()
    }

    fn wait(mut self) -> Result<T, JoinError> {
        if self.is_finished() {
            return self.join_finished();
        }
        blocking(|| block_on(&mut self))
    }

    /// Usually there is nothing to wait for.
    fn join_finished(mut self) -> Result<T, JoinError> {
        match self.poll_once() {
            Poll::Ready(result) => result,
            // A future that was aborted goes on to its next `await`.
            Poll::Pending => blocking(|| block_on(&mut self)),
        }
    }

    fn poll_once(&mut self) -> Poll<Result<T, JoinError>> {
        let mut nobody = Context::from_waker(Waker::noop());
        local::with_budget(false, || Pin::new(self).poll(&mut nobody))
    }

    /// The result if it is there, else the handle again. Never blocks.
    ///
    /// # Errors
    /// The handle, if the item has not ended.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let mut handle = runtime.queue(|| 6 * 7);
    /// let answer = loop {
    ///     match handle.try_join() {
    ///         Ok(answer) => break answer?,
    ///         Err(unfinished) => handle = unfinished,
    ///     }
    ///     std::thread::yield_now();
    /// };
    /// assert_eq!(answer, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_join(mut self) -> Result<Result<T, JoinError>, Self> {
        if !self.is_finished() {
            return Err(self);
        }
        match self.poll_once() {
            Poll::Ready(result) => Ok(result),
            // It has been aborted, and is being dropped elsewhere.
            Poll::Pending => Err(self),
        }
    }

    /// Cancels the item unless it has begun; a future is dropped at its next `await`. The result is
    /// then [`JoinError::Cancelled`], and the handle is finished, although a future that is being
    /// polled at this moment goes on to its next `await`. Returns whether the call was in time: for
    /// a future, whether it had not ended.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let never = runtime.spawn(std::future::pending::<()>());
    /// assert!(never.abort());
    /// assert!(never.join().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn abort(&self) -> bool {
        match &self.of {
            Of::Closure(joined) => joined.abort(),
            Of::Future(task, ..) => {
                let aborted = lock(task).take_if(|task| !task.is_finished());
                let aborts = aborted.is_some();
                // Dropping the task ends the future. Not under the lock: the future may be dropped
                // here and now, and have a reference to this handle.
                drop(aborted);
                aborts
            }
        }
    }

    /// Lets the item run on without anybody waiting for it.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let (send, receive) = std::sync::mpsc::channel();
    /// runtime.queue(move || send.send("it has run")).detach();
    /// assert_eq!(receive.recv()?, "it has run");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn detach(self) {}

    /// Runs the item if this is a worker of its runtime, unless somebody else has begun it.
    fn run_here(&self) {
        let Of::Closure(joined) = &self.of else { return };
        if joined.is_done() || local::stack_eighths() >= STACK_EIGHTHS_MAX {
            return;
        }
        let Some(known) = local::known(joined.tag().workqueue()) else { return };
        let workqueue = &known.workqueue;
        // A strict item may have its home elsewhere; the gate decides whose turn it is among the
        // others.
        if workqueue.mode().has(Mode::GATED | Mode::BOUND) {
            return;
        }
        let own = Nested::Item(workqueue.number, joined.place());
        let run = || joined.run_here(&*known.books);
        let (_, left) =
            local::nest(own, || if workqueue.kinds.lends() { blocking(run) } else { run() });
        // A worker that came to the item meanwhile has left its end to us. If none did, the worker
        // that comes to what is left of it in the queue notes its end.
        if let Some((item, local)) = left.zip(local::current()) {
            local.shared.cancel(item);
        }
    }
}

impl<T> Of<T> {
    /// [`JoinHandle::is_finished`] without the lock.
    fn is_finished(&mut self) -> bool {
        match self {
            Self::Closure(joined) => joined.is_done(),
            Self::Future(task, ..) => {
                let task = task.get_mut().unwrap_or_else(PoisonError::into_inner);
                task.as_ref().is_none_or(async_task::FallibleTask::is_finished)
            }
        }
    }
}

impl<T> JoinHandle<T> {
    /// Whether the item has ended, in whatever way. Never blocks.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let (end, ended) = std::sync::mpsc::channel::<()>();
    /// let item = runtime.queue(move || ended.recv());
    /// assert!(!item.is_finished());
    /// end.send(())?;
    /// item.join()??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_finished(&self) -> bool {
        match &self.of {
            Of::Closure(joined) => joined.is_done(),
            Of::Future(task, ..) => {
                lock(task).as_ref().is_none_or(async_task::FallibleTask::is_finished)
            }
        }
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Of::Future(task, ..) = &mut self.of {
            let task = task.get_mut().unwrap_or_else(PoisonError::into_inner);
            task.take().into_iter().for_each(async_task::FallibleTask::detach);
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Looking at an item that has not ended costs nothing of the budget. Otherwise a future
        // that waits for more items than the budget has would never get to the last ones.
        if self.of.is_finished() && !local::spend_budget() {
            // Other items first: this future goes on after them.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match &mut self.of {
            Of::Closure(joined) => joined.poll(context.waker()),
            Of::Future(task, _, awaited_by, _) => {
                let task = task.get_mut().unwrap_or_else(PoisonError::into_inner);
                let Some(task) = task else { return Poll::Ready(Err(JoinError::Cancelled)) };
                if local::is_own_waker(context.waker()) {
                    *awaited_by = None;
                    return Pin::new(task).poll(context).map(outcome);
                }
                let known = awaited_by.take().filter(|quiet| quiet.0.will_wake(context.waker()));
                let quiet = known.unwrap_or_else(|| Arc::new(Quiet(context.waker().clone())));
                let waker = Waker::from(Arc::clone(awaited_by.insert(quiet)));
                let ended = Pin::new(task).poll(&mut Context::from_waker(&waker));
                ended.map(outcome)
            }
        }
    }
}

fn outcome<T>(ended: Option<Outcome<T>>) -> Result<T, JoinError> {
    match ended.and_then(Outcome::take) {
        Some(Ok(output)) => Ok(output),
        Some(Err(panic)) => Err(JoinError::panicked(panic)),
        None => Err(JoinError::Cancelled),
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match &self.of {
            Of::Closure(_) => "closure",
            Of::Future(..) => "future",
        };
        f.debug_struct("JoinHandle").field("of", &of).finish_non_exhaustive()
    }
}

struct Unpark {
    thread: thread::Thread,
    /// When the thread was called last.
    called_ns: AtomicU64,
    /// Whether the thread was called since the last poll.
    called: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.called_ns.store(now_ns(), Ordering::Relaxed);
        self.called.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Blocks the thread until the future is ready.
pub(crate) fn block_on<F: Future + Unpin>(future: &mut F) -> F::Output {
    block_on_until(future, None).expect("without a deadline only the future ends the waiting")
}

/// [`block_on`], but not beyond the deadline; `None` if that has passed.
pub(crate) fn block_on_until<F: Future + Unpin>(
    future: &mut F,
    deadline: Option<Instant>,
) -> Option<F::Output> {
    let unpark = Arc::new(Unpark {
        thread: thread::current(),
        called_ns: AtomicU64::new(0),
        called: AtomicBool::new(false),
    });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut context = Context::from_waker(&waker);
    let (mut waited, mut waits_since_ns, mut helper) = (false, None, None);
    loop {
        unpark.called.store(false, Ordering::Relaxed);
        // A thread that waits has no turn to give away, even if a future makes it wait.
        let polled = local::with_budget(false, || Pin::new(&mut *future).poll(&mut context));
        if let Poll::Ready(output) = polled {
            if waited {
                local::issuer_goes_on();
            }
            return Some(output);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let now_ns = now_ns();
        if left.is_some_and(|left| left.is_zero()) {
            // The wait would have been longer.
            if let Some(since_ns) = waits_since_ns {
                local::issuer_waited(now_ns - since_ns);
            }
            return None;
        }
        if local::issuer_waits() {
            (waited, waits_since_ns) = (true, waits_since_ns.or(Some(now_ns)));
        }
        let helper = helper.get_or_insert_with(Waits::begin);
        if helper.as_ref().is_some_and(|it| it.helped(|| unpark.called.load(Ordering::Acquire))) {
            continue;
        }
        match left {
            None => thread::park(),
            Some(left) => thread::park_timeout(left),
        }
        let called_ns = unpark.called_ns.load(Ordering::Relaxed);
        if let Some(since_ns) = waits_since_ns.take_if(|since_ns| called_ns >= *since_ns) {
            local::issuer_waited(called_ns - since_ns);
        }
    }
}
