//! Where the captures of other machines are, and how they are unpacked; for the tests of this crate
//! and of `homing-sched`.
//!
//! They are not part of the repository: `HOMING_TOPOLOGIES` names their folder, by default
//! `../shared/topologies` beside it. Without them a test says so and passes.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use bzip2::read::BzDecoder;

/// The folder with the captures, if there is one.
pub(crate) fn folder() -> Option<PathBuf> {
    // This file is compiled into several crates, which are all as deep in the repository.
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/topologies");
    let folder = std::env::var_os("HOMING_TOPOLOGIES").map_or(default, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: no captures in {} (set HOMING_TOPOLOGIES)", folder.display());
    None
}

/// Unpacks those files of an archive whose names are wanted, and returns the one folder that it
/// holds.
pub(crate) fn unpack(archive: &Path, into: &Path, wanted: impl Fn(&str) -> bool) -> PathBuf {
    let mut archive = tar::Archive::new(BzDecoder::new(fs::File::open(archive).unwrap()));
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let target = into.join(entry.path().unwrap());
        let name = target.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if !wanted(name) {
            continue;
        }
        if entry.header().entry_type().is_dir() {
            // The folder does not get its mode: some folders are not writable.
            fs::create_dir_all(target).unwrap();
        } else {
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            entry.unpack(target).unwrap();
        }
    }
    let mut entries = fs::read_dir(into).unwrap();
    entries.next().unwrap().unwrap().path()
}
