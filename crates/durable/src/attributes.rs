//! The engine's attributes, for programs and for `homing-control`'s socket.
//!
//! ```text
//! durable/strategy      rw  auto, files or filesystem
//! durable/backend       rw  threads or io_uring: who syncs single files
//! durable/write_back    rw  auto, early or late: of files that wait to be synced
//! durable/sharing       rw  auto, beside or together: of those who sync one file at a time
//! durable/depth         rw  syncs under way at a time on each filesystem, and as many again of
//!                           callers who wait; auto: as many as have been faster there
//! durable/counters      ro  what has been done: a name and a number on each line
//! durable/latency_ns    ro  how many syncs took less than so long: a line for each bucket
//! durable/batch_sizes   ro  how many syncs answered fewer askers than so many: likewise
//! durable/filesystems   ro  what waits, what it costs, how it is served: a line for each
//! durable/failed        ro  the failures that nobody has acknowledged, of files and of logs that
//!                           have not been opened again: a line for each, with the error's number,
//!                           the system call, the file, its bytes that may be lost, and when it was
//!                           first seen, in seconds since 1970
//! ```

use std::time::UNIX_EPOCH;

use homing_control::{Attribute, AttributeError, AttributeTree, flat_keyed};

use crate::choices::early::WriteBack;
use crate::choices::pace::Sharing;
use crate::choices::strategy::Strategy;
use crate::counters::{Counters, Histogram};
use crate::durable::Durable;
use crate::engine::backend::Backend;
use crate::error::DurabilityError;

/// The live attributes of an engine, read and written as text by path. Cheap to clone.
///
/// ```
/// use homing_control::AttributeTree;
/// use homing_durable::Durable;
/// use homing_runtime::Runtime;
///
/// let runtime = Runtime::new()?;
/// let durable = Durable::new(&runtime)?;
/// let attributes = durable.attributes();
/// attributes.set("durable/strategy", "files")?; // no commits of filesystems from now on
/// let error = attributes.set("durable/depth", "0").unwrap_err();
/// assert!(error.to_string().contains("auto, or a number from 1 to 4096"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DurableAttributes {
    durable: Durable,
}

impl Durable {
    /// The attribute tree. To make it available to `homing ls`, `get` and `set`, give it to a
    /// [`homing_control::ControlSocket`], together with other trees by means of
    /// [`homing_control::Trees`].
    pub fn attributes(&self) -> DurableAttributes {
        DurableAttributes { durable: self.clone() }
    }
}

/// All attributes, sorted, and whether they can be set.
const ALL: [(&str, bool); 10] = [
    ("durable/backend", true),
    ("durable/batch_sizes", false),
    ("durable/counters", false),
    ("durable/depth", true),
    ("durable/failed", false),
    ("durable/filesystems", false),
    ("durable/latency_ns", false),
    ("durable/sharing", true),
    ("durable/strategy", true),
    ("durable/write_back", true),
];

/// The depth that is measured.
const AUTO: &str = "auto";

/// Syncs under way at a time on a filesystem: each may hold a thread.
const DEPTH_MAX: usize = 4096;

impl AttributeTree for DurableAttributes {
    fn list(&self) -> Vec<Attribute> {
        let attribute = |(path, writable): &(&str, bool)| Attribute {
            path: (*path).to_owned(),
            writable: *writable,
        };
        ALL.iter().map(attribute).collect()
    }

    fn get(&self, path: &str) -> Result<String, AttributeError> {
        let durable = &self.durable;
        Ok(match path {
            "durable/strategy" => durable.strategy().name().to_owned(),
            "durable/write_back" => durable.write_back().name().to_owned(),
            "durable/sharing" => durable.sharing().name().to_owned(),
            "durable/backend" => durable.backend().name().to_owned(),
            "durable/depth" => durable.depth().map_or(AUTO.to_owned(), |depth| depth.to_string()),
            "durable/counters" => counters(&durable.counters()),
            "durable/latency_ns" => histogram(&durable.counters().latency_ns),
            "durable/batch_sizes" => histogram(&durable.counters().batches),
            "durable/filesystems" => {
                let policy = durable.engine.policy();
                durable.engine.files().filesystems(policy).join("\n")
            }
            "durable/failed" => failed(&durable.failures()),
            _ => return Err(AttributeError::not_found(path)),
        })
    }

    fn set(&self, path: &str, value: &str) -> Result<(), AttributeError> {
        // A program that reads and writes files adds a newline.
        let value = value.trim();
        let refused = |accepted: String| AttributeError::refused(path, value, accepted);
        match path {
            "durable/strategy" => {
                let strategy = named(Strategy::ALL, Strategy::name, value).map_err(refused)?;
                self.durable.set_strategy(strategy);
            }
            "durable/write_back" => {
                let write_back = named(WriteBack::ALL, WriteBack::name, value).map_err(refused)?;
                self.durable.set_write_back(write_back);
            }
            "durable/sharing" => {
                let sharing = named(Sharing::ALL, Sharing::name, value).map_err(refused)?;
                self.durable.set_sharing(sharing);
            }
            "durable/backend" => {
                let backend = named(Backend::ALL, Backend::name, value).map_err(refused)?;
                self.durable.set_backend(backend).map_err(|error| {
                    AttributeError::failed(path, format!("{value} is not to be had here: {error}"))
                })?;
            }
            "durable/depth" => {
                let number = value.parse().ok().filter(|depth| (1..=DEPTH_MAX).contains(depth));
                let depth = if value == AUTO { Some(None) } else { number.map(Some) };
                let accepted = || refused(format!("{AUTO}, or a number from 1 to {DEPTH_MAX}"));
                self.durable.set_depth(depth.ok_or_else(accepted)?);
            }
            _ => {
                // An error if there is no such attribute.
                self.get(path)?;
                return Err(AttributeError::read_only(path));
            }
        }
        Ok(())
    }
}

/// The one of `all` that has the name `value`; the error says what is accepted.
fn named<T: Copy, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
    value: &str,
) -> Result<T, String> {
    let found = all.into_iter().find(|known| name(*known) == value);
    found.ok_or_else(|| format!("one of {}", all.map(name).join(", ")))
}

fn counters(counters: &Counters) -> String {
    let quantile = |quantile| counters.latency_ns.quantile(quantile);
    let all = [
        ("asked", Some(counters.asked)),
        ("shared", Some(counters.shared)),
        ("batches", Some(counters.batches.count())),
        ("files", Some(counters.files)),
        ("early", Some(counters.early)),
        ("commits", Some(counters.commits)),
        ("committed", Some(counters.committed)),
        ("flushes_saved", Some(counters.flushes_saved())),
        ("failed", Some(counters.failed)),
        ("latency_p50_ns", quantile(0.5)),
        ("latency_p99_ns", quantile(0.99)),
    ];
    flat_keyed(all)
}

/// A line for each bucket: the bound that its figures are below, and how many there are.
fn histogram(histogram: &Histogram) -> String {
    let lines: Vec<_> =
        histogram.buckets().map(|(below, count)| format!("{below} {count}")).collect();
    lines.join("\n")
}

fn failed(failures: &[DurabilityError]) -> String {
    let line = |error: &DurabilityError| {
        let DurabilityError { file, range, operation, errno, first_seen, .. } = error;
        let seen = first_seen.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // Quoted, so that nothing in a path looks like another line.
        format!("{errno} {operation} {file:?} bytes {range:?} first_seen {seen}")
    };
    failures.iter().map(line).collect::<Vec<_>>().join("\n")
}
