//! Devices that complete a request after a while.

mod ssd;

pub use ssd::Ssd;
