//! Cuts off the beginning of a log. A write begins a segment whose header says from where on
//! records are needed. Then the segments before that are removed, while further writes go on. A
//! crash leaves some of them, which are removed when the log is next opened.

use std::collections::BTreeMap;
use std::sync::Arc;

use homing_runtime::blocking;

use super::lead::Shared;
use crate::durable::Kind;
use crate::engine::commit;
use crate::engine::runtime_ended;
use crate::error::Loss;
use crate::sync::{Mutex, lock};
use crate::synced::{Outcome, Verdict};
use crate::system::Failure;

/// What is to be cut off, and what is being removed.
#[derive(Default)]
pub(super) struct Cuts {
    /// From which record on the log is to be kept, as asked for since the last write began, and the
    /// outcome that the askers wait for.
    pub(super) asked: Option<(u64, Arc<Outcome>)>,
    /// What can be removed.
    next: Removal,
    /// What is being removed, if anything is.
    running: Option<Arc<Outcome>>,
    /// A thread removes, or will in a moment: no other may.
    pub(super) led: bool,
    /// What readers have still to open.
    pub(super) pins: Arc<Pins>,
}

/// Segments that readers have still to open, by their first records, with the number of readers. No
/// segment from the first of them on is removed.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<BTreeMap<u64, usize>>);

/// A reader's segment. Dropping it lets it be removed, by the next cut.
#[derive(Debug)]
pub(super) struct Pin {
    pins: Arc<Pins>,
    first: u64,
}

impl Pins {
    pub(super) fn pin(self: &Arc<Self>, first: u64) -> Pin {
        *lock(&self.0).entry(first).or_default() += 1;
        Pin { pins: Arc::clone(self), first }
    }

    fn first(&self) -> Option<u64> {
        lock(&self.0).keys().next().copied()
    }
}

impl Pin {
    /// Another pin of the same log.
    pub(super) fn of_same(&self, first: u64) -> Self {
        self.pins.pin(first)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = lock(&self.pins.0);
        if let Some(count) = pins.get_mut(&self.first) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.first);
            }
        }
    }
}

/// Segments, by their first records, and the outcomes that are told when they are gone.
#[derive(Default)]
struct Removal {
    segments: Vec<u64>,
    outcomes: Vec<Arc<Outcome>>,
}

impl Cuts {
    /// Somebody wants the log to be cut off before this record.
    pub(super) fn ask(&mut self, sequence: u64) -> Arc<Outcome> {
        let (kept, outcome) = self.asked.get_or_insert_with(|| (sequence, Arc::default()));
        *kept = sequence.max(*kept);
        Arc::clone(outcome)
    }

    /// Adds segments that are to be removed: a segment has been begun that says that they are not
    /// needed. Callers wait for `outcome`.
    pub(super) fn add(&mut self, segments: Vec<u64>, outcome: Option<Arc<Outcome>>) {
        self.next.segments.extend(segments);
        self.next.outcomes.extend(outcome);
    }

    /// Whether callers wait for a removal that no thread does: the thread that asks must do it from
    /// now on, or let another.
    pub(super) fn begins(&mut self) -> bool {
        !self.next.outcomes.is_empty() && !std::mem::replace(&mut self.led, true)
    }

    /// The outcome that is told when everything that was cut off is gone; `None` if it is.
    pub(super) fn latest(&mut self) -> Option<Arc<Outcome>> {
        let Removal { segments, outcomes } = &mut self.next;
        if outcomes.is_empty() && !segments.is_empty() {
            // They are left over from a removal that failed.
            outcomes.push(Arc::default());
        }
        outcomes.last().or(self.running.as_ref()).cloned()
    }
}

impl Shared {
    /// Lets a worker remove what is to be removed, and what is by then. Only for the thread that
    /// got `true` from [`Cuts::begins`].
    pub(super) fn remove_later(self: Arc<Self>) {
        self.remove(false);
    }

    /// As [`Shared::remove_later`], or on this thread.
    pub(super) fn remove(self: Arc<Self>, here: bool) {
        let engine = Arc::clone(&self.engine);
        let remove = Remove { shared: Some(self) };
        if here {
            remove.run();
        } else {
            engine.execute(move || remove.run());
        }
    }

    /// Removes what is to be removed. Returns which outcomes are to be told, what they are told,
    /// and whether there is more by then.
    fn remove_once(&self) -> (Vec<Arc<Outcome>>, Verdict, bool) {
        let Removal { segments, mut outcomes } = {
            let cuts = &mut self.state().cuts;
            cuts.running = cuts.next.outcomes.last().cloned();
            let mut removal = std::mem::take(&mut cuts.next);
            if let Some(pinned) = cuts.pins.first() {
                let is_needed = |first: &mut u64| *first >= pinned;
                cuts.next.segments.extend(removal.segments.extract_if(.., is_needed));
            }
            removal
        };
        let failed = |failure: Failure, loss| {
            Err(commit::error(self.id, &self.folder.file, Kind::All, &failure).with(loss))
        };
        let (system, since) = (&*self.engine.system, self.engine.losses());
        let unlinked = self.folder.unlink(system, &segments);
        let verdict = unlinked.or_else(|failure| failed(failure, Loss::Room)).and_then(|()| {
            // If the folder were also synced for a new name at the same time, only one of the two
            // syncs would hear of a failure.
            let _names = lock(&self.names);
            self.folder.sync(system).or_else(|failure| failed(failure, Loss::Records))
        });
        // A commit of the filesystem may have written this back, and the device then lost it.
        let of = (self.id, &self.folder.file, Kind::All);
        let lost = commit::unless_lost(&self.engine.files(), since, of, Ok(()));
        let verdict = verdict.and(lost.map_err(|error| error.with(Loss::Room)));
        let verdict = self.engine.failed(verdict);
        if verdict.is_ok() {
            self.make_spares();
        }
        let mut state = self.state();
        // Another one may have failed before.
        let verdict = state.failure().map_or(verdict, Err);
        state.cuts.running = None;
        match &verdict {
            Ok(()) => {}
            // The next cut removes them.
            Err(error) if error.loss == Loss::Room => state.cuts.next.segments.extend(segments),
            Err(error) => outcomes.extend(self.fail(&mut state, error)),
        }
        state.cuts.led = !state.cuts.next.outcomes.is_empty();
        let more = state.cuts.led;
        drop(state);
        self.quiet.notify_all();
        (outcomes, verdict, more)
    }
}

/// A worker's turn to remove. If the runtime drops it, the waiting callers are told.
struct Remove {
    shared: Option<Arc<Shared>>,
}

impl Remove {
    fn run(mut self) {
        let Some(shared) = self.shared.take() else { return };
        blocking(|| {
            loop {
                let (outcomes, verdict, more) = shared.remove_once();
                if !more {
                    // A caller that is told may close the log, and open it.
                    drop(shared);
                    return tell(outcomes, &verdict);
                }
                tell(outcomes, &verdict);
            }
        });
    }
}

impl Drop for Remove {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        let outcomes = {
            let cuts = &mut shared.state().cuts;
            cuts.led = false;
            std::mem::take(&mut cuts.next.outcomes)
        };
        shared.quiet.notify_all();
        tell(outcomes, &Err(runtime_ended(shared.id, &shared.folder.file, Kind::All)));
    }
}

pub(super) fn tell(outcomes: Vec<Arc<Outcome>>, verdict: &Verdict) {
    for outcome in outcomes {
        outcome.set(verdict);
    }
}
