//! Lists and masks of CPUs: a set that is read is the same when it is shown and read again.
#![no_main]

use homing_topology::CpuSet;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(set) = text.parse::<CpuSet>() {
        assert_eq!(set.to_string().parse::<CpuSet>().ok(), Some(set));
    }
    let _ = CpuSet::from_mask(text);
});
