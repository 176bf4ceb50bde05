//! A memory that two tenants share: which pages each of them has, and what it takes to bring one
//! in. homing's own code, `homing_mglru`, decides what is evicted; this module is what surrounds it
//! in a kernel, without data.

mod density;
mod kernel;

use homing_mglru::density::Savings;
use homing_mglru::reclaim::Flags;

use crate::agenda::Ns;
use density::Density;
use kernel::Kernel;

/// The tenant that asks. As an index: 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenant {
    /// Its pages are those of files, and clean: to evict one is to drop it.
    Reader = 0,
    /// Its pages have no other home, so that they are written to swap when they are evicted.
    User = 1,
}

/// What decides which pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryModel {
    /// The kernel's multi-generational LRU with a group for each tenant, whose background reclaim
    /// has flags of this form.
    Kernel(Flags),
    /// The default policy of homing's caches, as they use it, with a group for each tenant.
    HitDensity,
    /// The same, but it is told what a hit of each tenant saves. The caches have no such setting.
    HitDensityToldCosts,
}

/// The result of an access, or of a stretch of background work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Whether the page was there.
    pub hit: bool,
    /// Pages that were looked at.
    pub scanned: u64,
    /// Pages that were written to swap.
    pub written: u64,
    /// How often the pages of a group were aged.
    pub agings: u64,
}

/// See the module.
pub(crate) trait Memory {
    /// Brings a page in, if it is not there, and uses it.
    fn access(&mut self, tenant: Tenant, page: u32, now_ns: Ns) -> Work;

    /// Does some of the work that keeps frames free; nothing, if enough are free.
    fn background(&mut self, now_ns: Ns) -> Option<Work>;
}

impl MemoryModel {
    /// Makes a memory of `frames` frames, for tenants with this many pages. `low` is how many more
    /// frames are kept free, by models that reclaim ahead. `savings` is what a hit of each tenant
    /// saves, for the policy that is told.
    pub(crate) fn build(
        self,
        (frames, low): (u32, u32),
        pages: [u32; 2],
        savings: Savings,
    ) -> Box<dyn Memory> {
        match self {
            Self::Kernel(flags) => Box::new(Kernel::new(frames, low, pages, flags)),
            Self::HitDensity => Box::new(Density::new(frames, pages, None)),
            Self::HitDensityToldCosts => Box::new(Density::new(frames, pages, Some(savings))),
        }
    }
}
