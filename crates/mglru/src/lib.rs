//! Which page goes when memory is short: replacement policies over frames, as pure code.
//!
//! A frame is an index into whatever its owner keeps pages in. There are no pointers here, no
//! clock, no I/O, no randomness that is not seeded: the same calls give the same victims. The
//! cache, the simulator and the trace tool run this code.
//!
//! * [`density`]: the default policy, which learns what pages are worth;
//! * [`kernel`]: the multi-generational LRU as the kernel has it, for the pages of one group;
//! * [`reclaim`]: which group gives how many pages, and when.

pub mod density;
pub mod kernel;
mod prefetch;
pub mod reclaim;

pub use prefetch::prefetch;
