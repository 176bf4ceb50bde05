//! XML of hwloc: an error, or a machine.
#![no_main]

use homing_topology::Machine;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    Machine::from_hwloc_xml(text).iter().for_each(homing_fuzz::check_machine);
});
