//! Traces of caches: a trace whose pages are numbered without gaps, or an error.
#![no_main]

use homing_lab::Trace;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(trace) = Trace::read("trace.ctr", bytes, 10_000) else { return };
    assert!(trace.len() <= 10_000 && trace.keys().len() == trace.pages());
    assert!(trace.requests().all(|request| (request.page as usize) < trace.keys().len()));
});
