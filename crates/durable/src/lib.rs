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
//!   (`ready`). Where it has been faster, the write-back of all of them is begun first (`early`).
//! * How many are synced side by side is what has been faster, too (`depth`).
//! * If many files of one filesystem wait, one commit of that filesystem may sync them instead,
//!   with a verdict for each file (`commit`). The measured costs decide which of the two is used
//!   (`strategy`).
//! * If callers sync one file each, few may ever wait at the same time. Where it has been faster,
//!   these callers are made to wait for each other, so that a commit can serve them as a group
//!   (`group`).
//! * Where many callers sync one file that has several descriptions for this purpose
//!   ([`SharedFile`]), they share syncs only if that is faster.
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
mod backend;
mod batch;
mod by_caller;
mod calls;
mod choice;
mod commit;
mod commits;
mod counters;
mod depth;
mod description;
mod durable;
mod early;
mod engine;
mod entry;
mod error;
mod failures;
mod file_id;
mod files;
#[cfg(all(test, not(shuttle)))]
mod files_tests;
mod filesystem;
mod fsync;
mod gather;
mod gathers;
mod group;
mod log;
#[cfg(feature = "metrics")]
mod metrics;
mod noted;
mod pace;
mod policy;
#[cfg(target_os = "linux")]
mod range;
mod ready;
mod replace;
#[cfg(target_os = "linux")]
mod ring;
mod shared_file;
#[cfg(all(shuttle, test))]
mod shuttle_flush_tests;
#[cfg(all(shuttle, test))]
mod shuttle_tests;
mod strategy;
mod sync;
mod synced;
mod system;
mod windows;

#[cfg(feature = "control")]
pub use attributes::DurableAttributes;
pub use backend::Backend;
pub use batch::Batch;
pub use commits::Commits;
pub use counters::{Counters, Histogram};
pub use description::Description;
pub use durable::{Durable, Kind};
pub use early::WriteBack;
pub use error::DurabilityError;
pub use fsync::Fsync;
#[cfg(feature = "control")]
pub use log::LogAttributes;
pub use log::{Log, LogError, LogOptions, RECORD_LENGTH_MAX, Record, Records, Recovery, Sequence};
pub use pace::{Pace, Sharing, Way};
pub use replace::{ReplaceError, Replaced};
pub use shared_file::SharedFile;
pub use strategy::Strategy;
pub use synced::{Synced, SyncedMany};
#[doc(hidden)]
pub use system::{Failure, Linux, System, Witness};
