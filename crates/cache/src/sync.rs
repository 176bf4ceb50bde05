//! Locks, atomics and threads: the standard library's, or a model checker's.
//!
//! A lock is taken even if an earlier holder panicked. Code of users that runs under a lock
//! (hashing, comparing and cloning, conditions, clocks) runs before anything is changed.

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
};
#[cfg(shuttle)]
pub(crate) use shuttle::thread::{ThreadId, current};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
};
#[cfg(not(shuttle))]
pub(crate) use std::thread::{ThreadId, current};

use std::sync::{PoisonError, TryLockError, TryLockResult};

#[cfg(not(shuttle))]
pub(crate) use homing_rwlock::{BiasedRwLock, thread_number};
#[cfg(shuttle)]
pub(crate) use unbiased::{BiasedRwLock, thread_number};

/// Takes a mutex.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The guard of a lock that was tried; `None` if another thread has the lock.
pub(crate) fn unless_taken<G>(tried: TryLockResult<G>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Takes a lock for reading.
pub(crate) fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock for writing.
pub(crate) fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// The lock as the model checker knows it. How readers do without the lock is checked in its own
/// crate.
#[cfg(shuttle)]
mod unbiased {
    use super::{RwLock, RwLockReadGuard, RwLockWriteGuard};

    pub(crate) fn thread_number() -> usize {
        0
    }

    pub(crate) struct BiasedRwLock<T>(RwLock<T>);

    impl<T> BiasedRwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(RwLock::new(value))
        }

        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            super::read(&self.0)
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            super::write(&self.0)
        }
    }
}
