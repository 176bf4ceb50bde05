//! The caches that are compared. All of them stand behind one trait, with static dispatch, in their
//! default form: with the policy, the hasher and the locks that a user gets without asking.
//!
//! To add one: a file with its [`Peer`], and its line in [`ALL`].

mod baselines;
mod foyer;
mod homing;
mod lru;
mod moka;
mod quick_cache;

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::load::{self, Setting};
use super::workload::Workload;
use crate::cell::Figures;

/// A concurrent cache with a bound on its entries.
pub(crate) trait Peer: Sized + Send + Sync + 'static {
    /// The name in the results.
    const NAME: &'static str;

    /// Whether it is not a cache, but only a baseline to compare with.
    const IS_BASELINE: bool = false;

    /// Makes an empty cache for this many entries.
    fn with_capacity(entries: usize) -> Self;

    /// The value of `key` if it is there.
    fn get(&self, key: u64) -> Option<u64>;

    /// Inserts or overwrites.
    fn insert(&self, key: u64, value: u64);

    /// Forgets `key`.
    fn remove(&self, key: u64);

    /// How many entries there are, once everything that was put off is done.
    fn len(&self) -> usize;
}

/// All of them, in the order of the rows.
static ALL: &[Entry] = &[
    entry::<baselines::Nothing>(),
    entry::<baselines::Array>(),
    entry::<homing::Homing>(),
    entry::<quick_cache::QuickCache>(),
    entry::<moka::Moka>(),
    entry::<moka::MiniMoka>(),
    entry::<foyer::Lru>(),
    entry::<foyer::Lfu>(),
    entry::<foyer::S3Fifo>(),
    entry::<lru::Lru>(),
];

/// What is known of a peer without its type.
struct Entry {
    name: &'static str,
    is_baseline: bool,
    measure: fn(Workload, &Setting) -> anyhow::Result<Figures>,
    #[cfg(test)]
    exercise: fn(),
}

const fn entry<P: Peer>() -> Entry {
    Entry {
        name: P::NAME,
        is_baseline: P::IS_BASELINE,
        measure: load::run::<P>,
        #[cfg(test)]
        exercise: tests::exercise::<P>,
    }
}

/// A peer, as a kind.
#[derive(Clone, Copy)]
pub(crate) struct Kind(&'static Entry);

impl Kind {
    /// All of them, in the order of the rows.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        ALL.iter().map(Self)
    }

    /// The name in the results.
    pub(crate) const fn name(self) -> &'static str {
        self.0.name
    }

    /// Whether it is not a cache, but only a baseline to compare with.
    pub(crate) const fn is_baseline(self) -> bool {
        self.0.is_baseline
    }

    /// Whether it takes part in `workload`.
    pub(crate) const fn takes(self, workload: Workload) -> bool {
        !(self.is_baseline() && matches!(workload, Workload::Memory))
    }

    /// Measures `workload` in this process, which is good for one measurement only.
    pub(crate) fn measure(self, workload: Workload, setting: &Setting) -> anyhow::Result<Figures> {
        (self.0.measure)(workload, setting)
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::all().find(|peer| peer.name() == name);
        let known = || Self::all().map(Self::name).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| format!("{name:?} is no peer: use {}", known()))
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::super::requests::{key, value};
    use super::*;

    /// Checks that the cache finds what fits, overwrites, forgets, and keeps its bound.
    pub(super) fn exercise<P: Peer>() {
        let cache = P::with_capacity(20_000);
        for key in (0..10_000).map(key) {
            cache.insert(key, 0);
            cache.insert(key, value(key));
        }
        for key in (0..10_000).map(key) {
            assert_eq!(cache.get(key), Some(value(key)), "{}", P::NAME);
        }
        if P::IS_BASELINE {
            return;
        }
        assert_eq!(cache.len(), 10_000, "{}", P::NAME);
        assert_eq!(cache.get(key(10_000)), None, "{}", P::NAME);
        cache.remove(key(17));
        assert_eq!(cache.get(key(17)), None, "{}", P::NAME);
        assert_eq!(cache.len(), 9_999, "{}", P::NAME);
        for key in (10_000..200_000).map(key) {
            if cache.get(key).is_none() {
                cache.insert(key, value(key));
            }
        }
        // Shards are never filled evenly.
        let len = cache.len();
        assert!((18_000..=20_200).contains(&len), "{} holds {len} of 20000", P::NAME);
    }

    #[test]
    fn every_peer_is_a_cache() {
        for peer in ALL {
            (peer.exercise)();
        }
    }

    #[test]
    fn names_round_trip_and_unknown_ones_list_the_choices() {
        for peer in Kind::all() {
            assert_eq!(peer.name().parse(), Ok(peer));
        }
        let error = "redis".parse::<Kind>().unwrap_err();
        assert!(error.contains("\"redis\"") && error.contains("mini-moka"), "{error}");
    }
}
