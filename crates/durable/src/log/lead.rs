//! Writes the log: one thread at a time, the leader, writes for all callers that wait. It also
//! begins segments.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use homing_runtime::blocking;
use rustix::io::Errno;

use super::Sequence;
use super::cut::{Cuts, tell};
use super::folder::Folder;
use super::follow::{Followers, Places};
use super::format::{self, HEADER_LEN, Header};
use super::recovery::Opened;
use super::write::{Plan, Tail, Written};
use crate::durable::Kind;
use crate::engine::commit;
use crate::engine::jobs::TURNS_MAX;
use crate::engine::{Engine, runtime_ended};
use crate::error::{DurabilityError, Loss};
use crate::files::file_id::FileId;
use crate::files::gather::{Gather, gather};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait};
use crate::synced::{Outcome, Synced, Verdict};
use crate::system::Failure;

/// A buffer that grew beyond this is not kept.
const SPARE_LEN_MAX: usize = 1 << 20;

/// What all clones of a log share.
pub(super) struct Shared {
    pub(super) engine: Arc<Engine>,
    pub(super) folder: Folder,
    /// The log's number.
    pub(super) log: u64,
    /// The identity of the folder.
    pub(super) id: FileId,
    pub(super) segment_length: u64,
    pub(super) state: Mutex<State>,
    /// Notified when all callers that a write waits for have come.
    gathered: Condvar,
    /// Notified when a thread has stopped writing, or removing.
    pub(super) quiet: Condvar,
    /// Held while segments or spare ones are made or used, and while a removal of segments becomes
    /// durable.
    pub(super) names: Mutex<()>,
}

pub(super) struct State {
    /// Records that were appended and are not being written.
    pub(super) pending: Vec<u8>,
    /// An empty buffer, for the next records.
    spare: Vec<u8>,
    /// The last record appended.
    pub(super) appended: u64,
    pub(super) durable: u64,
    /// The first record that is kept.
    pub(super) kept: u64,
    /// The first records of the segments that are needed.
    pub(super) segments: VecDeque<u64>,
    tail: Tail,
    /// A thread writes, or will in a moment: no other may.
    pub(super) led: bool,
    running: Option<Running>,
    /// The outcome that callers of pending records wait for, and how many do.
    next: Option<Arc<Outcome>>,
    waiting: usize,
    /// When the first of them asked.
    asked_at: Instant,
    gather: Gather,
    pub(super) cuts: Cuts,
    pub(super) places: Places,
    followers: Followers,
    pub(super) ended: Option<Ended>,
}

/// What answers a caller.
pub(super) enum Answer {
    /// The verdict, or what is under way.
    Given(Synced),
    /// The outcome of the next write, or of the cut that it begins. If nobody leads, the caller
    /// must see to it that somebody does.
    NextWrite(Arc<Outcome>),
}

/// Why a log takes no more records, and what it says to those who ask.
#[derive(Debug)]
pub(super) enum Ended {
    /// What is under way is still done.
    Closed(DurabilityError),
    /// Nothing that ends from then on is known to be durable.
    Failed(DurabilityError),
}

/// What is being written: up to which record, how many bytes, and the outcomes that callers wait
/// for, of the write and of a cut.
struct Running {
    last: u64,
    bytes: usize,
    /// How many callers it answers.
    callers: usize,
    outcome: Arc<Outcome>,
    cut: Option<Arc<Outcome>>,
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
            segments: opened.segments.iter().copied().collect(),
            tail: opened.tail.clone(),
            led: false,
            running: None,
            next: None,
            waiting: 0,
            asked_at: Instant::now(),
            gather: Gather::default(),
            cuts: Cuts::default(),
            places: Places::default(),
            followers: Followers::default(),
            ended: None,
        }
    }

    /// What it says to those who ask for more, if it has ended.
    pub(super) fn refusal(&self) -> Option<&DurabilityError> {
        let (Ended::Closed(error) | Ended::Failed(error)) = self.ended.as_ref()?;
        Some(error)
    }

    pub(super) fn failure(&self) -> Option<DurabilityError> {
        match &self.ended {
            Some(Ended::Failed(error)) => Some(error.clone()),
            Some(Ended::Closed(_)) | None => None,
        }
    }

    /// What answers a commit.
    pub(super) fn ask(&mut self, sequence: Sequence) -> Answer {
        let appended = self.appended;
        assert!(
            sequence.0 <= appended,
            "record {sequence} was not appended, the last is {appended}"
        );
        if sequence.0 <= self.durable {
            return Answer::Given(Synced::done(&Ok(())));
        }
        if let Some(error) = self.refusal() {
            return Answer::Given(Synced::done(&Err(error.clone())));
        }
        if let Some(running) = &mut self.running
            && sequence.0 <= running.last
        {
            running.callers += 1;
            return Answer::Given(Synced::of(Arc::clone(&running.outcome)));
        }
        Answer::NextWrite(self.wait_for_next())
    }

    /// What answers those who wait for a record and do not ask for it.
    pub(super) fn follow(&mut self, sequence: Sequence) -> Synced {
        if sequence.0 <= self.durable {
            return Synced::done(&Ok(()));
        }
        match self.refusal() {
            Some(error) => Synced::done(&Err(error.clone())),
            None => Synced::of(self.followers.add(sequence.0)),
        }
    }

    fn wait_for_next(&mut self) -> Arc<Outcome> {
        if self.waiting == 0 {
            self.asked_at = Instant::now();
        }
        self.waiting += 1;
        Arc::clone(self.next.get_or_insert_default())
    }

    /// Takes the outcomes that callers would wait for in vain: of the next write, of a cut, and of
    /// records that do not come.
    fn give_up(&mut self) -> Vec<Arc<Outcome>> {
        self.waiting = 0;
        let cut = self.cuts.asked.take().map(|(_, cut)| cut);
        let followers = self.followers.take_all();
        self.next.take().into_iter().chain(cut).chain(followers).collect()
    }

    fn keep_buffer(&mut self, mut bytes: Vec<u8>) {
        if bytes.capacity() <= SPARE_LEN_MAX {
            bytes.clear();
            self.spare = bytes;
        }
    }

    /// Where the records of the last segment end.
    pub(super) fn records_end(&self) -> u64 {
        self.tail.end - HEADER_LEN as u64
    }

    /// Bytes of records that are not durable.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending.len() + self.running.as_ref().map_or(0, |running| running.bytes)
    }

    /// What answers a truncation.
    pub(super) fn cut(&mut self, sequence: Sequence) -> Answer {
        let durable = self.durable;
        assert!(
            sequence.0 <= durable.saturating_add(1),
            "records before {sequence} are needed: the last that is durable is {durable}"
        );
        if let Some(error) = self.refusal() {
            return Answer::Given(Synced::done(&Err(error.clone())));
        }
        if self.unneeded(sequence.0) == 0 {
            // A thread may be about to remove what is not needed.
            let running = self.running.as_ref().and_then(|running| running.cut.clone());
            let latest = running.or_else(|| self.cuts.latest());
            return Answer::Given(latest.map_or_else(|| Synced::done(&Ok(())), Synced::of));
        }
        // This counts as waiting for a write, so that one is done. But its outcome would come too
        // early: the caller waits for that of the cut.
        self.wait_for_next();
        Answer::NextWrite(self.cuts.ask(sequence.0))
    }

    /// How many segments, from the first on, have only records before this one.
    fn unneeded(&self, kept: u64) -> usize {
        let end =
            |index: usize| self.segments.get(index + 1).map_or(self.durable + 1, |next| *next);
        let is_unneeded =
            |(index, first): &(usize, &u64)| **first < end(*index) && end(*index) <= kept;
        self.segments.iter().enumerate().take_while(is_unneeded).count()
    }

    /// What is to be done besides a write of `coming` bytes. What will be removed is gone for
    /// readers.
    fn plan(&mut self, log: u64, coming: u64, segment_length: u64) -> Plan {
        let (asked, kept) = (self.cuts.asked.take(), self.kept);
        let (to_keep, cut) = asked.map_or((kept, None), |(to_keep, cut)| (to_keep, Some(cut)));
        let unneeded = self.unneeded(to_keep);
        let removes: Vec<_> = self.segments.drain(..unneeded).collect();
        if !removes.is_empty() {
            self.kept = to_keep;
        }
        let end = self.tail.end;
        let is_full = end > HEADER_LEN as u64 && end + coming > segment_length;
        let header = Header { log, first: self.durable + 1, kept: self.kept };
        // Segments are removed only once a later segment says that they are not needed.
        let begins = (is_full || !removes.is_empty()).then_some(header);
        let seals = begins.map(|_| self.tail.clone());
        Plan { begins, seals, removes, cut, kept }
    }

    /// What was planned to be removed can be, now.
    fn add_cut(&mut self, plan: Plan) {
        if let Some(first) = self.segments.front().filter(|_| !plan.removes.is_empty()) {
            self.places.forget(*first);
        }
        self.cuts.add(plan.removes, plan.cut);
    }

    /// There was no room for what was planned: undoes it. Returns the outcome that is to be told.
    fn undo(&mut self, plan: Plan) -> Option<Arc<Outcome>> {
        let Plan { removes, kept, cut, .. } = plan;
        removes.into_iter().rev().for_each(|first| self.segments.push_front(first));
        self.kept = kept;
        // No prepared space was left behind the end.
        self.tail.allocated = self.tail.allocated.min(self.tail.end);
        cut
    }

    /// Puts records that were not written in front of those that have been appended meanwhile.
    fn put_back(&mut self, mut bytes: Vec<u8>, log: u64) {
        if !bytes.is_empty() {
            format::unmark(&mut self.pending, log);
        }
        bytes.append(&mut self.pending);
        self.pending = bytes;
    }
}

impl Drop for Shared {
    /// The log goes, but those who follow it may be there still, and open it again.
    fn drop(&mut self) {
        self.folder.unlock();
        let followers = self.state().followers.take_all();
        self.tell_of_end(followers);
    }
}

impl Shared {
    /// The log of this number, in a folder with this identity.
    pub(super) fn new(
        engine: Arc<Engine>,
        (folder, id): (Folder, FileId),
        log: u64,
        segment_length: u64,
        state: Mutex<State>,
    ) -> Self {
        let (gathered, quiet, names) = (Condvar::new(), Condvar::new(), Mutex::new(()));
        Self { engine, folder, log, id, segment_length, state, gathered, quiet, names }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Writes what is pending, for all callers that wait for it. Only the thread that has set `led`
    /// may call this.
    pub(super) fn lead_once(&self) -> Led {
        let mut state = gather(&self.state, &self.gathered, self.state(), |state| {
            (&mut state.gather, state.waiting)
        });
        let Some(outcome) = state.next.take() else {
            state.led = false;
            self.quiet.notify_all();
            let told = Told { outcomes: Vec::new(), verdict: Ok(()) };
            return Led { more: false, removes: false, told };
        };
        let (group, asked_at) = (std::mem::take(&mut state.waiting), state.asked_at);
        let (spare, mut tail) = (std::mem::take(&mut state.spare), state.tail.clone());
        let bytes = std::mem::replace(&mut state.pending, spare);
        let last = state.appended;
        let plan = state.plan(self.log, bytes.len() as u64, self.segment_length);
        let begin = (state.durable + 1, tail.end);
        state.running = Some(Running {
            last,
            bytes: bytes.len(),
            callers: group,
            outcome: Arc::clone(&outcome),
            cut: plan.cut.clone(),
        });
        drop(state);

        let (began, since) = (Instant::now(), self.engine.losses());
        let written = self.carry_out(&plan, &bytes, &mut tail);
        let of = (self.id, &*tail.file, Kind::Data);
        let lost = commit::unless_lost(&self.engine.files(), since, of, Ok(()));
        let written = lost.map_err(|error| error.with(Loss::Records)).and(written);
        if written.is_ok() {
            self.seal(&plan);
        }

        let mut state = self.state();
        // A cut that failed meanwhile may have cost what this has written: a device may forget what
        // it could not flush, whoever asked for the flush.
        let written = state.failure().map_or(written, Err);
        let waiting = state.waiting;
        state.gather.ended(began.elapsed(), Instant::now(), group, waiting);
        let callers = state.running.take().map_or(group, |running| running.callers);
        self.engine.note_one(callers, asked_at.elapsed());
        let (mut outcomes, mut verdict) = (vec![outcome], Ok(()));
        if written.is_ok() {
            state.tail = tail;
            if let Some(Header { first, .. }) = plan.begins
                && state.segments.back() != Some(&first)
            {
                state.segments.push_back(first);
            }
        }
        match written {
            Ok(Written::All) => {
                if plan.begins.is_some() {
                    state.places.begin_segment();
                } else if !bytes.is_empty() {
                    state.places.note(begin.0, begin.1);
                }
                state.add_cut(plan);
                state.durable = last;
                outcomes.extend(state.followers.take(last));
                state.keep_buffer(bytes);
            }
            Ok(Written::HeaderAlone(error)) => {
                state.places.begin_segment();
                state.add_cut(plan);
                state.put_back(bytes, self.log);
                verdict = Err(error);
            }
            Err(error) if error.loss == Loss::NoRoom => {
                outcomes.extend(state.undo(plan));
                state.put_back(bytes, self.log);
                verdict = Err(error);
            }
            Err(error) => {
                outcomes.extend(self.fail(&mut state, &error).into_iter().chain(plan.cut));
                state.keep_buffer(bytes);
                verdict = Err(error);
            }
        }
        state.led = state.next.is_some();
        let (more, removes) = (state.led, state.cuts.begins());
        drop(state);
        self.quiet.notify_all();
        let told = Told { outcomes, verdict: self.engine.failed(verdict) };
        Led { more, removes, told }
    }

    /// Notes that the log has failed: a write under way fails, too. Returns the outcomes that
    /// callers would wait for in vain.
    pub(super) fn fail(&self, state: &mut State, error: &DurabilityError) -> Vec<Arc<Outcome>> {
        if !matches!(state.ended, Some(Ended::Failed(_))) {
            state.ended = Some(Ended::Failed(error.clone()));
            self.engine.note_log_failed(error);
        }
        state.give_up()
    }

    /// Refuses everything from now on, waits for what is under way, and unlocks the folder.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.ended.get_or_insert_with(|| Ended::Closed(self.closed()));
        while state.led || state.cuts.led {
            state = wait(&self.quiet, state);
        }
        self.folder.unlock();
        let followers = state.followers.take_all();
        drop(state);
        self.tell_of_end(followers);
    }

    fn closed(&self) -> DurabilityError {
        let failure =
            Failure { operation: "a use, after it was closed,", error: Errno::BADF.into() };
        let error = commit::error(self.id, &self.folder.file, Kind::Data, &failure);
        error.with(Loss::Records)
    }

    /// Tells those who wait for records that do not come.
    fn tell_of_end(&self, followers: impl Iterator<Item = Arc<Outcome>>) {
        let followers: Vec<_> = followers.collect();
        if !followers.is_empty() {
            tell(followers, &Err(self.closed()));
        }
    }

    /// A caller has come that a write may wait for.
    pub(super) fn has_come(&self, state: &State) {
        if state.led && state.waiting >= state.gather.expected {
            self.gathered.notify_all();
        }
    }

    /// Lets a worker write what is pending, and what is pending by then.
    pub(super) fn lead_later(self: &Arc<Self>) {
        let lead = Lead { shared: Some(Arc::clone(self)) };
        self.engine.execute(move || lead.run());
    }
}

/// A worker's turn to write. If the runtime drops it, the waiting callers are told.
struct Lead {
    shared: Option<Arc<Shared>>,
}

impl Lead {
    fn run(mut self) {
        let Some(shared) = self.shared.take() else { return };
        blocking(|| {
            for _ in 0..TURNS_MAX {
                let Led { more, removes, told } = shared.lead_once();
                if !more {
                    // A caller that is told of the last commit or cut may close the log, and open
                    // it: this thread's reference has to be gone by then.
                    if removes {
                        shared.remove_later();
                    } else {
                        drop(shared);
                    }
                    return told.tell();
                }
                if removes {
                    Arc::clone(&shared).remove_later();
                }
                told.tell();
            }
            // A thread that ends the runtime must not wait for callers that come again and again.
            shared.lead_later();
        });
    }
}

/// What is left to do after a write.
pub(super) struct Led {
    /// More callers wait by now: a thread must lead on.
    pub(super) more: bool,
    /// A thread must remove what was cut off.
    pub(super) removes: bool,
    pub(super) told: Told,
}

/// The outcomes that are to be told of a write, and what they are told.
pub(super) struct Told {
    outcomes: Vec<Arc<Outcome>>,
    verdict: Verdict,
}

impl Told {
    pub(super) fn tell(self) {
        tell(self.outcomes, &self.verdict);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        let outcomes = {
            let mut state = shared.state();
            // A caller that waits on its own thread can still commit.
            state.led = false;
            state.give_up()
        };
        shared.quiet.notify_all();
        tell(outcomes, &Err(runtime_ended(shared.id, &shared.folder.file, Kind::Data)));
    }
}
