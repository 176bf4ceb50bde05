//! How callers are served that sync files of one filesystem at the same time: side by side, or in
//! groups, one after the other, each with all callers that came meanwhile. Pure.
//!
//! Side by side, each sync begins at once: few files ever wait, and if a flush costs much, each
//! sync waits for the flushes of the others. A group is one commit of the filesystem, and asks the
//! disk about as often as one of its members would. Some filesystems (ext4) commit their journal
//! twice if data is still to be written: before, and again for that data. For them the write-back
//! of the group's files is begun and waited for first, early. Which way is best depends on the
//! filesystem and the disk, so the number of answers in a second is measured.
//!
//! Most callers that have been answered come back soon. A group that begins with the first of them
//! leaves the others to the next group. So a group is put off until as many callers wait as there
//! were before: for at most a part of the time that a group takes, and not if too few came the last
//! times.

use std::time::{Duration, Instant};

use crate::choices::choice::Choice;
use crate::choices::early::WriteBack;
use crate::choices::policy::Policy;
use crate::choices::strategy::Strategy;
use crate::choices::windows::Windows;

/// A group is put off for at most one part in `GATHERS` of what it takes, and for at most
/// `GATHER_MAX`.
const GATHERS: u32 = 2;
const GATHER_MAX: Duration = Duration::from_millis(10);

/// A shorter wait is not worth it. Derived: the kernel's timers are late by as much. Under the
/// model checker no time passes.
const GATHER_MIN: Duration = Duration::from_micros(if cfg!(shuttle) { 0 } else { 50 });

/// After too few callers have come this many times in a row, nobody is waited for,
const PATIENCE: u32 = 3;
/// for this many groups.
const HURRIES: u32 = 16;

/// How callers that come at the same time are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// Each begins at once.
    Beside,
    /// In groups, each by a commit of the filesystem.
    Commits,
    /// The same, after their files have been written back.
    EarlyCommits,
}

impl Service {
    const ALL: [Self; 3] = [Self::Beside, Self::Commits, Self::EarlyCommits];

    /// As the attribute `durable/filesystems` has it.
    #[cfg(feature = "control")]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Beside => "beside",
            Self::Commits => "commits",
            Self::EarlyCommits => "early_commits",
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Group {
    /// A way is its place in [`Service::ALL`].
    choice: Choice,
    windows: Windows,
    /// How many callers were answered last or waited then: as many may come again.
    expected: usize,
    patience: u32,
    hurries: u32,
    put_off: PutOff,
    /// The thread that waits has been told that the group need not be put off any longer.
    said: bool,
}

/// What the next group is put off for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PutOff {
    Nothing,
    /// Callers that are expected.
    Callers,
    /// Files that are synced side by side.
    Beside,
    /// Nothing, but it was for those: it goes beside them now.
    WasBeside,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            choice: Choice::new(Service::ALL.len(), Service::Beside as usize),
            windows: Windows::default(),
            expected: 0,
            patience: PATIENCE,
            hurries: 0,
            put_off: PutOff::Nothing,
            said: false,
        }
    }
}

impl Group {
    /// Whether a way to serve is only being tried.
    pub(crate) fn is_trial(&self) -> bool {
        self.choice.is_trial()
    }

    /// How to serve now, within what is allowed.
    pub(crate) fn service(&self, policy: Policy) -> Service {
        let best = Service::ALL[self.choice.way()];
        let is_early = match policy.write_back {
            WriteBack::Auto => best == Service::EarlyCommits,
            WriteBack::Early => true,
            WriteBack::Late => false,
        };
        match policy.strategy {
            Strategy::Files => Service::Beside,
            Strategy::Auto if policy.is_crowded() || best == Service::Beside => Service::Beside,
            _ if is_early => Service::EarlyCommits,
            _ => Service::Commits,
        }
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn rate(&self) -> Option<f64> {
        self.choice.rate()
    }

    /// A group that begins with this service.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn with(service: Service) -> Self {
        let choice = Choice::new(Service::ALL.len(), service as usize);
        Self { choice, ..Self::default() }
    }

    /// Notes that a caller came while nothing was under way.
    pub(crate) fn idle(&mut self, now: Instant) {
        self.windows.idle(false, now);
    }

    /// Notes that no caller is there that syncs a few files.
    pub(crate) fn forget_callers(&mut self) {
        self.expected = 0;
    }

    /// Notes that callers have been answered. `askers` also counts those that had asked for the
    /// same files; `others` are being served or wait; `served` is the way that is allowed now.
    pub(crate) fn answered(
        &mut self,
        callers: usize,
        askers: usize,
        others: usize,
        served: Service,
        now: Instant,
    ) {
        self.expected = callers + others;
        if self.expected <= 1 {
            self.windows.note_alone(askers);
        }
        if served != Service::ALL[self.choice.way()] {
            // The chosen way was not allowed, so nothing is learned about it.
            self.windows.skip(self.expected);
        }
        if let Some(rate) = self.windows.answered(askers, self.expected, now) {
            let way = self.choice.way();
            self.choice.note(rate);
            if self.choice.way() != way {
                self.windows.skip(self.expected);
            }
        }
    }

    /// Whether the next group is put off if this many callers wait, and for how long at most. A
    /// group takes `takes`.
    pub(crate) fn begin_gather(&mut self, waiting: usize, takes: Duration) -> Option<Duration> {
        let limit = (takes / GATHERS).min(GATHER_MAX);
        let worth = limit >= GATHER_MIN && self.expected > 1 && !self.is_enough(waiting);
        if !worth || self.gathers() {
            return None;
        }
        if self.hurries > 0 {
            self.hurries -= 1;
            return None;
        }
        (self.put_off, self.said) = (PutOff::Callers, false);
        Some(limit)
    }

    /// Whether the next group is put off while files are synced side by side, and for how long at
    /// most. It is put off once; then it goes beside those.
    pub(crate) fn hold(&mut self, takes: Duration) -> Option<Duration> {
        if self.put_off == PutOff::WasBeside {
            self.put_off = PutOff::Nothing;
            return None;
        }
        (self.put_off, self.said) = (PutOff::Beside, false);
        Some((takes / GATHERS).clamp(GATHER_MIN, GATHER_MAX))
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn put_off(&mut self, expected: usize) {
        (self.put_off, self.expected) = (PutOff::Callers, expected);
    }

    /// Nothing is synced side by side any more.
    pub(crate) fn release(&mut self) {
        self.put_off = match self.put_off {
            PutOff::Beside => PutOff::Callers,
            PutOff::WasBeside => PutOff::Nothing,
            other => other,
        };
    }

    /// Whether a group is being put off because files are synced side by side.
    pub(crate) fn holds(&self) -> bool {
        self.put_off == PutOff::Beside
    }

    /// Whether a thread waits that must be told, once, that the group is put off no longer.
    pub(crate) fn say(&mut self) -> bool {
        self.gathers() && !std::mem::replace(&mut self.said, true)
    }

    /// Whether a group is being put off.
    pub(crate) fn gathers(&self) -> bool {
        matches!(self.put_off, PutOff::Callers | PutOff::Beside)
    }

    /// Whether this many waiting callers are enough for a group to begin: as many as there were.
    /// Measured: beginning with seven eighths of them is slower; on ext4, what the others write
    /// meanwhile costs a second commit of the journal.
    pub(crate) fn is_enough(&self, waiting: usize) -> bool {
        waiting >= self.expected
    }

    /// The group is put off no longer; this many callers wait.
    pub(crate) fn end_gather(&mut self, waiting: usize) {
        let was = self.put_off;
        self.put_off = if was == PutOff::Beside { PutOff::WasBeside } else { PutOff::Nothing };
        if self.is_enough(waiting) {
            self.patience = PATIENCE;
        } else if was == PutOff::Callers {
            if self.patience > 1 {
                self.patience -= 1;
            } else {
                self.hurries = HURRIES;
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    use Service::{Beside, Commits, EarlyCommits};

    const MS: Duration = Duration::from_millis(1);

    fn begin(group: &mut Group) -> Option<Duration> {
        group.begin_gather(3, 4 * MS)
    }

    #[test]
    fn a_group_is_put_off_until_as_many_wait_as_there_were() {
        let mut group = Group { expected: 64, ..Group::default() };
        assert_eq!(begin(&mut group), Some(2 * MS));
        assert_eq!((group.gathers(), begin(&mut group)), (true, None), "once");
        assert!(!group.is_enough(63) && group.is_enough(64));
        group.end_gather(64);
        assert!(!group.gathers());
        assert_eq!(group.begin_gather(0, 1000 * MS), Some(10 * MS));
    }

    #[test]
    fn nobody_is_waited_for_who_was_alone_or_did_not_come() {
        let mut group = Group { expected: 64, ..Group::default() };
        assert_eq!(group.begin_gather(64, 4 * MS), None);
        for _ in 0..PATIENCE {
            assert!(begin(&mut group).is_some());
            group.end_gather(10);
        }
        let in_vain = (0..HURRIES).filter(|_| begin(&mut group).is_some()).count();
        assert_eq!(in_vain, 0);
        assert!(begin(&mut group).is_some(), "they may come again");
        group.end_gather(0);
        assert_eq!(begin(&mut group), None, "and did not");
        group.answered(1, 1, 0, Service::Beside, Instant::now());
        assert_eq!(group.begin_gather(0, 4 * MS), None, "alone");
    }

    /// Simulates a second in which each way answers `rates` callers in a millisecond. Returns how
    /// often each way was used.
    fn second(group: &mut Group, now: &mut Instant, rates: [usize; 3]) -> [usize; 3] {
        let mut gone = [0; 3];
        for _ in 0..1000 {
            let service = group.service(Policy::default());
            gone[service as usize] += 1;
            *now += MS;
            let files = rates[service as usize];
            group.answered(files, files, 8, service, *now);
        }
        gone
    }

    #[test]
    fn what_answers_most_is_found_and_kept() {
        for best in 0..3 {
            let (mut group, mut now) = (Group::default(), Instant::now());
            let mut rates = [10; 3];
            rates[best] = 20;
            let found = (0..3).map(|_| second(&mut group, &mut now, rates)[best]).last().unwrap();
            assert!(found > 700, "{found} of way {best}");
            for _ in 0..10 {
                second(&mut group, &mut now, rates);
            }
            let kept = second(&mut group, &mut now, rates)[best];
            assert!(kept > 900, "{kept} of way {best}");
        }
    }

    #[test]
    fn what_is_forbidden_is_not_done() {
        let at = Group::with;
        let service = |way, strategy, write_back| {
            at(way).service(Policy { strategy, write_back, ..Policy::default() })
        };
        assert_eq!(service(Commits, Strategy::Auto, WriteBack::Auto), Commits);
        assert_eq!(service(EarlyCommits, Strategy::Auto, WriteBack::Auto), EarlyCommits);
        assert_eq!(service(EarlyCommits, Strategy::Auto, WriteBack::Late), Commits);
        assert_eq!(service(EarlyCommits, Strategy::Files, WriteBack::Auto), Beside);
        assert_eq!(service(Beside, Strategy::Filesystem, WriteBack::Auto), Commits);
        assert_eq!(service(EarlyCommits, Strategy::Filesystem, WriteBack::Auto), EarlyCommits);
        assert_eq!(service(Beside, Strategy::Filesystem, WriteBack::Early), EarlyCommits);
        assert_eq!(service(Beside, Strategy::Auto, WriteBack::Early), Beside);
        let crowded = Policy { unwritten: u64::MAX, ..Policy::default() };
        assert_eq!(at(Commits).service(crowded), Beside, "other people's data is in the way");
    }
}
