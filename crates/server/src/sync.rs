//! Locks and waits, whether or not somebody panicked with the lock held: no code here panics
//! between two writes that belong together, so what a lock guards is whole.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until somebody notifies.
pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits until somebody notifies, for at most `limit`.
pub(crate) fn wait_for<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Duration,
) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
}
