//! A file that many callers sync at the same time, with several descriptions of it for that.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use homing_runtime::blocking;

use crate::choices::pace::{Pace, Way};
use crate::counters::add;
use crate::durable::{Durable, Kind};
use crate::engine::calls::{Call, is_deep, tell};
use crate::engine::{Engine, nanoseconds, runtime_ended};
use crate::files::entry::is_of;
use crate::files::file_id::FileId;
use crate::files::gather::{Gather, gather};
use crate::sync::{Condvar, Mutex, MutexGuard, lock};
use crate::synced::Verdict;

/// A file and open file descriptions of it, for [`Durable::fdatasync_shared`]. Cheap to clone;
/// clones are the same.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// use std::sync::{Arc, mpsc};
///
/// use homing_durable::SharedFile;
///
/// # let folder = tempfile::tempdir()?;
/// let path = folder.path().join("volume");
/// std::fs::File::create(&path)?;
/// let open = || std::fs::File::open(&path).map(Arc::new);
/// let volume = SharedFile::new(vec![open()?, open()?])?;
/// let (told, verdict) = mpsc::channel();
/// durable.fdatasync_shared(&volume, move |synced| told.send(synced).unwrap_or(()));
/// verdict.recv()??;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SharedFile {
    shared: Arc<Shared>,
}

struct Shared {
    id: FileId,
    /// The description for syncs that are shared: one at a time.
    own: Arc<File>,
    state: Mutex<State>,
    /// Notified when the callers that a shared sync waits for have come.
    changed: Condvar,
}

struct State {
    /// Descriptions for syncs side by side, without those in use.
    free: Vec<Arc<File>>,
    /// A thread does the shared sync, or is on the way to it.
    led: bool,
    /// The callers that share the next one.
    waiting: Vec<Call>,
    asked_at: Instant,
    /// How many flushes of devices had failed then.
    since: u64,
    /// How many callers' syncs are under way.
    under_way: usize,
    gather: Gather,
    pace: Pace,
}

impl SharedFile {
    /// Each description must be a separate one of the same file: opened by itself, not duplicated.
    /// Nobody else may sync through them. All except the first are for syncs side by side.
    ///
    /// # Errors
    /// If there is no description, if they are of several files, if one occurs several times (as
    /// far as the system tells), or if they cannot be examined.
    pub fn new(descriptions: Vec<Arc<File>>) -> io::Result<Self> {
        let mut free = descriptions;
        let refused = |reason| io::Error::new(io::ErrorKind::InvalidInput, reason);
        let is_again = |(at, file): (usize, &Arc<File>)| {
            free[..at].iter().any(|other| is_of(other, file.as_raw_fd()))
        };
        if free.iter().enumerate().any(is_again) {
            return Err(refused("one description several times: open the file for each"));
        }
        if free.is_empty() {
            return Err(refused("no description: it needs one at least"));
        }
        let own = free.remove(0);
        let id = FileId::of(&own)?;
        for file in &free {
            if FileId::of(file)? != id {
                return Err(refused(
                    "descriptions of several files: make a SharedFile for each file",
                ));
            }
        }
        let state = State {
            free,
            led: false,
            waiting: Vec::new(),
            asked_at: Instant::now(),
            since: 0,
            under_way: 0,
            gather: Gather::default(),
            pace: Pace::new(Way::Together),
        };
        let shared = Shared { id, own, state: Mutex::new(state), changed: Condvar::new() };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(crate) fn id(&self) -> FileId {
        self.shared.id
    }
}

impl fmt::Debug for SharedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedFile").field("file", &self.shared.own).finish_non_exhaustive()
    }
}

impl Durable {
    /// [`Durable::fdatasync_and_then`] for a file that has descriptions for many syncs at the same
    /// time. Where that answers more callers, each thread does its own sync, side by side.
    /// Otherwise one sync runs, and all callers that come meanwhile share the next one, which waits
    /// a short time for those that have just been answered. Which of the two is used is measured,
    /// or set ([`Durable::set_sharing`]). Syncs that are asked for through a
    /// [`Description`](crate::Description) of the same file are not shared with these; failures
    /// are.
    pub fn fdatasync_shared(
        &self,
        file: &SharedFile,
        done: impl FnOnce(Result<(), crate::DurabilityError>) + Send + 'static,
    ) {
        file.shared.sync(&self.engine, Box::new(done));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn sync(self: &Arc<Self>, engine: &Arc<Engine>, call: Call) {
        add(&engine.counts.asked, 1);
        let mut state = self.state();
        state.pace.allow(engine.settings.sharing());
        if state.under_way == 0 && state.waiting.is_empty() {
            let alone = state.gather.expected <= 1;
            state.pace.idle(alone, Instant::now());
        }
        let (is_beside, is_deep) = (state.pace.way() == Way::Beside, is_deep());
        let beside = if is_beside && !is_deep { state.free.pop() } else { None };
        if let Some(file) = beside {
            state.under_way += 1;
            drop(state);
            return self.sync_beside(engine, file, call);
        }
        if state.waiting.is_empty() {
            (state.asked_at, state.since) = (Instant::now(), engine.losses());
        } else {
            add(&engine.counts.shared, 1);
        }
        state.waiting.push(call);
        if state.led {
            if state.waiting.len() >= state.gather.expected {
                self.changed.notify_all();
            }
            return;
        }
        state.led = true;
        drop(state);
        if is_deep {
            return self.hand_over(engine);
        }
        let (group, verdict, more) = self.sync_together(engine);
        if more {
            self.hand_over(engine);
        }
        tell(group, &verdict);
    }

    fn sync_beside(&self, engine: &Engine, file: Arc<File>, call: Call) {
        let (began, since) = (Instant::now(), engine.losses());
        // What the description has heard is noted before another sync can have it.
        let verdict = engine.sync_own(self.id, &file, since);
        let ended = Instant::now();
        engine.counts.latency_ns.note(nanoseconds(ended - began));
        engine.counts.batches.note(1);
        let mut state = self.state();
        state.free.push(file);
        state.under_way -= 1;
        state.gather.expected = state.under_way + 1;
        state.pace.answered(1, ended);
        drop(state);
        tell([call], &verdict);
    }

    /// Does the shared sync, for all callers that wait. Returns whether others wait by then: the
    /// calling thread must lead for them, too, or let a worker.
    fn sync_together(&self, engine: &Engine) -> (Vec<Call>, Verdict, bool) {
        let mut state = gather(&self.state, &self.changed, self.state(), |state| {
            (&mut state.gather, state.waiting.len())
        });
        let group = std::mem::take(&mut state.waiting);
        let (asked_at, since) = (state.asked_at, state.since);
        state.under_way += group.len();
        drop(state);
        let began = Instant::now();
        let verdict = engine.sync_own(self.id, &self.own, since);
        let ended = Instant::now();
        engine.counts.latency_ns.note(nanoseconds(ended - asked_at));
        engine.counts.batches.note(group.len() as u64);
        let mut state = self.state();
        state.under_way -= group.len();
        let waiting = state.waiting.len();
        state.gather.ended(ended - began, ended, group.len(), waiting);
        state.pace.answered(group.len(), ended);
        let more = !state.waiting.is_empty();
        state.led = more;
        (group, verdict, more)
    }

    /// Lets a worker lead.
    fn hand_over(self: &Arc<Self>, engine: &Arc<Engine>) {
        let lead = Lead { shared: Arc::clone(self), engine: Arc::clone(engine), leads: true };
        engine.execute(move || lead.run());
    }
}

/// A worker on its way to the shared sync. If the runtime ends before, the waiting callers are
/// told.
struct Lead {
    shared: Arc<Shared>,
    engine: Arc<Engine>,
    leads: bool,
}

impl Lead {
    fn run(mut self) {
        self.leads = false;
        let (group, verdict, more) = blocking(|| self.shared.sync_together(&self.engine));
        if more {
            // Callers that are told may wait for somebody who waits for the next sync.
            self.shared.hand_over(&self.engine);
        }
        if self.engine.is_limited() {
            let calls = Calls(group, verdict);
            self.engine.execute_calls(move || drop(calls));
        } else {
            tell(group, &verdict);
        }
    }
}

/// Dropping it makes the calls.
struct Calls(Vec<Call>, Verdict);

impl Drop for Calls {
    fn drop(&mut self) {
        tell(std::mem::take(&mut self.0), &self.1);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if !self.leads {
            return;
        }
        let mut state = self.shared.state();
        state.led = false;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        let verdict = Err(runtime_ended(self.shared.id, &self.shared.own, Kind::Data));
        tell(waiting, &verdict);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use homing_runtime::Runtime;

    use super::*;
    use crate::{Failure, Sharing, System};

    /// A disk that holds syncs up while it is told to, and counts them.
    #[derive(Clone, Default)]
    struct Disk(Arc<(Mutex<Book>, Condvar)>);

    #[derive(Default)]
    struct Book {
        asked: usize,
        held: bool,
    }

    impl Disk {
        fn hold(&self, held: bool) {
            lock(&self.0.0).held = held;
            self.0.1.notify_all();
        }

        fn until_asked(&self, count: usize) {
            let few = |book: &mut Book| book.asked < count;
            let waited = self.0.1.wait_timeout_while(lock(&self.0.0), PATIENCE, few).unwrap();
            assert!(!waited.1.timed_out(), "the disk was not asked");
        }
    }

    impl System for Disk {
        fn sync(&self, _: &File, _: Kind) -> Result<(), Failure> {
            let mut book = lock(&self.0.0);
            book.asked += 1;
            self.0.1.notify_all();
            drop(self.0.1.wait_while(book, |book| book.held).unwrap());
            Ok(())
        }
        fn sync_filesystem(&self, _: &File) -> Result<(), Failure> {
            unreachable!()
        }
        fn check(&self, _: &File) -> Result<(), Failure> {
            unreachable!()
        }
        fn flush_device(&self, _: &File) -> Result<(), Failure> {
            unreachable!()
        }
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    struct World {
        disk: Disk,
        durable: Durable,
        file: SharedFile,
        _runtime: Runtime,
    }

    fn world() -> World {
        let (runtime, disk) = (Runtime::new().unwrap(), Disk::default());
        let durable = Durable::with_system(&runtime, disk.clone()).unwrap();
        durable.set_sharing(Sharing::Together);
        let file = SharedFile::new(vec![Arc::new(tempfile::tempfile().unwrap())]);
        World { disk, durable, file: file.unwrap(), _runtime: runtime }
    }

    #[test]
    fn who_has_been_answered_and_comes_back_at_once_shares_the_next_sync() {
        let World { disk, durable, file, _runtime } = &world();
        let (sender, receiver) = mpsc::channel();
        let ask = || {
            let sender = sender.clone();
            move |verdict| sender.send(verdict).unwrap()
        };
        // Again and again: a sync that does not wait for the caller often loses the race to it.
        for round in 0..200 {
            disk.hold(true);
            thread::scope(|scope| {
                let (again, same, returns) = (durable.clone(), file.clone(), ask());
                let returns = move |_| again.fdatasync_shared(&same, returns);
                scope.spawn(|| durable.fdatasync_shared(file, returns));
                disk.until_asked(2 * round + 1);
                (0..2).for_each(|_| durable.fdatasync_shared(file, ask()));
                // As if a sync took so long that the caller has all the time there is to come back.
                file.shared.state().gather.set_cost(PATIENCE);
                disk.hold(false);
            });
            (0..3).for_each(|_| receiver.recv_timeout(PATIENCE).unwrap().unwrap());
            assert_eq!(lock(&disk.0.0).asked, 2 * round + 2, "round {round}");
            // The next caller that comes is to wait for nobody.
            file.shared.state().gather.expected = 0;
        }
    }

    #[test]
    fn what_a_sync_takes_is_measured() {
        let World { disk, durable, file, _runtime } = &world();
        let began = Instant::now();
        disk.hold(true);
        let held = thread::scope(|scope| {
            scope.spawn(|| durable.fdatasync_shared(file, drop));
            disk.until_asked(1);
            let asked = Instant::now();
            let held = asked.elapsed();
            disk.hold(false);
            held
        });
        let cost = file.shared.state().gather.cost().unwrap();
        assert!(held <= cost && cost <= began.elapsed(), "{held:?} {cost:?}");
    }
}
