//! How the waiting files of one filesystem are made durable: one by one, side by side, or by a
//! commit of the whole filesystem. Pure.
//!
//! Both ways are timed as they are used. A commit costs about the same however many files it
//! covers, as long as what it writes is ours. If somebody else's data is in the way, it turns out
//! to be expensive, and is seldom tried again.

use std::time::Duration;

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
pub enum Strategy {
    /// Whatever has been faster.
    #[default]
    Auto,
    /// Each file by itself, side by side: never waits for other people's data.
    Files,
    /// A commit of the filesystem, also for one file.
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

/// After this many decisions against a commit, one is tried if enough files wait.
const TRY_EVERY: u32 = 64;

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
    /// Decisions against a commit since the last one.
    refused: u32,
}

impl Costs {
    /// Whether `waiting` files should be committed at once, where `depth` can be synced side by
    /// side.
    pub(crate) fn prefers_commit(
        &mut self,
        strategy: Strategy,
        waiting: usize,
        depth: usize,
    ) -> bool {
        if self.is_worth(strategy, waiting, depth) {
            self.refused = 0;
            return true;
        }
        if strategy != Strategy::Auto || waiting < COMMIT_FILES_MIN {
            return false;
        }
        let tries = waiting >= COMMIT_FILES && self.refused >= TRY_EVERY;
        self.refused = if tries { 0 } else { self.refused + 1 };
        tries
    }

    /// As [`Costs::prefers_commit`], but only by what has been measured: nothing is tried.
    pub(crate) fn is_worth(&self, strategy: Strategy, waiting: usize, depth: usize) -> bool {
        match strategy {
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
        let Some(commit) = self.commit else { return true };
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
        self.commit = Some(mix(self.commit, took));
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

    #[test]
    fn a_lone_file_is_never_committed_with_others() {
        assert!(!Costs::default().prefers_commit(Strategy::Auto, 3, 16));
        assert!(!measured(100 * MS, MS).prefers_commit(Strategy::Auto, 3, 16));
        assert!(Costs::default().prefers_commit(Strategy::Filesystem, 1, 16));
        assert!(!measured(100 * MS, MS).prefers_commit(Strategy::Files, 1000, 16));
    }

    #[test]
    fn many_files_are_committed_where_that_is_faster() {
        assert!(Costs::default().prefers_commit(Strategy::Auto, 24, 16));
        let mut costs = measured(MS, 3 * MS);
        assert!(!costs.prefers_commit(Strategy::Auto, 48, 16), "three rounds of 1 ms");
        assert!(costs.prefers_commit(Strategy::Auto, 49, 16));
    }

    #[test]
    fn who_only_has_bulks_finds_out_what_files_cost_once_a_commit_was_dear() {
        let mut costs = Costs { commit: Some(20 * MS), ..Costs::default() };
        assert!(costs.prefers_commit(Strategy::Auto, 10_000, 64));
        assert!(!costs.prefers_commit(Strategy::Auto, 23, 64), "these are measured one by one");
        costs.note_commit(640 * MS);
        assert!(costs.prefers_commit(Strategy::Auto, 3_992, 64), "the rest of a bulk of 64 MB");
        costs.note_commit(20_000 * MS);
        assert!(!costs.prefers_commit(Strategy::Auto, 10_000, 64), "157 rounds of 20 ms");
        costs.note_file(100 * MS);
        assert!(costs.prefers_commit(Strategy::Auto, 10_000, 64), "both are slow here");
    }

    #[test]
    fn a_commit_that_was_dear_is_tried_again_seldom() {
        let mut costs = measured(MS, 500 * MS);
        let tries = (0..1000).filter(|_| costs.prefers_commit(Strategy::Auto, 100, 16)).count();
        assert_eq!(tries, 15);
        costs.note_commit(MS);
        assert!(costs.commit.unwrap() < 400 * MS);
    }
}
