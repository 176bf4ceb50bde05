//! The loads that every server gets.

use clap::ValueEnum;
use serde::{Serialize, Serializer};

/// Slices begin and end at multiples of the largest block, so that jobs never share one.
const SLICE_UNIT: u64 = 32 * 1024;

/// One load. Each job has a slice of the export to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Scenario {
    /// Random reads and writes of 32 KiB, 24 jobs of depth 64.
    RwHigh,
    /// The same with 8 jobs.
    RwMed,
    /// The same with 4 jobs.
    RwLow,
    /// As rw-high, with everything written read back and checked by SHA-512.
    VerifyHigh,
    /// The same with 8 jobs.
    VerifyMed,
    /// The same with 4 jobs.
    VerifyLow,
    /// Random reads of 4 KiB, one at a time.
    #[value(name = "read-4k-qd1")]
    Read4kDepth1,
    /// Random reads of 4 KiB, 32 at a time, over one connection.
    #[value(name = "read-4k-qd32")]
    Read4kDepth32,
}

impl Scenario {
    /// All of them, in the order in which they run.
    pub(crate) const ALL: [Self; 8] = [
        Self::RwHigh,
        Self::RwMed,
        Self::RwLow,
        Self::VerifyHigh,
        Self::VerifyMed,
        Self::VerifyLow,
        Self::Read4kDepth1,
        Self::Read4kDepth32,
    ];

    /// The name on the command line and in the results.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(|| format!("{self:?}"), |value| value.get_name().to_owned())
    }

    /// How many jobs there are: a connection and a slice each.
    pub(crate) fn jobs(self) -> u64 {
        match self {
            Self::RwHigh | Self::VerifyHigh => 24,
            Self::RwMed | Self::VerifyMed => 8,
            Self::RwLow | Self::VerifyLow => 4,
            Self::Read4kDepth1 | Self::Read4kDepth32 => 1,
        }
    }

    /// How many requests a job keeps in flight.
    pub(crate) fn depth(self) -> u64 {
        match self {
            Self::Read4kDepth1 => 1,
            Self::Read4kDepth32 => 32,
            _ => 64,
        }
    }

    /// Whether fio reads back what it wrote.
    pub(crate) fn verifies(self) -> bool {
        matches!(self, Self::VerifyHigh | Self::VerifyMed | Self::VerifyLow)
    }

    /// fio's options for this load on an export of `size` bytes.
    pub(crate) fn fio_options(self, size: u64) -> Vec<String> {
        let (mode, block) = match self {
            Self::Read4kDepth1 | Self::Read4kDepth32 => ("randread", "4k"),
            _ => ("randrw", "32k"),
        };
        let slice = size / self.jobs() / SLICE_UNIT * SLICE_UNIT;
        let mut options = vec![
            format!("--rw={mode}"),
            format!("--bs={block}"),
            format!("--iodepth={}", self.depth()),
            format!("--numjobs={}", self.jobs()),
            format!("--size={slice}"),
            format!("--offset_increment={slice}"),
        ];
        if self.verifies() {
            // fio would leave a state file per job behind.
            options.extend(
                ["--verify=sha512", "--verify_fatal=1", "--verify_state_save=0"].map(String::from),
            );
        }
        options
    }
}

impl Serialize for Scenario {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_listed_in_order_and_named_apart() {
        assert_eq!(Scenario::value_variants(), Scenario::ALL);
        assert_eq!(Scenario::RwHigh.name(), "rw-high");
        assert_eq!(Scenario::Read4kDepth32.name(), "read-4k-qd32");
    }

    #[test]
    fn slices_are_whole_blocks_and_fit() {
        let size = 1 << 30;
        for scenario in Scenario::ALL {
            let options = scenario.fio_options(size);
            let slice = options.iter().find_map(|option| option.strip_prefix("--size="));
            let slice: u64 = slice.unwrap().parse().unwrap();
            assert!(
                slice > 0 && slice.is_multiple_of(32 * 1024) && slice * scenario.jobs() <= size
            );
            let verifies = options.iter().any(|option| option == "--verify=sha512");
            assert_eq!(verifies, scenario.verifies());
        }
    }
}
