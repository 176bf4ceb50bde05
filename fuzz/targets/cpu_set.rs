//! Lists and masks of CPUs: what is read comes back as it is shown.
#![no_main]

use homing_topology::CpuSet;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(set) = text.parse::<CpuSet>() {
        assert_eq!(set.to_string().parse::<CpuSet>().ok(), Some(set));
    }
    let _ = CpuSet::from_mask(text);
});
