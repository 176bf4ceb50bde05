//! Files that are written at the end of long work. Whether they can be written is checked before
//! it, and a file that is there stays until the new one is whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, bail};
use tempfile::NamedTempFile;

/// Checks, before the long work, whether a file can be made there.
pub(crate) fn check(path: &Path) -> anyhow::Result<()> {
    if path.is_dir() {
        bail!("{} is a folder: give the name of a file in it", path.display());
    }
    if path.exists() && !path.is_file() {
        return Ok(());
    }
    beside(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// Writes a file next to the one that may be there, whose place it takes when it is whole.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = || -> io::Result<()> {
        if path.exists() && !path.is_file() {
            // A pipe, or a terminal.
            return fs::write(path, text);
        }
        let mut file = beside(path)?;
        file.as_file_mut().write_all(text.as_bytes())?;
        file.persist(path).map_err(|failed| failed.error)?;
        Ok(())
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

/// A temporary file next to `path`. Errors do not show its name, which nobody gave.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let made = |name: &Path| File::options().write(true).create_new(true).open(name);
    tempfile::Builder::new().make_in(folder.unwrap_or(Path::new(".")), made)
}
