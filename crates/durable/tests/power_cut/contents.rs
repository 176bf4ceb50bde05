//! Issuers that write files and sync them. Each sector tells which file and version it is of.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use homing_durable::Durable;
use homing_faultdisk::Random;

use crate::history::History;

/// What issuers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// New files, overwrites, and files that grow.
    Mixed,
    /// Overwrites of files that were there: nothing changes except data and times.
    Overwrites,
    /// Overwrites by a single issuer, while a stranger syncs another file between each write and
    /// its sync: that commits the times, and leaves the journal nothing to write.
    BesideStranger,
    /// As [`Shape::Mixed`], beside a caller that syncs thousands of files at a time (`bulk`),
    /// twice: a cut within the second bulk finds out what was wrong with the first.
    BesideBulk,
}

impl Shape {
    /// How many issuers write and sync at a time.
    pub(crate) fn issuers(self) -> u32 {
        match self {
            Self::BesideStranger => 1,
            Self::BesideBulk => 3,
            Self::Mixed | Self::Overwrites => 4,
        }
    }

    /// How many bulks there are beside them, one after the other.
    pub(crate) fn bulks(self) -> u32 {
        if self == Self::BesideBulk { 2 } else { 0 }
    }

    fn is_mixed(self) -> bool {
        matches!(self, Self::Mixed | Self::BesideBulk)
    }
}

/// The bytes by which files grow; each sector tells of itself.
const SECTOR: usize = 512;
/// How many steps each issuer does, one after the other.
const STEPS: usize = 40;
/// How many files are overwritten.
const OLD_FILES: usize = 6;
const SECTORS_MAX: usize = 40;

/// An issuer, which writes and syncs. No two share a file.
pub(crate) struct Issuer {
    number: u32,
    shape: Shape,
    root: PathBuf,
    folder: Arc<File>,
    files: Vec<Open>,
    made: usize,
    random: Random,
}

/// A file, as long as it was written or is about to be.
pub(crate) struct Open {
    pub(crate) name: String,
    pub(crate) file: Arc<File>,
    pub(crate) sectors: usize,
}

impl Issuer {
    /// Makes an issuer with a folder of its own, and files in it if the issuer only overwrites.
    pub(crate) fn new(number: u32, root: &Path, shape: Shape, seed: u64) -> io::Result<Self> {
        let path = root.join(number.to_string());
        fs::create_dir(&path)?;
        let folder = Arc::new(File::open(path)?);
        let mut random = Random::new(seed ^ u64::from(number));
        let mut files = Vec::new();
        let mut made = 0;
        if !shape.is_mixed() {
            for _ in 0..OLD_FILES {
                let new = open(root, number, &mut made, 1 + random.below(SECTORS_MAX))?;
                new.file.write_all_at(&bytes(&new.name, 0, new.sectors), 0)?;
                files.push(new);
            }
        }
        Ok(Self { number, shape, root: root.to_owned(), folder, files, made, random })
    }

    /// Does its steps. `moment` gives the disk's present moment.
    pub(crate) fn go(&mut self, durable: &Durable, history: &History, moment: &dyn Fn() -> usize) {
        for _ in 0..STEPS {
            if self.shape.is_mixed() && (self.files.is_empty() || self.random.below(2) == 0) {
                self.make(durable, history, moment);
            } else {
                self.overwrite(durable, history, moment);
            }
        }
    }

    /// Makes some new files, synced together with the folder that their names stand in.
    fn make(&mut self, durable: &Durable, history: &History, moment: &dyn Fn() -> usize) {
        let mut batch = durable.batch();
        let count = 1 + self.random.below(3);
        for _ in 0..count {
            let sectors = 1 + self.random.below(SECTORS_MAX);
            let new = open(&self.root, self.number, &mut self.made, sectors).unwrap();
            write(&new, history, moment);
            batch.fsync(&new.file);
            self.files.push(new);
        }
        batch.fsync_dir(&self.folder);
        for verdict in batch.begin().wait() {
            verdict.unwrap();
        }
        for new in &self.files[self.files.len() - count..] {
            history.synced(&new.name, moment());
        }
    }

    /// Writes a file again, and mostly syncs it after that. What is not synced is in the way of
    /// others.
    fn overwrite(&mut self, durable: &Durable, history: &History, moment: &dyn Fn() -> usize) {
        let at = self.random.below(self.files.len());
        let grows = self.shape.is_mixed() && self.random.below(4) == 0;
        let old = &mut self.files[at];
        old.sectors += usize::from(grows) * self.random.below(SECTORS_MAX);
        write(old, history, moment);
        if self.shape == Shape::BesideStranger {
            let stranger = File::create(self.root.join("stranger")).unwrap();
            stranger.write_all_at(b"of no interest", 0).unwrap();
            stranger.sync_all().unwrap();
        }
        let verdict = match self.random.below(6) {
            0 => return,
            // The first one asked for is no file by which the device could be flushed.
            5 => {
                let mut batch = durable.batch();
                batch.fsync_dir(&self.folder).fdatasync(&old.file);
                batch.begin().wait().into_iter().collect()
            }
            1 => durable.fdatasync_and_wait(&old.file),
            2 => durable.fsync(&old.file).wait(),
            _ => durable.fdatasync(&old.file).wait(),
        };
        verdict.unwrap();
        history.synced(&old.name, moment());
    }
}

pub(crate) fn open(root: &Path, issuer: u32, made: &mut usize, sectors: usize) -> io::Result<Open> {
    let name = format!("{issuer}/{made}");
    *made += 1;
    let file = OpenOptions::new().write(true).create_new(true).open(root.join(&name))?;
    Ok(Open { name, file: Arc::new(file), sectors })
}

pub(crate) fn write(open: &Open, history: &History, moment: &dyn Fn() -> usize) {
    let version = history.begin(&open.name, open.sectors, moment());
    open.file.write_all_at(&bytes(&open.name, version, open.sectors), 0).unwrap();
}

/// What one sector of a version holds.
fn sector(name: &str, version: u32, number: usize) -> [u8; SECTOR] {
    let name = name
        .bytes()
        .fold(u64::from(version), |sum, byte| sum.wrapping_mul(257).wrapping_add(u64::from(byte)));
    let mut random = Random::new(name ^ (number as u64) << 48);
    let mut sector = [0; SECTOR];
    for word in sector.chunks_mut(8) {
        word.copy_from_slice(&random.draw().to_ne_bytes());
    }
    sector[..4].copy_from_slice(&version.to_ne_bytes());
    sector
}

pub(crate) fn bytes(name: &str, version: u32, sectors: usize) -> Vec<u8> {
    (0..sectors).flat_map(|number| sector(name, version, number)).collect()
}

/// Whether the first `sectors` of a file are there, each whole and of one of these versions.
pub(crate) fn verify(
    found: &[u8],
    name: &str,
    sectors: usize,
    versions: &RangeInclusive<u32>,
) -> Result<(), String> {
    if found.len() < sectors * SECTOR {
        return Err(format!("{} bytes long instead of {}", found.len(), sectors * SECTOR));
    }
    for (number, found) in found.chunks(SECTOR).take(sectors).enumerate() {
        let version = u32::from_ne_bytes(found[..4].try_into().unwrap());
        if !versions.contains(&version) || found != sector(name, version, number) {
            let kind =
                if found.iter().all(|byte| *byte == 0) { "zeroes" } else { "something else" };
            let whole = found == sector(name, version, number);
            let kind = if whole { format!("version {version}") } else { kind.to_owned() };
            return Err(format!("sector {number} of {sectors} is {kind}"));
        }
    }
    Ok(())
}
