//! The kernel's algorithm: that it does as a naive model on random calls, and what its texts and
//! commands promise.

mod commands;
mod lifecycle;
mod model;
mod random;
