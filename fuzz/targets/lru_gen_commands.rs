//! Text written to `lru_gen`: it is parsed, or refused with an error that says something.
#![no_main]

use homing_mglru::kernel::parse_commands;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = parse_commands(text) {
        assert!(!error.to_string().is_empty());
    }
});
