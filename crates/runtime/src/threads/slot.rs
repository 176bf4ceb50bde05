//! The right to work for a CPU: at most one thread has it, and it can be taken away.
//!
//! A worker is a thread that owns a slot. A thread whose item blocks gives its slot up, or has it
//! taken by the monitor; a spare thread then takes the slot over when there is work.

use std::time::Duration;

use homing_sched::{Idle, Reach};

use crate::measure::books::CpuBooks;
use crate::measure::clock::now_ns;
use crate::measure::cpu_shares::CpuShares;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::threads::sleeper::Sleeper;

/// Names a thread of the runtime; never 0, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ThreadId(pub(crate) u32);

const VACANT: u32 = 0;

/// One CPU's slot. The word is the owner's number shifted left, with a bit for "parked". The slot
/// cannot be taken from a parked owner, so only one thread ever sleeps in the bed.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slot {
    owner: AtomicU32,
    sleeper: Sleeper,
    /// When the CPU was last called, shifted left, with a bit for "while its issuer occupied it",
    /// and two bits for how far away the items were that it was called for. An estimate: if two
    /// threads call at once, one of the calls is lost.
    call: AtomicU64,
    /// Since when the owner has run its batch, or has been called. An estimate, as above.
    busy_since_ns: AtomicU64,
    pub(crate) books: CpuBooks,
    pub(crate) shares: CpuShares,
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
            shares: CpuShares::new(),
        }
    }

    /// Whether nobody works for this CPU.
    pub(crate) fn is_vacant(&self) -> bool {
        self.owner.load(Ordering::Acquire) == VACANT
    }

    /// The owner, if it is not parked.
    pub(crate) fn working_owner(&self) -> Option<ThreadId> {
        let word = self.owner.load(Ordering::SeqCst);
        (word != VACANT && word & PARKED == 0).then_some(ThreadId(word >> 1))
    }

    /// The owner, parked or not.
    pub(crate) fn owner(&self) -> Option<ThreadId> {
        let word = self.owner.load(Ordering::Relaxed);
        (word != VACANT).then_some(ThreadId(word >> 1))
    }

    pub(crate) fn is_owned_by(&self, thread: ThreadId) -> bool {
        self.owner.load(Ordering::Relaxed) >> 1 == thread.0
    }

    /// Gives the slot to `thread` if it is vacant. Returns whether it was.
    pub(crate) fn assign(&self, thread: ThreadId) -> bool {
        let owned = thread.0 << 1;
        self.owner.compare_exchange(VACANT, owned, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes the slot from `thread`, unless it has lost it already or is parked. Returns whether it
    /// did.
    pub(crate) fn vacate(&self, thread: ThreadId) -> bool {
        let owned = thread.0 << 1;
        self.owner.compare_exchange(owned, VACANT, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// To be called by the owner when it is about to announce that it parks: from then on nobody
    /// can take the slot, until [`Slot::rise`]. Returns `false` if the slot was taken before that.
    pub(crate) fn lie_down(&self, thread: ThreadId) -> bool {
        let (awake, parked) = (thread.0 << 1, thread.0 << 1 | PARKED);
        self.owner.compare_exchange(awake, parked, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// To be called by the owner when it does not park after all, or no longer does.
    pub(crate) fn rise(&self, thread: ThreadId) {
        self.owner.store(thread.0 << 1, Ordering::Release);
    }

    /// Sleeps until somebody wakes the CPU, or the time is up. Returns whether somebody did.
    pub(crate) fn sleep(&self, at_most: Option<Duration>) -> bool {
        self.sleeper.sleep(at_most)
    }

    /// [`Slot::sleep`], driving async-io's reactor meanwhile.
    #[cfg(feature = "async-io")]
    pub(crate) fn sleep_driving_io(&self, at_most: Option<Duration>) -> bool {
        self.sleeper.sleep_driving_io(at_most)
    }

    /// Notes that the present or future owner is about to be woken for items that are `reach` away.
    pub(crate) fn call(&self, occupied: bool, reach: Reach) {
        let now_ns = now_ns();
        let word = now_ns << 3 | (reach as u64) << 1 | u64::from(occupied);
        self.call.store(word, Ordering::Relaxed);
        self.begin(now_ns);
    }

    /// Wakes the owner, which has been called, and is parked or about to be.
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

    /// What the owner, which was called and runs now, may take.
    pub(crate) fn called(&self, now_ns: u64) -> Idle {
        let call = self.call.load(Ordering::Relaxed);
        Idle::Called(Reach::ALL[(call >> 1 & 3) as usize], now_ns)
    }
}
