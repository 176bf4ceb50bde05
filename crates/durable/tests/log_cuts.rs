//! The power fails at each call of a log that grows and is cut off. Any part of what was not synced
//! may be there, names and blocks alike. What was called durable is there, and what was called gone
//! stays gone.

mod support;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use homing_durable::{Durable, Failure, Kind, Linux, Log, System};
use homing_runtime::Runtime;
use support::inode;

const SEGMENT: u64 = 300;
/// A block of a file, in bytes: it is there or not as a whole.
const BLOCK: usize = 32;

/// Random numbers, by a generator of Marsaglia's.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// What is in the log's folder after a power cut, and what must be.
struct Image {
    files: Vec<(String, Vec<u8>)>,
    promised: Promised,
}

#[derive(Clone, Copy, Debug, Default)]
struct Promised {
    durable: u64,
    /// Records before the first are gone; those from the second on must not be.
    gone_before: u64,
    kept_from: u64,
}

/// A disk with a cache, which makes images of what a power cut may leave.
#[derive(Clone)]
struct Platter(Arc<Mutex<State>>);

struct State {
    folder: PathBuf,
    dice: Dice,
    /// What is safe: the file of each name, and the bytes of each file. Files are held open, so
    /// that no number is used twice.
    names: BTreeMap<String, u64>,
    bytes: HashMap<u64, Vec<u8>>,
    open: HashMap<u64, File>,
    /// For each file, the bytes whose sync has failed: the next sync takes them for written.
    lost: HashMap<u64, BTreeSet<u64>>,
    promised: Promised,
    /// The program dies at the call after this many more.
    dies_after: Option<u64>,
    /// There is no room for the write after this many more, during which somebody appends.
    full_after: Option<u64>,
    log: Option<Log>,
    images: Vec<Image>,
}

impl State {
    fn know(&mut self, file: &File) {
        self.open.entry(inode(file)).or_insert_with(|| file.try_clone().unwrap());
    }

    fn listing(&self) -> BTreeMap<String, u64> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().map(Result::unwrap);
        let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
        entries.map(|entry| (name(&entry), entry.metadata().unwrap().ino())).collect()
    }

    fn save(&mut self, file: &File) {
        let mut bytes = content(file);
        let (safe, lost) = (self.bytes.entry(inode(file)).or_default(), &self.lost);
        for at in lost.get(&inode(file)).into_iter().flatten().map(|at| *at as usize) {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = safe.get(at).copied().unwrap_or(0);
            }
        }
        *safe = bytes;
    }

    fn lose(&mut self, file: &File) {
        let safe = self.bytes.get(&inode(file)).cloned().unwrap_or_default();
        let is_safe = |(at, byte): (usize, u8)| safe.get(at).is_some_and(|safe| *safe == byte);
        let unsafe_bytes = content(file).into_iter().enumerate().filter(|at| !is_safe(*at));
        let lost = self.lost.entry(inode(file)).or_default();
        lost.extend(unsafe_bytes.map(|(at, _)| at as u64));
    }

    /// The power fails, here.
    fn cut(&mut self) {
        let now = self.listing();
        for name in now.keys() {
            // Spare segments are made without asking this disk.
            self.know(&File::open(self.folder.join(name)).unwrap());
        }
        let names: BTreeSet<&String> = now.keys().chain(self.names.keys()).collect();
        let mut files = Vec::new();
        for name in names {
            let choices = [now.get(name), self.names.get(name)];
            let Some(inode) = choices[self.dice.below(2) as usize] else { continue };
            let safe = self.bytes.get(inode).cloned().unwrap_or_default();
            let mut bytes = content(&self.open[inode]);
            if self.dice.coin() {
                bytes.truncate(safe.len());
            }
            for (at, block) in bytes.chunks_mut(BLOCK).enumerate() {
                if self.dice.coin() {
                    let safe = safe.get(at * BLOCK..).unwrap_or_default();
                    let count = block.len().min(safe.len());
                    block[..count].copy_from_slice(&safe[..count]);
                    block[count..].fill(0);
                }
            }
            files.push((name.clone(), bytes));
        }
        self.images.push(Image { files, promised: self.promised });
    }
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

impl Platter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Makes images before and after a call.
    fn around(&self, call: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        {
            let mut state = self.state();
            state.cut();
            if let Some(calls) = &mut state.dies_after {
                let Some(left) = calls.checked_sub(1) else {
                    let error = io::Error::from_raw_os_error(5);
                    return Err(Failure { operation: "the program", error });
                };
                *calls = left;
            }
        }
        let done = call();
        self.state().cut();
        done
    }
}

impl System for Platter {
    fn sync(&self, file: &File, _: Kind) -> Result<(), Failure> {
        let synced = self.around(|| {
            let mut state = self.state();
            if file.metadata().unwrap().is_dir() {
                if fs::metadata(&state.folder).is_ok_and(|folder| folder.ino() == inode(file)) {
                    state.names = state.listing();
                }
            } else {
                state.know(file);
                state.save(file);
            }
            Ok(())
        });
        if synced.is_err() && file.metadata().unwrap().is_file() {
            self.state().lose(file);
        }
        synced
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
    fn write(&self, file: &File, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        self.state().know(file);
        self.around(|| {
            let end = offset + bytes.len() as u64;
            let mut state = self.state();
            let lost = state.lost.entry(inode(file)).or_default();
            lost.retain(|at| !(offset..end).contains(at));
            let (is_full, part) = (state.full_after == Some(0), state.dice.below(end - offset + 1));
            state.full_after = state.full_after.and_then(|writes| writes.checked_sub(1));
            let log = state.log.clone();
            drop(state);
            if is_full {
                if let Some(log) = log {
                    append(&log);
                }
                Linux.write(file, &bytes[..part as usize], offset)?;
                let error = io::Error::from_raw_os_error(28);
                return Err(Failure { operation: "write", error });
            }
            Linux.write(file, bytes, offset)
        })
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        self.around(|| Linux.rename(from, to))
    }
    fn remove(&self, path: &Path) -> Result<(), Failure> {
        self.around(|| Linux.remove(path))
    }
}

fn record(sequence: u64) -> Vec<u8> {
    vec![sequence as u8; (sequence * 29 % 70) as usize]
}

fn append(log: &Log) {
    log.append(&record(log.last_sequence().get() + 1)).unwrap();
}

/// Lets a log live, with random numbers from this seed. Returns images of its disk.
fn live(runtime: &Runtime, folder: &Path, seed: u64) -> Vec<Image> {
    let platter = Platter(Arc::new(Mutex::new(State {
        folder: folder.to_owned(),
        dice: Dice(seed),
        names: BTreeMap::new(),
        bytes: HashMap::new(),
        open: HashMap::new(),
        lost: HashMap::new(),
        promised: Promised::default(),
        dies_after: None,
        full_after: None,
        log: None,
        images: Vec::new(),
    })));
    let durable = Durable::with_system(runtime, platter.clone()).unwrap();
    // Either most writes begin a segment, or few do.
    let segment = if platter.state().dice.coin() { SEGMENT } else { 5 * SEGMENT };
    let open = || Log::options().segment_length(segment).open(&durable, folder).unwrap().0;
    let mut log = open();
    let mut no_room = 0;
    for _ in 0..40 {
        let choice = platter.state().dice.below(8);
        // What the program has just written may be in the page cache only when it begins anew.
        let dies = platter.state().dice.below(4) == 0;
        let calls = platter.state().dice.below(7);
        platter.state().dies_after = dies.then_some(calls);
        let is_full = platter.state().dice.coin();
        platter.state().full_after = is_full.then_some(calls / 4);
        platter.state().log = Some(log.clone());
        let done = match choice {
            1 | 2 => {
                let limit = log.durable_sequence().get() + 1;
                let first = 1 + platter.state().dice.below(limit);
                let kept_from = platter.state().promised.kept_from.max(first);
                platter.state().promised.kept_from = kept_from;
                log.truncate_before(first.into()).wait()
            }
            choice => {
                for _ in 0..choice.max(3) - 2 {
                    append(&log);
                }
                log.commit(log.last_sequence()).wait()
            }
        };
        (platter.state().dies_after, platter.state().full_after) = (None, None);
        platter.state().log = None;
        let is_open = match done {
            Ok(()) => true,
            Err(error) => error.errno == 28,
        };
        no_room +=
            usize::from(is_open && choice != 0 && log.durable_sequence() < log.last_sequence());
        if choice == 0 || !is_open {
            drop(log);
            log = open();
        }
        platter.state().promised.gone_before = log.first_sequence().get();
        platter.state().promised.durable = log.durable_sequence().get();
    }
    assert!(no_room > 0, "the dice are bad");
    let mut state = platter.state();
    std::mem::take(&mut state.images)
}

#[test]
fn whenever_the_power_fails_what_was_promised_is_kept() {
    let runtime = Runtime::new().unwrap();
    let real = Durable::with_system(&runtime, support::Disk::default()).unwrap();
    let (mut images, mut cut_off) = (0, 0);
    for seed in 1..=8_u64 {
        let folder = tempfile::tempdir().unwrap();
        let all =
            live(&runtime, &folder.path().join("log"), seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        for (number, Image { files, promised }) in all.into_iter().enumerate() {
            let after = folder.path().join(number.to_string());
            fs::create_dir(&after).unwrap();
            let gone = format!("{:020}.log", promised.gone_before);
            // At most one: that in the midst of which the first record that is kept stands.
            let old = files.iter().filter(|(name, _)| *name < gone).count();
            assert!(old <= 1, "{seed} {number}: {old} segments have not given their space back");
            for (name, bytes) in files {
                fs::write(after.join(name), bytes).unwrap();
            }
            let opened = Log::options().segment_length(SEGMENT).open(&real, &after);
            let (log, recovery) = opened.unwrap_or_else(|error| panic!("{seed} {number}: {error}"));
            let (first, last) = (recovery.first.get(), log.last_sequence().get());
            assert!(last >= promised.durable, "{seed} {number}: {last} of {promised:?}");
            let range = promised.gone_before..=promised.kept_from.max(1);
            assert!(range.contains(&first), "{seed} {number}: {first} of {promised:?}");
            let mut sequence = first;
            for found in log.records() {
                assert!(found.unwrap().data == record(sequence), "{seed} {number}");
                sequence += 1;
            }
            assert_eq!(sequence, last + 1);
            images += 1;
            cut_off += u32::from(first > 1);
            drop(log);
            fs::remove_dir_all(after).unwrap();
        }
    }
    assert!(images > 2000 && cut_off > 500, "{images} {cut_off}: the dice are bad");
}
