//! Which scope to choose on a machine, for a load.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use homing::RuntimeError;
use homing_sim::{
    Affinity, CryptLoad, HomingSettings, HostModel, IssuerPlaces, Policy, PullCost, Ssd,
};
use serde::{Deserialize, Serialize};

use super::workqueue::{CryptRun, default_affinity};
use super::{GivenCosts, NamedMachine, Progress, Stat, run};

/// A load as its user describes it, in JSON; fields that are left out are as in the published one.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Load {
    /// Threads that issue items; 0: as many as there are CPUs.
    pub issuers: usize,
    /// Items that each has in flight at a time.
    pub depth: usize,
    /// How long an item runs, in microseconds.
    pub item_us: f64,
    /// How long an issuer works for each item, in microseconds.
    pub issuer_us: f64,
    /// How many bytes an item and its issuer share.
    pub bytes: u64,
}

impl Default for Load {
    fn default() -> Self {
        Self { issuers: 0, depth: 64, item_us: 20.0, issuer_us: 5.0, bytes: 32 << 10 }
    }
}

/// Why there is no load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not understood.
    #[error("{path} is not a load: {problem}; an example: {EXAMPLE}", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: serde_json::Error,
    },
    /// The file holds a list, whose values would be taken for figures in the order of the fields.
    #[error("{path} holds a list: a load is an object, as {EXAMPLE}", path = path.display())]
    List {
        /// The file.
        path: PathBuf,
    },
    /// A figure makes no sense.
    #[error("{path}: {name} is {value}: it must lie between {low} and {high}", path = path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The figure's name.
        name: &'static str,
        /// The figure's value.
        value: f64,
        /// The least that it may be.
        low: f64,
        /// The most that it may be.
        high: f64,
    },
}

const EXAMPLE: &str =
    r#"{"issuers": 4, "depth": 64, "item_us": 20, "issuer_us": 5, "bytes": 32768}"#;

impl Load {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let text = fs::read_to_string(path)
            .map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
        if text.trim_start().starts_with('[') {
            return Err(LoadError::List { path: path.to_owned() });
        }
        let load: Self = serde_json::from_str(&text)
            .map_err(|problem| LoadError::Parse { path: path.to_owned(), problem })?;
        load.check(path)?;
        Ok(load)
    }

    fn check(&self, path: &Path) -> Result<(), LoadError> {
        for (name, value, low, high) in [
            ("issuers", self.issuers as f64, 0.0, 4096.0),
            ("depth", self.depth as f64, 1.0, 1024.0),
            ("item_us", self.item_us, 0.05, 1e6),
            ("issuer_us", self.issuer_us, 0.05, 1e6),
            ("bytes", self.bytes as f64, 0.0, f64::from(1 << 30)),
        ] {
            if !(low..=high).contains(&value) {
                let path = path.to_owned();
                return Err(LoadError::Value { path, name, value, low, high });
            }
        }
        Ok(())
    }

    fn crypt_load(&self, cpus: usize) -> CryptLoad {
        CryptLoad {
            depth: self.depth,
            bytes: self.bytes,
            use_ns: nanoseconds(self.issuer_us),
            crypt_ns: nanoseconds(self.item_us),
            cold_per_mille: self.bytes * 1000 / (32 << 10),
            writes_pct: 0,
            places: IssuerPlaces::Even,
            ssd: Ssd::none(),
            ..CryptLoad::published(if self.issuers == 0 { cpus } else { self.issuers })
        }
    }
}

/// Converts a length that was checked to lie between 50 ns and a second.
fn nanoseconds(us: f64) -> u64 {
    Duration::from_secs_f64(us / 1e6).as_nanos() as u64
}

/// What a setting gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The attribute `affinity_scope`: a scope, or `auto`.
    pub scope: String,
    /// The attribute `affinity_strict`.
    pub strict: bool,
    /// The attribute `pull_cost`, in per cent of what is usual; `None` for `auto`, which chooses it
    /// as well.
    pub pull_cost_pct: Option<u64>,
    /// Items a second.
    pub rate: Stat,
    /// CPU time an item, in microseconds.
    pub cpu_us: f64,
    /// The 99th percentile of an item's whole way, in microseconds.
    pub p99_us: f64,
    /// How many items were pulled from other pods.
    pub pulled: f64,
}

/// What is simulated, and for how long.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The machine.
    pub machine: NamedMachine,
    /// What it has to do.
    pub load: Load,
    /// The model of the host's scheduler.
    pub host: HostModel,
    /// How many seeds, from 0 on.
    pub seeds: u64,
    /// How much simulated time is measured, in nanoseconds.
    pub measured_ns: u64,
    /// What things cost, where not as usual.
    pub costs: GivenCosts,
}

/// All items are queued: if issuers ran them themselves, no setting would matter.
fn queued() -> HomingSettings {
    HomingSettings { hand_off: false, ..HomingSettings::default() }
}

/// homing with each scope, loose and strict, and `auto`.
fn scopes() -> Vec<HomingSettings> {
    let fixed = Affinity::ALL.map(|of| HomingSettings { affinity: Some(of), ..queued() });
    fixed.into_iter().chain([HomingSettings { auto: true, ..queued() }]).collect()
}

/// A scope with each other threshold.
fn thresholds(of: &HomingSettings) -> Vec<HomingSettings> {
    let others = PullCost::ALL.into_iter().filter(|cost| *cost != of.pull_cost);
    others.map(|pull_cost| HomingSettings { pull_cost, ..of.clone() }).collect()
}

/// Settings of homing on this machine under this load, the best first. Every scope is tried, and
/// then the best scope that may pull, with every threshold. Settings within one per cent of the
/// best, or within twice the spread of the seeds, count as equal: of these, the default comes
/// first, then settings that are not strict and pull as usual, then those that need less CPU time.
///
/// # Errors
/// If there is no runtime to simulate on.
pub fn recommend(
    trial: &Trial,
    stop: &AtomicBool,
    progress: impl Fn(Progress) + Sync,
) -> Result<Vec<Advice>, RuntimeError> {
    let scopes = scopes();
    let later = PullCost::ALL.len() - 1;
    let of = (scopes.len() + later) * trial.seeds as usize;
    let (first, ended) = trial.run(scopes, stop, |done| progress(Progress { done, of }))?;
    let default = default_affinity(&trial.machine.machine);
    let mut advice = ranked(first, default);
    let loose = |of: &Affinity| !of.strict;
    let best = advice.iter().find(|(settings, _)| settings.affinity.as_ref().is_some_and(loose));
    if let Some((best, _)) = best {
        let more = thresholds(best);
        let done = |done| progress(Progress { done: ended + done, of });
        advice.extend(trial.run(more, stop, done)?.0);
    }
    Ok(ranked(advice, default).into_iter().map(|(_, advice)| advice).collect())
}

type Tried = (HomingSettings, Advice);

impl Trial {
    /// Runs each of these settings. Returns what each gives, and how many runs have ended.
    fn run(
        &self,
        all: Vec<HomingSettings>,
        stop: &AtomicBool,
        progress: impl Fn(usize) + Sync,
    ) -> Result<(Vec<Tried>, usize), RuntimeError> {
        let mut cells = Vec::new();
        let costs = Arc::new(self.costs.usual());
        for settings in &all {
            for seed in 0..self.seeds {
                let run = CryptRun {
                    machine: self.machine.clone(),
                    load: self.load.crypt_load(self.machine.machine.cpus().len()),
                    policy: Policy::Homing(settings.clone()),
                    host: self.host,
                    costs: Arc::clone(&costs),
                    warm_up_ns: self.measured_ns / 4,
                    measured_ns: self.measured_ns,
                    seed,
                };
                cells.push(run.cell("recommend", "load"));
            }
        }
        let measures = run(&cells, stop, |_, at| progress(at.done))?;
        let tried = all.into_iter().filter_map(|settings| {
            let name = settings.to_string();
            let of = |metric: &str| {
                let same = measures.iter().filter(|measure| measure.key.policy == name);
                let values: Vec<f64> = same.filter_map(|m| m.values.get(metric).copied()).collect();
                Stat::of(&values)
            };
            let affinity = settings.affinity;
            let advice = Advice {
                scope: affinity.map_or("auto".to_owned(), |affinity| affinity.scope.to_string()),
                strict: affinity.is_some_and(|affinity| affinity.strict),
                pull_cost_pct: affinity.map(|_| settings.pull_cost.percent()),
                rate: of("rate"),
                cpu_us: of("cpu_us").mean,
                p99_us: of("p99_us").mean,
                pulled: of("pulled_per_item").mean,
            };
            (advice.rate.count > 0).then_some((settings, advice))
        });
        Ok((tried.collect(), measures.len()))
    }
}

fn ranked(mut tried: Vec<Tried>, default: Affinity) -> Vec<Tried> {
    let default = HomingSettings { affinity: Some(default), ..queued() };
    let best = tried.iter().map(|(_, advice)| advice.rate.mean).fold(0.0, f64::max);
    let rank = |(settings, advice): &Tried| {
        let noise = 2.0 * advice.rate.sd / best.max(f64::MIN_POSITIVE);
        let equal = advice.rate.mean >= best * (1.0 - noise.max(0.01));
        let strict = settings.affinity.is_some_and(|affinity| affinity.strict);
        let odd = strict || settings.pull_cost != PullCost::USUAL;
        (!equal, equal && *settings != default, equal && odd)
    };
    tried.sort_by(|one, other| {
        rank(one).cmp(&rank(other)).then_with(|| {
            let by_rate = other.1.rate.mean.total_cmp(&one.1.rate.mean);
            if rank(one).0 { by_rate } else { one.1.cpu_us.total_cmp(&other.1.cpu_us) }
        })
    });
    tried
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn loads_are_read_and_checked() {
        let file = |text: &str| {
            let path = tempfile::NamedTempFile::new().unwrap();
            fs::write(path.path(), text).unwrap();
            Load::read(path.path()).map_err(|error| error.to_string())
        };
        assert_eq!(file(EXAMPLE).unwrap().issuers, 4);
        assert_eq!(file("{}").unwrap().depth, 64);
        for list in ["[]", " [4, 64]"] {
            assert!(file(list).unwrap_err().contains("holds a list: a load is an object"));
        }
        assert!(file(r#"{"depth": 0}"#).unwrap_err().contains("depth is 0"));
        assert!(file(r#"{"deep": 1}"#).unwrap_err().contains("unknown field `deep`"));
        assert!(file(r#"{"item_us": 1e9}"#).unwrap_err().contains("item_us"));
    }

    #[test]
    fn the_best_setting_stands_first() {
        let trial = Trial {
            machine: NamedMachine::find("2x2x1").unwrap(),
            load: Load { issuers: 1, item_us: 100.0, ..Load::default() },
            host: HostModel::Cfs,
            seeds: 1,
            measured_ns: 30_000_000,
            costs: GivenCosts::default(),
        };
        let told = AtomicUsize::new(0);
        let of_all =
            |progress: Progress| told.store(progress.of - progress.done, Ordering::Relaxed);
        let advice = recommend(&trial, &AtomicBool::new(false), of_all).unwrap();
        assert_eq!(told.into_inner(), 0, "the last run is told as such");
        assert_eq!(advice.len(), Affinity::ALL.len() + 1 + PullCost::ALL.len() - 1, "{advice:?}");
        let best = advice.iter().map(|advice| advice.rate.mean).fold(0.0, f64::max);
        assert!(advice[0].rate.mean >= best * 0.95);
        let chooses = advice.iter().filter(|advice| advice.pull_cost_pct.is_none());
        assert_eq!(chooses.map(|advice| advice.scope.as_str()).collect::<Vec<_>>(), ["auto"]);
        let strict = advice.iter().find(|advice| advice.scope == "cpu" && advice.strict).unwrap();
        assert!(strict.rate.mean < best * 0.7, "one CPU does it all: {strict:?}");
    }
}
