//! What several targets have in common.

#[path = "../../crates/topology/tests/support/promises.rs"]
mod promises;

use std::path::Path;

use homing_topology::Machine;

/// What holds of every machine.
pub fn check_machine(machine: &Machine) {
    promises::check(machine);
}

/// A folder in memory, where there is one.
pub fn memory() -> &'static Path {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory } else { Path::new("/tmp") }
}
