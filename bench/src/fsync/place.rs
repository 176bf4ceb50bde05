//! The places to measure in: a folder as it is, filesystems made for the purpose, and disks that
//! are slow to flush. A filesystem that was made is removed when it is dropped.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use homing_faultdisk::{Disk, Filesystem, Image, Volume, unavailable};
use tempfile::TempDir;

/// Bytes of a filesystem that is made: sparse, in a file or in memory.
const SIZE: u64 = 1 << 30;

/// A bulk on a slow disk has this many times fewer files.
const SLOW_SHARE: usize = 5;

/// Set if this process already has mounts of its own.
const OWN_MOUNTS: &str = "HOMING_BENCH_OWN_MOUNTS";

/// A filesystem to measure in.
pub(crate) struct Place {
    /// Its name in the results.
    pub(crate) name: String,
    /// A folder of it.
    pub(crate) path: PathBuf,
    /// How many files a bulk has.
    pub(crate) files: usize,
    /// The resources that were made for it. Cells that are killed leave their files in it.
    _made: Made,
}

/// The resources of a place, which are removed with it.
enum Made {
    Folder(#[expect(dead_code, reason = "removed with it")] TempDir),
    Volume(#[expect(dead_code, reason = "unmounted with it")] Volume),
}

/// The places, and notes on those that cannot be made.
pub(crate) fn all(
    dir: &Path,
    files: usize,
    loops: &[Filesystem],
    flush_delays: &[f64],
) -> anyhow::Result<(Vec<Place>, Vec<String>)> {
    let folder = tempfile::Builder::new().prefix("homing-fsync-").tempdir_in(dir);
    let folder = folder.with_context(|| format!("cannot write in {}", dir.display()))?;
    let (name, path) = ("dir".to_owned(), folder.path().to_owned());
    let mut places = vec![Place { name, path, files, _made: Made::Folder(folder) }];
    let mut notes = Vec::new();
    for filesystem in loops {
        let name = filesystem.name();
        if let Some(reason) = unavailable(*filesystem) {
            notes.push(format!("skipped: no {name} on a loop device here: {reason}"));
            continue;
        }
        let volume = Volume::make_in(dir, SIZE, *filesystem);
        let volume = volume.with_context(|| format!("no {name} in {}", dir.display()))?;
        places.push(place(name.to_owned(), files, volume));
        for milliseconds in flush_delays {
            let delay = Duration::from_secs_f64(milliseconds / 1e3);
            let disk = Arc::new(Disk::new(Image::new(SIZE), delay));
            let volume = Volume::make(&disk, *filesystem, "");
            let volume = volume.with_context(|| format!("no {name} on a slow disk"))?;
            let files = files.div_ceil(SLOW_SHARE);
            places.push(place(format!("{name}, {milliseconds} ms"), files, volume));
        }
    }
    Ok((places, notes))
}

fn place(name: String, files: usize, volume: Volume) -> Place {
    Place { name, path: volume.path(), files, _made: Made::Volume(volume) }
}

/// Continues in a process whose mounts are its own: what is mounted there goes with the process,
/// even if it is killed. Returns if this process has such mounts.
pub(crate) fn with_own_mounts() -> anyhow::Result<()> {
    if env::var_os(OWN_MOUNTS).is_some() || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let error = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(OWN_MOUNTS, "1")
        .exec();
    bail!("unshare does not start (Debian has it in util-linux): {error}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_needs_nothing_and_what_is_not_to_be_had_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (places, notes) = all(dir.path(), 10, &Filesystem::ALL, &[1.0]).unwrap();
        assert_eq!((places[0].name.as_str(), places[0].files), ("dir", 10));
        assert_eq!((places.len() - 1) / 2 + notes.len(), Filesystem::ALL.len(), "{notes:?}");
        assert!(places[1..].iter().all(|place| place.path.is_dir()));
        if let Some(slow) = places.iter().find(|place| place.name == "ext4, 1 ms") {
            assert_eq!(slow.files, 2);
        }
        // As a cell that is killed leaves it.
        fs::create_dir(places[0].path.join("left")).unwrap();
        drop(places);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
