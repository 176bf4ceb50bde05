//! The ways to make files durable that are compared.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::experiments::{Published, commit};

/// A way to make files durable. Each issuer has a share of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Each issuer calls fsync of one file after the other.
    Serial,
    /// Issuers hand their files to threads that call fsync.
    Threads,
    /// Each issuer calls syncfs once: no file has a verdict, so this is a bound, and no way.
    Syncfs,
    /// Each issuer begins `Durable::fsync` of all its files, and awaits them.
    Homing,
    /// Each issuer awaits one `Durable::fsync_many` of its files.
    HomingMany,
}

impl Strategy {
    /// All of them, in the order of the rows.
    pub const ALL: [Self; 5] =
        [Self::Serial, Self::Threads, Self::Syncfs, Self::Homing, Self::HomingMany];

    /// How many threads [`Strategy::Threads`] has.
    pub const THREADS: usize = 16;

    /// The name in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Threads => "threads",
            Self::Syncfs => "syncfs",
            Self::Homing => "homing",
            Self::HomingMany => "homing-many",
        }
    }

    /// Whether it is only a bound to compare with: it does not tell which file failed.
    pub const fn is_bound(self) -> bool {
        matches!(self, Self::Syncfs)
    }

    /// The published files a second, and files for each write of the journal, of the same way with
    /// this many issuers.
    pub fn published(self, issuers: usize) -> Option<(f64, f64)> {
        let policy = match self {
            Self::Serial => "sync",
            Self::Homing => "async",
            Self::Threads | Self::Syncfs | Self::HomingMany => return None,
        };
        let key = commit::key(policy, issuers, 0);
        let find = |metric| Published::find(&key, metric).map(|found| found.value);
        find("files_per_s").zip(find("aggregation"))
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Strategy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_figures_stand_beside_the_same_way_and_number_of_issuers() {
        assert_eq!(Strategy::Serial.published(1), Some((530.0, 1.0)));
        assert_eq!(Strategy::Homing.published(4), Some((24_000.0, 35.0)));
        assert_eq!(Strategy::Homing.published(5), None);
        assert_eq!(Strategy::Serial.published(8), None);
        assert_eq!(Strategy::Threads.published(1), None);
    }
}
