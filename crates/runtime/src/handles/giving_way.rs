//! Calls for futures that may go on for long without ever waiting: others get the CPU in between.

use std::future::{Future, poll_fn};
use std::task::Poll;

use crate::threads::local;

/// Gives way to what waits: the future goes on after it.
///
/// On another executor, the effect depends on what the waker does. If this is cancelled, nothing
/// has happened.
///
/// ```
/// use homing_runtime::{Runtime, yield_now};
///
/// let runtime = Runtime::new()?;
/// let counted = runtime.spawn(async {
///     for _ in 0..3 {
///         yield_now().await;
///     }
///     3
/// });
/// assert_eq!(counted.join()?, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn yield_now() -> impl Future<Output = ()> + Send {
    let mut gave_way = false;
    poll_fn(move |context| {
        if std::mem::replace(&mut gave_way, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

/// Takes one from the future's budget, and gives way when the budget is used up: once in 128 calls.
///
/// Awaiting a finished [`JoinHandle`](crate::JoinHandle) does the same. Awaiting anything else does
/// not. A future that takes from a channel that is never empty, or asks a cache that has
/// everything, should call this in its loop. Outside a runtime's futures there is no budget, and
/// this never gives way.
///
/// While some budget is left, a call costs no more than access to a thread-local variable. If this
/// is cancelled, nothing has happened.
///
/// ```
/// use homing_runtime::{Runtime, consume_budget};
///
/// let runtime = Runtime::new()?;
/// let sum = runtime.spawn(async {
///     let mut sum = 0_u64;
///     for number in 0..1_000 {
///         consume_budget().await; // others have the CPU every now and then
///         sum += number;
///     }
///     sum
/// });
/// assert_eq!(sum.join()?, 499_500);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn consume_budget() -> impl Future<Output = ()> + Send {
    poll_fn(|context| {
        if local::spend_budget() {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
}
