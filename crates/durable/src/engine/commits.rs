//! What a commit of a filesystem guarantees, and how the engine knows it.
//!
//! | filesystem | what `syncfs` does there |
//! | --- | --- |
//! | XFS | forces the log: the device is flushed only if that had anything to write. Not known where it has a realtime device: files may have their data there |
//! | ext4 | after all data, waits for the journal's commit, which flushes the device, or flushes it (`ext4_sync_fs`). Not where the journal is on another device, or where there is none; with `journal_async_commit` nobody is told if that flush fails; before Linux 6.15 it may say that all is well where the filesystem was shut down, or has become read-only because of an error (`tests/given_up.rs`) |
//! | btrfs | a commit of its own is asked for (`BTRFS_IOC_SYNC`), which waits for all data, then writes the superblocks between two flushes of each device. `syncfs` does the same, but says that all is well once an earlier commit has failed and the filesystem has become read-only. Not before Linux 6.5, which may miss the failure of a commit that others have begun |
//! | ext2, by a driver of its own | flushes nothing |
//! | others | not known: a FUSE server, for one, is not even told |
//!
//! ext2, 3 and 4 share one filesystem number. `/proc/fs/jbd2` names filesystems that have their own
//! journal, by their device and the journal's inode, which is 8 as `mkfs` makes it. If something
//! cannot be found out, the worse case is assumed.

use std::fs::File;

/// What [`System::sync_filesystem`](crate::System::sync_filesystem) guarantees for a filesystem.
///
/// ```
/// use homing_durable::{Commits, Linux, System};
///
/// // Files of a filesystem about which nothing is known are synced one by one.
/// assert_eq!(Linux.commits(&std::fs::File::open("/proc/self/stat")?), Commits::Unknown);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commits {
    /// Nothing is known about it: each file must be synced by itself.
    Unknown,
    /// All files of the filesystem are durable once its device has been flushed as well. If the
    /// commit itself fails, a later sync of any file reports that, too.
    ThenFlush,
    /// As [`Commits::ThenFlush`], but the commit may flush the device by itself. If it fails and no
    /// file says why, that flush may be what failed.
    MayFlush,
    /// All files of the filesystem are durable: the commit flushes the device itself, after
    /// everything else, and fails where a sync of a single file would.
    Flushed,
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn of(_: &File) -> Commits {
    Commits::Unknown
}

#[cfg(target_os = "linux")]
pub(crate) use linux::of;

#[cfg(target_os = "linux")]
mod linux {
    use std::path::Path;
    use std::sync::LazyLock;

    use rustix::fs::{AtFlags, FsWord, StatxFlags, fstatfs, major, minor, statx};

    use super::{Commits, File};
    use crate::files::file_id::FileId;

    /// Filesystems, by `statfs(2)`.
    const EXT: FsWord = 0xEF53;
    const XFS: FsWord = 0x5846_5342;

    /// Known from power cuts on these three (`tests/power_cut`), and from what the module says.
    pub(crate) fn of(file: &File) -> Commits {
        let Ok(id) = FileId::of(file) else { return Commits::Unknown };
        // Others than these that are on no block device may have to ask a server who they are.
        if major(id.device) == 0 {
            let is_known = release() >= (6, 5) && is_mounted_btrfs(file);
            return if is_known { Commits::Flushed } else { Commits::Unknown };
        }
        match fstatfs(file).map(|found| found.f_type) {
            // Since 5.17 `syncfs` reports what fails meanwhile, since 6.13 that it was shut down
            // before, since 6.15 that an error had made it read-only.
            Ok(EXT) if release() >= (6, 15) && has_plain_journal(file) => Commits::Flushed,
            // XFS shuts down after a failure of its log.
            Ok(XFS) if !has_realtime_device(file) => Commits::ThenFlush,
            Ok(EXT) => Commits::MayFlush,
            _ => Commits::Unknown,
        }
    }

    /// Whether a second device may hold data; also `true` if that cannot be found out.
    fn has_realtime_device(file: &File) -> bool {
        let Ok(FileId { device, .. }) = FileId::of(file) else { return true };
        let Ok(mounts) = std::fs::read_to_string("/proc/self/mountinfo") else { return true };
        names_realtime_device(&mounts, &format!("{}:{}", major(device), minor(device)))
    }

    /// Also `true` if the device is mounted nowhere here, as in another namespace: nothing is known
    /// then.
    fn names_realtime_device(mounts: &str, device: &str) -> bool {
        let of_it = |line: &&str| line.split(' ').nth(2) == Some(device);
        let mut of_it = mounts.lines().filter(of_it).peekable();
        let options = |line: &str| line.rsplit(' ').next().unwrap_or_default().to_owned();
        of_it.peek().is_none()
            || of_it.any(|line| options(line).split(',').any(|word| word.starts_with("rtdev=")))
    }

    /// Whether its journal is its own, and commits in the plain way.
    fn has_plain_journal(file: &File) -> bool {
        let Ok(FileId { device, .. }) = FileId::of(file) else { return false };
        let number = format!("/sys/dev/block/{}:{}", major(device), minor(device));
        let Ok(link) = std::fs::read_link(number) else { return false };
        let Some(name) = link.file_name().map(|name| name.to_string_lossy()) else { return false };
        let options = std::fs::read_to_string(format!("/proc/fs/ext4/{name}/options"));
        let is_plain = options.is_ok_and(|options| !options.contains("journal_async_commit"));
        is_plain && Path::new(&format!("/proc/fs/jbd2/{name}-8")).exists()
    }

    /// Whether the mount through which the file was opened is one of btrfs; `false` if that cannot
    /// be found out.
    fn is_mounted_btrfs(file: &File) -> bool {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let Ok(found) = statx(file, c"", flags, StatxFlags::MNT_ID) else { return false };
        let mounts = std::fs::read_to_string("/proc/self/mountinfo");
        found.stx_mask & StatxFlags::MNT_ID.bits() != 0
            && mounts.is_ok_and(|mounts| type_of_mount(&mounts, found.stx_mnt_id) == Some("btrfs"))
    }

    /// The type of the filesystem that is mounted under this number.
    fn type_of_mount(mounts: &str, number: u64) -> Option<&str> {
        let number = number.to_string();
        let of_it = |line: &&str| line.split(' ').next() == Some(&number);
        mounts.lines().find(of_it)?.split_once(" - ")?.1.split(' ').next()
    }

    /// This kernel's; 0.0 if it has no such number.
    fn release() -> (u32, u32) {
        static RELEASE: LazyLock<(u32, u32)> = LazyLock::new(|| {
            let release = rustix::system::uname();
            release_of(&release.release().to_string_lossy())
        });
        *RELEASE
    }

    fn release_of(text: &str) -> (u32, u32) {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
            _ => (0, 0),
        }
    }

    #[cfg(all(test, not(shuttle)))]
    mod tests {
        use super::*;

        #[test]
        fn a_realtime_device_is_found_among_the_mounts() {
            let mounts = "\
                22 1 8:1 / / rw,noatime shared:1 - ext4 /dev/sda1 rw\n\
                30 22 8:16 / /srv/a rw - xfs /dev/sdb rw,attr2,inode64,noquota\n\
                31 22 8:32 / /srv/b\\040c rw - xfs /dev/sdc rw,rtdev=/dev/sdd,noquota";
            assert!(!names_realtime_device(mounts, "8:16"));
            assert!(names_realtime_device(mounts, "8:32"));
            assert!(names_realtime_device(mounts, "8:3"), "nothing is known of it");
        }

        #[test]
        fn releases_are_compared_by_number() {
            for release in ["6.15.0", "6.15-rc1", "6.100", "7.0.1-generic", "6.18.44-fc"] {
                assert!(release_of(release) >= (6, 15), "{release}");
            }
            for release in ["6.14.9", "5.17.1", "6", "6.", "", "x.15", "6.2.15", "60"] {
                assert!(release_of(release) < (6, 15), "{release}");
            }
        }

        #[test]
        fn a_mount_has_the_type_that_its_line_names() {
            let mounts = "\
                22 1 0:33 /@ / rw,noatime shared:1 - btrfs /dev/sda1 rw,subvol=/@\n\
                2 22 0:40 / /a\\040-\\040b rw - nfs4 host:/a rw\n\
                23 22 0:41 / /c rw master:1 - fuse.btrfs - rw";
            assert_eq!(type_of_mount(mounts, 22), Some("btrfs"));
            assert_eq!(type_of_mount(mounts, 2), Some("nfs4"));
            assert_eq!(type_of_mount(mounts, 23), Some("fuse.btrfs"));
            assert_eq!(type_of_mount(mounts, 3), None);
        }
    }
}
