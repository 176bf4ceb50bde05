//! What the page cache promises, seen from outside.

mod background;
#[cfg(feature = "control")]
mod control;
mod crowds;
mod declined;
mod disk;
mod dropped;
mod faults;
mod flushes;
mod groups;
mod memory;
mod model;
mod protection;
mod ranges;
mod readahead;
mod resizing;
mod stress;
mod waiting;
