//! Descriptors that cannot be synced, or are no longer what they were. A caller that misuses one is
//! told, and neither the file nor any other caller is harmed.

mod support;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;

use homing_durable::{Durable, Strategy};
use homing_runtime::Runtime;
use rustix::fs::{Mode, OFlags};
use support::{Call, World};

const EBADF: i32 = 9;
const ENOTDIR: i32 = 20;
const EINVAL: i32 = 22;

struct Real {
    durable: Durable,
    _runtime: Runtime,
    folder: tempfile::TempDir,
}

impl Real {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let durable = Durable::new(&runtime).unwrap();
        Self { durable, _runtime: runtime, folder: tempfile::tempdir_in("/var/tmp").unwrap() }
    }

    fn file(&self, name: &str) -> File {
        fs::write(self.folder.path().join(name), name).unwrap();
        File::options().append(true).open(self.folder.path().join(name)).unwrap()
    }

    /// A descriptor for which only the path is open.
    fn path_of(&self, name: &str) -> File {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let path = self.folder.path().join(name);
        File::from(rustix::fs::open(path, flags, Mode::empty()).unwrap())
    }
}

#[test]
fn a_descriptor_of_a_path_alone_is_refused_and_its_file_has_not_failed() {
    let real = Real::new();
    let (file, path) = (real.file("file"), real.path_of("file"));
    assert_eq!(real.durable.fsync(&path).wait().unwrap_err().errno, EBADF);
    assert_eq!(real.durable.fsync_and_wait(&path).unwrap_err().errno, EBADF);
    assert_eq!(real.durable.failures(), []);
    real.durable.fsync(&file).wait().unwrap();
    // Nor are the files harmed that are synced with it.
    let others: Vec<_> = (0..10).map(|number| real.file(&number.to_string())).collect();
    for strategy in Strategy::ALL {
        real.durable.set_strategy(strategy);
        let mut batch = real.durable.batch();
        batch.fsync(&path).fsync(&file);
        for other in &others {
            batch.fsync(other);
        }
        let mut verdicts = batch.begin().wait().into_iter();
        assert_eq!(verdicts.next().unwrap().unwrap_err().errno, EBADF);
        verdicts.for_each(|verdict| verdict.unwrap());
        assert_eq!(real.durable.failures(), []);
    }
}

/// Whoever gives the new file instead would take its name for durable.
#[test]
fn what_is_no_directory_has_no_names_to_sync() {
    let real = Real::new();
    let (file, folder) = (real.file("new"), File::open(real.folder.path()).unwrap());
    let error = real.durable.fsync_dir(&file).wait().unwrap_err();
    assert_eq!(error.errno, ENOTDIR);
    assert!(error.file.ends_with("/new") && error.to_string().contains("no name"), "{error}");
    let mut batch = real.durable.batch();
    batch.fsync_dir(&file).fsync(&file).fsync_dir(&folder);
    let [refused, synced, names] = batch.begin().wait().try_into().unwrap();
    assert_eq!(refused.unwrap_err().errno, ENOTDIR);
    synced.and(names).unwrap();
    assert_eq!(real.durable.failures(), [], "it has not failed");
    real.durable.fsync_dir(&folder).wait().unwrap();
    // What cannot be synced at all is refused for that.
    assert_eq!(real.durable.fsync_dir(&real.path_of("new")).wait().unwrap_err().errno, EBADF);
}

#[test]
fn what_cannot_be_synced_is_refused_and_not_kept_open() {
    let real = Real::new();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let writer = File::from(OwnedFd::from(writer));
    for _ in 0..2 {
        assert_eq!(real.durable.fsync(&writer).wait().unwrap_err().errno, EINVAL);
        assert_eq!(real.durable.fsync_and_wait(&writer).unwrap_err().errno, EINVAL);
    }
    // The kernel has no such operation for these.
    for path in ["/proc/self/stat", "/proc", "/proc/self/ns/mnt"] {
        let Ok(file) = File::open(path) else { continue };
        assert_eq!(real.durable.fsync(&file).wait().unwrap_err().errno, EINVAL, "{path}");
    }
    assert_eq!(real.durable.failures(), [], "it has nothing to lose");
    drop(writer);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(reader.read_to_end(&mut Vec::new()).unwrap()));
    let read = told.recv_timeout(std::time::Duration::from_secs(20));
    assert_eq!(read, Ok(0), "whoever reads it is told of its end");
}

#[test]
fn another_description_under_a_known_number_is_asked_too() {
    let world = World::new();
    let file = world.file("twice");
    let other = File::open(world.folder.path().join("twice")).unwrap();
    world.durable.set_depth(1);
    let blocker = world.file("blocker");
    world.disk.hold(true);
    let blocked = world.durable.fsync(&blocker);
    world.disk.until_asked(1);
    let first = world.durable.fsync(&file);
    let mut number = OwnedFd::from(file);
    rustix::io::dup2(&other, &mut number).unwrap();
    let file = File::from(number);
    let second = world.durable.fsync(&file);
    // Of the two descriptions, the second one has heard of an error.
    world.disk.fail(Call::Check, &file, 1);
    world.disk.hold(false);
    blocked.wait().unwrap();
    assert_eq!(first.wait().unwrap_err().errno, 5);
    assert_eq!(second.wait().unwrap_err().errno, 5);
}
