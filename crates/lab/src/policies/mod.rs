//! The policies there are, by name.
//!
//! Each has its own file, which cites its paper. To add one, implement [`Policy`](crate::Policy)
//! and give it a line in [`ALL`]; the first line is the default.

mod arc;
mod cflru;
mod clock;
mod fifo;
mod hit_density;
mod links;
mod lirs;
mod lru;
mod mglru_kernel;
mod opt;
mod s3_fifo;
mod sieve;
mod sketch;
mod two_q;
mod w_tiny_lfu;

pub use arc::Arc;
pub use cflru::Cflru;
pub use clock::Clock;
pub use fifo::Fifo;
pub use hit_density::HitDensity;
pub use lirs::Lirs;
pub use lru::Lru;
pub use mglru_kernel::MglruKernel;
pub use opt::Opt;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use two_q::TwoQ;
pub use w_tiny_lfu::WTinyLfu;

use crate::policy::{AnyPolicy, Setup};

/// A policy that can be built by its name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    build: for<'a> fn(&Setup<'a>) -> Box<dyn AnyPolicy + 'a>,
}

/// The name of no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {name:?}: take one of {}", names().join(", "))]
pub struct UnknownPolicy {
    name: String,
}

/// All policies. The default comes first, then the ones that see the past only, then the optimum.
pub const ALL: &[Entry] = &[
    Entry {
        name: "mglru",
        about: "generations and tiers, by the hits that they give for their frames",
        build: |s| Box::new(HitDensity::new(s)),
    },
    Entry {
        name: "s3-fifo",
        about: "a small FIFO queue in front of the main one, with ghosts",
        build: |s| Box::new(S3Fifo::new(s)),
    },
    Entry { name: "fifo", about: "first in, first out", build: |s| Box::new(Fifo::new(s)) },
    Entry { name: "lru", about: "least recently used", build: |s| Box::new(Lru::new(s)) },
    Entry { name: "clock", about: "second chance, one bit", build: |s| Box::new(Clock::new(s)) },
    Entry {
        name: "sieve",
        about: "CLOCK whose survivors stay where they stand",
        build: |s| Box::new(Sieve::new(s)),
    },
    Entry {
        name: "2q",
        about: "a FIFO queue, its ghosts, an LRU list of what came back",
        build: |s| Box::new(TwoQ::new(s)),
    },
    Entry {
        name: "arc",
        about: "recency and frequency in a proportion that is learnt",
        build: |s| Box::new(Arc::new(s)),
    },
    Entry {
        name: "lirs",
        about: "by the distance between the last two uses",
        build: |s| Box::new(Lirs::new(s)),
    },
    Entry {
        name: "w-tinylfu",
        about: "a small window, admission by frequency",
        build: |s| Box::new(WTinyLfu::<false>::new(s)),
    },
    Entry {
        name: "w-tinylfu-adaptive",
        about: "the same, with a window that climbs the hit ratio",
        build: |s| Box::new(WTinyLfu::<true>::new(s)),
    },
    Entry {
        name: "cflru",
        about: "LRU that evicts clean pages first",
        build: |s| Box::new(Cflru::new(s)),
    },
    Entry {
        name: "cflru-wide",
        about: "the same, where it looks for them in half of the cache",
        build: |s| Box::new(Cflru::wide(s)),
    },
    Entry {
        name: "mglru-kernel",
        about: "generations and tiers, as the kernel has them for files",
        build: |s| Box::new(MglruKernel::new(s)),
    },
    Entry {
        name: "opt",
        about: "Belady's optimum: evicts what is used again last; knows the future",
        build: |s| Box::new(Opt::<false>::new(s)),
    },
    Entry {
        name: "opt-bypass",
        about: "the optimum of a cache that need not admit what is asked for",
        build: |s| Box::new(Opt::<true>::new(s)),
    },
];

/// The name of the policy to take if none is named.
pub fn default_name() -> &'static str {
    ALL[0].name
}

/// The names of all policies, in the order of [`ALL`].
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|entry| entry.name).collect()
}

/// The policy of this name.
pub fn entry(name: &str) -> Result<&'static Entry, UnknownPolicy> {
    let found = ALL.iter().find(|entry| entry.name == name);
    found.ok_or_else(|| UnknownPolicy { name: name.to_owned() })
}

/// Builds a policy by its name.
pub fn build<'a>(name: &str, setup: &Setup<'a>) -> Result<Box<dyn AnyPolicy + 'a>, UnknownPolicy> {
    Ok(entry(name)?.build(setup))
}

impl Entry {
    /// Builds the policy.
    pub fn build<'a>(&self, setup: &Setup<'a>) -> Box<dyn AnyPolicy + 'a> {
        (self.build)(setup)
    }
}
