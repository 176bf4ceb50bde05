//! Requests: each is refused or lies within the export, and its header is written as it was read.
#![no_main]

use homing_nbd::{BlockSizes, Export, RequestHeader, Session, validate, wire};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], u64, bool, bool)| {
    let (bytes, size, structured, read_only) = input;
    // The magic number costs the fuzzer time and shows nothing.
    let mut header = [0; wire::REQUEST_LEN];
    header[..4].copy_from_slice(&wire::REQUEST_MAGIC.to_be_bytes());
    for (at, byte) in header[4..].iter_mut().zip(bytes) {
        *at = *byte;
    }
    let request = RequestHeader::parse(&header).expect("the magic is right");
    assert_eq!(request.encode(), header);
    let export = Export {
        name: String::new(),
        description: String::new(),
        size: size >> 1,
        read_only,
        block_sizes: BlockSizes { minimum: 1, preferred: 4096, payload_max: 32 << 20 },
    };
    let session = Session { export_index: 0, structured, base_allocation: structured };
    if validate(&request, &export, &session).is_ok() {
        let end = u128::from(request.offset) + u128::from(request.length);
        let ranged = !matches!(request.command, wire::command::DISC | wire::command::FLUSH);
        assert!(!ranged || end <= u128::from(export.size), "{request:?} of {} bytes", export.size);
        let writes = [wire::command::WRITE, wire::command::TRIM, wire::command::WRITE_ZEROES];
        assert!(!read_only || !writes.contains(&request.command), "{request:?}");
    }
});
