//! Parts of a sweep that other machines have run.
#![no_main]

use std::fs;

use homing_lab::experiments::merge;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|parts: [&[u8]; 2]| {
    let folder = tempfile::tempdir_in(homing_fuzz::memory()).expect("a folder");
    for (number, part) in parts.into_iter().enumerate() {
        let name = format!("{}-of-2.jsonl", number + 1);
        fs::write(folder.path().join(name), part).expect("a file in memory");
    }
    if let Err(error) = merge(folder.path()) {
        assert!(!error.to_string().is_empty());
    }
});
