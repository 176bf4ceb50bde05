//! Which page goes when memory is short: replacement policies over frames, as pure code.
//!
//! A frame is an index into whatever its owner keeps pages in. There are no pointers here, no
//! clock, no I/O, and no randomness without a seed: the same calls give the same victims.
//!
//! * [`density`]: the default policy, which learns what pages are worth. The cache, the simulator
//!   and the trace tool use it.
//! * [`kernel`]: the multi-generational LRU as in the kernel, for the pages of one group. The
//!   simulator and the trace tool use it for comparison.
//! * [`reclaim`]: how many pages each of the kernel's groups gives up, and when.

pub mod density;
pub mod kernel;
mod prefetch;
pub mod reclaim;

pub use prefetch::prefetch;
