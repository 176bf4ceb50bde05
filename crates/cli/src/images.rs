//! Which image is which export: their names, and files that have several.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::bail;

/// An image is the export named after it: `dir/disk.img` is `disk`.
pub(crate) fn export_name(image: &Path) -> String {
    image.file_stem().map_or_else(|| "disk".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Refuses images that would be exports of one name.
pub(crate) fn check_names(images: &[PathBuf]) -> anyhow::Result<()> {
    for (index, image) in images.iter().enumerate() {
        let name = export_name(image);
        if let Some(other) = images[..index].iter().find(|other| export_name(other) == name) {
            if is_same_path(image, other) {
                bail!("{} is given twice: serve it once", image.display());
            }
            bail!(
                "{} and {} would both be export {name:?}: rename one",
                other.display(),
                image.display()
            );
        }
    }
    Ok(())
}

/// Whether two paths are one, however they are written.
pub(crate) fn is_same_path(one: &Path, other: &Path) -> bool {
    let absolute = std::path::absolute;
    one == other || absolute(one).is_ok_and(|one| absolute(other).is_ok_and(|other| one == other))
}

/// The files that are being served. Two exports of one file would undo each other's partial
/// writes. Its lock would refuse the second one, too, as if another program had the file.
#[derive(Default)]
pub(crate) struct Served(Vec<(FileIdentity, PathBuf)>);

/// What tells files apart, whatever their names: device and inode, or the device behind a node.
#[derive(PartialEq, Eq)]
enum FileIdentity {
    File { device: u64, inode: u64 },
    BlockDevice(u64),
}

impl Served {
    /// Refuses an image whose file is served already. One that does not exist is new.
    pub(crate) fn check(&self, image: &Path) -> anyhow::Result<()> {
        let Ok(identity) = identity(image) else { return Ok(()) };
        if let Some((_, other)) = self.0.iter().find(|(known, _)| *known == identity) {
            bail!("{} and {} are the same file: serve it once", other.display(), image.display());
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, image: &Path) {
        self.0.extend(identity(image).map(|identity| (identity, image.to_owned())));
    }

    /// Warns of images whose names do not lead to them any more: nothing has failed, and yet what
    /// clients have written is not where it will be looked for.
    pub(crate) fn warn_of_missing(&self) {
        for (known, image) in &self.0 {
            let name = image.display();
            match identity(image) {
                Ok(now) if now == *known => {}
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(
                        "cannot tell whether {name} is still the file that was served: {error}"
                    );
                }
                _ => tracing::warn!(
                    "{name} was removed, renamed or replaced while it was served: what was written is in the file that \
                     was there before"
                ),
            }
        }
    }
}

fn identity(image: &Path) -> io::Result<FileIdentity> {
    let metadata = fs::metadata(image)?;
    Ok(if metadata.file_type().is_block_device() {
        FileIdentity::BlockDevice(metadata.rdev())
    } else {
        FileIdentity::File { device: metadata.dev(), inode: metadata.ino() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_images_of_one_name_are_refused() {
        let same = [PathBuf::from("a/disk.img"), PathBuf::from("b/disk.raw")];
        assert!(check_names(&same).unwrap_err().to_string().contains("disk"));
    }
}
