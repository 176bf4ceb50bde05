//! Files made durable without blocking anybody: async fsync with group commit.
//!
//! A completion means that this file's data, as it was when the sync was asked for, has reached
//! stable storage. An error is kept for the file, not for whoever happened to wait: the kernel
//! reports a lost write once and then forgets it.
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
//! How: callers of one file share its next sync (`files`); files that wait are synced side by side,
//! after the write-back of all has been begun where that has been faster (`early`), or, where many
//! of one filesystem wait, by one commit of that filesystem with a verdict for each file (`commit`);
//! which of the two is decided by what they have cost (`strategy`). Callers with a file each, of
//! whom many never wait at a time, are made to where that has been faster (`group`). Where many
//! sync one file that has descriptions for it ([`SharedFile`]), they share syncs only if that is
//! faster.
//!
//! Rules, cited by number:
//!
//! * `DURABLE-1` A sync covers what was written before it was asked for: a file that is being
//!   synced is synced once more for those who come meanwhile, all of them together.
//! * `DURABLE-2` A verdict is of the file's own open file description, which is duplicated, never
//!   reopened; or of one of several that were opened for it beforehand ([`SharedFile`]).
//! * `DURABLE-3` A failure is sticky: every waiter of the file and every later sync of it fails,
//!   until somebody acknowledges the loss.
//! * `DURABLE-4` At the end of a commit of a filesystem its device is flushed, whether or not its
//!   journal had anything to write: by the filesystem, where it is known to, or by us.
//! * `DURABLE-5` A future that is dropped loses nothing: the sync runs on, and the file keeps what
//!   came of it.
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
mod description;
mod durable;
mod early;
mod engine;
mod entry;
mod error;
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
mod pace;
mod policy;
#[cfg(target_os = "linux")]
mod range;
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
pub use log::{Log, LogError, RECORD_LENGTH_MAX, Record, Records, Recovery, Sequence};
pub use pace::{Pace, Sharing, Way};
pub use shared_file::SharedFile;
pub use strategy::Strategy;
pub use synced::{Synced, SyncedMany};
#[doc(hidden)]
pub use system::{Failure, Linux, System, Witness};
