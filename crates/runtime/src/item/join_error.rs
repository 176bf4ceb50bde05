//! Why there is no result.

use std::any::Any;
use std::fmt;
// Nothing is shared here that the models of loom look at.
use std::sync::{Mutex, PoisonError};

/// Why there is no result.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// use homing_runtime::JoinError;
///
/// let error = runtime.queue(|| -> u32 { panic!("no disk") }).join().unwrap_err();
/// assert_eq!(error.to_string(), "the item panicked: no disk");
/// let never = runtime.spawn(std::future::pending::<u32>());
/// never.abort();
/// assert!(matches!(never.join(), Err(JoinError::Cancelled)));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[non_exhaustive]
pub enum JoinError {
    /// The item panicked.
    Panicked(ItemPanic),
    /// Before it had ended, the item was aborted, or refused by its workqueue or by its runtime,
    /// which was shut down. A closure has not begun then; a future may have done any number of
    /// steps.
    Cancelled,
}

impl JoinError {
    pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> Self {
        Self::Panicked(ItemPanic(Box::new(Mutex::new(payload))))
    }
}

// In a mutex, because the payload need not be `Sync`, and errors of most programs have to be. In a
// box, because each item that is joined has room for its error.
/// What an item panicked with.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// use homing_runtime::JoinError;
///
/// let joined = runtime.queue(|| std::panic::panic_any(7_u32)).join();
/// let Err(JoinError::Panicked(panic)) = joined else { panic!("it panicked") };
/// assert_eq!(panic.message(), None, "it is no text");
/// // Or std::panic::resume_unwind.
/// assert_eq!(panic.into_payload().downcast_ref(), Some(&7_u32));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ItemPanic(Box<Mutex<Box<dyn Any + Send>>>);

impl ItemPanic {
    /// The payload of the panic.
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The payload of the panic, if it is text.
    pub fn message(&self) -> Option<String> {
        let payload = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| payload.downcast_ref::<String>().cloned())
    }
}

impl fmt::Debug for ItemPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ItemPanic").field(&self.message()).finish()
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str(
                "the item was aborted or refused, or the runtime shut down, before it had ended",
            ),
            Self::Panicked(panic) => {
                let message = panic.message();
                write!(f, "the item panicked: {}", message.as_deref().unwrap_or("(no message)"))
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
