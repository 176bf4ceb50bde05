//! The files of a measurement: new ones, written into the page cache, and removed afterwards.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

/// A folder for files that all have the same size. Its changes to the filesystem are on disk once
/// it has been made, and once it has been dropped, so the next measurement has none of them to
/// write.
#[derive(Debug)]
pub struct Files {
    folder: Option<TempDir>,
    contents: Vec<u8>,
}

impl Files {
    /// Makes a new folder in `place`, for files of `size` bytes.
    ///
    /// # Errors
    /// If no folder can be made there.
    pub fn new(place: &Path, size: usize) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("homing-fsync-").tempdir_in(place)?;
        settle(folder.path())?;
        // Contents that no disk or filesystem can leave out.
        let contents = (0..size).map(|at| (at * 31 % 251) as u8 + 1).collect();
        Ok(Self { folder: Some(folder), contents })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new("."), TempDir::path)
    }

    /// Makes a new file and writes it.
    ///
    /// # Errors
    /// If the file cannot be made or written.
    pub fn make(&self, name: &str) -> io::Result<File> {
        let mut file = File::create_new(self.path().join(name))?;
        file.write_all(&self.contents)?;
        Ok(file)
    }

    /// Makes `count` new files, writes and closes them.
    ///
    /// # Errors
    /// As for [`make`](Self::make). The files that were made stay.
    pub fn make_many(&self, prefix: &str, count: usize) -> io::Result<Vec<PathBuf>> {
        let make = |number| {
            let name = format!("{prefix}-{number}");
            self.make(&name).map(|_| self.path().join(name))
        };
        (0..count).map(make).collect()
    }

    /// Removes these files. The removal is on disk before this returns.
    ///
    /// # Errors
    /// If a file cannot be removed. It and the files after it stay.
    pub fn remove(&self, paths: &[PathBuf]) -> io::Result<()> {
        paths.iter().try_for_each(fs::remove_file)?;
        settle(self.path())
    }

    /// Removes the folder with all its files, as dropping it does.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn close(mut self) -> io::Result<()> {
        self.clear()
    }

    fn clear(&mut self) -> io::Result<()> {
        let Some(folder) = self.folder.take() else { return Ok(()) };
        let place = folder.path().parent().map(Path::to_owned);
        let removed = folder.close();
        // If this fails, it only costs the next measurement.
        let _ = place.map(|place| settle(&place));
        removed
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Something else has failed before.
        let _ = self.clear();
    }
}

fn settle(place: &Path) -> io::Result<()> {
    rustix::fs::syncfs(fs::File::open(place)?)?;
    Ok(())
}

/// Lets this process have this many files open at a time, and some more. It raises the process's
/// limit, and grows the table of descriptors to the size that it has in a program that has run for
/// a while. In a process with threads, opening the file for which that table doubles waits for a
/// grace period of the kernel: measured, 30 ms on the way to 2,000 files, which is what opening all
/// of them takes.
///
/// # Errors
/// If that is more than the system allows the process.
pub fn allow_open(count: usize) -> io::Result<()> {
    raise_limit(count)?;
    let last = i32::try_from(count).map_err(io::Error::other)?;
    rustix::io::fcntl_dupfd_cloexec(fs::File::open("/")?, last)?;
    Ok(())
}

fn raise_limit(count: usize) -> io::Result<()> {
    let needed = count as u64 + 256;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        return Err(io::Error::other(format!(
            "{count} files cannot be open at a time: raise the limit (ulimit -Hn {needed}), or take \
             fewer files"
        )));
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_and_go_with_their_folder() {
        let place = tempfile::tempdir().unwrap();
        let files = Files::new(place.path(), 5000).unwrap();
        let paths = files.make_many("a", 3).unwrap();
        assert_eq!(paths.len(), 3);
        assert!(paths.iter().all(|path| path.metadata().unwrap().len() == 5000));
        files.remove(&paths[1..]).unwrap();
        assert_eq!(fs::read_dir(files.path()).unwrap().count(), 1);
        drop(files);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        allow_open(10).unwrap();
    }
}
