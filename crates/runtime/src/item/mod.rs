//! Items: one allocation each, which is also the link in whatever queue the item stands in.
//!
//! * `header`: what every item begins with, and the owned pointer [`Item`] to it.
//! * `batch`: lists of items through their links.
//! * `lone`: an item that nobody waits for.
//! * `joined`: an item with a handle.
//! * `resumed`: an item that continues a future.
//! * `work`: an item that is queued again and again; `pending`: its states.
//! * `memory`: the memory of items, used again and again.
//! * `quiet`: where panics end that nobody could receive.
//!
//! The unsafe code of the runtime is in this folder (and in `scope.rs`, which lends borrowed
//! closures to it). What makes it sound is ownership: the holder of an `Item` or a list of items
//! owns the links; the closure belongs to the thread that set `CLAIMED`; the result belongs to the
//! thread that saw `DONE` through the handle.
// One fact makes a block sound: who owns the items. Cutting blocks up would repeat it.
#![allow(clippy::multiple_unsafe_ops_per_block)]

mod batch;
mod header;
mod join_error;
mod joined;
mod lone;
mod memory;
mod pending;
mod prefetch;
mod quiet;
#[cfg(not(loom))]
mod resumed;
mod work;

pub(crate) use batch::{Batch, Batches, Hand, Sealed};
pub(crate) use header::{Books, Item, Ran, Tag, Unrun};
pub use join_error::{ItemPanic, JoinError};
pub(crate) use joined::{Joined, joined, joined_borrowing};
pub(crate) use lone::lone;
pub(crate) use pending::{Awaited, Cancelled, Instance, Pending};
pub(crate) use quiet::drop_quietly;
pub use quiet::quietly;
#[cfg(not(loom))]
pub(crate) use resumed::{Place, Runnable, is_polled_here, polled, resumed};
pub(crate) use work::{Call, Context, Node, SharedNode, place_of};
