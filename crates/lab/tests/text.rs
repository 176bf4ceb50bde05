//! Traces that are text: whatever a file holds, it is a trace, or an error that names the file, the
//! line and what stands there.

use homing_lab::{Column, Format, Trace, TraceError};
use proptest::prelude::*;

fn read(format: &Format, bytes: &[u8]) -> Result<Trace, TraceError> {
    Trace::read_as("folder/x.txt", bytes, format, 1000)
}

fn pages(trace: &Trace) -> Vec<u32> {
    trace.requests().map(|request| request.page).collect()
}

fn csv(column: &str) -> Format {
    Format::Csv(column.parse().unwrap())
}

#[test]
fn each_line_is_a_key() {
    let trace =
        read(&Format::Txt, b"7\n8\r\n 7 \nuser:1\n18446744073709551615\nuser:1\n9").unwrap();
    assert_eq!(trace.name(), "x");
    assert_eq!(pages(&trace), [0, 1, 0, 2, 3, 2, 4]);
    assert_eq!(trace.keys()[..2], [7, 8], "neighbours are neighbours");
    assert_eq!((trace.keys()[3], trace.keys()[4], trace.writes()), (u64::MAX, 9, 0));
    // Keys are texts, not numbers: no two of these are equal.
    let trace = read(&Format::Txt, b"7\n07\n+7\n-7\n0\n00\n18446744073709551616\n7.0").unwrap();
    assert_eq!(trace.pages(), 8);
}

#[test]
fn a_column_is_numbered_or_named() {
    let rows = "1,a,100,get\n2,b,5,\"s\"\n3, a ,7,get\n";
    assert_eq!(pages(&read(&csv("2"), rows.as_bytes()).unwrap()), [0, 1, 0]);
    for header in ["time,obj_id,size,op", "\u{feff}time,\"obj_id\", size,op\r"] {
        let text = format!("{header}\n{rows}");
        assert_eq!(pages(&read(&csv("obj_id"), text.as_bytes()).unwrap()), [0, 1, 0]);
    }
    assert_eq!(csv("3"), Format::Csv(Column::Number(3)));
    assert!("0".parse::<Column>().is_err() && " ".parse::<Column>().is_err());
}

#[test]
fn a_compressed_text_is_the_same_as_a_plain_one() {
    let keys: Vec<String> = (0..900).map(|n| (n * n % 77).to_string()).collect();
    let text = keys.join("\n");
    let packed = zstd::encode_all(text.as_bytes(), 3).unwrap();
    assert_eq!(read(&Format::Txt, &packed).unwrap(), read(&Format::Txt, text.as_bytes()).unwrap());
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let long = [b"1\n2\n".to_vec(), vec![b'x'; 1 << 17]].concat();
    let many = "1\n".repeat(1001);
    for (format, bytes, expected) in [
        (Format::Txt, &b"1\n\n2\n"[..], "line 2, \"\", has no key"),
        (Format::Txt, &long, "is longer than 65536 bytes"),
        (Format::Txt, many.as_bytes(), "line 1001 makes it more than 1000 requests"),
        (csv("2"), b"1,5\n2\n", "line 2, \"2\", has no column 2"),
        (csv("2"), b"1,5\n2,,3\n", "line 2, \"2,,3\", has no key"),
        (csv("2"), b"1,\"a,b\"\n", "line 1, \"1,\\\"a,b\\\"\", has a quoted field"),
        (csv("2"), b"\"1,2\",7\n", "line 1, \"\\\"1,2\\\",7\", has a quoted field"),
        (csv("key"), b"a,b\n1,2\n", "line 1, \"a,b\", is the header and names no \"key\""),
    ] {
        let error = read(&format, bytes).unwrap_err().to_string();
        assert!(error.contains("folder/x.txt") && error.contains(expected), "{error}");
        assert!(error.len() < 250, "{error}");
    }
    assert!(read(&Format::Txt, b"").unwrap().is_empty());
}

/// Does the same as the reader, but with the whole text at hand.
fn expected(text: &str) -> Option<Vec<&str>> {
    let lines = text.strip_suffix('\n').unwrap_or(text);
    let keys = lines.split('\n').map(|line| line.split(',').nth(1).map(str::trim));
    keys.map(|key| key.filter(|key| !key.is_empty())).collect()
}

proptest! {
    #[test]
    fn any_bytes_are_a_trace_or_an_error(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            "([0-9a\",\n\r ]{0,40})".prop_map(String::into_bytes),
        ],
        column in prop_oneof![Just("1"), Just("3"), Just("a"), Just("9999999999")],
    ) {
        let _ = read(&Format::Txt, &bytes);
        let _ = read(&csv(column), &bytes);
    }

    #[test]
    fn rows_are_read_however_they_arrive(
        text in "(([0-9]{1,2},){0,2}[0-9ab]{0,3}\n){1,20}",
        piece in 1_usize..7,
    ) {
        let pieces = Pieces { left: text.as_bytes(), piece };
        let trace = Trace::read_as("x.csv", pieces, &csv("2"), 1000).ok();
        let keys = expected(&text);
        prop_assert_eq!(trace.is_some(), keys.is_some());
        if let (Some(trace), Some(keys)) = (trace, keys) {
            let same = |one: usize, other: usize| keys[one] == keys[other];
            let pages = pages(&trace);
            prop_assert_eq!(pages.len(), keys.len());
            for (one, page) in pages.iter().enumerate() {
                for (other, its) in pages.iter().enumerate() {
                    prop_assert_eq!(page == its, same(one, other), "{} and {}", one, other);
                }
            }
        }
    }
}

/// Hands out a few bytes at a time.
struct Pieces<'a> {
    left: &'a [u8],
    piece: usize,
}

impl std::io::Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = self.piece.min(self.left.len()).min(buffer.len());
        buffer[..len].copy_from_slice(&self.left[..len]);
        self.left = &self.left[len..];
        Ok(len)
    }
}
