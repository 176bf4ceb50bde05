//! Cuts off the beginning of a log. A write begins a segment whose header says from where on
//! records are needed. Then the segments before that are removed, while further writes go on. A
//! crash leaves some of them, which are removed when the log is next opened.

use std::sync::Arc;

use homing_runtime::blocking;

use super::lead::Shared;
use crate::commit;
use crate::durable::Kind;
use crate::engine::runtime_ended;
use crate::error::Loss;
use crate::sync::lock;
use crate::synced::{Outcome, Verdict};
use crate::system::Failure;

/// What is cut off.
#[derive(Default)]
pub(super) struct Cuts {
    /// From which record on the log is to be kept, since the last write began, and who waits for that.
    pub(super) asked: Option<(u64, Arc<Outcome>)>,
    /// What can be removed.
    next: Removal,
    /// What is being removed, if anything is.
    running: Option<Arc<Outcome>>,
    /// Somebody removes, or will in a moment: nobody else may.
    pub(super) led: bool,
}

/// Segments, by their first records, and those who wait until they are gone.
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

    /// A segment has been begun that says that these are not needed, for those who wait.
    pub(super) fn add(&mut self, segments: Vec<u64>, outcome: Option<Arc<Outcome>>) {
        self.next.segments.extend(segments);
        self.next.outcomes.extend(outcome);
    }

    /// Whether somebody waits for what nobody removes: whoever asks does, or lets somebody.
    pub(super) fn begins(&mut self) -> bool {
        !self.next.outcomes.is_empty() && !std::mem::replace(&mut self.led, true)
    }

    /// Who is told when all is gone that was cut off; `None` where it is.
    pub(super) fn latest(&mut self) -> Option<Arc<Outcome>> {
        let Removal { segments, outcomes } = &mut self.next;
        if outcomes.is_empty() && !segments.is_empty() {
            // They are left over from a time when that failed.
            outcomes.push(Arc::default());
        }
        outcomes.last().or(self.running.as_ref()).cloned()
    }
}

impl Shared {
    /// A worker removes what is to be removed, and what is by then. Only for whoever [`Cuts::begins`].
    pub(super) fn remove_later(self: Arc<Self>) {
        let engine = Arc::clone(&self.engine);
        let remove = Remove { shared: Some(self) };
        engine.execute(move || remove.run());
    }

    /// Removes what is to be removed: who is to be told what of it, and whether there is more by then.
    fn remove_once(&self) -> (Vec<Arc<Outcome>>, Verdict, bool) {
        let Removal { segments, outcomes } = {
            let cuts = &mut self.state().cuts;
            cuts.running = cuts.next.outcomes.last().cloned();
            std::mem::take(&mut cuts.next)
        };
        let failed = |failure: Failure, loss| {
            Err(commit::error(self.id, &self.folder.file, Kind::All, &failure).with(loss))
        };
        let (system, since) = (&*self.engine.system, self.engine.losses());
        let unlinked = self.folder.unlink(system, &segments);
        let verdict = unlinked.or_else(|failure| failed(failure, Loss::Room)).and_then(|()| {
            // Beside that of a name that is made, one of the two would hear of what fails, and not the other.
            let _names = lock(&self.names);
            self.folder.sync(system).or_else(|failure| failed(failure, Loss::Records))
        });
        // A commit of the filesystem may have written this back, and the device then lost it.
        let of = (self.id, &self.folder.file, Kind::All);
        let lost = commit::unless_lost(&self.engine.files(), since, of, Ok(()));
        let verdict = verdict.and(lost.map_err(|error| error.with(Loss::Room)));
        if verdict.is_ok() {
            self.make_spares();
        }
        let mut state = self.state();
        state.cuts.running = None;
        match &verdict {
            Ok(()) => {}
            // For whoever cuts off the next time.
            Err(error) if error.loss == Loss::Room => state.cuts.next.segments.extend(segments),
            Err(error) => state.failed = Some(error.clone()),
        }
        state.cuts.led = !state.cuts.next.outcomes.is_empty();
        let more = state.cuts.led;
        drop(state);
        self.quiet.notify_all();
        (outcomes, verdict, more)
    }
}

/// A worker's turn to remove, or, if the runtime drops it, word for those who wait.
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
                    // Whoever is told may close the log, and open it.
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
