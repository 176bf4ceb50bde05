//! Errors that the kernel makes: ext4 on a loop device below which there is no more space, or which
//! has become shorter. Needs root, for mounts and loop devices, and `mkfs.ext4` (Debian package
//! e2fsprogs); says why if it skips.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use homing_durable::{
    Backend, Commits, DurabilityError, Durable, Linux, Log, LogError, SharedFile, Sharing,
    Strategy, Synced, System, WriteBack,
};
use homing_runtime::Runtime;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

const MIB: u64 = 1 << 20;

/// A filesystem whose device can be spoilt.
struct Disk {
    folder: tempfile::TempDir,
    device: Option<String>,
    /// The error that data which cannot be written gives.
    errno: i32,
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {}", arguments.join(" "), text.trim()))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

impl Disk {
    /// Runs a test on a disk for each error, or prints why there is no such disk.
    fn each(errors: &[i32], test: impl Fn(&Self, &Durable)) {
        for errno in errors {
            let disk = match Self::new(*errno) {
                Ok(disk) => disk,
                Err(reason) => {
                    let required = std::env::var_os("HOMING_REQUIRE_TOOLS");
                    assert!(required.is_none_or(|value| value != "1"), "{reason}");
                    println!("skipped: {reason}");
                    continue;
                }
            };
            // The engine ends before the disk, because it keeps failed files open.
            let runtime = Runtime::new().unwrap();
            test(&disk, &Durable::new(&runtime).unwrap());
        }
    }

    fn new(errno: i32) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut disk = Self { folder, device: None, errno };
        let (memory, image, mount) = (disk.path("memory"), disk.image(), disk.path("mount"));
        fs::create_dir(&memory).and_then(|()| fs::create_dir(&mount)).unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=40m", "homing-test", text(&memory)])?;
        File::create(&image).and_then(|image| image.set_len(64 * MIB)).unwrap();
        // Without a journal, so that what is spoilt fails by itself, and not the whole filesystem.
        let options = ["-q", "-F", "-O", "^has_journal", "-E", "lazy_itable_init=0"];
        run("mkfs.ext4", &[&options[..], &[text(&image)]].concat())?;
        disk.device = Some(run("losetup", &["-f", "--show", text(&image)])?);
        disk.mount()?;
        fs::write(disk.file("good"), vec![1; 65536]).unwrap();
        // Without a journal nobody else flushes the device.
        assert_eq!(Linux.commits(&disk.open("good")), Commits::MayFlush);
        // So long that most of it stands where there will be no device.
        let length = if errno == EIO { 24 * MIB } else { 0 };
        fs::write(disk.file("bad"), vec![1; length as usize]).unwrap();
        run("sync", &["-f", text(&mount)])?;
        Ok(disk)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn image(&self) -> PathBuf {
        self.path("memory").join("image")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path("mount").join(name)
    }

    fn mount(&self) -> Result<(), String> {
        let device = self.device.as_deref().unwrap_or_default();
        run("mount", &["-t", "ext4", device, text(&self.path("mount"))]).map(drop)
    }

    /// A process that another test has just begun has our files until it runs its program.
    fn unmount(&self) {
        let unmounted = (0..500).any(|_| {
            thread::sleep(Duration::from_millis(10));
            run("umount", &[text(&self.path("mount"))]).is_ok()
        });
        assert!(unmounted, "it stays busy");
    }

    /// From now on, only data that already has its place can be written.
    fn spoil(&self) {
        if self.errno == EIO {
            let image = OpenOptions::new().write(true).open(self.image()).unwrap();
            image.set_len(16 * MIB).unwrap();
            run("losetup", &["-c", self.device.as_ref().unwrap()]).unwrap();
        } else {
            let mut filler = File::create(self.filler()).unwrap();
            while filler.write_all(&[1; 4096]).is_ok() {}
        }
    }

    fn filler(&self) -> PathBuf {
        self.path("memory").join("filler")
    }

    fn open(&self, name: &str) -> File {
        OpenOptions::new().read(true).write(true).open(self.file(name)).unwrap()
    }

    /// Writes data that can be made durable, or cannot.
    fn dirty(&self, name: &str) -> File {
        let file = self.open(name);
        let length = if self.errno == EIO { 20 * MIB } else { MIB };
        let length = if name == "good" { 65536 } else { length };
        file.write_all_at(&vec![2; length as usize], 0).unwrap();
        file
    }

    fn is_error(&self, verdict: Result<(), DurabilityError>) {
        let error = verdict.unwrap_err();
        // If there is no space for the file's metadata, the error is EIO.
        assert!([self.errno, EIO].contains(&error.errno), "{error}");
        assert!(error.file.ends_with("/bad"), "{error}");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let (memory, mount) = (self.path("memory"), self.path("mount"));
        let _ = run("umount", &[text(&mount)]);
        if let Some(device) = &self.device {
            let _ = run("losetup", &["-d", device]);
        }
        // Another process may have a copy of the mounts in a namespace of its own.
        let _ = run("umount", &["-l", text(&memory)]);
    }
}

#[test]
fn one_to_a_hundred_waiters_and_whoever_comes_later() {
    Disk::each(&[EIO, ENOSPC], |disk, durable| {
        let bad = disk.open("bad");
        disk.spoil();
        let runtime = Runtime::new().unwrap();
        let other = Durable::new(&runtime).unwrap();
        for count in [1, 10, 100] {
            disk.dirty("bad");
            let later = disk.open("bad");
            let dropped = durable.fsync(&bad);
            let all: Vec<_> = (0..count).map(|_| durable.fdatasync(&bad)).collect();
            drop(dropped);
            all.into_iter().map(Synced::wait).for_each(|verdict| disk.is_error(verdict));
            // The kernel may say that all is well now that it has reported the error to us.
            let _ = bad.sync_all();
            disk.is_error(durable.fsync_and_wait(&bad));
            disk.is_error(durable.fsync(&bad.try_clone().unwrap()).wait());
            disk.is_error(durable.fdatasync(&later).wait());
            let after = disk.open("bad");
            let _ = after.sync_all();
            disk.is_error(durable.fsync(&after).wait());
            // Nor has another engine heard anything of it.
            disk.is_error(other.fsync(&bad).wait());
            disk.is_error(other.fsync_and_wait(&bad));
            other.acknowledge_loss(&after).unwrap();
        }
        let good = disk.dirty("good");
        durable.fsync(&good).wait().unwrap();
    });
}

#[test]
fn a_dropped_future_and_a_duplicated_descriptor() {
    Disk::each(&[EIO, ENOSPC], |disk, durable| {
        disk.spoil();
        let bad = disk.dirty("bad");
        let same = bad.try_clone().unwrap();
        durable.fsync(&bad).detach();
        disk.is_error(durable.fsync(&same).wait());
        // Through another description, by which nobody has asked before, the kernel reports it
        // again.
        durable.acknowledge_loss(&bad).unwrap();
        let bad = disk.open("bad");
        let others = [disk.open("bad"), disk.open("bad")];
        disk.dirty("bad");
        let all = [&bad, &others[0], &others[1]].map(|file| durable.fsync(file));
        all.into_iter().map(Synced::wait).for_each(|verdict| disk.is_error(verdict));
    });
}

#[test]
fn a_batch_by_every_way() {
    Disk::each(&[EIO, ENOSPC], |disk, durable| {
        disk.spoil();
        for strategy in Strategy::ALL {
            for write_back in [WriteBack::Early, WriteBack::Late] {
                for backend in Backend::ALL {
                    if let Err(error) = durable.set_backend(backend) {
                        println!("skipped: no {} here: {error}", backend.name());
                        continue;
                    }
                    durable.set_strategy(strategy);
                    durable.set_write_back(write_back);
                    let (good, bad) = (disk.dirty("good"), disk.dirty("bad"));
                    let mut batch = durable.batch();
                    batch.fsync(&good).fsync(&bad).fdatasync(&good).fdatasync(&bad);
                    let [one, two, three, four] = batch.begin().wait().try_into().unwrap();
                    one.and(three).unwrap();
                    disk.is_error(two);
                    disk.is_error(four);
                    disk.is_error(durable.fsync(&bad).wait());
                    durable.acknowledge_loss(&bad).unwrap();
                }
            }
        }
    });
}

#[test]
fn a_file_that_many_share() {
    Disk::each(&[EIO, ENOSPC], |disk, durable| {
        disk.spoil();
        for sharing in [Sharing::Together, Sharing::Beside] {
            durable.set_sharing(sharing);
            let all: Vec<_> = (0..4).map(|_| Arc::new(disk.open("bad"))).collect();
            let file = SharedFile::new(all.clone()).unwrap();
            disk.dirty("bad");
            let (sender, receiver) = mpsc::channel();
            for _ in 0..20 {
                let sender = sender.clone();
                durable.fdatasync_shared(&file, move |verdict| sender.send(verdict).unwrap());
            }
            (0..20).for_each(|_| disk.is_error(receiver.recv().unwrap()));
            durable.acknowledge_loss(&all[0]).unwrap();
        }
    });
}

/// The data of a write that failed is in memory, and clean: a program that opens the log again is
/// not told that it is durable before it is.
#[test]
fn the_log() {
    Disk::each(&[ENOSPC], |disk, durable| {
        let path = disk.file("log");
        let (log, _) = Log::open(durable, &path).unwrap();
        let fine = log.append(b"fine").unwrap();
        log.commit_and_wait(fine).unwrap();
        disk.spoil();
        let error = log.commit(log.append(&vec![7; 4 << 20]).unwrap()).wait().unwrap_err();
        assert_eq!(error.errno, ENOSPC, "{error}");
        assert!(matches!(log.append(b"more"), Err(LogError::Failed(_))));
        assert_eq!(log.durable_sequence(), fine);
        drop(log);
        for _ in 0..2 {
            match Log::open(durable, &path) {
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains("cannot write anew the end of"), "{error}");
                }
                Ok((log, recovery)) => {
                    // A kernel that reclaims memory ahead of need may have dropped what was only
                    // there.
                    assert_eq!(log.durable_sequence(), fine, "{recovery:?}");
                    return println!("not in memory any more: skipped");
                }
            }
        }
        fs::remove_file(disk.filler()).unwrap();
        let (log, _) = Log::open(durable, &path).unwrap();
        let found = log.durable_sequence();
        assert_eq!(found, fine.next(), "it was in memory");
        drop(log);
        // What is only in memory goes.
        disk.unmount();
        disk.mount().unwrap();
        let (log, recovery) = Log::open(durable, &path).unwrap();
        assert_eq!((log.durable_sequence(), recovery.dropped_bytes), (found, 0));
        assert_eq!(log.records().map(Result::unwrap).count(), 2);
    });
}
