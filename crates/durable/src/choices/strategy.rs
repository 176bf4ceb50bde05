//! How the waiting files of one filesystem are made durable: one by one, side by side, or by a
//! commit of the whole filesystem. Pure.
//!
//! Both ways are timed as they are used. A commit costs about the same however many files it
//! covers, as long as what it writes is ours. If somebody else's data is in the way, it turns out
//! to be expensive. Then it is tried again after some bulks, twice as many each time it was no
//! better, and never for more than a part of the time; hardly at all while much of others waits to
//! be written. While it does, no filesystem is committed of which nothing is known.

use std::time::Duration;

use crate::choices::policy::Policy;

/// Which ways of making files durable are allowed.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// use homing_durable::Strategy;
///
/// durable.set_strategy(Strategy::Files); // commits of whole filesystems are forbidden from now on
/// assert_eq!(durable.strategy(), Strategy::Files);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// Whatever has been faster.
    #[default]
    Auto,
    /// Each file by itself, side by side: never waits for other people's data.
    Files,
    /// A commit of the filesystem, also for one file, where that can be committed (ext4, XFS
    /// without a realtime device, and btrfs since Linux 6.5). Elsewhere each file by itself.
    Filesystem,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Files, Self::Filesystem];

    /// The name in the attribute `durable/strategy`.
    ///
    /// ```
    /// assert_eq!(homing_durable::Strategy::Files.name(), "files");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Files => "files",
            Self::Filesystem => "filesystem",
        }
    }
}

/// This many files are worth a commit before single files have been measured. Derived: a commit
/// costs a few syncs and a few flushes.
const COMMIT_FILES: usize = 24;

/// Fewer files than this are never worth a commit: a lone sync does not wait for others' data.
const COMMIT_FILES_MIN: usize = 4;

/// After this many bulks that were not committed a commit is tried, and after twice as many each
/// time it was not worth it, up to the second number.
const BULKS: (u32, u32) = (8, 256);

/// So many times as many bulks if much of others waits to be written.
const CROWDED: u32 = 16;

/// A commit is tried once this many times as long as the last one took has passed: so trials take
/// no more than 3 % of the time.
const REST: u32 = 32;

/// But after this long in any case: a stranger's gigabytes may have been in the way.
const REST_MAX: Duration = Duration::from_secs(300);

/// A commit that takes longer has written much. Chosen: five flushes of a slow disk, four times.
const DEAR: Duration = Duration::from_millis(100);

/// What a sync of one file is taken to cost until one has been made. A program that only has bulks
/// would otherwise commit them for ever, however long a commit waits for others' data. Chosen: four
/// flushes of a slow disk, so that a commit that writes a bulk's own data passes.
const FILE: Duration = Duration::from_millis(20);

/// How much a new figure counts: one part in this many.
const SHARE: u32 = 4;

/// What has been measured of one filesystem.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    /// How long a sync of one file keeps its thread busy.
    file: Option<Duration>,
    /// What a commit takes.
    commit: Option<Duration>,
    /// The last commit took too long for callers that sync one file.
    was_dear: bool,
    /// How many bulks were not committed since the last commit, and after how many one is tried.
    refused: u32,
    patience: u32,
    /// How many files waited at the last decision: if there are more now, there is another bulk.
    seen: usize,
    /// The last commit was tried, whatever was known.
    tried: bool,
}

impl Costs {
    /// Whether `waiting` files should be committed at once, where `depth` can be synced side by
    /// side; `rested` as [`Costs::is_rested`] says.
    pub(crate) fn prefers_commit(
        &mut self,
        policy: Policy,
        waiting: usize,
        depth: usize,
        rested: bool,
    ) -> bool {
        let is_another = waiting > std::mem::replace(&mut self.seen, waiting);
        if self.is_worth(policy, waiting, depth) {
            // A commit takes all that wait.
            (self.refused, self.patience, self.tried, self.seen) = (0, 0, false, 0);
            return true;
        }
        if policy.strategy != Strategy::Auto || waiting < COMMIT_FILES_MIN {
            return false;
        }
        let patience = self.patience.clamp(BULKS.0, BULKS.1);
        self.refused = self.refused.saturating_add(u32::from(is_another));
        let crowd = if policy.is_crowded_for(waiting) { CROWDED } else { 1 };
        let tries = waiting >= COMMIT_FILES && rested && self.refused > patience * crowd;
        if tries {
            (self.refused, self.patience, self.tried, self.seen) = (0, patience * 2, true, 0);
        }
        tries
    }

    /// Whether a commit may be tried this long after the last one.
    pub(crate) fn is_rested(&self, since: Duration) -> bool {
        self.commit.is_none_or(|took| since >= took.saturating_mul(REST).min(REST_MAX))
    }

    /// As [`Costs::prefers_commit`], but only by what has been measured: nothing is tried.
    pub(crate) fn is_worth(&self, policy: Policy, waiting: usize, depth: usize) -> bool {
        match policy.strategy {
            Strategy::Files => return false,
            Strategy::Filesystem => return waiting > 0,
            Strategy::Auto if waiting < COMMIT_FILES_MIN => return false,
            Strategy::Auto => {}
        }
        // Few files are how single ones come to be measured.
        let is_measured = self.file.is_some() && self.commit.is_some();
        if !is_measured && waiting < COMMIT_FILES {
            return false;
        }
        let Some(commit) = self.commit else { return !policy.is_crowded_for(waiting) };
        let file = self.file.unwrap_or(FILE);
        let rounds = waiting.div_ceil(depth.max(1));
        commit < file.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX))
    }

    /// In words, for people and programs.
    #[cfg(feature = "control")]
    pub(crate) fn told(&self) -> String {
        let ns = |took: Option<Duration>| took.map_or("-".to_owned(), |t| t.as_nanos().to_string());
        format!("file_ns {} commit_ns {}", ns(self.file), ns(self.commit))
    }

    /// How long a sync of one file takes, if one has been made.
    pub(crate) fn file(&self) -> Option<Duration> {
        self.file
    }

    /// How long a commit takes, if one has been made.
    pub(crate) fn commit(&self) -> Option<Duration> {
        self.commit
    }

    pub(crate) fn note_file(&mut self, took: Duration) {
        self.file = Some(mix(self.file, took));
    }

    /// Whether the last commit took too long for callers that sync one file.
    pub(crate) fn was_dear(&self) -> bool {
        self.was_dear
    }

    pub(crate) fn note_commit(&mut self, took: Duration) {
        self.was_dear = took > DEAR;
        // What was known before a trial is long ago.
        let before = if std::mem::take(&mut self.tried) { None } else { self.commit };
        self.commit = Some(mix(before, took));
    }
}

fn mix(before: Option<Duration>, now: Duration) -> Duration {
    before.map_or(now, |before| (before * (SHARE - 1) + now) / SHARE)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn measured(file: Duration, commit: Duration) -> Costs {
        Costs { file: Some(file), commit: Some(commit), ..Costs::default() }
    }

    fn by(strategy: Strategy) -> Policy {
        Policy { strategy, ..Policy::default() }
    }

    /// What is decided by default, when a commit could be tried.
    fn prefers(costs: &mut Costs, waiting: usize, depth: usize) -> bool {
        costs.prefers_commit(by(Strategy::Auto), waiting, depth, true)
    }

    #[test]
    fn a_lone_file_is_never_committed_with_others() {
        assert!(!prefers(&mut Costs::default(), 3, 16));
        assert!(!prefers(&mut measured(100 * MS, MS), 3, 16));
        let filesystem = by(Strategy::Filesystem);
        assert!(Costs::default().prefers_commit(filesystem, 1, 16, true));
        let files = by(Strategy::Files);
        assert!(!measured(100 * MS, MS).prefers_commit(files, 1000, 16, true));
    }

    #[test]
    fn many_files_are_committed_where_that_is_faster() {
        assert!(prefers(&mut Costs::default(), 24, 16));
        let mut costs = measured(MS, 3 * MS);
        assert!(!prefers(&mut costs, 48, 16), "three rounds of 1 ms");
        assert!(prefers(&mut costs, 49, 16));
    }

    #[test]
    fn who_only_has_bulks_finds_out_what_files_cost_once_a_commit_was_dear() {
        let mut costs = Costs { commit: Some(20 * MS), ..Costs::default() };
        assert!(prefers(&mut costs, 10_000, 64));
        assert!(!prefers(&mut costs, 23, 64), "these are measured one by one");
        costs.note_commit(640 * MS);
        assert!(prefers(&mut costs, 3_992, 64), "the rest of a bulk of 64 MB");
        costs.note_commit(20_000 * MS);
        assert!(!prefers(&mut costs, 10_000, 64), "157 rounds of 20 ms");
        costs.note_file(100 * MS);
        assert!(prefers(&mut costs, 10_000, 64), "both are slow here");
    }

    /// The bulks of so many files of which a commit is tried, among this many. Their files are
    /// begun one by one, with a decision each.
    fn tries(costs: &mut Costs, policy: Policy, files: usize, bulks: usize) -> Vec<usize> {
        let tried = |costs: &mut Costs| {
            (1..=files).rev().any(|waiting| costs.prefers_commit(policy, waiting, 16, true))
        };
        (0..bulks).filter(|_| tried(costs)).collect()
    }

    #[test]
    fn a_commit_that_was_dear_is_tried_again_seldom() {
        let mut costs = measured(MS, 500 * MS);
        let auto = by(Strategy::Auto);
        assert_eq!(tries(&mut costs, auto, 100, 1000), [8, 25, 58, 123, 252, 509, 766]);
        costs.note_commit(MS);
        assert_eq!(costs.commit, Some(MS), "what is long ago does not count");
        assert!(prefers(&mut costs, 100, 16));
    }

    #[test]
    fn files_that_wait_at_many_decisions_are_one_bulk() {
        let mut costs = measured(MS, 500 * MS);
        assert!((0..1000).all(|_| !prefers(&mut costs, 100, 16)));
    }

    #[test]
    fn few_files_are_committed_once_both_ways_are_known() {
        assert!(prefers(&mut measured(100 * MS, MS), COMMIT_FILES_MIN, 16));
        let few = COMMIT_FILES - 1;
        let of_files = Costs { file: Some(100 * MS), ..Costs::default() };
        let of_commits = Costs { commit: Some(MS), ..Costs::default() };
        assert!([of_files, of_commits].iter_mut().all(|costs| !prefers(costs, few, 16)));
    }

    #[test]
    fn a_commit_that_was_worth_it_makes_the_next_trials_as_soon_as_the_first() {
        let mut costs = measured(MS, 500 * MS);
        let auto = by(Strategy::Auto);
        let soon = tries(&mut costs.clone(), auto, 100, 50);
        // The last one that was tried was never made.
        assert_eq!(tries(&mut costs, auto, 100, 300).last(), Some(&252));
        costs.note_file(1000 * MS);
        assert!(prefers(&mut costs, 100, 16), "files are slow meanwhile");
        costs.note_commit(100 * MS);
        assert_eq!(costs.commit, Some(400 * MS), "it was not a trial");
        costs.file = Some(MS);
        assert_eq!(tries(&mut costs, auto, 100, 50), soon);
    }

    #[test]
    fn the_smallest_bulks_are_tried_too_but_only_where_both_ways_are_allowed() {
        let trials = |strategy| tries(&mut measured(MS, 500 * MS), by(strategy), COMMIT_FILES, 20);
        assert_eq!(trials(Strategy::Auto), [8]);
        assert!(trials(Strategy::Files).is_empty());
    }

    #[test]
    fn while_others_data_waits_a_commit_is_hardly_tried() {
        let strangers = Policy { unwritten: 1 << 30, ..by(Strategy::Auto) };
        let mut costs = Costs::default();
        assert!(tries(&mut costs, strangers, 100, 128).is_empty(), "nothing is known of commits");
        let mut costs = measured(MS, 500 * MS);
        assert_eq!(tries(&mut costs, strangers, 100, 1000), [128, 385, 898]);
        let mut costs = measured(MS, 3 * MS);
        assert!(
            costs.prefers_commit(strangers, 49, 16, true),
            "it is known to be fast all the same"
        );
    }

    #[test]
    fn trials_take_little_of_the_time() {
        let mut costs = measured(MS, 500 * MS);
        assert!(!costs.is_rested(15_999 * MS) && costs.is_rested(16_000 * MS));
        assert!(measured(MS, 600_000 * MS).is_rested(REST_MAX));
        let auto = by(Strategy::Auto);
        assert!((0..1000).all(|_| {
            !costs.prefers_commit(auto, 100, 16, false) && !costs.prefers_commit(auto, 1, 16, false)
        }));
        assert!(prefers(&mut costs, 100, 16));
    }
}
