//! The lock. `README.md` has the protocol, and says which operations pair with which.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::PoisonError;

use crate::fence;
use crate::readers::{self, NONE, Slot};
use crate::sync::{
    AtomicBool, AtomicU32, ConstPtr, MutPtr, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard,
    UnsafeCell, let_others_run, spin_loop,
};

/// After this many reads without a write in between, readers do without the lock. Each such read
/// saves some 10 to 20 ns, and a write that ends this costs some 2 to 20 us. With this many reads
/// before it, it costs less than it gives, whatever comes.
const BIAS_AFTER: u32 = if cfg!(any(loom, miri, test)) { 2 } else { 2048 };
/// How often a writer looks whether a reader has left before it lets other threads run.
const SPINS: u32 = if cfg!(loom) { 0 } else { 100 };

/// A reader-writer lock for values that are seldom written. If many reads lie between two writes,
/// the writes cost more than those of [`std::sync::RwLock`], and the reads cost less.
///
/// There is no poisoning: a thread that panics while it holds the lock leaves the value as it is. A
/// guard that is forgotten keeps writers out forever. In a child process, so does a guard that
/// another thread had when the process forked.
///
/// ```
/// use homing_rwlock::BiasedRwLock;
///
/// let names = BiasedRwLock::new(vec!["one"]);
/// assert_eq!(names.read().len(), 1);
/// names.write().push("two");
/// assert_eq!(names.into_inner(), ["one", "two"]);
/// ```
pub struct BiasedRwLock<T> {
    /// If set, readers need not take the lock. Written only under the lock: set by threads that
    /// hold it for reading, cleared by threads that hold it for writing.
    bias: AtomicBool,
    /// The approximate number of reads under the lock since the last write.
    reads: AtomicU32,
    lock: RwLock<()>,
    value: UnsafeCell<T>,
}

// SAFETY: any thread that reads gets references to the value, and any that writes may move it out.
unsafe impl<T: Send + Sync> Sync for BiasedRwLock<T> {}
// SAFETY: a lock that is sent is not borrowed, and the value goes with it.
unsafe impl<T: Send> Send for BiasedRwLock<T> {}

impl<T> BiasedRwLock<T> {
    /// Makes a lock around this value.
    pub fn new(value: T) -> Self {
        Self {
            bias: AtomicBool::new(false),
            reads: AtomicU32::new(0),
            lock: RwLock::new(()),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock for reading. As with any lock that lets writers have their turn, a thread
    /// that is already reading must not read again: a writer may be waiting in between.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.read_at(readers::current())
    }

    #[inline]
    pub(crate) fn read_at<'a>(&'a self, slot: Option<&'a Slot>) -> ReadGuard<'a, T> {
        match self.enter(slot) {
            Some(leave) => ReadGuard { value: self.value.get(), _held: Held::Slot(leave) },
            None => self.read_locked(),
        }
    }

    /// Begins a read without the lock, if that is possible.
    #[inline]
    fn enter<'a>(&self, slot: Option<&'a Slot>) -> Option<Leave<'a>> {
        if self.bias.load(Ordering::Relaxed)
            && let Some(slot) = slot
            // If the slot is taken, the thread is reading under another lock.
            && slot.reads.load(Ordering::Relaxed) == NONE
        {
            slot.reads.store(self.address(), Ordering::Relaxed);
            fence::light();
            let leave = Leave(slot);
            if self.bias.load(Ordering::Acquire) {
                return Some(leave);
            }
        }
        None
    }

    #[inline]
    fn read_locked(&self) -> ReadGuard<'_, T> {
        let guard = self.lock.read().unwrap_or_else(PoisonError::into_inner);
        let reads = self.reads.load(Ordering::Relaxed) + 1;
        // If several threads count at the same time, some reads are lost.
        self.reads.store(reads, Ordering::Relaxed);
        if reads >= BIAS_AFTER {
            self.set_bias();
        }
        ReadGuard { value: self.value.get(), _held: Held::Lock(guard) }
    }

    /// Call this with the lock held for reading, so that no writer holds it.
    #[cold]
    fn set_bias(&self) {
        self.reads.store(0, Ordering::Relaxed);
        if fence::is_available() {
            self.bias.store(true, Ordering::Release);
        }
    }

    /// Takes the lock for writing.
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.write_among(readers::all)
    }

    pub(crate) fn write_among<S: Deref<Target = Slot>>(
        &self,
        slots: impl FnOnce() -> Vec<S>,
    ) -> WriteGuard<'_, T> {
        let guard = self.lock.write().unwrap_or_else(PoisonError::into_inner);
        self.reads.store(0, Ordering::Relaxed);
        if self.bias.load(Ordering::Relaxed) {
            self.bias.store(false, Ordering::Relaxed);
            fence::heavy();
            for slot in slots() {
                self.wait_for(&slot);
            }
        }
        WriteGuard { value: self.value.get_mut(), _held: guard }
    }

    /// Waits until the slot's thread does not read under this lock.
    fn wait_for(&self, slot: &Slot) {
        let mut looks = 0_u32;
        while slot.reads.load(Ordering::Acquire) == self.address() {
            match looks.checked_sub(SPINS) {
                None => spin_loop(),
                // The reader may be waiting for this CPU.
                Some(times) => let_others_run(times),
            }
            looks = looks.saturating_add(1);
        }
    }

    /// The number that stands for this lock in slots: not its own address, which a lock within its
    /// value may have, too.
    fn address(&self) -> usize {
        ptr::from_ref(&self.bias).addr()
    }

    /// Returns the value, without the lock.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: Default> Default for BiasedRwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for BiasedRwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BiasedRwLock").finish_non_exhaustive()
    }
}

/// Access to the value for reading. Nobody writes while it exists.
#[must_use]
pub struct ReadGuard<'a, T> {
    value: ConstPtr<T>,
    _held: Held<'a>,
}

/// What keeps writers out.
enum Held<'a> {
    Slot(#[expect(dead_code, reason = "dropped")] Leave<'a>),
    Lock(#[expect(dead_code, reason = "dropped")] RwLockReadGuard<'a, ()>),
}

/// Empties the slot when it is dropped.
struct Leave<'a>(&'a Slot);

impl Drop for Leave<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.reads.store(NONE, Ordering::Release);
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: writers wait for this guard's slot or lock (README.md), and it outlives the
        // reference.
        unsafe { self.value.deref() }
    }
}

/// Access to the value for writing. Nobody else has access while it exists.
#[must_use]
pub struct WriteGuard<'a, T> {
    value: MutPtr<T>,
    _held: RwLockWriteGuard<'a, ()>,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: nobody else has the lock, and it outlives the reference.
        unsafe { self.value.deref() }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: nobody else has the lock, and it outlives the reference.
        unsafe { self.value.deref() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn is_biased<T>(lock: &BiasedRwLock<T>) -> bool {
        lock.bias.load(Ordering::Relaxed)
    }

    #[test]
    fn reads_do_without_the_lock_until_somebody_writes() {
        let lock = BiasedRwLock::new(1);
        (0..BIAS_AFTER).for_each(|_| assert_eq!(*lock.read(), 1));
        assert_eq!(is_biased(&lock), fence::is_available());
        assert_eq!(*lock.read(), 1);
        *lock.write() = 2;
        assert!(!is_biased(&lock));
        assert_eq!(*lock.read(), 2);
    }

    #[test]
    fn a_thread_may_read_under_two_locks() {
        let (one, other) = (BiasedRwLock::new(1), BiasedRwLock::new(2));
        for _ in 0..=BIAS_AFTER {
            let (first, second) = (one.read(), other.read());
            assert_eq!((*first, *second), (1, 2));
        }
        *one.write() = 3;
        *other.write() = 4;
        assert_eq!((*one.read(), *other.read()), (3, 4));
    }

    #[test]
    fn a_lock_within_a_lock_is_another_one() {
        let outer = BiasedRwLock::new(BiasedRwLock::new(1));
        for _ in 0..=2 * BIAS_AFTER {
            assert_eq!(*outer.read().read(), 1);
        }
        (0..=BIAS_AFTER).for_each(|_| _ = outer.read());
        *outer.read().write() = 2;
        assert_eq!(*outer.read().read(), 2);
    }

    #[test]
    fn after_a_panic_all_goes_on() {
        let lock = BiasedRwLock::new(1);
        (0..=BIAS_AFTER).for_each(|_| _ = lock.read());
        let panics = |f: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        let reading = || {
            let _guard = lock.read();
            panic!("on purpose");
        };
        let writing = || {
            let _guard = lock.write();
            panic!("on purpose");
        };
        assert!(panics(&reading).is_err());
        assert!(panics(&writing).is_err());
        *lock.write() += 1;
        assert_eq!(*lock.read(), 2);
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_writer_that_waits_for_long_sleeps() {
        use std::time::Duration;

        let lock = BiasedRwLock::new(1);
        (0..=BIAS_AFTER).for_each(|_| _ = lock.read());
        let cpu_time = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::try_from(now).unwrap()
        };
        let reads = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _guard = lock.read();
                reads.wait();
                thread::sleep(Duration::from_millis(300));
            });
            reads.wait();
            let before = cpu_time();
            *lock.write() = 2;
            let took = cpu_time().saturating_sub(before);
            assert!(took < Duration::from_millis(50), "{took:?} for a wait of 300 ms");
        });
    }

    /// Two words that belong together, read and written by many.
    #[test]
    fn nobody_sees_half_a_write() {
        let lock = BiasedRwLock::new((0u64, 0u64));
        let (threads, rounds) = if cfg!(miri) { (2, 40) } else { (4, 20_000) };
        let start = Barrier::new(threads + 1);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    start.wait();
                    let mut last = 0;
                    for _ in 0..rounds {
                        let pair = lock.read();
                        assert!(pair.0 == pair.1 && pair.0 >= last, "{:?} after {last}", *pair);
                        last = pair.0;
                    }
                });
            }
            start.wait();
            for _ in 0..rounds / 20 {
                let mut pair = lock.write();
                pair.0 += 1;
                std::hint::black_box(&mut *pair);
                pair.1 += 1;
                drop(pair);
                // Lets readers read so much that some of them read without the lock.
                (0..10).for_each(|_| thread::yield_now());
            }
        });
        assert_eq!(lock.into_inner(), (rounds / 20, rounds / 20));
    }
}
