//! What can go wrong while a machine is read.

use std::path::PathBuf;

use crate::cpu_set::CPU_COUNT_MAX;

/// Why a machine could not be read. Names the file or text and what was expected there.
///
/// ```
/// use homing_topology::{Machine, TopologyError};
///
/// let error = Machine::from_grid("4x0x2").unwrap_err();
/// assert!(matches!(error, TopologyError::Grid { .. }));
/// assert!(error.to_string().contains("has a part that is zero"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A file or folder that must be there could not be read.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file of `/sys` or `/proc` does not hold what its format says.
    #[error("{} holds {value:?}: expected {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it holds.
        value: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// There is no CPU below the root folder.
    #[error(
        "no online CPU found below {}: a root folder has sys/devices/system/cpu/cpu0/topology",
        root.display()
    )]
    NoCpu {
        /// The folder that stands for `/`.
        root: PathBuf,
    },
    /// A CPU number that does not fit.
    #[error("CPU {number} is beyond the {CPU_COUNT_MAX} CPUs that homing knows")]
    CpuNumber {
        /// The number read.
        number: usize,
    },
    /// A grid string that cannot be read.
    #[error(
        "grid {grid:?} {problem}: write [PACKAGESx][NODESx]LLCSxCORESxTHREADS, as in 4x3x2 (4 LLCs \
         of 3 cores of 2 threads) or 2x4x2x8x2"
    )]
    Grid {
        /// The text given.
        grid: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A machine that was written down but cannot exist.
    #[error("not a machine: {problem}")]
    Description {
        /// What is wrong with it.
        problem: String,
    },
    /// A file that is not an hwloc XML export, or an unusable one.
    #[error("not a usable hwloc XML export: {problem}")]
    Hwloc {
        /// What is wrong with it.
        problem: String,
    },
}

impl TopologyError {
    pub(crate) fn unreadable(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Unreadable { path: path.into(), source }
    }
}
