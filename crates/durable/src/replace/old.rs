//! What a file that is replaced hands down to the new one: nobody may do more with that.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, RawMode, Uid};
use rustix::io::Errno;

use super::no_file;

/// Where Linux keeps the access control list of a file.
#[cfg(target_os = "linux")]
const ACL: &str = "system.posix_acl_access";

/// What the new file has of the old one.
#[derive(Debug)]
pub(super) struct Old {
    mode: Mode,
    owner: Uid,
    group: Gid,
    /// As the kernel tells it; empty if there is none.
    acl: Vec<u8>,
}

impl Old {
    /// `None` if there is none, or a symbolic link.
    pub(super) fn of(parent: &File, path: &Path, name: &OsStr) -> io::Result<Option<Self>> {
        let found = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            found => found?,
        };
        match FileType::from_raw_mode(found.st_mode as RawMode) {
            FileType::Symlink => return Ok(None),
            FileType::RegularFile => {}
            _ => return Err(no_file("it is no file but something else")),
        }
        Ok(Some(Self {
            mode: Mode::from_raw_mode(found.st_mode as RawMode),
            owner: Uid::from_raw(found.st_uid),
            group: Gid::from_raw(found.st_gid),
            acl: acl(path),
        }))
    }

    pub(super) fn hand_down(&self, file: &File) -> io::Result<()> {
        // Only the superuser can give files away: otherwise the file is that of who replaces it.
        let _ = rustix::fs::fchown(file, Some(self.owner), None);
        let group = rustix::fs::fchown(file, None, Some(self.group));
        // It may have one of its directory.
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fremovexattr(file, ACL);
        let mode =
            if group.is_ok() && self.acl.is_empty() { self.mode } else { without_group(self.mode) };
        rustix::fs::fchmod(file, mode)?;
        #[cfg(target_os = "linux")]
        if group.is_ok() && !self.acl.is_empty() {
            // If this fails, the file has the fewer permissions.
            let _ = rustix::fs::fsetxattr(file, ACL, &self.acl, rustix::fs::XattrFlags::empty());
        }
        Ok(())
    }
}

/// The group may do no more than others may.
fn without_group(mode: Mode) -> Mode {
    let group = Mode::from_bits_truncate((mode & Mode::RWXO).bits() << 3);
    (mode - Mode::RWXG - Mode::SGID) | (mode & group)
}

#[cfg(target_os = "linux")]
fn acl(path: &Path) -> Vec<u8> {
    // As much as an attribute can have.
    let mut acl = vec![0; 64 << 10];
    let length = rustix::fs::lgetxattr(path, ACL, &mut acl[..]).unwrap_or(0);
    acl.truncate(length);
    acl
}

#[cfg(not(target_os = "linux"))]
fn acl(_: &Path) -> Vec<u8> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_its_group_a_file_can_be_read_by_no_more() {
        for (mode, without) in
            [(0o660, 0o600), (0o664, 0o644), (0o2775, 0o755), (0o604, 0o604), (0o4751, 0o4711)]
        {
            assert_eq!(without_group(Mode::from_raw_mode(mode)).bits(), without, "{mode:o}");
        }
    }
}
