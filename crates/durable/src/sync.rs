//! The only import path for locks and atomics: the standard library's, or those of the model
//! checker that builds the crate (`RUSTFLAGS="--cfg shuttle"`).

#[cfg(shuttle)]
pub(crate) use shuttle::thread_local;
#[cfg(not(shuttle))]
pub(crate) use std::thread_local;

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
};

/// Locks, whether or not somebody panicked with the lock held: no code here panics between two
/// writes that belong together, so what the lock guards is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits until somebody notifies.
pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits until somebody notifies, for at most `limit`.
#[cfg(not(shuttle))]
pub(crate) fn wait_briefly<'a, T>(
    changed: &Condvar,
    _: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
    limit: std::time::Duration,
) -> MutexGuard<'a, T> {
    let waited = changed.wait_timeout(guard, limit);
    waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
}

/// The model checker knows no time: this lets other threads run, and returns.
#[cfg(shuttle)]
pub(crate) fn wait_briefly<'a, T>(
    _: &Condvar,
    mutex: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
    _: std::time::Duration,
) -> MutexGuard<'a, T> {
    drop(guard);
    shuttle::thread::yield_now();
    lock(mutex)
}
