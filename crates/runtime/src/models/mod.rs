//! The protocols under the model checkers: `cargo xtask loom` and `cargo xtask shuttle`.

#[cfg(loom)]
mod loom_bed;
#[cfg(loom)]
mod loom_flush_tests;
#[cfg(loom)]
mod loom_monitor_bed_tests;
#[cfg(loom)]
mod loom_next_look_tests;
#[cfg(loom)]
mod loom_sleeper_tests;
#[cfg(loom)]
mod loom_tests;
#[cfg(loom)]
mod loom_work_tests;
#[cfg(shuttle)]
mod shuttle_contract_tests;
#[cfg(shuttle)]
mod shuttle_tests;
