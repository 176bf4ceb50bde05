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
    /// As the kernel tells it; empty if there is none, and `None` if that is not known.
    acl: Option<Vec<u8>>,
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
            acl: acl(parent, name, path),
        }))
    }

    pub(super) fn hand_down(&self, file: &File) -> io::Result<()> {
        // Only the superuser can give files away: otherwise the file is that of who replaces it.
        let owner = rustix::fs::fchown(file, Some(self.owner), None);
        let group = rustix::fs::fchown(file, None, Some(self.group));
        // It may have one of its directory.
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fremovexattr(file, ACL);
        let kept = self.acl.as_deref().filter(|_| group.is_ok());
        let mode = if kept == Some(&[]) { self.mode } else { without_group(self.mode) };
        // A program must not run as somebody else than before.
        let mode = if owner.is_ok() { mode } else { mode - Mode::SUID };
        rustix::fs::fchmod(file, mode)?;
        #[cfg(target_os = "linux")]
        if let Some(acl @ [_, ..]) = kept {
            // If this fails, the file has the fewer permissions.
            let _ = rustix::fs::fsetxattr(file, ACL, acl, rustix::fs::XattrFlags::empty());
        }
        Ok(())
    }
}

/// The permissions if it is not known who the group is: the group and others may do what both
/// might.
fn without_group(mode: Mode) -> Mode {
    let both = (mode.bits() >> 3) & mode.bits() & Mode::RWXO.bits();
    let both = Mode::from_bits_truncate(both | both << 3);
    (mode - Mode::RWXG - Mode::RWXO - Mode::SGID) | both
}

#[cfg(target_os = "linux")]
fn acl(parent: &File, name: &OsStr, path: &Path) -> Option<Vec<u8>> {
    use std::os::fd::AsRawFd;
    // There is no call that takes a directory and a name.
    let folder = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string());
    let inside = if folder.exists() { folder.join(name) } else { path.to_owned() };
    // As much as an attribute can have.
    let mut acl = vec![0; 64 << 10];
    match rustix::fs::lgetxattr(inside, ACL, &mut acl[..]) {
        Ok(length) => acl.truncate(length),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => acl.clear(),
        Err(_) => return None,
    }
    Some(acl)
}

#[cfg(not(target_os = "linux"))]
fn acl(_: &File, _: &OsStr, _: &Path) -> Option<Vec<u8>> {
    Some(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_its_group_a_file_can_be_read_by_no_more() {
        for (mode, without) in
            [(0o660, 0o600), (0o664, 0o644), (0o2775, 0o755), (0o604, 0o600), (0o4751, 0o4711)]
        {
            assert_eq!(without_group(Mode::from_raw_mode(mode)).bits(), without, "{mode:o}");
        }
    }
}
