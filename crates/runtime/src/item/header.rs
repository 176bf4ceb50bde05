//! What every item begins with, and the owned pointer to it.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use homing_sched::{PoolId, QueueId};
use homing_topology::CpuId;

use crate::sync::AtomicU32;

/// Hears how an item ended, before anybody who waits for it does.
pub(crate) trait Books {
    /// The item begins.
    fn started(&self);
    /// The item has ended, by a panic or not.
    fn completed(&self, panicked: bool);
    /// The item had been aborted.
    fn aborted(&self);
}

/// What can be done with an item of unknown type. Each takes over the queue's reference.
pub(super) struct VTable {
    /// Runs the item, unless somebody else has.
    pub(super) run: unsafe fn(NonNull<Header>, &dyn Books),
    /// Ends the item without running it. Whether it counts as cancelled: it would have run, or it
    /// had been aborted.
    pub(super) cancel: unsafe fn(NonNull<Header>) -> bool,
}

/// The beginning of every item's allocation.
#[repr(C)]
pub(crate) struct Header {
    pub(super) vtable: &'static VTable,
    pub(super) link: UnsafeCell<Link>,
    /// Bits of `joined`; unused by `lone`.
    pub(super) state: AtomicU32,
    /// Which workqueue's books it is kept in.
    workqueue: u32,
}

/// Belongs to whoever owns the item.
pub(super) struct Link {
    /// The item behind this one in its batch.
    pub(super) next: Option<NonNull<Header>>,
    /// The first item of the batch behind; only in the first item of a batch.
    pub(super) next_batch: Option<NonNull<Header>>,
    /// How many items the batch has; only in the first item of a batch.
    pub(super) batch_len: u32,
    /// The queue it stands in or comes from.
    pub(super) queue: QueueId,
}

impl Header {
    pub(super) fn new(vtable: &'static VTable, state: u32, workqueue: u32) -> Self {
        let queue = QueueId { pool: PoolId(0), leader: FIRST };
        let link = Link { next: None, next_batch: None, batch_len: 1, queue };
        Self { vtable, link: UnsafeCell::new(link), state: AtomicU32::new(state), workqueue }
    }
}

impl Header {
    pub(super) fn workqueue(&self) -> u32 {
        self.workqueue
    }
}

const FIRST: CpuId = CpuId::new(0).expect("0 is a CPU number");

/// An item that is to be run once. Dropping it cancels it.
pub(crate) struct Item {
    header: NonNull<Header>,
}

// SAFETY: an item owns its closure, which is `Send` (the constructors demand it), and its links;
// the rest is atomics.
unsafe impl Send for Item {}

impl Item {
    /// # Safety
    /// `header` begins a live allocation of the type that its vtable is for, and the caller hands
    /// over the queue's reference to it.
    pub(super) unsafe fn from_header(header: NonNull<Header>) -> Self {
        Self { header }
    }

    pub(super) fn into_header(self) -> NonNull<Header> {
        ManuallyDrop::new(self).header
    }

    /// The number of its workqueue.
    pub(crate) fn workqueue(&self) -> u32 {
        // SAFETY: we hold a reference, so the allocation lives; the field never changes.
        unsafe { self.header.as_ref() }.workqueue
    }

    /// Notes the queue that it is about to be put in.
    pub(crate) fn set_queue(&mut self, queue: QueueId) {
        // SAFETY: we own the item and with it the link.
        unsafe { (*self.header.as_ref().link.get()).queue = queue }
    }

    /// Runs it. A panic in it does not come out.
    pub(crate) fn run(self, books: &dyn Books) {
        let header = self.into_header();
        // SAFETY: the vtable is this allocation's, and we hand over our reference.
        unsafe { (header.as_ref().vtable.run)(header, books) }
    }

    /// Ends it without running it. Whether it counts as cancelled: it would have run, or it had
    /// been aborted.
    pub(crate) fn cancel(self) -> bool {
        let header = self.into_header();
        // SAFETY: as in `run`.
        unsafe { (header.as_ref().vtable.cancel)(header) }
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        // SAFETY: as in `run`; `into_header` forgets the item, so this is its only end.
        unsafe { (self.header.as_ref().vtable.cancel)(self.header) };
    }
}
