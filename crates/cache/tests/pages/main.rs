//! What the page cache promises, seen from outside.

mod background;
mod disk;
mod faults;
mod groups;
mod model;
mod ranges;
mod resizing;
mod stress;
