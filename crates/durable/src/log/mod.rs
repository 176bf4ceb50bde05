//! A write-ahead log. What is appended and committed is there after a crash, in order. Concurrent
//! commits share one flush. Records that are no longer needed are cut off at the beginning.
//!
//! Appended records gather in memory. A commit writes all of them and flushes once (write and
//! `fdatasync`: `RWF_DSYNC` measured no better). Callers that commit meanwhile wait for the next
//! write, which one of them, or a worker, does for all of them. Space is filled with zeroes ahead
//! of the records, so that most flushes have no metadata to write.
//!
//! A log is a folder of segments. The last one is written to until it is full; those before it are
//! whole and durable. To cut the log off, a segment is begun whose header says from where on
//! records are needed. Then the segments before that are removed, while commits go on.
//!
//! If there is no room for records, they wait in memory, and the log goes on once there is room.
//! After a failed flush nobody knows which of the records are there, so the log refuses everything
//! until it is opened anew. Read on in this order: `options`, `format`, `folder`,
//! `recovery`, `lead`, `write`, `cut`, `records`, `follow`, `sequence`, `error`, `attributes`.

#[cfg(feature = "control")]
mod attributes;
mod cut;
mod error;
mod folder;
mod follow;
mod format;
mod lead;
mod options;
mod records;
mod recovery;
mod sequence;
mod write;

use std::fmt;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use homing_runtime::blocking;

#[cfg(feature = "control")]
pub use attributes::LogAttributes;
pub use error::LogError;
pub use format::RECORD_LENGTH_MAX;
pub use options::LogOptions;
pub use records::{Record, Records};
pub use recovery::Recovery;
pub use sequence::Sequence;

use crate::durable::Durable;
use crate::error::DurabilityError;
use crate::files::file_id::FileId;
use crate::sync::Mutex;
use crate::synced::Synced;
use lead::{Answer, Led, Shared, State};
use sequence::SEQUENCE_MAX;

/// A write-ahead log in a folder. Cheap to clone; clones are the same log.
///
/// A log that is committed by futures, or by several threads, takes a thread of the runtime while
/// it writes. So as many threads are taken as such logs commit at the same time, unless
/// `workqueue/durable/max_active` is set.
///
/// Only one process may write to a log. The lock on its folder keeps others out, but not a child
/// made by `fork`, which has it, too: the child must not use the log.
///
/// [`Durable::counters`] counts each write as a sync of one file, for the commits and cuts that
/// waited for it. A commit of records that are durable already is not counted. A failed write is
/// one failure there. One that closes the log is among [`Durable::failures`], until the log is
/// opened again or the failure is [acknowledged](Durable::acknowledge).
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
/// let first = log.append(b"take 7 from one")?;
/// let last = log.append(b"give 7 to the other")?;
/// log.commit(last).wait()?; // or await it: both records, and one flush
/// assert_eq!(log.durable_sequence(), last);
/// drop(log);
///
/// // After a crash, say.
/// let (log, recovery) = Log::open(&durable, &path)?;
/// assert_eq!((recovery.first, recovery.records, recovery.dropped_bytes), (first, 2, 0));
/// for record in log.records() {
///     println!("{:?}", record?.data);
/// }
/// // What they say is durable elsewhere by now: the log need not keep them.
/// log.truncate_before(last.next()).wait()?;
/// assert_eq!(log.records().count(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

impl Log {
    /// Opens a log. If there is none, makes one: a folder, in a folder that exists, with the
    /// permissions that the process's umask leaves. Whoever can write there can change the log.
    /// Records are kept up to the first one that is not whole, if that one may never have been
    /// durable. The rest is gone, and [`Recovery`] tells how much that is. This reads all of the
    /// log that is needed, and writes the last write anew, so that everything found is durable
    /// afterwards. On a full disk the log has its own space for that, and for one
    /// [`truncate_before`](Log::truncate_before), as long as that write has no more than 256 KiB.
    ///
    /// # Errors
    /// [`LogError`], with the path; [`LogError::Damaged`] if a record that was durable is not
    /// whole. A path that is not a log, or a damaged log, is not changed.
    pub fn open(durable: &Durable, path: impl AsRef<Path>) -> Result<(Self, Recovery), LogError> {
        Self::options().open(durable, path)
    }

    /// [`Log::open`] for a damaged log, without the damaged part. Gives up the record that
    /// [`LogError::Damaged`] has named, and **all records behind it**, for good. Records before it
    /// that were not cut off are kept. Use it on a copy, or keep a copy. If another record is
    /// damaged, such as an earlier one that had not been reached, nothing is changed and the error
    /// names that record. If no record is damaged, nothing is given up. So after a crash during
    /// this call it may be called again, with the record that is named then. Data that the disk
    /// cannot read is an error, not damage: first copy the files, with zeroes in its place. If that
    /// is near the end of the newest segment, records that were durable may be missing without an
    /// error: compare [`last_sequence`](Log::last_sequence) with what was acknowledged.
    ///
    /// The numbers of the given-up records are used again: if one of them was noted elsewhere, that
    /// note must be forgotten. [`Recovery::dropped_bytes`] includes the length of the removed
    /// segments. If no kept record comes before the named one, the log is empty afterwards. If the
    /// header of the newest segment was damaged, records may reappear that it said were cut off.
    ///
    /// # Errors
    /// As [`Log::open`].
    ///
    /// ```
    /// use homing_durable::{Log, LogError};
    ///
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// # {
    /// #     use std::os::unix::fs::FileExt;
    /// #     let (log, _) = Log::open(&durable, &path)?;
    /// #     for data in [b"one", b"two", b"six"] {
    /// #         log.commit_and_wait(log.append(data)?)?;
    /// #     }
    /// #     drop(log);
    /// #     let segment = path.join(format!("{:020}.log", 1));
    /// #     std::fs::OpenOptions::new().write(true).open(segment)?.write_all_at(b"?", 75)?; // of "two"
    /// # }
    /// let Err(LogError::Damaged { sequence, .. }) = Log::open(&durable, &path) else { panic!() };
    /// // After consulting somebody, and making a copy:
    /// let (log, _) = Log::open_before(&durable, &path, sequence.into())?;
    /// # assert_eq!(log.records().map(|record| record.unwrap().data).collect::<Vec<_>>(), [b"one"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_before(
        durable: &Durable,
        path: impl AsRef<Path>,
        damaged: Sequence,
    ) -> Result<(Self, Recovery), LogError> {
        Self::open_as(durable, path.as_ref(), &Self::options().create(false), Some(damaged))
    }

    /// Other ways to open a log: only one that exists, only a new one, with other segments.
    pub fn options() -> LogOptions {
        LogOptions::new()
    }

    fn open_as(
        durable: &Durable,
        path: &Path,
        options: &LogOptions,
        given_up: Option<Sequence>,
    ) -> Result<(Self, Recovery), LogError> {
        let engine = Arc::clone(&durable.engine);
        let (since, segment_length) = (engine.losses(), options.segment_length);
        let opened = recovery::open(&*engine.system, path, options, given_up)?;
        let id = FileId::of(&opened.folder.file).map_err(|source| {
            let (action, path) = ("examine", opened.folder.path.clone());
            LogError::Io { action, path, source }
        })?;
        // A commit of its filesystem may have written back what was synced here, and the device
        // then lost it.
        if let Some(failure) = engine.files().lost_since(id, since) {
            let source = std::io::Error::new(failure.error.kind(), failure.error.to_string());
            let (action, path) = ("flush the device of", opened.folder.path.clone());
            return Err(LogError::Io { action, path, source });
        }
        let recovery = opened.recovery();
        opened.folder.make_spares(segment_length);
        let state = Mutex::new(State::new(&opened));
        let (folder, log) = (opened.folder, opened.log);
        engine.forget_log_failed(id);
        let shared = Shared::new(engine, (folder, id), log, segment_length, state);
        Ok((Self { shared: Arc::new(shared) }, recovery))
    }

    /// Adds a record in memory: it is durable only once this record, or a later one, has been
    /// committed. The log holds all appended records in memory until then, however much that is.
    ///
    /// A record cannot be taken back. If a program appends a change and then cannot make it, it
    /// must change nothing further, nor cut the log off, until it has opened the log again and made
    /// the change from there.
    ///
    /// # Errors
    /// [`LogError::TooLong`], [`LogError::Exhausted`], and [`LogError::Failed`] after a failed
    /// flush.
    pub fn append(&self, data: &[u8]) -> Result<Sequence, LogError> {
        self.append_vectored(&[IoSlice::new(data)])
    }

    /// [`Log::append`] of one record, whose data is these parts, one after the other.
    ///
    /// # Errors
    /// As [`Log::append`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// use std::io::IoSlice;
    ///
    /// let (log, _) = homing_durable::Log::open(&durable, &path)?;
    /// let (table, row) = (7_u32.to_le_bytes(), b"Ada");
    /// log.commit_and_wait(log.append_vectored(&[IoSlice::new(&table), IoSlice::new(row)])?)?;
    /// assert_eq!(log.records().next().ok_or("gone")??.data, b"\x07\0\0\0Ada");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn append_vectored(&self, data: &[IoSlice<'_>]) -> Result<Sequence, LogError> {
        let length = data.iter().fold(0, |length: usize, part| length.saturating_add(part.len()));
        if length > RECORD_LENGTH_MAX {
            return Err(LogError::TooLong { length });
        }
        let mut state = self.shared.state();
        if let Some(error) = state.refusal() {
            return Err(error.clone().into());
        }
        if state.appended >= SEQUENCE_MAX {
            return Err(LogError::Exhausted { last: state.appended });
        }
        state.appended += 1;
        let sequence = state.appended;
        format::push(
            &mut state.pending,
            self.shared.log,
            sequence,
            data.iter().map(|part| &**part),
        );
        Ok(Sequence(sequence))
    }

    /// Begins to make everything up to this record durable. Await the result, or wait for it.
    /// Dropping it changes nothing: the records become durable all the same, and the log stays open
    /// and locked until they are.
    ///
    /// If the commit fails, the log is closed. What was durable before, and perhaps more, is there
    /// when it is opened again. There are two exceptions:
    ///
    /// * If there was no room, or no descriptor for a new segment ([`DurabilityError::errno`] is
    ///   `ENOSPC`, `EDQUOT`, `EFBIG`, `EMFILE` or `ENFILE`, and the error's text says that no
    ///   record is lost), the appended records are kept, and a later commit of any of them makes
    ///   all of them durable. [`truncate_before`](Log::truncate_before) makes room even then. (With
    ///   a limit on the size of files, as by `ulimit -f`, the process is ended by `SIGXFSZ` unless
    ///   it handles or ignores that.)
    /// * If the runtime had ended before the commit began (`errno` is `ECANCELED`), nothing is
    ///   lost, and the log is not closed: [`Log::commit_and_wait`] still works.
    ///
    /// # Panics
    /// If no such record has been appended.
    pub fn commit(&self, sequence: Sequence) -> Synced {
        self.begin(|state| state.ask(sequence))
    }

    /// [`Log::commit`], and waits. If no flush is under way, the caller's own thread does it.
    ///
    /// # Errors
    /// [`DurabilityError`] if the records may be lost.
    ///
    /// # Panics
    /// As [`Log::commit`].
    pub fn commit_and_wait(&self, sequence: Sequence) -> Result<(), DurabilityError> {
        loop {
            let verdict = self.try_here(|state| state.ask(sequence), false);
            // If the runtime has ended before a worker could write it, this thread tries again.
            if !verdict.as_ref().is_err_and(DurabilityError::has_not_begun) {
                return verdict;
            }
        }
    }

    /// As [`Log::begin`], and waits; this thread writes, if nobody else does. With `removes_here`
    /// it also removes.
    fn try_here(
        &self,
        ask: impl FnOnce(&mut State) -> Answer,
        removes_here: bool,
    ) -> Result<(), DurabilityError> {
        let mut state = self.shared.state();
        let synced = match ask(&mut state) {
            Answer::Given(synced) => {
                if state.cuts.begins() {
                    drop(state);
                    Arc::clone(&self.shared).remove(removes_here);
                    return synced.wait();
                }
                synced
            }
            Answer::NextWrite(outcome) => {
                self.shared.has_come(&state);
                if !std::mem::replace(&mut state.led, true) {
                    drop(state);
                    let Led { more, removes, told } = blocking(|| self.shared.lead_once());
                    // First let a worker lead on: a caller that is told may commit, and wait.
                    if more {
                        self.shared.lead_later();
                    }
                    if removes && !removes_here {
                        Arc::clone(&self.shared).remove(false);
                    }
                    told.tell();
                    if removes && removes_here {
                        Arc::clone(&self.shared).remove(true);
                    }
                    // What this thread has just written had its record in it, or began its cut.
                    return Synced::of(outcome).wait();
                }
                Synced::of(outcome)
            }
        };
        drop(state);
        synced.wait()
    }

    /// The last record that is durable; all records before it are, too.
    pub fn durable_sequence(&self) -> Sequence {
        Sequence(self.shared.state().durable)
    }

    /// The last appended record.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// let (log, _) = homing_durable::Log::open(&durable, &path)?;
    /// let last = log.append(b"one")?;
    /// log.commit_and_wait(last)?;
    /// let ends = (log.first_sequence(), log.last_sequence(), log.durable_sequence());
    /// assert_eq!(ends, (last, last, last));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn last_sequence(&self) -> Sequence {
        Sequence(self.shared.state().appended)
    }

    /// How many bytes of records were appended and are not durable, and so how much memory they
    /// take. A program that appends faster than its disk writes should commit, and wait, when this
    /// becomes too much.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// let (log, _) = homing_durable::Log::open(&durable, &path)?;
    /// let last = log.append(&[7; 1000])?;
    /// assert!(log.pending_bytes() >= 1000 && log.kept_bytes() < 1000);
    /// log.commit_and_wait(last)?;
    /// assert!(log.pending_bytes() == 0 && log.kept_bytes() >= 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pending_bytes(&self) -> usize {
        self.shared.state().pending_bytes()
    }

    /// How many bytes of records are on the disk, including records that share a segment with some
    /// that are needed. This is how much recovery would read, and a reason to cut the log off. For
    /// each segment except the last, it includes up to 1 MiB of zeroes that were prepared behind
    /// its records. The last segment and the spare ones take up to 1.5 MiB more.
    pub fn kept_bytes(&self) -> u64 {
        let state = self.shared.state();
        let before = state.segments.iter().rev().skip(1).copied().collect::<Vec<_>>();
        let last = state.records_end();
        drop(state);
        before.into_iter().map(|first| self.shared.folder.length_of(first)).sum::<u64>() + last
    }

    /// The first record that is kept or, if there is none, the next record.
    pub fn first_sequence(&self) -> Sequence {
        Sequence(self.shared.state().kept)
    }

    /// The records that are durable now, beginning with the first that is kept.
    pub fn records(&self) -> Records {
        self.records_from(self.first_sequence())
    }

    /// The records that are durable now, beginning with this one, or with the first that is kept.
    /// Later cuts do not take them away: see [`Records`]. What was written since the log was opened
    /// is found without reading more than 256 KiB and a write before it, so this is a way to follow
    /// the log: see [`Log::until_durable`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// use homing_durable::{Record, Records};
    ///
    /// let (log, _) = homing_durable::Log::open(&durable, &path)?;
    /// let (_, second) = (log.append(b"one")?, log.append(b"two")?);
    /// log.commit_and_wait(second)?;
    /// let records: Records = log.records_from(second);
    /// let records: Vec<Record> = records.collect::<Result<_, _>>()?;
    /// assert_eq!(records, [Record { sequence: second, data: b"two".to_vec() }]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn records_from(&self, sequence: Sequence) -> Records {
        let state = self.shared.state();
        let (folder, from) = (&self.shared.folder, sequence.0.max(state.kept));
        let segments = (&state.segments, &state.cuts.pins, &state.places);
        Records::new(folder, self.shared.log, segments, from, state.durable)
    }

    /// Becomes ready when this record is durable, which may not even be appended yet. This asks for
    /// nothing: somebody else has to append and commit it. For those who follow a log, to copy it
    /// to another machine or to act on what it says.
    ///
    /// The result is an error if the log fails or is closed before that, or if all of its clones
    /// are dropped: one that a follower keeps does not count as a reason to give up, so whoever
    /// writes must [close](Log::close) the log in the end. If the runtime ends when a worker was to
    /// write, it is an error with `ECANCELED`, and another thread may still commit.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// use homing_durable::{Log, Sequence};
    ///
    /// let (log, _) = Log::open(&durable, &path)?;
    /// let followed = log.clone();
    /// let follower = runtime.spawn(async move {
    ///     let (mut copied, mut next) = (Vec::new(), Sequence::from(1));
    ///     while next.get() <= 3 {
    ///         followed.until_durable(next).await?;
    ///         for record in followed.records_from(next) {
    ///             let record = record?;
    ///             next = record.sequence.next();
    ///             copied.extend(record.data);
    ///         }
    ///     }
    ///     Ok::<_, std::io::Error>(copied)
    /// });
    /// for data in [b"a", b"b", b"c"] {
    ///     log.commit_and_wait(log.append(data)?)?;
    /// }
    /// assert_eq!(follower.join()??, b"abc");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn until_durable(&self, sequence: Sequence) -> Synced {
        self.shared.state().follow(sequence)
    }

    /// Says that no record before this one is needed any more, and begins to remove the segments
    /// that contain only such records. If there is at least one, readers no longer see any record
    /// before this one, now and whenever the log is opened again. Otherwise nothing happens:
    /// records are removed by whole segments. The space of the last segment is given back if none
    /// of its records is needed.
    ///
    /// Await the result, or wait for it: then the space is free, also after a crash; but for
    /// segments that [`Records`] have still to reach, which the next cut removes. Dropping it
    /// changes nothing. An earlier crash leaves all of these records or none. As a side effect, all
    /// appended records become durable. If something is removed, this costs three flushes. Commits
    /// wait for the two that begin the new segment, but not for the removal of the old ones. If the
    /// disk is almost full, they also wait while spare segments are made. A failed flush closes the
    /// log, as that of a commit does. If a segment cannot be removed, nothing else happens, and the
    /// next cut tries again.
    ///
    /// If the runtime had ended before this began ([`DurabilityError::errno`] is `ECANCELED`),
    /// nothing is lost: [`Log::truncate_before_and_wait`] still works.
    ///
    /// What you keep elsewhere in place of these records must be durable before this call. If you
    /// note elsewhere from where on the log is needed, do so from one thread at a time: a note that
    /// is older than this call asks for records that are gone.
    ///
    /// # Panics
    /// If a record before this one is not durable.
    pub fn truncate_before(&self, sequence: Sequence) -> Synced {
        self.begin(|state| state.cut(sequence))
    }

    /// [`Log::truncate_before`], and waits. If nobody else writes to the log, or cuts it off, the
    /// caller's own thread does. So this works also when the runtime has ended.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// let (log, _) = homing_durable::Log::open(&durable, &path)?;
    /// let last = log.append(b"one")?;
    /// log.commit_and_wait(last)?;
    /// drop(runtime);
    /// // What this record did is durable elsewhere.
    /// log.truncate_before_and_wait(last.next())?;
    /// assert_eq!(log.records().count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DurabilityError`], as of [`Log::truncate_before`].
    ///
    /// # Panics
    /// As [`Log::truncate_before`].
    pub fn truncate_before_and_wait(&self, sequence: Sequence) -> Result<(), DurabilityError> {
        loop {
            let verdict = self.try_here(|state| state.cut(sequence), true);
            // If the runtime has ended before a worker could do its part, this thread tries again.
            if !verdict.as_ref().is_err_and(DurabilityError::has_not_begun) {
                return verdict;
            }
        }
    }

    /// Closes the log, for all clones: waits for what is under way, and unlocks the folder, so that
    /// the log can be opened again at once. Dropping a log does the same if nothing is under way.
    /// Otherwise the log is closed once that has ended, which may be a moment after a commit or a
    /// cut was reported as done. Appended records that nobody has committed are given up. Later
    /// calls on another clone are refused as after a failure, except for reads, and for commits of
    /// what is durable.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// use homing_durable::Log;
    ///
    /// let (log, _) = Log::open(&durable, &path)?;
    /// let other = log.clone();
    /// drop(log.commit(log.append(b"one")?)); // nobody waits
    /// log.close();
    /// assert!(other.append(b"two").is_err());
    /// let (log, _) = Log::open(&durable, &path)?;
    /// assert_eq!(log.records().count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(self) {
        blocking(|| self.shared.close());
    }

    /// Asks under the lock. If a write is still to be done and nobody leads, a worker will.
    fn begin(&self, ask: impl FnOnce(&mut State) -> Answer) -> Synced {
        let mut state = self.shared.state();
        let synced = match ask(&mut state) {
            Answer::Given(synced) => {
                let removes = state.cuts.begins();
                drop(state);
                if removes {
                    Arc::clone(&self.shared).remove_later();
                }
                return synced;
            }
            Answer::NextWrite(outcome) => {
                self.shared.has_come(&state);
                Synced::of(outcome)
            }
        };
        let leads = !std::mem::replace(&mut state.led, true);
        drop(state);
        if leads {
            self.shared.lead_later();
        }
        synced
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state();
        f.debug_struct("Log")
            .field("appended", &state.appended)
            .field("durable", &state.durable)
            .field("ended", &state.ended)
            .finish_non_exhaustive()
    }
}
