//! What several targets have in common.

#[path = "../../crates/topology/tests/support/promises.rs"]
mod promises;

use std::path::Path;

use homing_topology::Machine;

/// Checks what holds for every machine.
pub fn check_machine(machine: &Machine) {
    promises::check(machine);
}

/// A folder in memory if there is one, or else `/tmp`.
pub fn memory() -> &'static Path {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory } else { Path::new("/tmp") }
}
