//! Machines described by counts: an error, or a machine each of whose scopes cuts its CPUs into
//! pods.
#![no_main]

use homing_topology::Machine;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for machine in [Machine::from_grid(text), Machine::from_grid_siblings_last(text)] {
        machine.iter().for_each(homing_fuzz::check_machine);
    }
});
