//! Tests of the kernel's algorithm: it does the same as a naive model on random calls, and its
//! texts and commands keep their promises.

mod commands;
mod lifecycle;
mod model;
mod random;
