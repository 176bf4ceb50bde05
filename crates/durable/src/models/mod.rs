//! The engine and the log under a randomized scheduler: `cargo xtask shuttle`.

mod shuttle_flush_tests;
mod shuttle_tests;
