//! The policies: what each promises, what it is known for, and that the simple ones do the same as
//! their models.

mod behaviour;
mod contract;
mod models;
mod small;
