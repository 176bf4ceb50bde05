//! The multi-generational LRU as in the kernel, over frames by index.
//!
//! ```text
//!            young                                            old
//!  dirty   [ max_seq ][ max_seq - 1 ][     ...     ][ min_seq of dirty ] ─▶ to be written
//!  clean   [ max_seq ][ max_seq - 1 ][ min_seq of clean ] ──────────────▶ to be dropped
//!              ▲        never evicted      ▲
//!              │                           └─ where clean pages come in
//!              └─ ageing: a sweep finds what was used, then there is a new generation
//! ```
//!
//! Pages have one of two types, which the kernel calls anon and file. An anonymous page must be
//! written to be evicted, while a file's page can be dropped. Here the former are [`Type::Dirty`],
//! the latter [`Type::Clean`]. There are also two kinds of accesses. Read and write calls are
//! counted ([`Frames::access`]): their number decides a page's tier, and tiers whose pages come
//! back too often after eviction are protected. Accesses through mappings only leave a mark
//! ([`Frames::touch`]), and sweeps over the marks bring the pages that they find to the youngest
//! generation.
//!
//! A page that is used is not moved. Its marks are read when it reaches the end of the oldest
//! generation. So a hit needs only the table of frames; everything else needs the [`Lruvec`],
//! exclusively.
//!
//! Sources: the kernel's `Documentation/mm/multigen_lru.rst` and
//! `Documentation/admin-guide/mm/multigen_lru.rst`, as of 6.14. Names are the kernel's. Where
//! frames differ from memory that is mapped into address spaces:
//!
//! * a page table is a *region*: 64 frames whose numbers follow each other, a cache line of marks;
//! * there are no zones;
//! * one thread at a time ages or evicts, so nothing has to be retried.
//!
//! Read on in this order: `tunables`, `frames`, `lruvec`, `evict`, `feedback`, `age`, `clock`,
//! `debug`, `command`.

mod age;
mod clock;
mod command;
mod debug;
mod evict;
mod feedback;
mod filter;
mod frames;
mod list;
mod lruvec;
mod token;
mod tunables;

pub use age::{Aging, WalkStats};
pub use command::{Command, CommandError, RunError, parse_commands};
pub use evict::{Evicted, Types, Victim};
pub use feedback::{CtrlPos, Feedback, positive};
pub use frames::{Frame, Frames, Marks};
pub use lruvec::{Arrival, Lruvec};
pub use token::Token;
pub use tunables::{
    Enabled, MAX_NR_GENS, MAX_NR_TIERS, MAX_SWAPPINESS, MIN_NR_GENS, ParseEnabledError,
    SWAPPINESS_DIRTY_ONLY, TUNABLE_MAX, Tunables, TunablesError,
};

/// What it takes to evict a page. As an index: 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// It has to be written: the kernel's anonymous pages.
    Dirty = 0,
    /// It can be dropped: the kernel's pages of files.
    Clean = 1,
}

impl Type {
    /// Both types, in the order of their indices.
    pub const ALL: [Self; 2] = [Self::Dirty, Self::Clean];

    /// The other type.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Dirty => Self::Clean,
            Self::Clean => Self::Dirty,
        }
    }

    /// Whether pages of this type are evicted at all under a swappiness.
    pub const fn evictable(self, swappiness: u16) -> bool {
        match self {
            Self::Dirty => swappiness > 0,
            Self::Clean => swappiness <= MAX_SWAPPINESS,
        }
    }
}
