//! The parts of the policy that can be switched off, to see what each is worth.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A set of features. Each has the name under which its idea was published.
///
/// ```
/// use homing_sched::Features;
///
/// let features: Features = "swqueue, xsteal".parse()?;
/// assert_eq!(features, Features::SWQUEUE.with(Features::XSTEAL));
/// let features = features.without(Features::XSTEAL);
/// assert!(features.has(Features::SWQUEUE) && !features.has(Features::XSTEAL));
/// assert_eq!(features.to_string(), "SWQUEUE");
/// assert_eq!(Features::from_bits(features.bits()), features);
/// # Ok::<(), homing_sched::ParseFeaturesError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Features(u8);

impl Features {
    /// A CPU about to idle pulls from the other pods of its last-level cache.
    pub const SWQUEUE: Self = Self(1);
    /// A CPU about to idle pulls from other last-level caches too.
    pub const XSTEAL: Self = Self(2);
    /// A waker looks for an idle CPU beyond the last-level cache.
    pub const SIS_NODE: Self = Self(4);
    /// A waker prefers a CPU whose whole core is idle: in the pod and, for long items
    /// ([`crate::WHOLE_CORE_ITEM_NS`]), even elsewhere rather than the sibling of a busy core at
    /// home. There it prefers a worker's sibling to an issuer's.
    pub const SMT_AWARE: Self = Self(8);
    /// All of them: the default.
    pub const ALL: Self = Self(15);
    /// None of them: work waits for its own pod, as in the kernel's pools.
    pub const NONE: Self = Self(0);

    const NAMES: [(&'static str, Self); 4] = [
        ("SWQUEUE", Self::SWQUEUE),
        ("XSTEAL", Self::XSTEAL),
        ("SIS_NODE", Self::SIS_NODE),
        ("SMT_AWARE", Self::SMT_AWARE),
    ];

    /// Whether all of `others` are on.
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// With `others` on too.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// With `others` off.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// As a number, for use in an atomic.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From [`Features::bits`]; bits that name nothing are dropped.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }
}

impl Default for Features {
    fn default() -> Self {
        Self::ALL
    }
}

/// The names of those that are on, with spaces between; `NONE` for none.
impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = Self::NAMES.iter().filter(|(_, feature)| self.has(*feature));
        let names: Vec<&str> = on.map(|(name, _)| *name).collect();
        f.write_str(if names.is_empty() { "NONE" } else { "" })?;
        f.write_str(&names.join(" "))
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Features({self})")
    }
}

/// A word that is not the name of a feature.
///
/// ```
/// use homing_sched::Features;
///
/// let error = "SWQUEUE FASTER".parse::<Features>().unwrap_err();
/// assert!(error.to_string().starts_with("\"FASTER\" is not a feature: use SWQUEUE"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseFeaturesError {
    word: String,
}

impl fmt::Display for ParseFeaturesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a feature: use {}, ALL or NONE", self.word, Features::ALL)
    }
}

impl std::error::Error for ParseFeaturesError {}

/// Names with spaces or commas between; `ALL` and `NONE` too.
impl FromStr for Features {
    type Err = ParseFeaturesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words = text.split([' ', ',']).filter(|word| !word.is_empty());
        words.into_iter().try_fold(Self::NONE, |features, word| {
            let known = Self::NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
            let feature = match word.to_ascii_uppercase().as_str() {
                "ALL" => Some(Self::ALL),
                "NONE" => Some(Self::NONE),
                _ => known.map(|(_, feature)| *feature),
            };
            let feature = feature.ok_or_else(|| ParseFeaturesError { word: word.to_owned() })?;
            Ok(features.with(feature))
        })
    }
}

impl TryFrom<String> for Features {
    type Error = ParseFeaturesError;

    fn try_from(names: String) -> Result<Self, ParseFeaturesError> {
        names.parse()
    }
}

impl From<Features> for String {
    fn from(features: Features) -> Self {
        features.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_as_written() {
        for bits in 0..16 {
            let features = Features::from_bits(bits);
            assert_eq!(features.to_string().parse(), Ok(features));
        }
        assert_eq!("swqueue,XSTEAL".parse(), Ok(Features::SWQUEUE.with(Features::XSTEAL)));
        let error = "SWQUEUE STEAL".parse::<Features>().unwrap_err().to_string();
        assert!(error.contains("\"STEAL\"") && error.contains("SIS_NODE"), "{error}");
    }
}
