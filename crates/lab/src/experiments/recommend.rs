//! Which scope to choose on a machine, for a load.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use homing::RuntimeError;
use homing_sim::{
    Affinity, Costs, CryptLoad, HomingSettings, HostModel, IssuerPlaces, Policy, Ssd,
};
use serde::Deserialize;

use super::workqueue::CryptRun;
use super::{NamedMachine, Progress, Stat, run};

/// A load as its user describes it, in JSON; what is not told is as in the published one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Load {
    /// Threads that issue items; all CPUs where it is 0.
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

/// No load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not understood.
    #[error("{path} is no load: {source}; an example: {EXAMPLE}", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A figure makes no sense.
    #[error("{name} is {value}: it must lie between {low} and {high}")]
    Value {
        /// Which.
        name: &'static str,
        /// What it is.
        value: f64,
        /// The least,
        low: f64,
        /// and the most that it may be.
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
        let load: Self = serde_json::from_str(&text)
            .map_err(|source| LoadError::Parse { path: path.to_owned(), source })?;
        load.check()?;
        Ok(load)
    }

    fn check(&self) -> Result<(), LoadError> {
        for (name, value, low, high) in [
            ("issuers", self.issuers as f64, 0.0, 4096.0),
            ("depth", self.depth as f64, 1.0, 65_536.0),
            ("item_us", self.item_us, 0.05, 1e6),
            ("issuer_us", self.issuer_us, 0.05, 1e6),
            ("bytes", self.bytes as f64, 0.0, f64::from(1 << 30)),
        ] {
            if !(low..=high).contains(&value) {
                return Err(LoadError::Value { name, value, low, high });
            }
        }
        Ok(())
    }

    fn crypt_load(&self, cpus: usize) -> CryptLoad {
        CryptLoad {
            depth: self.depth,
            bytes: self.bytes,
            issuer_ns: nanoseconds(self.issuer_us),
            crypt_ns: nanoseconds(self.item_us),
            cold_per_mille: self.bytes * 1000 / (32 << 10),
            writes_pct: 0,
            places: IssuerPlaces::Even,
            ssd: Ssd::none(),
            ..CryptLoad::published(if self.issuers == 0 { cpus } else { self.issuers })
        }
    }
}

/// Of what has been checked to lie between 50 ns and a second.
fn nanoseconds(us: f64) -> u64 {
    Duration::from_secs_f64(us / 1e6).as_nanos() as u64
}

/// What a setting gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The setting.
    pub policy: String,
    /// Items a second.
    pub rate: Stat,
    /// CPU time an item, in microseconds.
    pub cpu_us: f64,
    /// The 99th percentile of an item's whole way, in microseconds.
    pub p99_us: f64,
    /// How many items were pulled from other pods.
    pub pulled: f64,
}

/// Each scope, loose and strict, by what users call it; all items are queued: where issuers run them
/// themselves the scope does not matter.
fn settings() -> Vec<(Policy, String)> {
    let of = |affinity: &Affinity| {
        let queued =
            HomingSettings { affinity: *affinity, hand_off: false, ..HomingSettings::default() };
        let strict = if affinity.strict { "+strict" } else { "" };
        (Policy::Homing(queued), format!("{}{strict}", affinity.scope))
    };
    Affinity::ALL.iter().map(of).collect()
}

/// Every setting of homing on this machine under this load, the best first. Those within one per cent
/// of the best, or within twice the spread of the seeds, count as equal: of them the default comes
/// first, then what is not strict, then what needs less CPU time.
pub fn recommend(
    machine: &NamedMachine,
    load: &Load,
    seeds: u64,
    measured_ns: u64,
    stop: &AtomicBool,
    progress: impl Fn(Progress) + Sync,
) -> Result<Vec<Advice>, RuntimeError> {
    let policies = settings();
    let mut cells = Vec::new();
    for (policy, _) in &policies {
        for seed in 0..seeds {
            let run = CryptRun {
                machine: machine.clone(),
                load: load.crypt_load(machine.machine.cpus().len()),
                policy: policy.clone(),
                host: HostModel::Cfs,
                costs: Costs::default(),
                warm_up_ns: measured_ns / 4,
                measured_ns,
                seed,
            };
            cells.push(run.cell("recommend", "load"));
        }
    }
    let measures = run(&cells, stop, |_, at| progress(at))?;
    let names: Vec<String> = policies.iter().map(|(_, name)| name.clone()).collect();
    let advice = names.iter().map(|name| {
        let of = |metric: &str| {
            let shown =
                policies.iter().find(|(_, known)| known == name).map(|(p, _)| p.to_string());
            let same =
                measures.iter().filter(|measure| Some(&measure.key.policy) == shown.as_ref());
            let values: Vec<f64> = same.filter_map(|m| m.values.get(metric).copied()).collect();
            Stat::of(&values)
        };
        Advice {
            policy: name.clone(),
            rate: of("rate"),
            cpu_us: of("cpu_us").mean,
            p99_us: of("p99_us").mean,
            pulled: of("pulled_per_item").mean,
        }
    });
    let mut advice: Vec<Advice> = advice.filter(|advice| advice.rate.count > 0).collect();
    let best = advice.iter().map(|advice| advice.rate.mean).fold(0.0, f64::max);
    let default = HomingSettings::default().affinity.scope.to_string();
    let rank = |advice: &Advice| {
        let noise = 2.0 * advice.rate.sd / best.max(f64::MIN_POSITIVE);
        let equal = advice.rate.mean >= best * (1.0 - noise.max(0.01));
        (!equal, equal && advice.policy != default, equal && advice.policy.contains("strict"))
    };
    advice.sort_by(|one, other| {
        rank(one).cmp(&rank(other)).then_with(|| {
            let by_rate = other.rate.mean.total_cmp(&one.rate.mean);
            if rank(one).0 { by_rate } else { one.cpu_us.total_cmp(&other.cpu_us) }
        })
    });
    Ok(advice)
}

#[cfg(test)]
mod tests {
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
        assert!(file(r#"{"depth": 0}"#).unwrap_err().contains("depth is 0"));
        assert!(file(r#"{"deep": 1}"#).unwrap_err().contains("unknown field `deep`"));
        assert!(file(r#"{"item_us": 1e9}"#).unwrap_err().contains("item_us"));
    }

    #[test]
    fn the_best_setting_stands_first() {
        let machine = NamedMachine::find("2x2x1").unwrap();
        let stop = AtomicBool::new(false);
        let load = Load { issuers: 1, item_us: 100.0, ..Load::default() };
        let advice = recommend(&machine, &load, 1, 30_000_000, &stop, |_| {}).unwrap();
        assert!(advice.len() >= 8, "{advice:?}");
        let best = advice.iter().map(|advice| advice.rate.mean).fold(0.0, f64::max);
        assert!(advice[0].rate.mean >= best * 0.95);
        let strict = advice.iter().find(|advice| advice.policy == "cpu+strict").unwrap();
        assert!(strict.rate.mean < best * 0.7, "one CPU does it all: {strict:?}");
    }
}
