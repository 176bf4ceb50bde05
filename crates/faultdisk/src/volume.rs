//! A filesystem on a disk: the loop device, `mkfs`, the mount. All of it goes when dropped.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::disk::Disk;
use crate::fuse::Served;

/// How long an unmount waits for others to let go.
const IN_USE_MAX: Duration = Duration::from_secs(10);

/// A filesystem that survives the loss of its power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filesystem {
    /// XFS.
    Xfs,
    /// ext4, with its journal, ordered data.
    Ext4,
    /// btrfs, on one device.
    Btrfs,
}

impl Filesystem {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Xfs, Self::Ext4, Self::Btrfs];

    /// The name that `mount` has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
            Self::Btrfs => "btrfs",
        }
    }

    /// The smallest one that `mkfs` makes, in bytes.
    pub const fn size_min(self) -> u64 {
        match self {
            Self::Xfs => 320 << 20,
            Self::Ext4 => 64 << 20,
            Self::Btrfs => 128 << 20,
        }
    }

    /// The program that makes it, its arguments, and the Debian package that has the program.
    const fn mkfs(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            // Nothing is to be discarded on a new disk.
            Self::Xfs => ("mkfs.xfs", &["-q", "-f", "-K"], "xfsprogs"),
            // An inode for each block: room for as many small files as there is for their data.
            Self::Ext4 => {
                ("mkfs.ext4", &["-q", "-F", "-i", "4096", "-E", EXT4_OPTIONS], "e2fsprogs")
            }
            Self::Btrfs => ("mkfs.btrfs", &["-q", "-f", "-K"], "btrfs-progs"),
        }
    }
}

/// Everything is written when the filesystem is made: nothing goes on in the background.
const EXT4_OPTIONS: &str = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";

/// The filesystems of which volumes can be made here. Prints why the others are skipped.
///
/// # Panics
/// As [`unavailable`].
pub fn available() -> impl Iterator<Item = Filesystem> {
    Filesystem::ALL.into_iter().filter(|filesystem| {
        let reason = unavailable(*filesystem);
        if let Some(reason) = &reason {
            eprintln!("skipped: no {} here: {reason}", filesystem.name());
        }
        reason.is_none()
    })
}

/// Why volumes with this filesystem cannot be made here, if so.
///
/// # Panics
/// If only a package is missing, as [`missing`] does.
pub fn unavailable(filesystem: Filesystem) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may mount".to_owned());
    }
    let device = |path: &str| !Path::new(path).exists();
    if let Some(missing) = ["/dev/fuse", "/dev/loop-control"].into_iter().find(|path| device(path))
    {
        return Some(format!("there is no {missing}"));
    }
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let name = filesystem.name();
    if !known.lines().any(|line| line.trim() == name) {
        return Some(format!("this kernel has no {name}"));
    }
    // Volumes that are cut are mounted beside those that they are copies of.
    if filesystem == Filesystem::Btrfs && release() < (6, 7) {
        return Some("before Linux 6.7 two with one UUID cannot be mounted".to_owned());
    }
    let (program, _, package) = filesystem.mkfs();
    let found = command(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.err().map(|_| missing(&format!("{program} is not installed: Debian has it in {package}")))
}

/// The kernel's release; 0.0 if it has no such number.
fn release() -> (u32, u32) {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = text.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Why something is left out that a package would bring. This is a failure if
/// `HOMING_REQUIRE_TOOLS` is 1.
///
/// # Panics
/// In that case.
pub fn missing(reason: &str) -> String {
    let required = std::env::var_os("HOMING_REQUIRE_TOOLS");
    assert!(required.is_none_or(|value| value != "1"), "{reason}");
    reason.to_owned()
}

/// A mounted filesystem on a loop device. Unmounts, detaches and forgets when dropped.
#[derive(Debug)]
pub struct Volume {
    mounted: bool,
    /// Whether we still have to detach the loop device. Afterwards its number may be another's.
    attached: bool,
    loop_device: String,
    /// What the loop device stands on, if that is served from memory. Ends after the loop device.
    _served: Option<Served>,
    folder: TempDir,
}

impl Volume {
    /// Makes a filesystem on `disk`, and mounts it with these options of the filesystem.
    ///
    /// # Errors
    /// If something that this needs is missing here; the message says what.
    pub fn make(disk: &Arc<Disk>, filesystem: Filesystem, options: &str) -> io::Result<Self> {
        Self::of_disk(disk, filesystem, true, options)
    }

    /// Mounts the filesystem that is on `disk`, its journal recovered, with such options.
    ///
    /// # Errors
    /// As [`Volume::make`], and if it cannot be mounted.
    pub fn open(disk: &Arc<Disk>, filesystem: Filesystem, options: &str) -> io::Result<Self> {
        Self::of_disk(disk, filesystem, false, options)
    }

    /// Makes a filesystem of `size` bytes in a file in `folder`, and mounts it. The file has no
    /// name once the loop device has it.
    ///
    /// # Errors
    /// As [`Volume::make`].
    pub fn make_in(folder: &Path, size: u64, filesystem: Filesystem) -> io::Result<Self> {
        let file = tempfile::Builder::new().prefix("homing-loop-").tempfile_in(folder)?;
        file.as_file().set_len(size)?;
        let own = TempDir::new()?;
        let loop_device = attach(file.path())?;
        let volume =
            Self { mounted: false, attached: true, loop_device, _served: None, folder: own };
        drop(file);
        volume.mount(filesystem, true, "")
    }

    fn of_disk(
        disk: &Arc<Disk>,
        filesystem: Filesystem,
        makes: bool,
        options: &str,
    ) -> io::Result<Self> {
        let folder = TempDir::new()?;
        let file = folder.path().join("disk");
        File::create(&file)?;
        let served = Served::start(disk, &file)?;
        let loop_device = attach(&file)?;
        Self { mounted: false, attached: true, loop_device, _served: Some(served), folder }
            .mount(filesystem, makes, options)
    }

    fn mount(mut self, filesystem: Filesystem, makes: bool, options: &str) -> io::Result<Self> {
        if makes {
            let (program, arguments, _) = filesystem.mkfs();
            run(command(program).args(arguments).arg(&self.loop_device))?;
        }
        let path = self.path();
        fs::create_dir(&path)?;
        // Copies of one disk have the same UUID, and the previous copy may not be gone yet.
        let always = if filesystem == Filesystem::Xfs { "nouuid," } else { "" };
        let options = CString::new(format!("{always}{options}"))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount(&self.loop_device, &path, filesystem.name(), flags, options.as_c_str())?;
        self.mounted = true;
        // A loop device in use is detached when it is unmounted, even if this process is killed
        // before.
        run(command("losetup").arg("--detach").arg(&self.loop_device))?;
        self.attached = false;
        Ok(self)
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    /// Unmounts, and waits until all has been written.
    ///
    /// # Errors
    /// If it is in use, and still is 10 s later. A child process that another thread has just begun
    /// has its files open until it runs its program, and the kernel has those of an `io_uring` open
    /// for some time after the ring is closed.
    pub fn unmount(mut self) -> io::Result<()> {
        let deadline = Instant::now() + IN_USE_MAX;
        while let Err(errno) = unmount(self.path(), UnmountFlags::empty()) {
            if errno != Errno::BUSY || Instant::now() > deadline {
                return Err(errno.into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.mounted = false;
        Ok(())
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // If this fails, nobody is left to tell.
        if self.mounted && unmount(self.path(), UnmountFlags::empty()).is_err() {
            let _ = unmount(self.path(), UnmountFlags::DETACH);
        }
        if self.attached {
            let _ = command("losetup").arg("--detach").arg(&self.loop_device).output();
        }
    }
}

fn attach(file: &Path) -> io::Result<String> {
    run(command("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file))
}

/// A command, which is also looked for in the administrator's folders: not everyone has these in
/// the path.
fn command(program: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).stdin(Stdio::null());
    command
}

/// Runs a command, which must succeed. Returns what it printed.
fn run(command: &mut Command) -> io::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|error| {
        io::Error::new(error.kind(), format!("{program} does not start: {error}"))
    })?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(io::Error::other(format!("{program} failed: {}", said.trim())));
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}
