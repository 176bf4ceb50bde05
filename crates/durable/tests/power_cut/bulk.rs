//! A caller that syncs thousands of files at a time, so many that `fsync_many` begins with the
//! first of them while it is still asking for the others. Some are written only then.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use homing_durable::Durable;
use homing_faultdisk::Random;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::contents::{Open, bytes, open, write};
use crate::history::History;

/// How many files one bulk has: more than the least number with which a bulk begins early.
const FILES: usize = 4100;
/// Files that are there before the first one, to be overwritten.
const OLD_FILES: usize = 1000;
const SECTORS_MAX: usize = 8;
/// The name of the bulk's folder; those of others are smaller numbers.
const NUMBER: u32 = 1000;

pub(crate) struct Bulk {
    root: PathBuf,
    folder: Arc<File>,
    files: Vec<Open>,
    made: usize,
    random: Random,
}

impl Bulk {
    /// Makes a bulk with a folder of its own, and files in it.
    pub(crate) fn new(root: &Path, seed: u64) -> io::Result<Self> {
        // All files are open at the same time.
        let (limit, needed) = (getrlimit(Resource::Nofile), 3 * FILES as u64);
        if limit.current.is_some_and(|current| current < needed) {
            setrlimit(Resource::Nofile, Rlimit { current: Some(needed), ..limit })?;
        }
        let path = root.join(NUMBER.to_string());
        fs::create_dir(&path)?;
        let (folder, random) = (Arc::new(File::open(path)?), Random::new(seed));
        let mut bulk = Self { root: root.to_owned(), folder, files: Vec::new(), made: 0, random };
        bulk.make(OLD_FILES)?;
        for old in &bulk.files {
            old.file.write_all_at(&bytes(&old.name, 0, old.sectors), 0)?;
        }
        Ok(bulk)
    }

    fn make(&mut self, count: usize) -> io::Result<()> {
        for _ in 0..count {
            let sectors = 1 + self.random.below(SECTORS_MAX);
            self.files.push(open(&self.root, NUMBER, &mut self.made, sectors)?);
        }
        Ok(())
    }

    /// Syncs one bulk: of old files, some of which grow, and new ones, in any order. Others begin
    /// when some of it has been asked for.
    pub(crate) fn go(
        &mut self,
        durable: &Durable,
        history: &History,
        moment: &dyn Fn() -> usize,
        begin_others: impl FnOnce(),
    ) {
        let old = self.files.len().min(FILES / 2);
        self.make(FILES - old).unwrap();
        self.files.rotate_right(FILES);
        for place in (1..FILES).rev() {
            self.files.swap(place, self.random.below(place + 1));
        }
        for file in &mut self.files[..FILES] {
            file.sectors += usize::from(self.random.below(4) == 0) * self.random.below(SECTORS_MAX);
        }
        let late: Vec<bool> = (0..FILES).map(|_| self.random.below(4) == 0).collect();
        let others_begin_at = self.random.below(FILES);
        let mut begin_others = Some(begin_others);
        let files = &self.files[..FILES];
        for (file, _) in files.iter().zip(&late).filter(|(_, is_late)| !**is_late) {
            write(file, history, moment);
        }
        let ask = |place: usize| {
            if late[place] {
                write(&files[place], history, moment);
            }
            if place == others_begin_at
                && let Some(begin) = begin_others.take()
            {
                begin();
            }
            &files[place].file
        };
        let all = (0..FILES).map(ask).chain([&self.folder]);
        for verdict in durable.fsync_many(all).wait() {
            verdict.unwrap();
        }
        let moment = moment();
        for file in files {
            history.synced(&file.name, moment);
        }
    }
}
