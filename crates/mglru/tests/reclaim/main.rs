//! Reclaim over groups: budgets and protection on groups that are numbers only, fairness among a
//! thousand, and two tenants of one memory.

mod fairness;
mod protection;
mod tenants;
mod world;
