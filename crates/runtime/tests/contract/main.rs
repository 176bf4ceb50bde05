//! What users of the kernel's workqueues rely on, each promise as a test of its name.

mod between;
mod ends;
mod helpers;
mod helping;
mod kinds;
mod limits;
mod live;
mod waiting;
mod work;
