//! Makes new containers.
//!
//! A container appears under its name whole or not at all: it is made in a file without a name in
//! the same folder, made durable, and then linked.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use libcryptsetup_rs::consts::flags::{CryptActivate, CryptPbkdf, CryptVolumeKey};
use libcryptsetup_rs::consts::vals::{CryptKdf, EncryptionFormat};
use libcryptsetup_rs::{
    CryptInit, CryptParamsLuks2, CryptParamsLuks2Ref, CryptPbkdfType, Either, LibcryptErr,
};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::error::LuksError;
use super::header::{available_kib, has_swap};
use super::library::{self, DERIVING_MAX, Failed};
use crate::xts::SectorSize;

/// Where `libcryptsetup` puts the data by default.
const DATA_OFFSET: u64 = 16 << 20;
/// The least memory that argon2 takes here, in KiB.
const MEMORY_MIN_KIB: u64 = 32;
/// Bytes of an AES-256-XTS key.
const KEY_LEN: usize = 64;

/// What trying a passphrase costs: argon2id, as `cryptsetup` does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kdf {
    /// Measured on this machine so that one try takes `time_ms`, with at most `memory_kib` of
    /// memory (`None`: the library's 1 GiB, or half of what this process may use).
    Measured {
        /// Milliseconds for a try.
        time_ms: u32,
        /// KiB of memory, at most.
        memory_kib: Option<u32>,
    },
    /// As given, without measuring. Low costs are for passphrases that are random keys.
    Fixed {
        /// KiB of memory: at least 32.
        memory_kib: u32,
        /// Passes: at least 4.
        iterations: u32,
    },
}

/// How to make a container.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Bytes that the volume holds; the file is 16 MiB longer.
    pub size: u64,
    /// The unit of encryption. Default: 4096 bytes.
    pub sector_size: SectorSize,
    /// What a try costs. Default: two seconds, as `cryptsetup`.
    pub kdf: Kdf,
    /// Whether discards reach the file, now and whenever the container is opened.
    pub allow_discards: bool,
}

impl FormatOptions {
    /// A volume of `size` bytes, and otherwise the defaults.
    pub fn new(size: u64) -> Self {
        Self {
            size,
            sector_size: SectorSize::B4096,
            kdf: Kdf::Measured { time_ms: 2000, memory_kib: None },
            allow_discards: false,
        }
    }

    /// Whether such a volume can be made. To be asked before anybody is asked for a passphrase.
    ///
    /// # Errors
    /// [`LuksError::Size`], [`LuksError::DerivationMemory`].
    pub fn check(&self) -> Result<(), LuksError> {
        self.file_length()?;
        let needed_kib = match self.kdf {
            Kdf::Measured { memory_kib, .. } => memory_kib.unwrap_or(0),
            Kdf::Fixed { memory_kib, .. } => memory_kib,
        };
        match available_kib() {
            Some(available_kib) if u64::from(needed_kib) > available_kib && !has_swap() => {
                Err(LuksError::DerivationMemory { needed_kib, available_kib })
            }
            _ => Ok(()),
        }
    }

    fn file_length(&self) -> Result<u64, LuksError> {
        let sector_size = self.sector_size.bytes();
        let length = DATA_OFFSET.checked_add(self.size).filter(|length| *length < i64::MAX as u64);
        let whole = self.size > 0 && self.size.is_multiple_of(u64::from(sector_size));
        length.filter(|_| whole).ok_or(LuksError::Size { size: self.size, sector_size })
    }
}

/// Makes a LUKS2 container at `path`, which must not exist, with one key slot.
///
/// The file is sparse beyond its header. Measuring the key derivation takes several seconds.
///
/// # Errors
/// [`LuksError`]; then nothing is left behind.
pub fn format(path: &Path, options: &FormatOptions, passphrase: &[u8]) -> Result<(), LuksError> {
    options.check()?;
    let length = options.file_length()?;
    if path.symlink_metadata().is_ok() {
        return Err(LuksError::Exists { path: path.to_owned() });
    }
    let create = |source| LuksError::io("create", path, source);
    let count = deriving_threads();
    let no_threads = |source| LuksError::Threads { path: path.to_owned(), count, source };
    library::check_threads(count).map_err(no_threads)?;
    let mut draft = Draft::new(path).map_err(create)?;
    draft.file.set_len(length).map_err(|source| match source.kind() {
        io::ErrorKind::FileTooLarge => LuksError::TooLong { path: path.to_owned(), length },
        _ => create(source),
    })?;
    library::with(|| write_header(&draft.file, options, passphrase)).map_err(|failed| {
        let Failed { errno, message } = failed;
        match errno.filter(|_| disk_is_full(&draft.file)) {
            Some(_) => create(io::ErrorKind::StorageFull.into()),
            None => LuksError::Library { action: "make", path: path.to_owned(), message },
        }
    })?;
    draft.file.sync_all().map_err(create)?;
    draft.publish(path)
}

/// `libcryptsetup` says "input/output error" for a full disk: find out by asking for the header's
/// space.
fn disk_is_full(file: &fs::File) -> bool {
    let probe = rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, DATA_OFFSET);
    matches!(probe, Err(Errno::NOSPC | Errno::DQUOT))
}

fn write_header(
    file: &fs::File,
    options: &FormatOptions,
    passphrase: &[u8],
) -> Result<(), LibcryptErr> {
    let mut device = CryptInit::init(&fd_path(file))?;
    let params = CryptParamsLuks2 {
        pbkdf: Some(pbkdf(options.kdf)),
        integrity: None,
        integrity_params: None,
        data_alignment: 0,
        data_device: None,
        sector_size: options.sector_size.bytes(),
        label: None,
        subsystem: None,
    };
    let mut params: CryptParamsLuks2Ref<'_> = (&params).try_into()?;
    device.context_handle().format(
        EncryptionFormat::Luks2,
        ("aes", "xts-plain64"),
        None,
        Either::Right(KEY_LEN),
        Some(&mut params),
    )?;
    device.keyslot_handle().add_by_key(None, None, passphrase, CryptVolumeKey::empty())?;
    if options.allow_discards {
        let mut flags = device.luks2_flag_handle::<CryptActivate>();
        flags.persistent_flags_set(CryptActivate::ALLOW_DISCARDS)?;
    }
    Ok(())
}

fn deriving_threads() -> u64 {
    let cpus = std::thread::available_parallelism();
    cpus.map_or(1, |count| (count.get() as u64).min(DERIVING_MAX))
}

fn pbkdf(kdf: Kdf) -> CryptPbkdfType {
    let base = CryptPbkdfType {
        type_: CryptKdf::Argon2Id,
        hash: Some("sha256".to_owned()),
        time_ms: 0,
        iterations: 0,
        max_memory_kb: 1 << 20,
        parallel_threads: deriving_threads() as u32,
        flags: CryptPbkdf::empty(),
    };
    match kdf {
        Kdf::Measured { time_ms, memory_kib } => {
            // The library knows of the machine's memory, but not of what the cgroup may use.
            let half = available_kib().map_or(u64::MAX, |kib| kib / 2);
            let usual = u64::from(base.max_memory_kb).min(half).max(MEMORY_MIN_KIB) as u32;
            let max_memory_kb = memory_kib.unwrap_or(usual);
            CryptPbkdfType { time_ms, max_memory_kb, ..base }
        }
        Kdf::Fixed { memory_kib, iterations } => CryptPbkdfType {
            iterations,
            max_memory_kb: memory_kib,
            flags: CryptPbkdf::NO_BENCHMARK,
            ..base
        },
    }
}

fn fd_path(file: &fs::File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// A file that does not have its final name yet.
struct Draft {
    file: fs::File,
    /// Its temporary name, if the file system needs one. Removed on drop.
    name: Option<PathBuf>,
}

impl Draft {
    fn new(path: &Path) -> io::Result<Self> {
        let folder = folder_of(path);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(folder, flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => Ok(Self { file: file.into(), name: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                // A name that no other program has left behind: the standard library draws a random
                // number.
                let drawn = RandomState::new().hash_one(std::process::id());
                let mut name = path.as_os_str().to_owned();
                name.push(format!(".{drawn:016x}.new"));
                let mut options = fs::OpenOptions::new();
                options.read(true).write(true).create_new(true).mode(0o600);
                let file = options.open(&name)?;
                Ok(Self { file, name: Some(name.into()) })
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Links the file under `path`, never over something else.
    fn publish(&mut self, path: &Path) -> Result<(), LuksError> {
        let linked = match &self.name {
            None => {
                rustix::fs::linkat(CWD, fd_path(&self.file), CWD, path, AtFlags::SYMLINK_FOLLOW)
            }
            // Not all file systems have both.
            Some(name) => match renameat_with(CWD, name, CWD, path, RenameFlags::NOREPLACE) {
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    rustix::fs::linkat(CWD, name, CWD, path, AtFlags::empty())
                }
                renamed => renamed,
            },
        };
        match linked {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(LuksError::Exists { path: path.to_owned() }),
            Err(errno) => return Err(LuksError::io("create", path, errno.into())),
        }
        let folder = fs::File::open(folder_of(path)).and_then(|folder| folder.sync_all());
        folder.map_err(|source| {
            // The file is still ours alone, and nobody will learn that it was there.
            let _ = fs::remove_file(path);
            LuksError::io("make durable", path, source)
        })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // Whether published or not, the temporary name has served its time.
            let _ = fs::remove_file(name);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_with_a_name_gets_another_one_that_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        let draft = |number: u8| {
            let name = folder.path().join(format!("{number}.new"));
            let file = fs::File::create(&name).unwrap();
            Draft { file, name: Some(name) }
        };
        draft(1).publish(&path).unwrap();
        let taken = draft(2).publish(&path);
        assert!(matches!(taken, Err(LuksError::Exists { .. })), "{taken:?}");
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["disk.img"]);
    }
}
