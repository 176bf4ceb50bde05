//! A log after a crash: segments with anything in them, checksums right or not. Opening it ends in
//! an error, or in records that are there again when it is opened once more.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use homing_durable::{Durable, Log, LogError, Recovery};
use homing_runtime::Runtime;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

static ENGINE: LazyLock<(Runtime, Durable)> = LazyLock::new(|| {
    let runtime = Runtime::new().expect("a runtime");
    let durable = Durable::new(&runtime).expect("an engine");
    (runtime, durable)
});

#[derive(Arbitrary, Debug)]
struct Segment {
    named: u8,
    log: u8,
    first: u8,
    kept: u8,
    version: Option<u32>,
    records: Vec<Record>,
    /// How many of its last bytes are cut off, and what is written there instead.
    torn: u8,
    rest: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
struct Record {
    data: Vec<u8>,
    /// What the length and the sequence number say, if not what they should.
    length: Option<u32>,
    sequence: Option<u64>,
    marked: bool,
    damaged: Option<u8>,
}

/// The bytes of a segment, in the format of `crates/durable/src/log/format.rs`.
fn bytes(segment: &Segment) -> Vec<u8> {
    let mut header = *b"homelog\0________________________________";
    header[8..12].copy_from_slice(&segment.version.unwrap_or(2).to_le_bytes());
    for (place, number) in [(16, segment.log % 2), (24, segment.first), (32, segment.kept)] {
        header[place..place + 8].copy_from_slice(&u64::from(number).to_le_bytes());
    }
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&header[..12]), &header[16..]);
    header[12..16].copy_from_slice(&checksum.to_le_bytes());
    let mut all = header.to_vec();
    for (number, record) in segment.records.iter().enumerate() {
        let mark = u32::from(record.marked) << 31;
        let length = record.length.unwrap_or(record.data.len() as u32 | mark);
        let sequence = record.sequence.unwrap_or(u64::from(segment.first) + number as u64);
        let mut head = length.to_le_bytes().to_vec();
        head.extend(sequence.to_le_bytes());
        let log = crc32c::crc32c(&u64::from(segment.log % 2).to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c_append(log, &head), &record.data);
        let from = all.len();
        all.extend(checksum.to_le_bytes());
        all.extend(head);
        all.extend(&record.data);
        if let Some(damaged) = record.damaged {
            let at = from + usize::from(damaged) % (all.len() - from);
            all[at] ^= 0x40;
        }
    }
    all.truncate(all.len().saturating_sub(segment.torn.into()));
    all.extend(&segment.rest);
    all
}

fuzz_target!(|segments: Vec<Segment>| {
    let folder = tempfile::tempdir_in(homing_fuzz::memory()).expect("a folder");
    let path = folder.path().join("log");
    fs::create_dir(&path).expect("a folder");
    for segment in segments.iter().take(4) {
        let name = format!("{:020}.log", segment.named);
        fs::write(path.join(name), bytes(segment)).expect("a file in memory");
    }
    let found = |opened: Result<(Log, Recovery), LogError>| {
        let (log, recovery) = opened.ok()?;
        let records: Vec<_> =
            log.records().map(|record| record.expect("it was whole").data).collect();
        assert_eq!(recovery.records, records.len() as u64);
        Some((recovery.first, records))
    };
    let open = || Log::options().segment_length(4096).open(&ENGINE.1, &path);
    let mut opened = open();
    let mut given_up = u64::MAX;
    while let Err(LogError::Damaged { sequence, .. }) = opened {
        assert!(sequence < given_up, "{sequence} is not before {given_up}");
        given_up = sequence;
        opened = Log::open_before(&ENGINE.1, &path, sequence.into());
    }
    if let Some(records) = found(opened) {
        assert_eq!(found(open()), Some(records), "opened once more");
    }
});
