//! Parts of a sweep on different machines: lines of JSON in files, put together later.
//!
//! A part that runs is `2-of-8.jsonl.part`: the sweep, then a line for each run as it ends. If the
//! same part is asked for later, it continues after these lines. When all runs have ended,
//! `2-of-8.jsonl` takes its place. The last line of that file says which part it is, how many runs
//! come before it and what their lines come to, so that a file that was cut off or changed, or has
//! another part's name, is not taken for whole.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::sweep::fingerprint;
use super::{Cell, Key, Measure, Settings, Sweep};

/// One of several equal parts, counted from 1: `2/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Numbers")]
pub struct Shard {
    number: usize,
    of: usize,
}

/// A part as it stands in a file, before it is checked.
#[derive(Deserialize)]
struct Numbers {
    number: usize,
    of: usize,
}

impl TryFrom<Numbers> for Shard {
    type Error = ShardError;

    fn try_from(Numbers { number, of }: Numbers) -> Result<Self, ShardError> {
        let fits = (1..=of).contains(&number);
        fits.then_some(Self { number, of })
            .ok_or_else(|| ShardError::Parse { text: format!("{number}/{of}") })
    }
}

/// The last line of a part that is whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct End {
    part: Shard,
    runs: usize,
    /// The [`fingerprint`] of the first line and theirs.
    lines: String,
}

/// A line after the first.
enum Line {
    Run(Measure),
    End(End),
}

impl Line {
    fn of(text: &str) -> Result<Self, String> {
        if let Ok(end) = serde_json::from_str(text) {
            return Ok(Self::End(end));
        }
        serde_json::from_str(text).map(Self::Run).map_err(|error| error.to_string())
    }
}

/// Parts that cannot be read, written or put together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// Not a part.
    #[error("{text:?} is not a part: use i/n with 1 <= i <= n, such as 2/8")]
    Parse {
        /// What was given.
        text: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is not a measure.
    #[error("{path}, line {line}: {problem}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// There is nothing to put together.
    #[error("{path} has no files that end in .jsonl", path = path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// A part was stopped.
    #[error("{path} is not whole: give the command of this part again, and it goes on with the rest",
        path = path.display())]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// A part does not have all of its lines.
    #[error("{path} has been cut off or changed: its last line does not tell of the {runs} runs before it; \
        remove it, or what was changed, and give the command of this part again, and it goes on with the rest",
        path = path.display())]
    Cut {
        /// The file.
        path: PathBuf,
        /// The number of runs in the file.
        runs: usize,
    },
    /// A part is missing.
    #[error("{path}: part {number} of {of} is missing", path = path.display())]
    Missing {
        /// The folder.
        path: PathBuf,
        /// The number of the first part that is missing.
        number: usize,
        /// How many parts there are, according to the others.
        of: usize,
    },
    /// A part is of another sweep than the first one.
    #[error("{path} is of another sweep than the files before it: {sweep}, and not {first}",
        path = path.display())]
    Foreign {
        /// The later file.
        path: PathBuf,
        /// Its first line.
        sweep: String,
        /// The first line of the first file.
        first: String,
    },
    /// The file of the part that is to be written is of another sweep.
    #[error("{path} is of another sweep: remove it, or take another folder; it says {found}, and what is \
        asked for is {asked}", path = path.display())]
    Occupied {
        /// The file.
        path: PathBuf,
        /// Its first line.
        found: String,
        /// The first line that it should have.
        asked: String,
    },
    /// The same run is in two files with different figures.
    #[error("{path}: the run {key} differs from the same one in another file: from another version?",
        path = path.display())]
    Conflict {
        /// The later file.
        path: PathBuf,
        /// The run.
        key: String,
    },
}

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split_once('/').and_then(|(number, of)| {
            Some(Numbers { number: number.parse().ok()?, of: of.parse().ok()? })
        });
        let parse = || ShardError::Parse { text: text.to_owned() };
        numbers.ok_or_else(parse)?.try_into().map_err(|_: ShardError| parse())
    }
}

impl Shard {
    /// The cells of this part: every n-th, so that each part has some of all kinds.
    pub fn of(&self, cells: impl IntoIterator<Item = Cell>) -> Vec<Cell> {
        cells.into_iter().skip(self.number - 1).step_by(self.of).collect()
    }

    fn file_name(&self) -> String {
        format!("{}-of-{}.jsonl", self.number, self.of)
    }
}

/// The unfinished file, and what is in it.
#[derive(Debug)]
struct Kept {
    file: File,
    runs: usize,
    /// Whether writing a line failed: half of it may be there.
    broken: bool,
}

/// A part that is being run.
#[derive(Debug)]
pub struct Part {
    path: PathBuf,
    unfinished: PathBuf,
    shard: Shard,
    sweep: Sweep,
    known: BTreeMap<Key, BTreeMap<String, f64>>,
    file: Mutex<Kept>,
}

impl Part {
    /// Begins a part, or continues one: the runs in its files in the folder need not be run again.
    /// The folder is made if need be.
    ///
    /// # Errors
    /// If files cannot be read or written, or if the part that is there is of another sweep.
    pub fn open(folder: &Path, shard: Shard, sweep: Sweep) -> Result<Self, ShardError> {
        fs::create_dir_all(folder).map_err(at(folder))?;
        let path = folder.join(shard.file_name());
        let unfinished = folder.join(format!("{}.part", shard.file_name()));
        let mut known = BTreeMap::new();
        for path in [&path, &unfinished] {
            match fs::read_to_string(path) {
                Ok(text) => known.extend(kept(path, &text, &sweep)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(at(path)(error)),
            }
        }
        // The file is written anew, because its last line may be incomplete.
        replace(&unfinished, &(sweep.line() + "\n" + &lines_of(&known)))?;
        let file = OpenOptions::new().append(true).open(&unfinished).map_err(at(&unfinished))?;
        let file = Mutex::new(Kept { file, runs: known.len(), broken: false });
        Ok(Self { path, unfinished, shard, sweep, known, file })
    }

    /// The path of the finished file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the unfinished file.
    pub fn unfinished(&self) -> &Path {
        &self.unfinished
    }

    /// How many runs had ended before the part was opened.
    pub fn known(&self) -> usize {
        self.known.len()
    }

    /// The cells that had not been run before the part was opened.
    pub fn left(&self, mut cells: Vec<Cell>) -> Vec<Cell> {
        cells.retain(|cell| !self.known.contains_key(&cell.key));
        cells
    }

    /// How many runs the unfinished file has by now.
    pub fn kept(&self) -> usize {
        self.lock().runs
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a run that has ended.
    ///
    /// # Errors
    /// If the run could not be written, as on a full disk. Then no other run is written until the
    /// part is opened again or ends.
    pub fn note(&self, measure: &Measure) -> Result<(), ShardError> {
        let mut kept = self.lock();
        if kept.broken {
            return Ok(()); // the error was already returned
        }
        let written = kept.file.write_all(line_of(measure).as_bytes());
        kept.broken = written.is_err();
        kept.runs += usize::from(written.is_ok());
        written.map_err(at(&self.unfinished))
    }

    /// Makes the part whole after all runs have ended. Returns how many runs it has.
    ///
    /// # Errors
    /// If the file could not be written. What was noted stays.
    pub fn finish(self, measures: Vec<Measure>) -> Result<usize, ShardError> {
        let mut all = self.known;
        all.extend(measures.into_iter().map(|measure| (measure.key, measure.values)));
        let lines = lines_of(&all);
        let end = End {
            part: self.shard,
            runs: all.len(),
            lines: fingerprint(&(self.sweep.line() + "\n" + &lines)),
        };
        let end = serde_json::to_string(&end).expect("numbers") + "\n";
        let text = self.sweep.line() + "\n" + &lines + &end;
        replace(&self.unfinished, &text)?;
        fs::rename(&self.unfinished, &self.path).map_err(at(&self.path))?;
        Ok(all.len())
    }
}

/// Writes another file next to `path`, which takes its place once it is whole.
fn replace(path: &Path, text: &str) -> Result<(), ShardError> {
    let next = path.with_extension("next");
    let written = File::create(&next).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_data()
    });
    if written.is_err() {
        // An incomplete file would take space, of which there may be none left.
        let _ = fs::remove_file(&next);
    }
    written.map_err(at(&next))?;
    fs::rename(&next, path).map_err(at(path))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ShardError + use<> {
    let path = path.to_owned();
    move |source| ShardError::Io { path, source }
}

fn line_of(measure: &Measure) -> String {
    serde_json::to_string(measure).expect("figures and names") + "\n"
}

fn lines_of(all: &BTreeMap<Key, BTreeMap<String, f64>>) -> String {
    let measures = all
        .iter()
        .map(|(key, values)| line_of(&Measure { key: key.clone(), values: values.clone() }));
    measures.collect()
}

/// Reads the runs in a part that may have been cut off.
fn kept(
    path: &Path,
    text: &str,
    sweep: &Sweep,
) -> Result<BTreeMap<Key, BTreeMap<String, f64>>, ShardError> {
    // A line without its end of line is not whole, even if it looks so.
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    let mut lines = whole.lines();
    let Some(head) = lines.next() else { return Ok(BTreeMap::new()) };
    if head != sweep.line() {
        let (path, found) = (path.to_owned(), head.to_owned());
        return Err(ShardError::Occupied { path, found, asked: sweep.line() });
    }
    let mut known = BTreeMap::new();
    for (index, line) in lines.enumerate() {
        let line = Line::of(line).map_err(|problem| {
            let path = path.to_owned();
            let problem = format!("{problem}; remove this line, and its run is made again");
            ShardError::Line { path, line: index + 2, problem }
        })?;
        if let Line::Run(measure) = line {
            known.insert(measure.key, measure.values);
        }
    }
    Ok(known)
}

/// A whole sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// All runs, in the order of their keys.
    pub measures: Vec<Measure>,
    /// What they have in common.
    pub settings: Settings,
}

/// Reads all parts in a folder. No part may be missing, and all must be of one sweep. A run that is
/// in several files must be the same in all.
pub fn merge(folder: &Path) -> Result<Merged, ShardError> {
    let (mut paths, mut unfinished) = (Vec::new(), None);
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        let ends_in = |wanted| path.extension().is_some_and(|extension| extension == wanted);
        if ends_in("part") && !path.with_extension("").exists() {
            unfinished = Some(path);
        } else if ends_in("jsonl") {
            paths.push(path);
        }
    }
    paths.sort();
    let merged = merge_files(folder, &paths);
    merged.map_err(|error| match (error, unfinished) {
        (ShardError::Empty { .. } | ShardError::Missing { .. }, Some(path)) => {
            ShardError::Unfinished { path }
        }
        (error, _) => error,
    })
}

fn merge_files(folder: &Path, paths: &[PathBuf]) -> Result<Merged, ShardError> {
    let mut all: BTreeMap<Key, BTreeMap<String, f64>> = BTreeMap::new();
    let mut first: Option<Sweep> = None;
    let mut parts = Vec::new();
    for path in paths {
        let text = fs::read_to_string(path).map_err(at(path))?;
        let broken = |index: usize, problem: String| {
            let path = path.clone();
            ShardError::Line { path, line: index + 1, problem }
        };
        let count = text.lines().count();
        let mut lines = text.lines().enumerate();
        let head = lines.next().map_or("", |(_, line)| line);
        let sweep: Sweep =
            serde_json::from_str(head).map_err(|error| broken(0, error.to_string()))?;
        let first = first.get_or_insert_with(|| sweep.clone());
        if sweep != *first {
            let (path, sweep) = (path.clone(), sweep.line());
            return Err(ShardError::Foreign { path, sweep, first: first.line() });
        }
        let (mut runs, mut end, mut own) = (0, None, format!("{head}\n"));
        for (index, line) in lines {
            let measure = match Line::of(line) {
                Ok(Line::Run(measure)) => measure,
                Ok(Line::End(at)) => {
                    end = Some(at);
                    continue;
                }
                // The file ends in the middle of a line. The check that follows reports what is
                // missing.
                Err(_) if index + 1 == count && !text.ends_with('\n') => break,
                Err(problem) => return Err(broken(index, problem)),
            };
            runs += 1;
            own.push_str(line);
            own.push('\n');
            match all.get(&measure.key) {
                Some(known) if *known != measure.values => {
                    let key = format!("{:?}", measure.key);
                    return Err(ShardError::Conflict { path: path.clone(), key });
                }
                _ => all.insert(measure.key, measure.values),
            };
        }
        let end = end.filter(|end| end.runs == runs && end.lines == fingerprint(&own));
        let Some(end) = end else { return Err(ShardError::Cut { path: path.clone(), runs }) };
        parts.push(end.part);
    }
    let Some(sweep) = first else { return Err(ShardError::Empty { path: folder.to_owned() }) };
    check_whole(folder, &parts)?;
    let measures = all.into_iter().map(|(key, values)| Measure { key, values }).collect();
    Ok(Merged { measures, settings: sweep.settings() })
}

/// Checks that for each number of parts all parts are there.
fn check_whole(folder: &Path, parts: &[Shard]) -> Result<(), ShardError> {
    for &Shard { of, .. } in parts {
        let missing = (1..=of).find(|&number| !parts.contains(&Shard { number, of }));
        if let Some(number) = missing {
            return Err(ShardError::Missing { path: folder.to_owned(), number, of });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{HOSTS, Plan};
    use super::*;

    /// On a disk that is full for a while.
    #[test]
    fn what_cannot_be_noted_is_not_called_kept_and_is_there_in_the_end() {
        let Ok(full) = OpenOptions::new().write(true).open("/dev/full") else {
            println!("skipped: there is no /dev/full");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan {
            machine: None,
            hosts: HOSTS.to_vec(),
            seeds: 1,
            measured_ns: 1,
            features: Vec::new(),
            stale_ns: 0,
            costs: super::super::GivenCosts::default(),
        };
        let sweep = Sweep::new(&["wq".to_owned()], &plan);
        let part = Part::open(folder.path(), "1/1".parse().unwrap(), sweep).unwrap();
        let measure = |seed| Measure {
            key: Key {
                experiment: "wq".to_owned(),
                machine: "m".to_owned(),
                scenario: "HIGH".to_owned(),
                policy: "p".to_owned(),
                host: "cfs".to_owned(),
                seed,
            },
            values: BTreeMap::new(),
        };
        part.note(&measure(1)).unwrap();
        let disk = std::mem::replace(&mut part.lock().file, full);
        let error = part.note(&measure(2)).unwrap_err().to_string();
        assert!(error.contains("1-of-1.jsonl.part"), "{error}");
        part.lock().file = disk;
        // The line must not follow what may be half a line.
        part.note(&measure(3)).unwrap();
        assert_eq!(part.kept(), 1);
        assert_eq!(part.finish([1, 2, 3].map(measure).into()).unwrap(), 3);
        assert_eq!(super::super::merge(folder.path()).unwrap().measures.len(), 3);
    }
}
