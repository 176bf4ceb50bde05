//! The right to work for a CPU: at most one thread has it, and it can be taken away.
//!
//! A worker is a thread that owns a slot. A thread whose item blocks gives its slot up, or has it
//! taken by the monitor; a spare thread then takes the slot over when there is work.

use std::time::Duration;

use homing_sched::{Idle, Reach};

use crate::books::CpuBooks;
use crate::clock::now_ns;
use crate::sleeper::Sleeper;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Names a thread of the runtime; never 0, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ThreadId(pub(crate) u32);

const VACANT: u32 = 0;

/// One CPU's slot. The word is the owner's number shifted left, with a bit for "parked": a parked
/// owner cannot be robbed, so only one thread ever sleeps in the bed.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slot {
    owner: AtomicU32,
    sleeper: Sleeper,
    /// When the CPU was last called, shifted left; with a bit for "while its issuer occupied it", and two
    /// for how far away what it was called for was. An estimate: of two callers one is lost.
    call: AtomicU64,
    /// Since when the owner has run its batch, or has been called. An estimate, as above.
    busy_since_ns: AtomicU64,
    pub(crate) books: CpuBooks,
}

const PARKED: u32 = 1;

impl Slot {
    pub(crate) fn new() -> Self {
        Self {
            owner: AtomicU32::new(VACANT),
            sleeper: Sleeper::new(),
            call: AtomicU64::new(0),
            busy_since_ns: AtomicU64::new(0),
            books: CpuBooks::default(),
        }
    }

    /// Whether nobody works for this CPU.
    pub(crate) fn is_vacant(&self) -> bool {
        self.owner.load(Ordering::Acquire) == VACANT
    }

    /// Whose it is, if that thread is not parked.
    pub(crate) fn working_owner(&self) -> Option<ThreadId> {
        let word = self.owner.load(Ordering::SeqCst);
        (word != VACANT && word & PARKED == 0).then_some(ThreadId(word >> 1))
    }

    /// Whose it is.
    pub(crate) fn owner(&self) -> Option<ThreadId> {
        let word = self.owner.load(Ordering::Relaxed);
        (word != VACANT).then_some(ThreadId(word >> 1))
    }

    pub(crate) fn is_owned_by(&self, thread: ThreadId) -> bool {
        self.owner.load(Ordering::Relaxed) >> 1 == thread.0
    }

    /// Gives the slot to `thread` if it is vacant. Whether it was.
    pub(crate) fn assign(&self, thread: ThreadId) -> bool {
        let owned = thread.0 << 1;
        self.owner.compare_exchange(VACANT, owned, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes the slot from `thread`, unless it has lost it already or is parked. Whether it did.
    pub(crate) fn vacate(&self, thread: ThreadId) -> bool {
        let owned = thread.0 << 1;
        self.owner.compare_exchange(owned, VACANT, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The owner is about to announce that it parks: from now on the slot is its own until
    /// [`Slot::rise`]. Fails where the slot was taken meanwhile.
    pub(crate) fn lie_down(&self, thread: ThreadId) -> bool {
        let (awake, parked) = (thread.0 << 1, thread.0 << 1 | PARKED);
        self.owner.compare_exchange(awake, parked, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The owner does not park, or no longer.
    pub(crate) fn rise(&self, thread: ThreadId) {
        self.owner.store(thread.0 << 1, Ordering::Release);
    }

    /// Sleeps until somebody wakes the CPU, or the time is up. Whether somebody did.
    pub(crate) fn sleep(&self, at_most: Option<Duration>) -> bool {
        self.sleeper.sleep(at_most)
    }

    /// [`Slot::sleep`], driving async-io's reactor meanwhile.
    #[cfg(feature = "async-io")]
    pub(crate) fn sleep_driving_io(&self, at_most: Option<Duration>) -> bool {
        self.sleeper.sleep_driving_io(at_most)
    }

    /// The owner, or who will be, is about to be woken for something as far away.
    pub(crate) fn call(&self, occupied: bool, reach: Reach) {
        let now_ns = now_ns();
        let word = now_ns << 3 | (reach as u64) << 1 | u64::from(occupied);
        self.call.store(word, Ordering::Relaxed);
        self.begin(now_ns);
    }

    /// Wakes the owner, who has been called, and is parked or about to be.
    pub(crate) fn wake(&self) {
        self.sleeper.wake();
    }

    /// The owner begins a batch.
    pub(crate) fn begin(&self, now_ns: u64) {
        self.busy_since_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Since when the owner has run its batch, or has been called.
    pub(crate) fn busy_since_ns(&self) -> u64 {
        self.busy_since_ns.load(Ordering::Relaxed)
    }

    /// When the owner was last called, and whether an issuer occupied the CPU.
    pub(crate) fn woken(&self) -> (u64, bool) {
        let call = self.call.load(Ordering::Relaxed);
        (call >> 3, call & 1 != 0)
    }

    /// What the owner may take, who was called and runs now.
    pub(crate) fn called(&self, now_ns: u64) -> Idle {
        let call = self.call.load(Ordering::Relaxed);
        Idle::Called(Reach::ALL[(call >> 1 & 3) as usize], now_ns)
    }
}
