//! A write-ahead log: what is appended and committed is there after a crash, in order; many who
//! commit share one flush.
//!
//! What is appended gathers in memory. A commit writes all of it and flushes once (write and
//! `fdatasync`: `RWF_DSYNC` measured no better); whoever commits meanwhile waits for the next one,
//! which one of them, or a worker, does for all. Space is written with zeroes ahead of the records,
//! so that most flushes have no metadata to write.
//!
//! After a failed flush nobody knows what of it is there: the log refuses everything until it is
//! opened anew. Read on in this order: `format`, `recovery`, `records`, `error`.

mod error;
mod format;
mod records;
mod recovery;

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use homing_runtime::blocking;

pub use error::LogError;
pub use format::RECORD_LENGTH_MAX;
pub use records::{Record, Records};
pub use recovery::Recovery;

use crate::commit;
use crate::durable::{Durable, Kind};
use crate::engine::{Engine, identify, runtime_ended};
use crate::error::DurabilityError;
use crate::files::FileId;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::synced::{Outcome, Synced, Verdict};

/// So much space is made ready at a time. Guessed: a few hundred flushes.
const PREALLOCATE: u64 = 1 << 20;

/// A buffer that grew beyond this is not kept.
const SPARE_LEN_MAX: usize = 1 << 20;

/// The number of a record: 1, 2, 3 and so on. 0 is before the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(u64);

impl Sequence {
    /// As a number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A write-ahead log in a file. Cheap to clone; clones are the same log.
///
/// ```
/// use homing_durable::{Durable, Log};
/// use homing_runtime::Runtime;
///
/// let runtime = Runtime::new()?;
/// let durable = Durable::new(&runtime)?;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("log");
/// let (log, _) = Log::open(&durable, &path)?;
/// log.append(b"take 7 from one")?;
/// let last = log.append(b"give 7 to the other")?;
/// log.commit(last).wait()?; // or await it: both records, and one flush
/// assert_eq!(log.durable_sequence(), last);
/// drop(log);
///
/// // After a crash, say.
/// let (log, recovery) = Log::open(&durable, &path)?;
/// assert_eq!((recovery.records, recovery.dropped_bytes), (2, 0));
/// for record in log.records() {
///     println!("{:?}", record?.data);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Arc<Engine>,
    file: Arc<File>,
    id: FileId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Records that were appended and are not being written.
    pending: Vec<u8>,
    /// An empty buffer, for the next ones.
    spare: Vec<u8>,
    /// The last record appended.
    appended: u64,
    durable: u64,
    /// Where the durable records end.
    end: u64,
    allocated: u64,
    /// Somebody writes, or will in a moment: nobody else may.
    led: bool,
    /// What is being written: up to which record, and who waits.
    running: Option<(u64, Arc<Outcome>)>,
    /// Who waits for what is pending.
    next: Option<Arc<Outcome>>,
    failed: Option<DurabilityError>,
}

impl Log {
    /// Opens a log, or makes one. Records are kept up to the first that is not whole; what comes
    /// after them is taken away, and [`Recovery`] tells how much. Reads the whole file.
    ///
    /// # Errors
    /// [`LogError`], with the path. A file that is no log is not changed.
    pub fn open(durable: &Durable, path: impl AsRef<Path>) -> Result<(Self, Recovery), LogError> {
        let path = path.as_ref();
        let opened = recovery::open(path)?;
        let id = identify(&opened.file).map_err(|source| {
            let (action, path) = ("examine", path.to_owned());
            LogError::Io { action, path, source }
        })?;
        let records = opened.recovery.records;
        let state = State {
            appended: records,
            durable: records,
            end: opened.end,
            allocated: opened.allocated,
            ..State::default()
        };
        let (engine, state) = (Arc::clone(&durable.engine), Mutex::new(state));
        let shared = Arc::new(Shared { engine, file: opened.file, id, state });
        Ok((Self { shared }, opened.recovery))
    }

    /// Adds a record, in memory: it is durable only once it, or a later one, has been committed.
    /// Holds what was appended until then, however much that is.
    ///
    /// # Errors
    /// [`LogError::TooLong`], and [`LogError::Failed`] after a flush has failed.
    pub fn append(&self, data: &[u8]) -> Result<Sequence, LogError> {
        if data.len() > RECORD_LENGTH_MAX {
            return Err(LogError::TooLong { length: data.len() });
        }
        let mut state = self.shared.state();
        if let Some(error) = &state.failed {
            return Err(error.clone().into());
        }
        state.appended += 1;
        let sequence = state.appended;
        format::push(&mut state.pending, sequence, data);
        Ok(Sequence(sequence))
    }

    /// Begins to make everything up to this record durable. Await it, or wait. Dropping it changes
    /// nothing: the records become durable all the same.
    ///
    /// # Panics
    /// Where no such record has been appended.
    pub fn commit(&self, sequence: Sequence) -> Synced {
        let mut state = self.shared.state();
        let synced = match state.ask(sequence) {
            Ok(synced) => return synced,
            Err(outcome) => Synced::of(outcome),
        };
        let leads = !std::mem::replace(&mut state.led, true);
        drop(state);
        if leads {
            self.shared.lead_later();
        }
        synced
    }

    /// [`Log::commit`], and waits. Where no flush is under way the caller's own thread does it.
    ///
    /// # Errors
    /// [`DurabilityError`] where the records may be lost.
    ///
    /// # Panics
    /// As there.
    pub fn commit_and_wait(&self, sequence: Sequence) -> Result<(), DurabilityError> {
        let mut state = self.shared.state();
        let synced = match state.ask(sequence) {
            Ok(synced) => synced,
            Err(outcome) => {
                if !std::mem::replace(&mut state.led, true) {
                    drop(state);
                    let (more, told) = blocking(|| self.shared.lead_once());
                    told.tell();
                    if more {
                        self.shared.lead_later();
                    }
                    // What this thread has just written had its record in it.
                    return outcome.verdict().unwrap_or(Ok(()));
                }
                Synced::of(outcome)
            }
        };
        drop(state);
        synced.wait()
    }

    /// The last record that is durable, and all before it.
    pub fn durable_sequence(&self) -> Sequence {
        Sequence(self.shared.state().durable)
    }

    /// The last record appended.
    pub fn last_sequence(&self) -> Sequence {
        Sequence(self.shared.state().appended)
    }

    /// The records that are durable now, from the first on.
    pub fn records(&self) -> Records {
        let state = self.shared.state();
        Records::new(&self.shared.file, state.end, state.durable)
    }
}

impl State {
    /// What answers a commit; `Err` where it waits for what is pending.
    fn ask(&mut self, sequence: Sequence) -> Result<Synced, Arc<Outcome>> {
        let appended = self.appended;
        assert!(
            sequence.0 <= appended,
            "record {sequence} was not appended, the last is {appended}"
        );
        if sequence.0 <= self.durable {
            return Ok(Synced::done(&Ok(())));
        }
        if let Some(error) = &self.failed {
            return Ok(Synced::done(&Err(error.clone())));
        }
        if let Some((last, outcome)) = &self.running
            && sequence.0 <= *last
        {
            return Ok(Synced::of(Arc::clone(outcome)));
        }
        Err(Arc::clone(self.next.get_or_insert_default()))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Writes what is pending, for all who wait for it, and who are still to be told; whether more
    /// wait by then. Only for whoever has set `led`.
    fn lead_once(&self) -> (bool, Told) {
        let mut state = self.state();
        let Some(outcome) = state.next.take() else {
            state.led = false;
            return (false, Told { outcomes: [None, None], verdict: Ok(()) });
        };
        let spare = std::mem::take(&mut state.spare);
        let bytes = std::mem::replace(&mut state.pending, spare);
        let last = state.appended;
        state.running = Some((last, Arc::clone(&outcome)));
        let (end, mut allocated) = (state.end, state.allocated);
        drop(state);

        let verdict = self.write(&bytes, end, &mut allocated);

        let mut state = self.state();
        state.running = None;
        let mut in_vain = None;
        match &verdict {
            Ok(()) => {
                state.durable = last;
                state.end += bytes.len() as u64;
                state.allocated = allocated;
            }
            Err(error) => {
                state.failed = Some(error.clone());
                in_vain = state.next.take();
            }
        }
        if bytes.capacity() <= SPARE_LEN_MAX {
            state.spare = bytes;
            state.spare.clear();
        }
        state.led = state.next.is_some();
        let more = state.led;
        drop(state);
        (more, Told { outcomes: [in_vain, Some(outcome)], verdict })
    }

    fn write(&self, bytes: &[u8], end: u64, allocated: &mut u64) -> Verdict {
        let system = &*self.engine.system;
        let after = end + bytes.len() as u64;
        let written = system.write(&self.file, bytes, end).and_then(|()| {
            if after > *allocated {
                let zeroes = vec![0; PREALLOCATE as usize];
                system.write(&self.file, &zeroes, after)?;
                *allocated = after + PREALLOCATE;
            }
            system.sync(&self.file, Kind::Data)
        });
        written.map_err(|failure| commit::error(self.id, &self.file, Kind::Data, &failure))
    }

    /// A worker writes what is pending, and what is by then.
    fn lead_later(self: &Arc<Self>) {
        let lead = Lead { shared: Some(Arc::clone(self)) };
        self.engine.execute(move || lead.run());
    }
}

/// A worker's turn to write, or, if the runtime drops it, word for those who wait.
struct Lead {
    shared: Option<Arc<Shared>>,
}

impl Lead {
    fn run(mut self) {
        let Some(shared) = self.shared.take() else { return };
        blocking(|| {
            loop {
                let (more, told) = shared.lead_once();
                if !more {
                    // Whoever is told that his commit was the last may close the log, and open it.
                    drop(shared);
                    return told.tell();
                }
                told.tell();
            }
        });
    }
}

/// Those who are to hear what came of a write.
struct Told {
    outcomes: [Option<Arc<Outcome>>; 2],
    verdict: Verdict,
}

impl Told {
    fn tell(self) {
        for outcome in self.outcomes.into_iter().flatten() {
            outcome.set(&self.verdict);
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        let next = {
            let mut state = shared.state();
            // Whoever waits on a thread of his own can still commit.
            state.led = false;
            state.next.take()
        };
        if let Some(next) = next {
            next.set(&Err(runtime_ended(shared.id, &shared.file, Kind::Data)));
        }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state();
        f.debug_struct("Log")
            .field("appended", &state.appended)
            .field("durable", &state.durable)
            .field("failed", &state.failed)
            .finish_non_exhaustive()
    }
}
