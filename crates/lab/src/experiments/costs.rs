//! Costs that are given in place of the simulator's own.

use std::collections::BTreeMap;
use std::str::FromStr;

use homing_sim::{Cost, Costs, Source};
use serde::{Deserialize, Serialize};

/// A cost as it is given: `wake_ns=1500`.
///
/// ```
/// use homing_lab::experiments::GivenCost;
///
/// assert!("wake_ns=1500".parse::<GivenCost>().is_ok());
/// let error = "wake=1500".parse::<GivenCost>().unwrap_err().to_string();
/// assert!(error.starts_with("there is no cost \"wake\": it must be one of smt_per_mille, "));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenCost {
    name: &'static str,
    value: u64,
}

/// Why a cost is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// It has no value.
    #[error("{0:?} is no NAME=VALUE, as wake_ns=1500 is")]
    NoValue(String),
    /// There is none of that name.
    #[error("there is no cost {0:?}: it must be one of {names}", names = names().join(", "))]
    Unknown(String),
    /// The value is no number, or makes no sense.
    #[error("{name}={value}: the value must be a whole number from {low} to {high}")]
    Value {
        /// The cost.
        name: &'static str,
        /// The value.
        value: String,
        /// The least that it may be.
        low: u64,
        /// The most that it may be.
        high: u64,
    },
    /// Two values were given.
    #[error("{name} is given twice, as {one} and as {other}")]
    Twice {
        /// The cost.
        name: &'static str,
        /// The first value.
        one: u64,
        /// The other value.
        other: u64,
    },
}

fn names() -> Vec<&'static str> {
    Costs::default().all().into_iter().map(|(name, _)| name).collect()
}

impl FromStr for GivenCost {
    type Err = CostError;

    fn from_str(text: &str) -> Result<Self, CostError> {
        let (given, value) = text.split_once('=').ok_or_else(|| CostError::NoValue(text.into()))?;
        let name = names().into_iter().find(|name| *name == given);
        let name = name.ok_or_else(|| CostError::Unknown(given.to_owned()))?;
        // Siblings that slow each other down tenfold, and steps that take a second, are beyond
        // everything that is modelled.
        let (low, high) =
            if name.ends_with("_per_mille") { (100, 1_000) } else { (0, 1_000_000_000) };
        match value.parse() {
            Ok(value) if (low..=high).contains(&value) => Ok(Self { name, value }),
            _ => Err(CostError::Value { name, value: value.to_owned(), low, high }),
        }
    }
}

/// Costs in place of the usual ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GivenCosts(BTreeMap<String, u64>);

impl GivenCosts {
    /// All of these.
    ///
    /// # Errors
    /// If two are values of the same cost.
    ///
    /// ```
    /// use homing_lab::experiments::GivenCosts;
    ///
    /// let costs = GivenCosts::of(&["wake_ns=1500".parse()?])?;
    /// assert_eq!(costs.usual().wake_ns.value, 1500);
    /// let twice = GivenCosts::of(&["wake_ns=1".parse()?, "wake_ns=2".parse()?]);
    /// assert_eq!(twice.unwrap_err().to_string(), "wake_ns is given twice, as 1 and as 2");
    /// # Ok::<(), homing_lab::experiments::CostError>(())
    /// ```
    pub fn of(all: &[GivenCost]) -> Result<Self, CostError> {
        let mut costs = BTreeMap::new();
        for &GivenCost { name, value: other } in all {
            if let Some(one) = costs.insert(name.to_owned(), other).filter(|one| *one != other) {
                return Err(CostError::Twice { name, one, other });
            }
        }
        Ok(Self(costs))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The usual costs, but for these.
    pub fn usual(&self) -> Costs {
        self.over(Costs::default())
    }

    /// These costs, but for those that are given.
    pub(super) fn over(&self, mut costs: Costs) -> Costs {
        for (name, value) in &self.0 {
            costs.set(name, Cost { value: *value, source: Source::Given });
        }
        costs
    }
}
