//! Where threads say which lock they read under: each thread has a slot on its own cache line.
//! Slots are never freed, but used again when their threads are gone. So there are as many as there
//! ever were reading threads at a time.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use crate::sync::{AtomicUsize, Ordering};

/// The slot of a thread.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Slot {
    /// The address of the lock that the thread reads under, or [`NONE`].
    pub(crate) reads: AtomicUsize,
    number: usize,
}

/// The address of no lock.
pub(crate) const NONE: usize = 0;

impl Slot {
    pub(crate) fn new(number: usize) -> Self {
        Self { reads: AtomicUsize::new(NONE), number }
    }
}

struct Slots {
    all: Vec<&'static Slot>,
    free: Vec<&'static Slot>,
}

static SLOTS: Mutex<Slots> = Mutex::new(Slots { all: Vec::new(), free: Vec::new() });

/// All slots that there are by now.
pub(crate) fn all() -> Vec<&'static Slot> {
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner).all.clone()
}

fn take() -> &'static Slot {
    let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
    slots.free.pop().unwrap_or_else(|| {
        let slot = Box::leak(Box::new(Slot::new(slots.all.len())));
        slots.all.push(slot);
        slot
    })
}

fn give_back(slot: &'static Slot) {
    // If the thread has forgotten a guard, its slot is of no use to other threads.
    if slot.reads.load(Ordering::Relaxed) == NONE {
        SLOTS.lock().unwrap_or_else(PoisonError::into_inner).free.push(slot);
    }
}

thread_local! {
    // This has no destructor, so that using it takes no more than reading it.
    static SLOT: Cell<Option<&'static Slot>> = const { Cell::new(None) };
    static RETURN: Return = const { Return };
}

/// Gives the slot back when the thread ends.
struct Return;

impl Drop for Return {
    fn drop(&mut self) {
        if let Some(slot) = SLOT.take() {
            give_back(slot);
        }
    }
}

/// The slot of the current thread; `None` if the thread is about to end. Ask for it at each use: a
/// slot that was given back may be another thread's.
#[inline]
pub(crate) fn current() -> Option<&'static Slot> {
    SLOT.get().or_else(register)
}

#[cold]
fn register() -> Option<&'static Slot> {
    RETURN.try_with(|_| ()).ok()?;
    let slot = take();
    SLOT.set(Some(slot));
    Some(slot)
}

/// A small number that no other thread has at the same time, except that all threads that are
/// ending have 0.
///
/// ```
/// use homing_rwlock::thread_number;
///
/// let others = std::thread::spawn(thread_number);
/// let mine = thread_number();
/// assert_eq!(mine, thread_number());
/// # others.join().unwrap();
/// ```
#[inline]
pub fn thread_number() -> usize {
    current().map_or(0, |slot| slot.number)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again() {
        let number = || std::thread::spawn(thread_number).join().unwrap();
        // Threads of other tests may come in between, but not a hundred times.
        let mut numbers: Vec<_> = (0..100).map(|_| number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert!(numbers.len() < 50, "{numbers:?}");
    }
}
