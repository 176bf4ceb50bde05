//! How long a file is by now: it may be cut off while it is used.

use std::fs::File;
use std::os::unix::fs::FileTypeExt;

use rustix::fs::SeekFrom;

/// How the length of a file is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    OfFile,
    /// A block device has one, too, and it may change: that of a logical volume or a loop device.
    OfDevice,
    Unknown,
}

impl Length {
    pub(crate) fn of(file: &File) -> Self {
        match file.metadata().map(|file| file.file_type()) {
            Ok(kind) if kind.is_file() => Self::OfFile,
            Ok(kind) if kind.is_block_device() => Self::OfDevice,
            _ => Self::Unknown,
        }
    }

    /// The length now, if the system tells. This moves the position in a device, which nobody else
    /// may use.
    pub(crate) fn now(self, file: &File) -> Option<u64> {
        match self {
            Self::OfFile => rustix::fs::fstat(file).ok().map(|stat| stat.st_size.cast_unsigned()),
            Self::OfDevice => rustix::fs::seek(file, SeekFrom::End(0)).ok(),
            Self::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Arc;

    use crate::{Block, BlockError, Durability, File};

    /// A loop device, as long as it is there.
    struct Loop(String);

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").args(["-d", &self.0]).status();
        }
    }

    #[test]
    fn a_block_device_that_shrank_is_flushed_and_written_no_more() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(128 << 10).unwrap();
        let attached = Command::new("losetup").args(["-f", "--show"]).arg(image.path()).output();
        let attached = attached.ok().filter(|output| output.status.success());
        let Some(attached) = attached else {
            return println!("skipped: no loop device can be attached (losetup as root)");
        };
        let attached = Loop(String::from_utf8(attached.stdout).unwrap().trim().to_owned());
        let file = std::fs::File::options().read(true).write(true).open(&attached.0).unwrap();
        let device = File::new(Arc::new(file), 0, 128 << 10, 4096);
        device.write(124 << 10, &mut [1; 4096], Durability::Written).unwrap();
        image.as_file().set_len(64 << 10).unwrap();
        assert!(Command::new("losetup").args(["-c", &attached.0]).status().unwrap().success());
        let error = device.flush().unwrap_err().to_string();
        assert!(error.contains("shorter than the volume"), "{error}");
        let written = device.write(0, &mut [1; 4096], Durability::Written);
        assert!(matches!(written, Err(BlockError::Poisoned)), "{written:?}");
    }
}
