//! Where the traces are: in the folder that `HOMING_TRACES` names, or beside the repository. Tests
//! that need them say why they are skipped where there are none.

use std::env;
use std::path::{Path, PathBuf};

use homing_lab::Trace;

/// The folder with the traces, if there is one.
pub(crate) fn folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let folder = env::var_os("HOMING_TRACES").map_or(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: no traces in {} (set HOMING_TRACES)", folder.display());
    None
}

/// A trace of that folder, by its name.
pub(crate) fn load(name: &str) -> Option<Trace> {
    let path = folder()?.join(format!("{name}.ctr.zst"));
    Some(Trace::load(path).unwrap())
}
