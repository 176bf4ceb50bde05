//! Makes files durable without blocking any thread: async fsync with group commit.
//!
//! When a sync completes, the file's data, as it was when the sync was asked for, has reached
//! stable storage. An error is kept for the file, not only for the caller that happened to wait,
//! because the kernel reports a lost write once and then forgets it.
//!
//! ```
//! use std::fs::File;
//! use std::io::Write;
//!
//! use homing_durable::Fsync;
//! use homing_runtime::Runtime;
//!
//! let runtime = Runtime::new()?;
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("journal");
//! let mut file = File::create(path)?;
//! file.write_all(b"committed")?;
//! let synced = runtime.fsync(&file); // begins at once; await it, or wait:
//! synced.wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! How it works:
//!
//! * Callers that sync the same file share its next sync (`files`).
//! * Files that wait are synced side by side, those of batches after those of other callers
//!   (`files::ready`). Where it has been faster, the write-back of all of them is begun first
//!   (`choices::early`).
//! * How many are synced side by side is what has been faster, too (`choices::depth`).
//! * If many files of one filesystem wait, one commit of that filesystem may sync them instead,
//!   with a verdict for each file (`engine::commit`). The measured costs decide which of the two is
//!   used (`choices::strategy`).
//! * If callers sync one file each, few may ever wait at the same time. Where it has been faster,
//!   these callers are made to wait for each other, so that a commit can serve them as a group
//!   (`choices::group`).
//! * Where many callers sync one file that has several descriptions for this purpose
//!   ([`SharedFile`]), they share syncs only if that is faster.
//!
//! `files` knows what waits and what is under way, `choices` decides how it is done, and `engine`
//! does it, with the calls that are in `system`.
//!
//! Rules, cited by number:
//!
//! * `DURABLE-1` A sync covers what was written before it was asked for. If a file is asked for
//!   while it is being synced, it is synced once more, once for all callers that came meanwhile.
//! * `DURABLE-2` A verdict comes from the file's own open file description, which is duplicated,
//!   never reopened, or from one of several that were opened for the file beforehand
//!   ([`SharedFile`]).
//! * `DURABLE-3` A failure is sticky: every waiter of the file and every later sync of it fails,
//!   until somebody acknowledges the loss.
//! * `DURABLE-4` At the end of a commit of a filesystem its device is flushed, whether or not the
//!   journal had anything to write: by the filesystem, where that is known to do it, or by us.
//! * `DURABLE-5` Dropping a future loses nothing: the sync runs on, and its result is kept for the
//!   file.
//!
//! [`Log`] is a write-ahead log with group commit (`log`).
#[cfg(feature = "control")]
mod attributes;
mod batch;
mod choices;
mod counters;
mod durable;
mod engine;
mod error;
mod files;
mod fsync;
mod log;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(all(shuttle, test))]
mod models;
mod replace;
mod shared_file;
mod sync;
mod synced;
mod system;

#[cfg(feature = "control")]
pub use attributes::DurableAttributes;
pub use batch::Batch;
pub use choices::early::WriteBack;
pub use choices::pace::{Pace, Sharing, Way};
pub use choices::strategy::Strategy;
pub use counters::{Counters, Histogram};
pub use durable::{Durable, Kind};
pub use engine::backend::Backend;
pub use engine::commits::Commits;
pub use error::DurabilityError;
pub use fsync::Fsync;
#[cfg(feature = "control")]
pub use log::LogAttributes;
pub use log::{Log, LogError, LogOptions, RECORD_LENGTH_MAX, Record, Records, Recovery, Sequence};
pub use replace::{ReplaceError, Replaced};
pub use shared_file::SharedFile;
pub use synced::{Synced, SyncedMany};
pub use system::description::Description;
#[doc(hidden)]
pub use system::{Failure, Linux, System, Witness};
