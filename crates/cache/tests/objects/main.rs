//! What the cache of objects promises.

mod contract;
mod expiry;
mod groups;
mod loading;
mod model;
mod panics;
mod stress;
