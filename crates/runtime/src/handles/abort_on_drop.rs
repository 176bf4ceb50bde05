//! A handle whose item ends with it.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::handles::handle::JoinHandle;
use crate::item::JoinError;

/// A [`JoinHandle`] that aborts its item when it is dropped: for work that nobody needs any more
/// once whoever asked for it is gone, as a request of a client that has hung up.
///
/// It is to be awaited; [`AbortOnDrop::into_inner`] gives back the handle for everything else. What
/// dropping it does is what [`JoinHandle::abort`] says: an item that has begun runs to its end, and
/// a future ends at its next `await`.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// use std::sync::Arc;
///
/// let held = Arc::new(());
/// let holds = Arc::clone(&held);
/// let request = runtime.spawn(async move {
///     std::future::pending::<()>().await;
///     drop(holds);
/// });
/// drop(request.abort_on_drop());
/// while Arc::strong_count(&held) > 1 {
///     std::thread::yield_now();
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it aborts the item"]
pub struct AbortOnDrop<T: Send> {
    /// `None` once it was given back.
    handle: Option<JoinHandle<T>>,
}

impl<T: Send> JoinHandle<T> {
    /// Binds the item to the handle: [`AbortOnDrop`] has an example.
    pub fn abort_on_drop(self) -> AbortOnDrop<T> {
        AbortOnDrop { handle: Some(self) }
    }
}

impl<T: Send> AbortOnDrop<T> {
    /// Gives back the handle, whose drop aborts nothing.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let bound = runtime.queue(|| 7).abort_on_drop();
    /// assert_eq!(bound.into_inner().join()?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_inner(mut self) -> JoinHandle<T> {
        self.handle.take().expect("only this takes the handle, with the value")
    }
}

impl<T: Send> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.abort();
        }
    }
}

impl<T: Send> Future for AbortOnDrop<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let handle = self.handle.as_mut().expect("only `into_inner` takes the handle");
        Pin::new(handle).poll(context)
    }
}
