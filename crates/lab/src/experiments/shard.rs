//! Parts of a sweep on different machines: lines of JSON in files, put together later.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Cell, HostModel, Key, Measure, Plan};

/// What the parts of a sweep have in common: the first line of each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    version: String,
    experiments: Vec<String>,
    machine: Option<String>,
    hosts: Vec<String>,
    seeds: u64,
    measured_ns: u64,
}

impl Sweep {
    /// Of these experiments.
    pub fn new(experiments: &[String], plan: &Plan) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            experiments: experiments.to_vec(),
            machine: plan.machine.as_ref().map(|machine| machine.name.clone()),
            hosts: plan.hosts.iter().copied().map(HostModel::name).map(str::to_owned).collect(),
            seeds: plan.seeds,
            measured_ns: plan.measured_ns,
        }
    }

    fn line(&self) -> String {
        serde_json::to_string(self).expect("numbers and names")
    }
}

/// One of several equal parts, counted from 1: `2/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    number: usize,
    of: usize,
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
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is not a measure.
    #[error("{path}, line {line}: {problem}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
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
    /// A part is not there.
    #[error("{path}: part {number} of {of} is missing", path = path.display())]
    Missing {
        /// The folder.
        path: PathBuf,
        /// The first that is missing.
        number: usize,
        /// Of so many, as the others say.
        of: usize,
    },
    /// A part is of another sweep than the one before it.
    #[error("{path} is of another sweep than the files before it: {sweep}, and not {first}",
        path = path.display())]
    Foreign {
        /// The later file.
        path: PathBuf,
        /// Its first line.
        sweep: String,
        /// That of the first file.
        first: String,
    },
    /// The same run stands in two files with different figures.
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
        let parts = text.split_once('/').and_then(|(number, of)| {
            Some(Self { number: number.parse().ok()?, of: of.parse().ok()? })
        });
        let fits = |shard: &Self| (1..=shard.of).contains(&shard.number);
        parts.filter(fits).ok_or_else(|| ShardError::Parse { text: text.to_owned() })
    }
}

impl Shard {
    /// Its cells: every n-th, so that each part has some of all kinds.
    pub fn of(&self, cells: Vec<Cell>) -> Vec<Cell> {
        cells.into_iter().skip(self.number - 1).step_by(self.of).collect()
    }

    fn file_name(&self) -> String {
        format!("{}-of-{}.jsonl", self.number, self.of)
    }
}

/// Writes measures into the folder, which is made if need be; the file appears when it is whole.
pub fn write_shard(
    folder: &Path,
    shard: &Shard,
    sweep: &Sweep,
    measures: &[Measure],
) -> Result<PathBuf, ShardError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| ShardError::Io { path, source }
    };
    fs::create_dir_all(folder).map_err(at(folder))?;
    let mut text = sweep.line() + "\n";
    for measure in measures {
        text.push_str(&serde_json::to_string(measure).expect("figures and names"));
        text.push('\n');
    }
    let path = folder.join(shard.file_name());
    let unfinished = folder.join(format!("{}.part", shard.file_name()));
    fs::write(&unfinished, text).map_err(at(&unfinished))?;
    fs::rename(&unfinished, &path).map_err(at(&path))?;
    Ok(path)
}

/// Reads all parts of a folder, which must all be there, and of one sweep. A run that stands in several files must be
/// the same in all.
pub fn merge(folder: &Path) -> Result<Vec<Measure>, ShardError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| ShardError::Io { path, source }
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        return Err(ShardError::Empty { path: folder.to_owned() });
    }
    check_whole(folder, &paths)?;
    let mut all: BTreeMap<Key, BTreeMap<String, f64>> = BTreeMap::new();
    let mut first: Option<Sweep> = None;
    for path in paths {
        let text = fs::read_to_string(&path).map_err(at(&path))?;
        let broken = |index: usize, error: serde_json::Error| {
            let problem = error.to_string();
            ShardError::Line { path: path.clone(), line: index + 1, problem }
        };
        let mut lines = text.lines().enumerate();
        let head = lines.next().map_or("", |(_, line)| line);
        let sweep: Sweep = serde_json::from_str(head).map_err(|error| broken(0, error))?;
        let first = first.get_or_insert_with(|| sweep.clone());
        if sweep != *first {
            return Err(ShardError::Foreign { path, sweep: sweep.line(), first: first.line() });
        }
        for (index, line) in lines {
            let measure: Measure =
                serde_json::from_str(line).map_err(|error| broken(index, error))?;
            match all.get(&measure.key) {
                Some(known) if *known != measure.values => {
                    let key = format!("{:?}", measure.key);
                    return Err(ShardError::Conflict { path, key });
                }
                _ => all.insert(measure.key, measure.values),
            };
        }
    }
    Ok(all.into_iter().map(|(key, values)| Measure { key, values }).collect())
}

/// Of each number of parts that a file's name tells, all must be there.
fn check_whole(folder: &Path, paths: &[PathBuf]) -> Result<(), ShardError> {
    let part = |path: &PathBuf| {
        let (number, of) = path.file_stem()?.to_str()?.split_once("-of-")?;
        Some((number.parse::<usize>().ok()?, of.parse::<usize>().ok()?))
    };
    let parts: Vec<(usize, usize)> = paths.iter().filter_map(part).collect();
    for (_, of) in &parts {
        let missing = (1..=*of).find(|number| !parts.contains(&(*number, *of)));
        if let Some(number) = missing {
            return Err(ShardError::Missing { path: folder.to_owned(), number, of: *of });
        }
    }
    Ok(())
}
