//! What is asked for, and whether it is possible.

use std::fs;
use std::path::PathBuf;

use super::error::FsyncError;
use super::files::allow_open;
use super::strategy::Strategy;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Setup {
    /// A folder on the filesystem to measure. The files are in a new folder there, which is
    /// removed.
    pub dir: PathBuf,
    /// How many files are made durable each time.
    pub files: usize,
    /// Bytes of a file.
    pub size: usize,
    /// With how many issuers each strategy is measured.
    pub issuers: Vec<usize>,
    /// How often everything is measured.
    pub rounds: usize,
}

impl Setup {
    /// What is measured in a round, in the order of the rows.
    pub(super) fn cells(&self) -> Vec<(Strategy, usize)> {
        let of = |strategy| self.issuers.iter().map(move |issuers| (strategy, *issuers));
        Strategy::ALL.into_iter().flat_map(of).collect()
    }

    /// How many measurements there are in all.
    pub fn measurements(&self) -> usize {
        self.rounds * self.cells().len()
    }

    /// Checks the setup before anything is written.
    pub(super) fn check(&self) -> Result<(), FsyncError> {
        let refuse = |what, value, advice| Err(FsyncError::Number { what, value, advice });
        if self.files == 0 {
            return refuse("the number of files", 0, "take 1 or more");
        }
        if self.size == 0 {
            return refuse("the size of a file", 0, "take 1 byte or more");
        }
        if self.rounds == 0 {
            return refuse("the number of rounds", 0, "take 1 or more");
        }
        if self.issuers.is_empty() || self.issuers.contains(&0) {
            return refuse("the number of issuers", 0, "take 1 or more");
        }
        if let Some(issuers) = self.issuers.iter().find(|issuers| **issuers > self.files) {
            return Err(FsyncError::TooManyIssuers { issuers: *issuers, files: self.files });
        }
        let dir = || self.dir.clone();
        let found = fs::metadata(&self.dir);
        let found = found.map_err(|error| FsyncError::NoFolder { dir: dir(), error })?;
        if !found.is_dir() {
            return Err(FsyncError::NotAFolder(dir()));
        }
        // Permissions do not say everything: the filesystem may be read-only.
        let probe = tempfile::Builder::new().prefix("homing-fsync-").tempdir_in(&self.dir);
        probe.map_err(|error| FsyncError::NotWritable { dir: dir(), error })?;
        self.check_space()?;
        // Files that are synced asynchronously are all open at the same time.
        allow_open(self.files).map_err(FsyncError::OpenFiles)
    }

    fn check_space(&self) -> Result<(), FsyncError> {
        // If the filesystem does not tell, writing will show.
        let Ok(found) = rustix::fs::statvfs(&self.dir) else { return Ok(()) };
        let block = found.f_frsize.max(1);
        // One more block for what the filesystem has to know of each file.
        let blocks = (self.size as u64).div_ceil(block) + 1;
        let needed = (self.files as u64).saturating_mul(blocks).saturating_mul(block);
        let free = found.f_bavail.saturating_mul(block);
        let (dir, files, size) = (self.dir.clone(), self.files, self.size);
        if needed > free {
            return Err(FsyncError::TooLittleSpace { dir, files, size, needed, free });
        }
        // Some have no fixed number of inodes, and say 0.
        if found.f_files > 0 && self.files as u64 > found.f_favail {
            return Err(FsyncError::TooFewInodes { dir, files, free: found.f_favail });
        }
        Ok(())
    }
}
