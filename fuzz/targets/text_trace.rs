//! Traces that are text, a key on each line or in a column: a trace of no more requests than asked
//! for, or an error that names the file.
#![no_main]

use homing_lab::{Column, Format, Trace};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], Option<&str>)| {
    let (bytes, column) = input;
    let column = column.map(str::parse::<Column>);
    let format = match column {
        None => Format::Txt,
        Some(Ok(column)) => Format::Csv(column),
        Some(Err(_)) => return,
    };
    match Trace::read_as("keys.txt", bytes, &format, 10_000) {
        Ok(trace) => assert!(trace.len() <= 10_000),
        Err(error) => assert!(error.to_string().contains("keys.txt"), "{error}"),
    }
});
