//! Who writes: one at a time, for all who wait, the leader. Segments are begun and removed here, too,
//! between two writes.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use homing_runtime::blocking;

use super::Sequence;
use super::folder::{Folder, is_full};
use super::format::{HEADER_LEN, Header};
use super::recovery::Opened;
use crate::commit;
use crate::durable::Kind;
use crate::engine::{Engine, TURNS_MAX, runtime_ended};
use crate::error::DurabilityError;
use crate::file_id::FileId;
use crate::gather::{Gather, gather};
use crate::sync::{Condvar, Mutex, MutexGuard, lock};
use crate::synced::{Outcome, Synced, Verdict};
use crate::system::Failure;

/// So much space is made ready at a time, in bytes. Guessed: a few hundred flushes.
const PREALLOCATE: u64 = 1 << 20;

/// A buffer that grew beyond this is not kept.
const SPARE_LEN_MAX: usize = 1 << 20;

/// What all clones of a log share.
pub(super) struct Shared {
    pub(super) engine: Arc<Engine>,
    pub(super) folder: Folder,
    /// The log's number.
    pub(super) log: u64,
    /// The folder.
    pub(super) id: FileId,
    pub(super) segment_length: u64,
    pub(super) state: Mutex<State>,
    /// All for whom a write waits have come.
    gathered: Condvar,
}

pub(super) struct State {
    /// Records that were appended and are not being written.
    pub(super) pending: Vec<u8>,
    /// An empty buffer, for the next ones.
    spare: Vec<u8>,
    /// The last record appended.
    pub(super) appended: u64,
    pub(super) durable: u64,
    /// The first record that is kept, and the one that is to be.
    pub(super) kept: u64,
    to_keep: u64,
    /// The first records of the segments that are needed.
    pub(super) segments: VecDeque<u64>,
    tail: Tail,
    /// Somebody writes, or will in a moment: nobody else may.
    pub(super) led: bool,
    running: Option<Running>,
    /// Who waits for what is pending, and how many do.
    next: Option<Arc<Outcome>>,
    waiting: usize,
    gather: Gather,
    pub(super) failed: Option<DurabilityError>,
}

/// The end of the last segment.
#[derive(Clone, Debug)]
pub(super) struct Tail {
    pub(super) file: Arc<File>,
    /// Where the durable records end.
    pub(super) end: u64,
    /// Up to where there is space whose allocation is durable.
    pub(super) allocated: u64,
}

/// What is being written: up to which record, and who waits.
struct Running {
    last: u64,
    removes: bool,
    outcome: Arc<Outcome>,
}

/// What is done beside the write.
struct Plan {
    begins: Option<Header>,
    /// Segments, by their first records.
    removes: Vec<u64>,
}

impl State {
    pub(super) fn new(opened: &Opened) -> Self {
        let &Opened { kept, last, .. } = opened;
        Self {
            pending: Vec::new(),
            spare: Vec::new(),
            appended: last,
            durable: last,
            kept,
            to_keep: kept,
            segments: opened.segments.iter().copied().collect(),
            tail: opened.tail.clone(),
            led: false,
            running: None,
            next: None,
            waiting: 0,
            gather: Gather::default(),
            failed: None,
        }
    }

    /// What answers a commit; `Err` where it waits for what is pending.
    pub(super) fn ask(&mut self, sequence: Sequence) -> Result<Synced, Arc<Outcome>> {
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
        if let Some(running) = &self.running
            && sequence.0 <= running.last
        {
            return Ok(Synced::of(Arc::clone(&running.outcome)));
        }
        Err(self.wait_for_next())
    }

    fn wait_for_next(&mut self) -> Arc<Outcome> {
        self.waiting += 1;
        Arc::clone(self.next.get_or_insert_default())
    }

    /// What answers a truncation; `Err` where it waits for the next write.
    pub(super) fn cut(&mut self, sequence: Sequence) -> Result<Synced, Arc<Outcome>> {
        let durable = self.durable;
        assert!(
            sequence.0 <= durable.saturating_add(1),
            "records before {sequence} are needed: the last that is durable is {durable}"
        );
        if let Some(error) = &self.failed {
            return Ok(Synced::done(&Err(error.clone())));
        }
        if self.unneeded(sequence.0) == 0 {
            // Somebody may just be removing them.
            let removing = self.running.as_ref().filter(|running| running.removes);
            let outcome = removing.map(|running| Synced::of(Arc::clone(&running.outcome)));
            return Ok(outcome.unwrap_or_else(|| Synced::done(&Ok(()))));
        }
        self.to_keep = self.to_keep.max(sequence.0);
        Err(self.wait_for_next())
    }

    /// How many segments have no record from this one on.
    fn unneeded(&self, kept: u64) -> usize {
        let end =
            |index: usize| self.segments.get(index + 1).map_or(self.durable + 1, |next| *next);
        let is_unneeded =
            |(index, first): &(usize, &u64)| **first < end(*index) && end(*index) <= kept;
        self.segments.iter().enumerate().take_while(is_unneeded).count()
    }

    /// What is to be done beside a write of so many bytes. What will be removed is gone for readers.
    fn plan(&mut self, log: u64, coming: u64, segment_length: u64) -> Plan {
        let unneeded = self.unneeded(self.to_keep);
        let removes: Vec<_> = self.segments.drain(..unneeded).collect();
        if !removes.is_empty() {
            self.kept = self.to_keep;
        }
        let end = self.tail.end;
        let is_full = end > HEADER_LEN as u64 && end + coming > segment_length;
        let header = Header { log, first: self.durable + 1, kept: self.kept };
        // What is removed is removed by the word of a later segment.
        let begins = (is_full || !removes.is_empty()).then_some(header);
        Plan { begins, removes }
    }
}

impl Shared {
    /// The log of this number in a folder, which is this file.
    pub(super) fn new(
        engine: Arc<Engine>,
        (folder, id): (Folder, FileId),
        log: u64,
        segment_length: u64,
        state: Mutex<State>,
    ) -> Self {
        Self { engine, folder, log, id, segment_length, state, gathered: Condvar::new() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Writes what is pending, for all who wait for it, and who are still to be told; whether more
    /// wait by then. Only for whoever has set `led`.
    pub(super) fn lead_once(&self) -> (bool, Told) {
        let mut state = gather(&self.state, &self.gathered, self.state(), |state| {
            (&mut state.gather, state.waiting)
        });
        let Some(outcome) = state.next.take() else {
            state.led = false;
            return (false, Told { outcomes: [None, None], verdict: Ok(()) });
        };
        let group = std::mem::take(&mut state.waiting);
        let (spare, mut tail) = (std::mem::take(&mut state.spare), state.tail.clone());
        let bytes = std::mem::replace(&mut state.pending, spare);
        let last = state.appended;
        let plan = state.plan(self.log, bytes.len() as u64, self.segment_length);
        let removes = !plan.removes.is_empty();
        state.running = Some(Running { last, removes, outcome: Arc::clone(&outcome) });
        drop(state);

        let (began, since) = (Instant::now(), self.engine.losses());
        let verdict = self.carry_out(&plan, &bytes, &mut tail);
        let of = (self.id, &*tail.file, Kind::Data);
        let verdict = commit::unless_lost(&self.engine.files(), since, of, verdict);

        let mut state = self.state();
        let waiting = state.waiting;
        state.gather.ended(began, Instant::now(), group, waiting);
        state.running = None;
        let mut in_vain = None;
        match &verdict {
            Ok(()) => {
                state.durable = last;
                state.tail = tail;
                if let Some(Header { first, .. }) = plan.begins
                    && state.segments.back() != Some(&first)
                {
                    state.segments.push_back(first);
                }
            }
            Err(error) => {
                state.failed = Some(error.clone());
                (in_vain, state.waiting) = (state.next.take(), 0);
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

    /// Somebody has come whom a write may wait for.
    pub(super) fn has_come(&self, state: &State) {
        if state.led && state.waiting >= state.gather.expected {
            self.gathered.notify_all();
        }
    }

    fn carry_out(&self, plan: &Plan, bytes: &[u8], tail: &mut Tail) -> Verdict {
        let system = &*self.engine.system;
        let of_folder =
            |failure: Failure| commit::error(self.id, &self.folder.file, Kind::All, &failure);
        if let Some(header) = &plan.begins {
            // The spare ones are not for going on until nothing is left to cut the log off with.
            let cuts = !plan.removes.is_empty();
            *tail = self.folder.create(system, header, bytes, cuts).map_err(of_folder)?;
        } else if !bytes.is_empty() {
            let written = self.write(bytes, tail);
            written.map_err(|failure| commit::error(self.id, &tail.file, Kind::Data, &failure))?;
        }
        self.folder.remove(system, &plan.removes).map_err(of_folder)?;
        if plan.begins.is_some() {
            self.folder.make_spares(self.segment_length);
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], tail: &mut Tail) -> Result<(), Failure> {
        let system = &*self.engine.system;
        let after = tail.end + bytes.len() as u64;
        system.write(&tail.file, bytes, tail.end)?;
        if after > tail.allocated {
            let zeroes = PREALLOCATE.min(self.segment_length.saturating_sub(after));
            tail.allocated = after + zeroes;
            match system.write(&tail.file, &vec![0; zeroes as usize], after) {
                // There was room for the records.
                Err(Failure { error, .. }) if is_full(&error) => {}
                written => written?,
            }
        }
        system.sync(&tail.file, Kind::Data)?;
        tail.end = after;
        Ok(())
    }

    /// A worker writes what is pending, and what is by then.
    pub(super) fn lead_later(self: &Arc<Self>) {
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
            for _ in 0..TURNS_MAX {
                let (more, told) = shared.lead_once();
                if !more {
                    // Whoever is told that his commit was the last may close the log, and open it.
                    drop(shared);
                    return told.tell();
                }
                told.tell();
            }
            // Whoever ends the runtime does not wait for those who come again and again.
            shared.lead_later();
        });
    }
}

/// Those who are to hear what came of a write.
pub(super) struct Told {
    outcomes: [Option<Arc<Outcome>>; 2],
    verdict: Verdict,
}

impl Told {
    pub(super) fn tell(self) {
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
            (state.led, state.waiting) = (false, 0);
            state.next.take()
        };
        if let Some(next) = next {
            next.set(&Err(runtime_ended(shared.id, &shared.folder.file, Kind::Data)));
        }
    }
}
