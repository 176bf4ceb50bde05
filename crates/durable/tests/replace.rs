//! Files that are replaced as a whole: what is there afterwards, whatever fails.

mod support;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::Duration;

use homing_durable::{Durable, Kind, ReplaceError};
use homing_runtime::Runtime;
use rustix::fs::Mode;
use support::{Call, World, inode};

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn it_is_synced_before_it_has_its_name_and_its_directory_afterwards() {
    let World { durable, disk, folder, .. } = &World::new();
    let path = folder.path().join("settings");
    let directory = inode(&File::open(folder.path()).unwrap());
    for contents in ["one", "", "a longer one"] {
        disk.forget_calls();
        if contents.is_empty() {
            durable.replace_and_wait(&path, contents.as_bytes()).unwrap();
        } else {
            durable.replace(&path, contents).wait().unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), contents);
        let file = fs::metadata(&path).unwrap().ino();
        let sync = Call::Sync(Kind::All);
        assert_eq!(disk.book().calls, [(sync, file), (sync, directory)]);
        assert_eq!(names(folder.path()), ["settings"]);
    }
}

#[test]
fn what_is_not_durable_does_not_take_its_place() {
    let World { durable, disk, folder, .. } = &World::new();
    let path = folder.path().join("settings");
    fs::write(&path, "old").unwrap();
    disk.fail_files(2);
    for wait in [false, true] {
        let replaced = if wait {
            durable.replace_and_wait(&path, b"new")
        } else {
            durable.replace(&path, "new").wait()
        };
        let error = replaced.unwrap_err();
        assert!(matches!(error, ReplaceError::NotDurable { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("settings") && text.contains("as it was"), "{text}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(folder.path()), ["settings"]);
        assert!(durable.failures().is_empty(), "nobody misses it");
    }
    durable.replace_and_wait(&path, b"new").unwrap();
}

#[test]
fn if_its_name_may_not_be_durable_that_is_said() {
    let World { durable, disk, folder, .. } = &World::new();
    let path = folder.path().join("settings");
    fs::write(&path, "old").unwrap();
    let directory = File::open(folder.path()).unwrap();
    disk.fail(Call::Sync(Kind::All), &directory, 1);
    let error = durable.replace(&path, "new").wait().unwrap_err();
    assert!(matches!(error, ReplaceError::Unsure { .. }), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    // The failure of the directory is kept until somebody acknowledges it.
    let error = durable.replace_and_wait(&path, b"newer").unwrap_err();
    assert!(matches!(error, ReplaceError::Unsure { .. }), "{error}");
    durable.acknowledge_loss(&directory).unwrap();
    durable.replace_and_wait(&path, b"newest").unwrap();
}

#[test]
fn what_cannot_be_replaced_is_named_and_left_alone() {
    let World { durable, folder, .. } = &World::new();
    let (missing, directory) = (folder.path().join("none/settings"), folder.path().join("folder"));
    fs::create_dir(&directory).unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::from_raw_mode(0o600)).unwrap();
    let [in_pipe, slash, dot] = ["pipe/x", "new/", "new/."].map(|name| folder.path().join(name));
    let dots = folder.path().join("..");
    for path in [&missing, &directory, &pipe, &in_pipe, &slash, &dot, Path::new("/"), &dots] {
        for replaced in
            [durable.replace_and_wait(path, b"new"), durable.replace(path, "new").wait()]
        {
            let error = replaced.unwrap_err();
            assert!(matches!(error, ReplaceError::Kept { .. }), "{error}");
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        }
    }
    assert_eq!(names(folder.path()), ["folder", "pipe"]);
}

#[test]
fn it_keeps_its_permissions_and_a_link_is_replaced_itself() {
    let World { durable, folder, .. } = &World::new();
    let [path, target, link] = ["path", "target", "link"].map(|name| folder.path().join(name));
    for mode in [0o600, 0o640, 0o777] {
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        durable.replace_and_wait(&path, b"new").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode);
    }
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(1001), Some(2000)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o4750)).unwrap();
        durable.replace_and_wait(&path, b"new").unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (1001, 2000, 0o4750));
    } else {
        println!("skipped: only root can give files away");
    }
    fs::write(&target, "target").unwrap();
    symlink(&target, &link).unwrap();
    durable.replace(&link, "new").wait().unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_file());
    assert_eq!(fs::read_to_string(&target).unwrap(), "target");
}

/// An access control list, as the kernel keeps it: what the owner, user 1005, the group, the mask
/// and others may do.
fn acl(permissions: [u16; 5]) -> Vec<u8> {
    let entries = [(1, u32::MAX), (2, 1005), (4, u32::MAX), (0x10, u32::MAX), (0x20, u32::MAX)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for ((tag, of), may) in entries.into_iter().zip(permissions) {
        let (tag, may): (u16, u16) = (tag, may);
        bytes.extend([tag.to_le_bytes(), may.to_le_bytes()].concat());
        bytes.extend(of.to_le_bytes());
    }
    bytes
}

#[test]
#[cfg(target_os = "linux")]
fn it_keeps_its_access_control_list_and_takes_none_of_its_directory() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    const OWN: &str = "system.posix_acl_access";
    let World { durable, folder, .. } = &World::new();
    let [with, without] = ["with", "without"].map(|name| folder.path().join(name));
    let list = acl([6, 4, 0, 6, 0]);
    fs::write(&with, "old").unwrap();
    fs::write(&without, "old").unwrap();
    fs::set_permissions(&without, Permissions::from_mode(0o640)).unwrap();
    if setxattr(&with, OWN, &list, XattrFlags::empty()).is_err() {
        println!("skipped: this filesystem has no access control lists");
        return;
    }
    let default = "system.posix_acl_default";
    setxattr(folder.path(), default, &acl([7, 7, 7, 7, 7]), XattrFlags::empty()).unwrap();
    let mut found = [0; 200];
    for path in [&with, &without] {
        durable.replace_and_wait(path, b"new").unwrap();
    }
    let length = getxattr(&with, OWN, &mut found[..]).unwrap();
    assert_eq!(found[..length], list);
    assert_eq!(fs::metadata(&with).unwrap().mode() & 0o777, 0o660, "the group's bits are the mask");
    assert!(getxattr(&without, OWN, &mut found[..]).is_err());
    assert_eq!(fs::metadata(&without).unwrap().mode() & 0o777, 0o640);
}

/// As after a timeout.
#[test]
fn one_that_was_dropped_and_is_late_does_not_undo_a_later_one() {
    let World { durable, disk, folder, .. } = &World::new();
    let path = folder.path().join("settings");
    disk.hold(true);
    let older = durable.replace(&path, "older");
    disk.until_asked(1);
    let newer = durable.replace(&path, "newer");
    disk.until_asked(2);
    drop(older);
    disk.hold(false);
    newer.wait().unwrap();
    let again = durable.replace(&path, "newest");
    again.wait().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "newest");
    assert_eq!(names(folder.path()), ["settings"]);
}

/// Readers and those who replace come at any time, and a dropped future runs on.
#[test]
fn every_reader_finds_one_of_the_contents_whole() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    let path = folder.path().join("settings");
    durable.replace_and_wait(&path, &[0; 5000]).unwrap();
    std::thread::scope(|scope| {
        for of in 1..4_u8 {
            let (durable, path) = (&durable, &path);
            scope.spawn(move || {
                for round in 0..20 {
                    if round % 2 == 0 {
                        durable.replace(path, vec![of; 5000]).wait().unwrap();
                    } else {
                        durable.replace_and_wait(path, &[of; 5000]).unwrap();
                    }
                }
            });
        }
        for _ in 0..200 {
            let found = fs::read(&path).unwrap();
            assert!(found.len() == 5000 && found.iter().all(|byte| *byte == found[0]));
        }
    });
    drop(durable.replace(&path, vec![9; 7]));
    runtime.shutdown(Duration::from_secs(20)).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [9; 7]);
    assert_eq!(names(folder.path()), ["settings"]);
}

#[test]
fn without_a_runtime_who_waits_does_it() {
    let World { runtime, durable, folder, .. } = World::new();
    let path = folder.path().join("settings");
    drop(runtime);
    let error = durable.replace(&path, "new").wait().unwrap_err();
    assert!(matches!(error, ReplaceError::Ended { .. }), "{error}");
    assert!(names(folder.path()).is_empty());
    durable.replace_and_wait(&path, b"new").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
}
