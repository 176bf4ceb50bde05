//! Descriptions of loads for `homing lab recommend`: a load, or an error that names the file.
#![no_main]

use std::fs;

use homing_lab::experiments::Load;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let file = tempfile::NamedTempFile::new_in(homing_fuzz::memory()).expect("a file");
    fs::write(file.path(), bytes).expect("a file in memory");
    if let Err(error) = Load::read(file.path()) {
        assert!(error.to_string().contains(&*file.path().to_string_lossy()), "{error}");
    }
});
