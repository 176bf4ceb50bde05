//! LUKS2 metadata: refused, or a data area behind the header.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use homing_volume::luks;
use libfuzzer_sys::fuzz_target;
use sha2::{Digest as _, Sha256};

const COPY: usize = 16 << 10;
const BINARY: usize = 4096;
const LENGTH: u64 = 32 << 20;

static FILE: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
    let folder = tempfile::tempdir_in(homing_fuzz::memory()).expect("a folder");
    let path = folder.path().join("volume.img");
    (folder, path)
});

/// One of the header's two copies around this metadata, with the checksum without which it is not
/// read at all.
fn copy(json: &[u8], second: bool) -> Vec<u8> {
    let mut bytes = vec![0; COPY];
    bytes[..6].copy_from_slice(if second { b"SKUL\xba\xbe" } else { b"LUKS\xba\xbe" });
    bytes[7] = 2;
    bytes[8..16].copy_from_slice(&(COPY as u64).to_be_bytes());
    bytes[23] = 1;
    bytes[72..78].copy_from_slice(b"sha256");
    bytes[168..204].copy_from_slice(b"6f0e7d1c-4c2b-4a7e-9d54-0c1a2b3c4d5e");
    let place = if second { COPY as u64 } else { 0 };
    bytes[256..264].copy_from_slice(&place.to_be_bytes());
    let json = &json[..json.len().min(COPY - BINARY - 1)];
    bytes[BINARY..BINARY + json.len()].copy_from_slice(json);
    let checksum = Sha256::digest(&bytes);
    bytes[448..480].copy_from_slice(&checksum);
    bytes
}

fuzz_target!(|json: &[u8]| {
    let file = &FILE.1;
    fs::write(file, [copy(json, false), copy(json, true)].concat()).expect("a file in memory");
    fs::File::options()
        .write(true)
        .open(file)
        .and_then(|file| file.set_len(LENGTH))
        .expect("a file");
    if let Ok(found) = luks::look_at(file) {
        let size = found.size;
        assert!(size > 0 && size <= LENGTH - 2 * COPY as u64, "{size} bytes of {LENGTH}");
    }
});
