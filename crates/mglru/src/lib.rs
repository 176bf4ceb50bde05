//! Which page goes when memory is short: replacement policies over frames, as pure code.
//!
//! A frame is an index into whatever its owner keeps pages in. There are no pointers here, no
//! clock, no I/O, no randomness that is not seeded: the same calls give the same victims.
//!
//! * [`density`]: the default policy, which learns what pages are worth: of the cache, the
//!   simulator and the trace tool;
//! * [`kernel`]: the multi-generational LRU as the kernel has it, for the pages of one group: of
//!   the simulator and the trace tool, to be compared with;
//! * [`reclaim`]: which of the kernel's groups gives how many pages, and when.

pub mod density;
pub mod kernel;
mod prefetch;
pub mod reclaim;

pub use prefetch::prefetch;
