//! The affinity scopes, by the kernel's names.

use std::fmt;
use std::str::FromStr;

/// How far work may spread before it leaves home: the size of a pod.
///
/// The names and meanings are those of the kernel's workqueues
/// (`Documentation/core-api/workqueue.rst`, "Affinity Scopes").
///
/// ```
/// use homing_topology::Scope;
///
/// let scope: Scope = "cache_shard".parse()?;
/// assert_eq!((scope, scope.name()), (Scope::CacheShard, "cache_shard"));
/// assert_eq!(Scope::ALL[scope.index()], scope);
/// assert!(scope < Scope::Cache, "narrower");
/// # Ok::<(), homing_topology::ParseScopeError>(())
/// ```
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One CPU.
    Cpu,
    /// The SMT siblings of one core.
    Smt,
    /// About eight cores of one last-level cache.
    CacheShard,
    /// The CPUs that share a last-level cache.
    Cache,
    /// The CPUs of a NUMA node.
    Numa,
    /// All CPUs.
    System,
}

impl Scope {
    /// All scopes, the narrowest first.
    pub const ALL: [Self; 6] =
        [Self::Cpu, Self::Smt, Self::CacheShard, Self::Cache, Self::Numa, Self::System];

    /// The kernel's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Smt => "smt",
            Self::CacheShard => "cache_shard",
            Self::Cache => "cache",
            Self::Numa => "numa",
            Self::System => "system",
        }
    }

    /// The position in [`Scope::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not a scope.
///
/// ```
/// use homing_topology::Scope;
///
/// let error = "socket".parse::<Scope>().unwrap_err();
/// assert_eq!(error.name, "socket");
/// assert!(error.to_string().contains("use cpu, smt"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not an affinity scope: use cpu, smt, cache_shard, cache, numa or system")]
pub struct ParseScopeError {
    /// The name given.
    pub name: String,
}

impl FromStr for Scope {
    type Err = ParseScopeError;

    fn from_str(name: &str) -> Result<Self, ParseScopeError> {
        let found = Self::ALL.into_iter().find(|scope| scope.name() == name);
        found.ok_or_else(|| ParseScopeError { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_list_the_choices() {
        for scope in Scope::ALL {
            assert_eq!(scope.name().parse(), Ok(scope));
            assert_eq!(Scope::ALL[scope.index()], scope);
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.name());
        }
        let error = "llc".parse::<Scope>().unwrap_err().to_string();
        assert!(error.contains("\"llc\"") && error.contains("cache_shard"), "{error}");
    }
}
