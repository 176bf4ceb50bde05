//! The numbers of records.

use std::fmt;

/// The number of the last record that there may be, so that the one after it still has a number.
pub(super) const SEQUENCE_MAX: u64 = u64::MAX - 1;

/// The number of a record: 1, 2, 3 and so on. 0 is before the first one.
///
/// ```
/// use homing_durable::Sequence;
///
/// assert_eq!(Sequence::from(6).next().get(), 7);
/// assert!(Sequence::default() < Sequence::from(1), "0 is before the first record");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub(super) u64);

impl Sequence {
    /// As a number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The number of the next record.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// For a number that was noted elsewhere.
impl From<u64> for Sequence {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
