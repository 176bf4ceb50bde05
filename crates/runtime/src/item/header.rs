//! What every item begins with, and the owned pointer to it.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use homing_sched::{PoolId, QueueId};
use homing_topology::CpuId;

use crate::sync::{AtomicU32, Ordering::Relaxed};

/// Is told how an item ended, before any thread that waits for the item.
pub(crate) trait Books {
    /// The item begins.
    fn started(&self);
    /// The item has ended, by a panic or not.
    fn completed(&self, panicked: bool);
    /// The item had been aborted.
    fn aborted(&self);
}

/// The workqueue whose item it is, and the colour that the workqueue had when the item was made. A
/// flush changes the workqueue's colour, and waits for items of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u32);

impl Tag {
    /// How many colours there are, as in the kernel. In a model there are so few that they run out.
    pub(crate) const COLOURS: usize = if cfg!(loom) { 3 } else { 16 };
    /// Numbers of workqueues are smaller than this.
    pub(crate) const NUMBERS: u32 = 1 << Self::SHIFT;
    const SHIFT: u32 = 28;

    pub(crate) const fn new(workqueue: u32, colour: usize) -> Self {
        Self(workqueue | (colour as u32) << Self::SHIFT)
    }

    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    pub(crate) const fn workqueue(self) -> u32 {
        self.0 & (Self::NUMBERS - 1)
    }

    pub(crate) const fn colour(self) -> usize {
        (self.0 >> Self::SHIFT) as usize
    }
}

/// What came of running an item.
#[must_use = "there may be another item to run"]
pub(crate) enum Ran {
    /// It has ended.
    Over,
    /// It has ended, and the caller is to run this one next, which waited for it.
    Then(Item),
    /// Another thread runs the same work or item at present, and notes its end. The caller is to
    /// run this item now, if there is one.
    Kept(Option<Item>),
}

/// What became of an item that was not run by whoever had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unrun {
    /// It would have run.
    Cancelled,
    /// Somebody had aborted it, or taken it back, before.
    Aborted,
    /// Somebody else had run it.
    Ran,
}

/// What can be done with an item of unknown type. Each takes over the queue's reference.
pub(super) struct VTable {
    /// Runs the item, unless somebody else has.
    pub(super) run: unsafe fn(NonNull<Header>, &dyn Books) -> Ran,
    /// Ends the item without running it.
    pub(super) cancel: unsafe fn(NonNull<Header>) -> Unrun,
    /// [`Item::is_wanted`]
    pub(super) wanted: fn(&Header) -> bool,
    /// [`Item::place`]
    pub(super) lasts: bool,
}

/// The beginning of every item's allocation.
#[repr(C)]
pub(crate) struct Header {
    pub(super) vtable: &'static VTable,
    pub(super) link: UnsafeCell<Link>,
    /// Bits of `joined` below [`SLOT_SHIFT`]; above, the slot of the workqueue's gate that it has.
    pub(super) state: AtomicU32,
    /// [`Tag`]: changed by the owner of the item, when a work item is queued again.
    tag: AtomicU32,
}

/// The link of an item, which belongs to the item's owner.
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
    pub(super) fn new(vtable: &'static VTable, state: u32, tag: Tag) -> Self {
        let queue = QueueId { pool: PoolId(0), leader: FIRST };
        let link = Link { next: None, next_batch: None, batch_len: 1, queue };
        Self {
            vtable,
            link: UnsafeCell::new(link),
            state: AtomicU32::new(state),
            tag: AtomicU32::new(tag.0),
        }
    }
}

impl Header {
    pub(super) fn tag(&self) -> Tag {
        Tag(self.tag.load(Relaxed))
    }

    pub(super) fn slot(&self) -> Option<u16> {
        (self.state.load(Relaxed) >> SLOT_SHIFT).checked_sub(1).map(|slot| slot as u16)
    }

    /// The owner of the item calls this, before it is queued.
    pub(super) fn set_tag(&self, tag: Tag) {
        self.tag.store(tag.0, Relaxed);
    }
}

const SLOT_SHIFT: u32 = 16;

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

    pub(super) fn as_header(&self) -> NonNull<Header> {
        self.header
    }

    fn header(&self) -> &Header {
        // SAFETY: we hold a reference, so the allocation lives; shared fields are atomics.
        unsafe { self.header.as_ref() }
    }

    /// Its workqueue and colour.
    pub(crate) fn tag(&self) -> Tag {
        self.header().tag()
    }

    /// Whether somebody may wait for it: for its result, or because it continues a future.
    pub(crate) fn is_wanted(&self) -> bool {
        (self.header().vtable.wanted)(self.header())
    }

    /// Where it is, if it stays there while it runs, so that no other item is there meanwhile.
    /// Otherwise 0: the memory of an item without a handle may be another item's before its closure
    /// has run.
    pub(crate) fn place(&self) -> usize {
        if self.header().vtable.lasts { self.header.addr().get() } else { 0 }
    }

    /// The slot of its workqueue's gate that it has.
    pub(crate) fn slot(&self) -> Option<u16> {
        self.header().slot()
    }

    /// Gives it a slot, or takes it: the owner of the item calls this.
    pub(crate) fn set_slot(&self, slot: Option<u16>) {
        let bits = |slot: Option<u16>| slot.map_or(0, |slot| u32::from(slot) + 1) << SLOT_SHIFT;
        let change = bits(self.slot()) ^ bits(slot);
        // Mostly there is no slot, and is to be none. Nobody else changes these bits meanwhile, but
        // a handle may change those beside them.
        if change != 0 {
            self.header().state.fetch_xor(change, Relaxed);
        }
    }

    /// Notes the queue that it is about to be put in.
    pub(crate) fn set_queue(&mut self, queue: QueueId) {
        // SAFETY: we own the item and with it the link.
        unsafe { (*self.header.as_ref().link.get()).queue = queue }
    }

    /// Runs it. A panic in it does not come out.
    pub(crate) fn run(self, books: &dyn Books) -> Ran {
        let header = self.into_header();
        // SAFETY: the vtable is this allocation's, and we hand over our reference.
        unsafe { (header.as_ref().vtable.run)(header, books) }
    }

    /// Ends it without running it.
    pub(crate) fn cancel(self) -> Unrun {
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
