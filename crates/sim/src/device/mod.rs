//! Devices that complete what they are given after a while.

mod ssd;

pub use ssd::Ssd;
