//! Reclaim over groups: budgets and protection of groups that are only numbers, fairness among a
//! thousand groups, and two tenants of one memory.

mod fairness;
mod protection;
mod tenants;
mod world;
