//! Locks and atomics: the standard library's, or the model checker's.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    sync::{RwLock, RwLockReadGuard, RwLockWriteGuard},
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    sync::{RwLock, RwLockReadGuard, RwLockWriteGuard},
};

/// Lets other threads have this CPU, for longer the more often that was done. A thread that yields
/// still keeps the CPU from threads of a lower real-time priority, whatever they hold. A thread
/// that sleeps does not.
#[cfg(not(loom))]
pub(crate) fn let_others_run(times: u32) {
    const YIELDS: u32 = 16;
    match times.checked_sub(YIELDS) {
        None => std::thread::yield_now(),
        Some(sleeps) => std::thread::sleep(std::time::Duration::from_micros(1 << sleeps.min(10))),
    }
}

#[cfg(loom)]
pub(crate) fn let_others_run(_times: u32) {
    loom::thread::yield_now();
}

/// The standard library's cell, with the interface of the model checker's.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn get(&self) -> ConstPtr<T> {
        ConstPtr(self.0.get())
    }

    #[inline]
    pub(crate) fn get_mut(&self) -> MutPtr<T> {
        MutPtr(self.0.get())
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

#[cfg(loom)]
pub(crate) use loom::cell::{ConstPtr, MutPtr};

/// The address of the value, for threads that read it.
#[cfg(not(loom))]
pub(crate) struct ConstPtr<T>(*mut T);

/// The address of the value, for the thread that writes it.
#[cfg(not(loom))]
pub(crate) struct MutPtr<T>(*mut T);

#[cfg(not(loom))]
impl<T> ConstPtr<T> {
    /// # Safety
    ///
    /// Nobody writes while the reference lives.
    #[inline]
    pub(crate) unsafe fn deref(&self) -> &T {
        // SAFETY: as the caller says; the pointer is that of a cell that the guard borrows.
        unsafe { &*self.0 }
    }
}

#[cfg(not(loom))]
impl<T> MutPtr<T> {
    /// # Safety
    ///
    /// Nobody else reads or writes while the reference lives.
    #[expect(clippy::mut_from_ref, reason = "as the model checker's")]
    #[inline]
    pub(crate) unsafe fn deref(&self) -> &mut T {
        // SAFETY: as the caller says; the pointer is that of a cell that the guard borrows.
        unsafe { &mut *self.0 }
    }
}
