//! Whatever a file holds, it is a trace, or an error that names the file, the place and the value.

use std::io::Write as _;

use homing_lab::{Trace, TraceError};
use proptest::prelude::*;

/// A container that claims to have so many records, and has these.
fn container(claimed: u64, records: &[(u64, u32, u16, u16)]) -> Vec<u8> {
    let mut bytes = b"CTR1\x01\0\0\0".to_vec();
    bytes.extend(claimed.to_le_bytes());
    for (key, run, flags, tenant) in records {
        bytes.extend(key.to_le_bytes());
        bytes.extend(run.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(tenant.to_le_bytes());
    }
    bytes
}

fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    Trace::read("folder/x.ctr", bytes, 1000)
}

#[test]
fn runs_are_expanded_and_pages_numbered_by_first_appearance() {
    let bytes = container(3, &[(10, 3, 0, 0), (12, 1, 1, 0), (9, 2, 1, 7)]);
    let trace = read(&bytes).unwrap();
    assert_eq!(trace.name(), "x");
    assert_eq!(trace.keys(), [10, 11, 12, 9]);
    let requests: Vec<_> = trace.requests().map(|r| (r.page, r.write, r.tenant)).collect();
    let expected =
        [(0, false, 0), (1, false, 0), (2, false, 0), (2, true, 0), (3, true, 7), (0, true, 7)];
    assert_eq!(requests, expected);
    assert_eq!((trace.len(), trace.pages(), trace.writes()), (6, 4, 3));
}

#[test]
fn a_compressed_file_is_the_same_as_a_plain_one() {
    let records: Vec<_> = (0..900).map(|n| (n * n % 77, 1, (n % 2) as u16, 0)).collect();
    let plain = container(900, &records);
    let mut file = tempfile::Builder::new().suffix(".ctr.zst").tempfile().unwrap();
    file.write_all(&zstd::encode_all(&plain[..], 3).unwrap()).unwrap();
    let loaded = Trace::load(file.path()).unwrap();
    let same = read(&plain).unwrap();
    assert!(loaded.requests().eq(same.requests()) && loaded.keys() == same.keys());
}

#[test]
fn one_tenant_for_all_is_kept_unless_it_is_0() {
    assert!(read(&container(1, &[(1, 2, 0, 0)])).unwrap().tenants().is_none());
    let named = read(&container(1, &[(1, 2, 0, 3)])).unwrap();
    assert_eq!(named.tenants(), Some(&[3, 3][..]));
}

#[test]
fn keys_up_to_the_last_one_are_taken() {
    let trace = read(&container(1, &[(u64::MAX - 1, 2, 0, 0)])).unwrap();
    assert_eq!(trace.keys(), [u64::MAX - 1, u64::MAX]);
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let mut version = container(0, &[]);
    version[4] = 2;
    let good = container(2, &[(1, 1, 0, 0), (2, 1, 0, 0)]);
    let long = [&good[..], &[0]].concat();
    for (bytes, expected) in [
        (&b""[..], "begins with \"\""),
        (b"PK\x03\x04 and more", "begins with \"PK\\u{3}\\u{4}\""),
        (b"CTR", "begins with \"CTR\""),
        (b"CTR1", "ends at byte 4, within the 16 bytes of its header: it was cut short"),
        (b"CTR1\x01\0", "ends at byte 6"),
        (&container(1, &[])[..15], "ends at byte 15, within"),
        (&container(1, &[]), "ends at byte 16 with 0 whole records"),
        (&version, "version 2"),
        (&good[..good.len() - 1], "ends at byte 47 with 1 whole records"),
        (&container(u64::MAX, &[(1, 1, 0, 0)]), "has 18446744073709551615"),
        (&long, "goes on at byte 48"),
        (&container(2, &[(1, 1, 0, 0), (5, 0, 0, 0)]), "at byte 32 (key 5) has a run of 0"),
        (
            &container(1, &[(u64::MAX, 2, 0, 0)]),
            "at byte 16 has a run of 2 from key 18446744073709551615",
        ),
        (&container(1, &[(0, u32::MAX, 0, 0)]), "run of 4294967295 and makes it more than 1000"),
        (&[0x28, 0xB5, 0x2F, 0xFD, 1, 2, 3], "cannot read folder/x.ctr"),
    ] {
        let error = read(bytes).unwrap_err().to_string();
        assert!(error.contains("folder/x.ctr") && error.contains(expected), "{error}");
    }
    let error = Trace::load("no/such.ctr").unwrap_err().to_string();
    assert!(error.contains("no/such.ctr"), "{error}");
}

#[test]
fn a_compressed_file_that_is_cut_short_is_an_error() {
    let records: Vec<_> = (0..500).map(|n| (n * 7919, 1, 0, 0)).collect();
    let whole = zstd::encode_all(&container(500, &records)[..], 3).unwrap();
    for len in [5, whole.len() / 2, whole.len() - 1] {
        assert!(read(&whole[..len]).is_err(), "{len} of {} bytes", whole.len());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_trace_or_an_error(
        claimed in 0_u64..4,
        records in prop::collection::vec(any::<(u64, u32, u16, u16)>(), 0..4),
        cut in 0_usize..80,
        flip in any::<(prop::sample::Index, u8)>(),
        compressed in any::<bool>(),
    ) {
        let mut bytes = container(claimed, &records);
        if compressed {
            bytes = zstd::encode_all(&bytes[..], 1).unwrap();
        }
        let at = flip.0.index(bytes.len());
        bytes[at] ^= flip.1;
        bytes.truncate(cut);
        let _ = read(&bytes);
    }
}
