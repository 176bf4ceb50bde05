//! Which way is taken, of those that are allowed: what has been faster. Pure.

pub(crate) mod choice;
pub(crate) mod depth;
pub(crate) mod early;
pub(crate) mod group;
pub(crate) mod pace;
pub(crate) mod policy;
pub(crate) mod strategy;
pub(crate) mod windows;
